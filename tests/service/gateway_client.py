"""Misbehaving clients of stream --http, for gateway.bats: gateway_client.py SOCKET CHECK [ARG …]. Standard library only."""

import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time

SOCKET, CHECK = sys.argv[1:3]
ARGS = sys.argv[3:]


def connect(path=None):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(30)
    s.connect(path or SOCKET)
    return s


class Connection(http.client.HTTPConnection):
    def __init__(self, path=None):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = connect(self.path)


def raw(body, path="/v1/completions", **headers):
    b = json.dumps(body).encode()
    more = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(b)}\r\n{more}\r\n").encode() + b


def ask(body=None, path="/v1/completions", headers=None, at=None):
    c = Connection(at)
    c.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body),
              {"Content-Type": "application/json", **(headers or {})})
    r = c.getresponse()
    data = r.read()
    c.close()
    return r.status, r.headers, data


def load():
    return json.loads(ask(path="/load")[2])["server_load"]


def until(what, seconds, why):
    end = time.monotonic() + seconds
    begin = time.monotonic()
    while not what():
        assert time.monotonic() < end, why
        time.sleep(0.002)
    return time.monotonic() - begin


def completion(**k):
    return {"prompt": "word " * 50, "max_tokens": 400, "temperature": 0, "ignore_eos": True, **k}


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def stat():
    return json.loads(subprocess.run(["phasepipe", "ctl", "--run", os.environ["RUN"], "--json", "sched"], stdout=subprocess.PIPE, check=True).stdout)


def gone():
    """Streamed, not streamed, and while it waits: the end of a client is noticed within 100 ms, and nothing of it is left."""
    for body in (completion(stream=True), completion(), completion(prompt="word " * 4000, stream=True)):
        for leave in (socket.socket.close, reset):
            s = connect()
            s.sendall(raw(body))
            until(lambda: load() == 1, 5, "it never ran")
            time.sleep(0.05)
            leave(s)
            took = until(lambda: load() == 0, 2, "its client has left, and it continues")
            assert took < 0.1 * float(os.environ.get("SLOW", 1)), took
            until(lambda: stat()["running"] == 0 and stat()["waiting"] == 0, 3, "the scheduler still has it")
    for _ in range(10):
        s = connect()
        s.sendall(raw(completion(stream=True)))
        s.recv(1)
        s.close()
    until(lambda: load() == 0, 2, "ten that left are not gone")
    assert ask(completion(max_tokens=2))[0] == 200


def half():
    """A client that has closed its side of the connection (half-close) still receives its answer."""
    for stream in (True, False):
        s = connect()
        s.sendall(raw(completion(max_tokens=60, stream=stream), Connection="close"))
        s.shutdown(socket.SHUT_WR)
        data = b""
        while x := s.recv(65536):
            data += x
        head, _, rest = data.partition(b"HTTP/1.1 200 OK")
        assert head.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"") == b"", head[:200]
        assert (b"[DONE]" if stream else b'"completion_tokens":60') in rest, rest[-300:]


def slow():
    """Who does not read holds up nobody, and has it all when it reads at last."""
    s = connect()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.sendall(raw(completion(max_tokens=200, n=10, temperature=1, stream=True, logprobs=5), Connection="close"))
    times = []
    for _ in range(10):
        t = time.monotonic()
        assert ask(completion(max_tokens=5))[0] == 200
        times.append(time.monotonic() - t)
    assert max(times) < 2, times
    until(lambda: load() == 0 or time.sleep(0.05), 20, "it waits for its reader")
    r = http.client.HTTPResponse(s)
    r.begin()
    data = r.read().decode().split("\n\n")
    assert data[-2:] == ["data: [DONE]", ""]
    n = sum(len(json.loads(x[6:])["choices"][0]["logprobs"]["tokens"]) for x in data[:-2])
    assert n == 2000, n


