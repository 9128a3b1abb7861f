#!/usr/bin/env python3
"""Requests that arrive at a fixed interval while services restart, and an HTTP gateway at a socket that outlives it.

restart.py serve PORT_FILE PROGRAM ARG ...   binds a port and starts PROGRAM with it as systemd does; at USR1 it sends TERM to
                                             PROGRAM, waits for its end and starts it again
restart.py load PORT_FILE SECONDS            sends a request each half second, prints what was not answered and the slowest
"""
import http.client, json, os, signal, socket, subprocess, sys, threading, time


def serve(port_file, command):
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen(128)
    again = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: again.set())

    def start():
        pid = os.fork()
        if pid == 0:
            if s.fileno() == 3:
                os.set_inheritable(3, True)
            else:
                os.dup2(s.fileno(), 3)
            env = dict(os.environ, LISTEN_FDS="1", LISTEN_FDNAMES="http", LISTEN_PID=str(os.getpid()))
            os.execvpe(command[0], command, env)
        return pid

    pid = start()
    signal.signal(signal.SIGTERM, lambda *_: (os.kill(pid, signal.SIGTERM), os._exit(0)))
    with open(port_file + ".new", "w") as f:
        f.write(str(s.getsockname()[1]))
    os.rename(port_file + ".new", port_file)
    while True:
        again.wait(0.05)
        if again.is_set():
            again.clear()
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            pid = start()


def load(port_file, seconds):
    port, results, threads = int(open(port_file).read()), [], []

    def one(i):
        began = time.monotonic()
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            body = {"prompt": f"{i} is a number, and", "max_tokens": 8, "ignore_eos": True, "temperature": 0}
            c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            text = r.read().decode()
            bad = None if r.status == 200 and json.loads(text)["usage"]["completion_tokens"] == 8 else f"{r.status} {text[:200]}"
        except Exception as e:
            bad = repr(e)
        results.append((time.monotonic() - began, bad))

    end, i = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        threads.append(threading.Thread(target=one, args=(i,)))
        threads[-1].start()
        i += 1
        time.sleep(0.5)
    for t in threads:
        t.join()
    for _, bad in results:
        if bad:
            print(bad, file=sys.stderr)
    errors = sum(bad is not None for _, bad in results)
    print(f"{len(results)} requests, {errors} errors, the slowest answer took {max(t for t, _ in results):.2f} s")
    sys.exit(errors > 0)


if sys.argv[1] == "serve":
    serve(sys.argv[2], sys.argv[3:])
else:
    load(sys.argv[2], float(sys.argv[3]))
