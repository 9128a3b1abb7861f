#!/usr/bin/env python3
"""A client that measures itself, for metrics.bats: it asks a server at a Unix socket and prints what it saw.

    metrics_client.py SOCKET load THREADS REQUESTS   completions, streamed with n choices; sums as JSON on stdout
    metrics_client.py SOCKET get PATH TIMES          GETs of paths that there are not, PATH0 …
    metrics_client.py SOCKET models TIMES            completions of models that there are not
    metrics_client.py SOCKET sample SECONDS NAME     least and greatest value of a series meanwhile, and how many looks
"""
import http.client
import json
import re
import socket
import sys
import threading
import time


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def post(c, body):
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return c.getresponse()


class Seen:
    """Sums over all answers; times are those of this client."""

    def __init__(self):
        self.lock = threading.Lock()
        self.sum = dict(requests=0, choices=0, prompt_tokens=0, cached_tokens=0, completion_tokens=0, max_tokens=0,
                        longest=0, ttft_s=0.0, e2e_s=0.0, decode_s=0.0)

    def add(self, **more):
        with self.lock:
            for k, v in more.items():
                self.sum[k] += v


def ask(c, seen, i):
    n = 1 + i % 3
    # A common beginning of some blocks, so that there is something to be found in the cache.
    prompt = list(range(1000, 1100)) + [2000 + i] * (1 + i % 7)
    body = dict(prompt=prompt, max_tokens=3 + i % 5, n=n, temperature=1, seed=i, ignore_eos=True, stream=True,
                stream_options={"include_usage": True})
    begun = time.monotonic()
    first, last, usage = {}, {}, None
    r = post(c, body)
    assert r.status == 200, r.read()
    for line in r:
        now = time.monotonic()
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        assert "error" not in event, event
        for choice in event["choices"]:
            first.setdefault(choice["index"], now)
            last[choice["index"]] = now
        usage = event.get("usage") or usage
    assert len(first) == n and usage, (first, usage)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    seen.add(requests=1, choices=n, prompt_tokens=n * usage["prompt_tokens"], cached_tokens=cached,
             completion_tokens=usage["completion_tokens"], max_tokens=n * body["max_tokens"],
             longest=body["max_tokens"], ttft_s=sum(t - begun for t in first.values()),
             e2e_s=sum(t - begun for t in last.values()), decode_s=sum(last[k] - first[k] for k in first))


def load(path, threads, requests):
    seen, errors = Seen(), []

    def work(k):
        c = Connection(path)
        try:
            for i in range(1 + k, requests, threads):
                ask(c, seen, i)
        except Exception as e:
            errors.append(repr(e))

    ask(Connection(path), seen, 0)  # one choice alone: some steps have one token, however the others meet
    all_of = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for t in all_of:
        t.start()
    for t in all_of:
        t.join()
    if errors:
        sys.exit("\n".join(errors))
    print(json.dumps(seen.sum))


def scrape(c):
    c.request("GET", "/metrics")
    r = c.getresponse()
    assert r.status == 200 and r.headers["Content-Type"].startswith("text/plain; version=0.0.4"), r.headers
    return r.read().decode()


def sample(path, seconds, name):
    c, values, end = Connection(path), [], time.monotonic() + seconds
    while time.monotonic() < end:
        found = re.findall(r"^%s(?:\{.*\})? (\S+)$" % re.escape(name), scrape(c), re.M)
        assert len(found) <= 1, found
        values += [float(v) for v in found]
        time.sleep(0.02)
    print(json.dumps(dict(n=len(values), least=min(values), greatest=max(values))))


def main():
    path, what, args = sys.argv[1], sys.argv[2], sys.argv[3:]
    c = Connection(path)
    if what == "load":
        load(path, int(args[0]), int(args[1]))
    elif what == "get":
        for i in range(int(args[1])):
            c.request("GET", args[0] + str(i))
            r = c.getresponse()
            r.read()
            assert r.status == 404, r.status
    elif what == "models":
        for i in range(int(args[0])):
            r = post(c, dict(model="m%d" % i, prompt="a"))
            r.read()
            assert r.status == 404, r.status
    elif what == "sample":
        sample(path, float(args[0]), args[1])


main()