def many():
    """As many streams as there are arguments, all whole; health and metrics answer meanwhile."""
    n, tokens, ok = int(ARGS[0]), 20, []

    def one(group):
        socks = []
        for _ in range(group):
            s = connect()
            s.sendall(raw(completion(prompt="a", max_tokens=tokens, stream=True), Connection="close"))
            socks.append(s)
        for s in socks:
            data = b""
            while x := s.recv(65536):
                data += x
            s.close()
            ok.append(b"[DONE]" in data and b'"finish_reason":"length"' in data)

    threads = [threading.Thread(target=one, args=(n // 10,)) for _ in range(10)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        for path in ("/health", "/live", "/metrics"):
            t = time.monotonic()
            assert ask(path=path)[0] == 200
            assert time.monotonic() - t < 1, path
        time.sleep(0.05)
    assert len(ok) == n and all(ok), (len(ok), sum(ok))


def text_of(on_token=None, **k):
    c = Connection()
    c.request("POST", "/v1/completions", json.dumps(completion(stream=True, **k)), {"Content-Type": "application/json"})
    r, out, n = c.getresponse(), "", 0
    assert r.status == 200
    for line in r:
        if line.startswith(b"data: {"):
            e = json.loads(line[6:])
            assert "error" not in e, e
            out += e["choices"][0]["text"]
            n += 1
            if on_token:
                on_token(n)
    c.close()
    return out


def pid_of(name):
    ps = json.loads(subprocess.run(["phasepipe", "ps", "--run", os.environ["RUN"], "--json"], stdout=subprocess.PIPE, check=True).stdout)
    return next(p["pid"] for p in ps if p["name"] == name)


def dying():
    """decode, prefill, tokenize and sched killed in mid-stream: the client sees the text of an undisturbed run."""
    want = text_of(prompt="a b c", max_tokens=150)
    for name in ("decode-0", "sched", "tokenize", "kvstore"):
        got = text_of(lambda n: os.kill(pid_of(name), 9) if n == 40 else None, prompt="a b c", max_tokens=150)
        assert got == want, (name, len(got), len(want))


def full():
    """Beyond what may wait: 429, with when to come again. The others are answered."""
    got = []

    def one():
        got.append(ask(completion(max_tokens=30)))

    threads = [threading.Thread(target=one) for _ in range(24)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    status = sorted(g[0] for g in got)
    assert set(status) == {200, 429} and status.count(200) >= 4, status
    refused = next(g for g in got if g[0] == 429)
    assert int(refused[1]["Retry-After"]) >= 1 and json.loads(refused[2])["error"]["type"] == "RateLimitError", refused[2]


def too_many():
    """One request whose answers alone are more than may wait: 400 with both numbers, though nothing waits; as many as may: 200."""
    limit = int(ARGS[0])
    for prompts, n, want in ((limit, 1, 200), (limit // 2, 2, 200), (1, limit, 200), (limit + 1, 1, 400), (limit // 2, 3, 400), (1024, 128, 400)):
        status, headers, data = ask({"prompt": ["a"] * prompts, "n": n, "max_tokens": 1, "temperature": 1})
        assert status == want, (prompts, n, status, data[:300])
        if want == 200:
            assert len(json.loads(data)["choices"]) == prompts * n
        else:
            message = json.loads(data)["error"]["message"]
            assert str(prompts * n) in message and str(limit) in message and "Retry-After" not in headers, (message, headers)


def drains():
    """SIGTERM: what runs ends whole, what is new is refused, then the process ends by itself."""
    pid, status = int(ARGS[0]), []

    def on_token(n):
        if n == 5:
            os.kill(pid, 15)
            time.sleep(0.1)
            status.extend((ask(completion(max_tokens=1))[0], ask(path="/health")[0], ask(path="/live")[0]))

    n = len(text_of(on_token, prompt="a", max_tokens=100).split())
    assert n > 0 and status == [503, 503, 200], status
    until(lambda: not lives(pid), 5, "it continues")


def lives(pid):
    return os.path.exists(f"/proc/{pid}") and open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"


def reads_on():
    """SIGTERM: a slow reader receives the whole answer, and then the process exits. A client that reads nothing, or has sent half
    a request, delays the exit by at most --drain-seconds."""
    pid, deaf, half = int(ARGS[0]), ARGS[1:] == ["deaf"], connect()
    half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
    s = connect()
    s.sendall(raw(completion(prompt="a", max_tokens=300, n=10, temperature=1, stream=True, logprobs=5), Connection="close"))
    until(lambda: load() == 1, 5, "it never ran")
    until(lambda: load() == 0 or time.sleep(0.05), 20, "it waits for its reader")
    time.sleep(0.5)
    os.kill(pid, 15)
    begin, data = time.monotonic(), b""
    while not deaf and (x := s.recv(30000)):
        data += x
        time.sleep(0.1)
        if time.monotonic() - begin < 2.5:
            assert lives(pid) and ask(completion(max_tokens=1))[0] == 503 and ask(path="/live")[0] == 200
    took = time.monotonic() - begin
    if not deaf:
        assert took > 2.5 and data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), (took, data[-60:])
    until(lambda: not lives(pid), 4 if deaf else 1.5, "it continues")


def large():
    """A request that takes seconds to parse delays no stream, and no small request after it."""
    gaps, stop = [], threading.Event()

    def stream():
        s = connect()
        s.sendall(raw(completion(max_tokens=5000, ignore_eos=True, stream=True)))
        last = None
        while not stop.is_set():
            try:
                assert s.recv(65536)
            except TimeoutError:
                continue
            now = time.monotonic()
            if last:
                gaps.append(now - last)
            last = now
        reset(s)

    word = "".join(chr(97 + (i * i * 7 + i // 3) % 26) for i in range(100003)) * 38  # without a blank: one word to merge
    t = threading.Thread(target=stream, daemon=True)
    t.start()
    until(lambda: len(gaps) > 20, 20, "no stream")
    took = []
    for path, body, status, words in (
            ("/tokenize", {"prompt": word}, 200, b'"count":'),
            ("/v1/completions", completion(prompt=word, max_tokens=1), 400, b"requested at least "),
            ("/v1/completions", {**completion(max_tokens=1), **{f"f{i}": [i] for i in range(300000)}}, 200, b'"choices"'),
            ("/v1/completions", completion(prompt=[5] * 1000000, max_tokens=1), 400, b"(1000000 in the messages")):
        del gaps[:]
        begin = time.monotonic()
        while True:  # what is refused quickly is sent again, so that the stream has time to show a pause
            got, _, data = ask(body, path)
            assert got == status and words in data, (path, got, data[:300])
            if time.monotonic() - begin > 0.3:
                break
        took.append(time.monotonic() - begin)
        # A token takes 5 ms, and others may have the processors: a loop that waited would have shown two or three events.
        assert len(gaps) >= max(1, 0.05 * took[-1] / 0.005), (path, len(gaps), max(gaps, default=0), took)
    assert took[0] > 0.3, took  # or nothing was shown
    # one that leaves while it is read
    s = connect()
    s.sendall(raw({"prompt": word}, "/tokenize"))
    reset(s)
    assert ask(completion(max_tokens=1))[0] == 200
    stop.set()
    t.join()
    until(lambda: load() == 0, 10, "something runs on")


def window():
    """The answer ends where the window does, with its reason; a prompt beyond it is refused with both numbers, streamed or not."""
    limit = json.loads(ask(path="/v1/models")[2])["data"][0]["max_model_len"]
    assert 1000 < limit <= 8192, limit
    # as vLLM: of a completion the 16 that are the default count like 16 that were requested
    status, _, data = ask({"prompt": [97] * (limit - 7), "ignore_eos": True})
    assert status == 400 and b", 16 in the completion)" in data and str(limit).encode() in data, data
    status, _, data = ask({"prompt": [97] * (limit - 7), "ignore_eos": True, "max_tokens": 7})
    a = json.loads(data)
    assert status == 200 and a["choices"][0]["finish_reason"] == "length" and a["usage"]["completion_tokens"] == 7, data[-400:]
    chat = {"messages": [{"role": "user", "content": "word " * (limit - 60)}], "ignore_eos": True}
    n = json.loads(ask({"messages": chat["messages"]}, "/tokenize")[2])["count"]
    status, _, data = ask(chat, "/v1/chat/completions")
    a = json.loads(data)
    assert status == 200 and a["choices"][0]["finish_reason"] == "length", data[-400:]
    assert a["usage"]["completion_tokens"] == limit - n > 0 and a["usage"]["prompt_tokens"] == n, (limit, n, a["usage"])
    for stream in (False, True):
        for body, path in (({"prompt": [97] * (limit + 1)}, "/v1/completions"),
                           ({"messages": [{"role": "user", "content": "word " * (limit + 1 - n + limit - 60)}]}, "/v1/chat/completions")):
            status, _, data = ask({**body, "stream": stream}, path)
            message = json.loads(data)["error"]["message"]
            assert status == 400 and str(limit) in message and str(limit + 1) in message, (path, status, data, limit)


{f.__name__: f for f in (gone, half, slow, many, dying, full, drains, window, large, too_many, reads_on)}[CHECK]()
