"""Runs the check of the README's commands (curl_recipes.py) against servers with wrong responses: it must detect each one and
name the command. Each server is a proxy of the real one that changes one thing."""

import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import service

HERE = os.path.dirname(os.path.abspath(__file__))
METRIC = b"vllm:time_to_first_token_seconds"


def at(path, change):
    """A function that applies change to (status, body) of the paths with this prefix."""
    return lambda p, status, body: change(status, body) if p.startswith(path) else (status, body)


def replaced(path, pattern, by):
    return at(path, lambda status, body: (status, re.sub(pattern, by, body)))


def failed(status, body):
    return 500, b'{"error": {"message": "wrong", "type": "internal_error", "param": null, "code": 500}}'


def empty(status, body):
    return status, b"{}"


# what is wrong: (the change, the path of the command that the check must name)
WRONG = {
    "500 of the chat": (at("/v1/chat", failed), "/v1/chat"),
    "500 of the stream": (at("/v1/completions", failed), "/v1/completions"),
    "500 of Ollama": (at("/api/generate", failed), "/api/generate"),
    "an empty object of the chat": (at("/v1/chat", empty), "/v1/chat"),
    "an empty object of Ollama": (at("/api/generate", empty), "/api/generate"),
    "a stream without its end": (replaced("/v1/completions", rb"data: \[DONE\]\n\n", b""), "/v1/completions"),
    "counters renamed": (replaced("/api/generate", rb'"(\w+_(?:count|duration))":', rb'"x_\1":'), "/api/generate"),
    "one counter gone": (replaced("/api/generate", rb'"prompt_eval_cached_count":\d+,?', b""), "/api/generate"),
    "milliseconds": (replaced("/api/generate", rb'(_duration":\d+)\d{6}\b', rb"\1"), "/api/generate"),
    "the histogram renamed": (replaced("/metrics", METRIC + rb"_(sum|count)", rb"vllm:time_to_first_token_seconds_x"), "/metrics"),
    "nothing counted": (replaced("/metrics", rb"(?m)^(" + METRIC + rb"_\w+\{.*\}) .*$", rb"\1 0"), "/metrics"),
}


def proxy(to, change):
    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            n = int(self.headers.get("Content-Length") or 0)
            r = urllib.request.Request(to + self.path, data=self.rfile.read(n) if n else None, method=self.command,
                                       headers={"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(r, timeout=120) as a:
                    status, body = a.status, a.read()
            except urllib.error.HTTPError as e:
                status, body = e.code, e.read()
            status, body = change(self.path, status, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def judged(real, change):
    env = {**os.environ, "PHASEPIPE_URL": proxy(real.url, change), "PHASEPIPE_OLLAMA": proxy(real.ollama, change)}
    run = subprocess.run([sys.executable, os.path.join(HERE, "curl_recipes.py"), "the README"], env=env, timeout=300,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return run.stdout


def main(model):
    bad = 0
    with service.Services(model) as services:
        real = services.server("http", ollama=True)
        output = judged(real, lambda path, status, body: (status, body))
        if not output.startswith("ok  "):
            print(f"the proxy itself: {output}")
            return 1
        for what, (change, path) in WRONG.items():
            output = judged(real, change)
            if not re.match(rf"NOT OK .*curl .*{path}", output):
                print(f"{what} is not detected: {output}")
                bad += 1
    print(f"{len(WRONG) - bad} of {len(WRONG)} are detected")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
