"""Hostile HTTP clients, for http.bats: http_client.py ADDRESS CHECK [ARG ...]. ADDRESS: HOST:PORT, or the path of a Unix socket."""

import http.client
import json
import os
import resource
import socket
import sys
import threading
import time

ADDRESS, CHECK = sys.argv[1:3]
ARGS = sys.argv[3:]
SLOW = float(os.environ.get("PHASEPIPE_SLOW", 1))


def connect(source=None, timeout=30):
    if ":" not in ADDRESS:
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(timeout)
        s.connect(ADDRESS)
        return s
    host, _, port = ADDRESS.rpartition(":")
    return socket.create_connection((host, int(port)), timeout, (source, 0) if source else None)


class Response:
    def __init__(self, s):
        r = http.client.HTTPResponse(s)
        r.begin()
        self.status, self.headers, self.body = r.status, r.headers, r.read()


def send(data, source=None):
    """Sends bytes and reads the response, also if the server closes while they are sent."""
    with connect(source) as s:
        try:
            s.sendall(data)
        except OSError:
            pass
        return Response(s)


def request(method, path, body=None, **headers):
    head = {"Host": "localhost", **{k.replace("_", "-"): v for k, v in headers.items()}}
    if body is not None:
        head = {"Content-Type": "application/json", "Content-Length": len(body), **head}
    text = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in head.items() if v is not None) + "\r\n"
    return text.encode() + (body or b"")


def live(source=None):
    """Seconds that a client of this address waits for an answer."""
    begin = time.monotonic()
    r = send(request("GET", "/live"), source)
    assert r.status == 200, r.status
    return time.monotonic() - begin


def descriptors(n):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert hard == resource.RLIM_INFINITY or hard > n, f"the hard limit of descriptors is {hard}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def expect_json(r, status, what):
    assert r.status == status, (what, r.status, r.body[:200])
    assert r.headers["Content-Type"].startswith("application/json"), (what, r.headers["Content-Type"])
    text = json.loads(r.body)["error"]
    assert (text["message"] if isinstance(text, dict) else text), what


def metric(name):
    text = send(request("GET", "/metrics"), None if ":" not in ADDRESS else "127.0.0.2").body.decode()
    return float(next(x.split()[1] for x in text.splitlines() if x.startswith(name + " ")))


# ---- checks ----


def wrong_key():
    """60 bodies of 16 MiB under a wrong key: each is refused by its head, and what is sent of it is dropped."""
    results = []

    def one():
        with connect() as s:
            s.sendall(request("POST", "/v1/completions", Content_Length=16 << 20, Content_Type="application/json",
                              Authorization="Bearer wrong"))
            r = Response(s)
            expect_json(r, 401, "head")
            results.append(r.headers["Connection"] == "close")
            try:
                for _ in range(64):
                    s.sendall(bytes(1 << 18))
            except OSError:
                pass

    threads = [threading.Thread(target=one) for _ in range(60)]
    for t in threads:
        t.start()
    assert live() < 2 * SLOW
    for t in threads:
        t.join()
    assert len(results) == 60 and all(results), len(results)
    for path, status in (("/v1/nothing", 404), ("/v1/models", 405)):
        r = send(request("POST", path, Content_Length=16 << 20))
        expect_json(r, status, path)
        assert r.headers["Connection"] == "close"
    assert metric("phasepipe:http_body_bytes") == 0


def bodies():
    """More bodies with a valid key than --max-bodies has room for, never finished: the rest get 503 and Retry-After."""
    n, held = 0, []
    for _ in range(40):
        s = connect()
        s.sendall(request("POST", "/v1/completions", Content_Length=16 << 20, Content_Type="application/json"))
        s.settimeout(0.2)
        try:
            for _ in range(15):
                s.sendall(bytes(1 << 20))
            s.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            held.append(s)
            continue
        except OSError:
            pass
        s.settimeout(30)
        r = Response(s)
        expect_json(r, 503, "body")
        assert int(r.headers["Retry-After"]) >= 1
        n += 1
    assert n >= 35 and 1 <= len(held) <= 5, (n, len(held))
    assert metric("phasepipe:http_body_bytes") <= 64 << 20
    for s in held:
        s.close()
    until = time.monotonic() + 5 * SLOW
    while metric("phasepipe:http_body_bytes"):
        assert time.monotonic() < until
    assert send(request("POST", "/v1/completions", b'{"prompt":"a","max_tokens":1}')).status == 200


def browsers():
    """Pages of other sites: a name that resolves to the loopback, and requests that a browser sends without asking."""
    body = b'{"model":"smol","prompt":"a","stream":false,"max_tokens":1,"options":{"num_predict":1}}'
    path = ARGS[0]
    plain = {"Content_Type": "text/plain"}
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    for headers, status in (
        ({}, 200),
        ({"Host": "attacker.example"}, 403),
        ({"Host": "attacker.example:11434"}, 403),
        ({"Host": "127.0.0.1:1"}, 200),
        ({"Origin": "http://evil.example", **plain}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null", **plain}, 403),
        ({"Origin": "http://localhost:3000", **plain}, 415),
        ({"Origin": "http://localhost:3000"}, 200),
        (form, 200 if path.startswith("/api") else 400),  # curl -d, as in Ollama's documentation
    ):
        r = send(request("POST", path, body, **headers))
        assert r.status == status, (headers, r.status, r.body)
        if status != 200:
            expect_json(r, status, headers)


def errors():
    """Whatever cannot be parsed is answered in JSON, and the connection is closed."""
    post = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    chunked = post + "Transfer-Encoding: chunked\r\n\r\n"
    for text, status in (
        ("NONSENSE\r\n\r\n", 400),
        ("GET /v1/models\r\n\r\n", 400),
        ("GET /v1/models HTTP/3.0\r\nHost: localhost\r\n\r\n", 505),
        ("GET /" + "a" * 40000 + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        ("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + "a" * 40000 + "\r\n\r\n", 431),
        ("GET /v1/models HTTP/1.1\r\n\r\n", 400),
        ("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n", 400),
        (post + "Content-Length: 1, 2\r\n\r\n", 400),
        (post + "Content-Length: 99999999999999999999999\r\n\r\n", 413),
        (post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (post + "Transfer-Encoding: gzip\r\n\r\n", 501),
        (chunked + "zz\r\n", 400),
        (chunked + "2\n{}\r\n0\r\n\r\n", 400),
        (chunked + "ffffffffffffffff\r\n", 413),
        (chunked + "1000001\r\n", 413),
    ):
        r = send(text.encode())
        expect_json(r, status, text[:60])
        assert r.headers["Connection"] == "close" and b"<" not in r.body, text[:60]
    ok = b'{"prompt":"a","max_tokens":1 }'
    r = send((chunked + "1e ; a=b\r\n").encode() + ok + b"\r\n0\r\n\r\n")
    assert r.status == 200, r.body
    r = send((post + "Content-Length: 30 \t\r\n\r\n").encode() + ok)
    assert r.status == 200, r.body


def endless():
    """100 MB of zeros in chunks: 413 as soon as they exceed the limit of a body, while the client still sends."""
    s = connect()
    s.sendall(request("POST", "/v1/completions", Transfer_Encoding="chunked"))
    sent, piece, at = 0, b"40000\r\n" + bytes(1 << 18) + b"\r\n", 0
    s.setblocking(False)
    while sent < 100 << 20:
        try:
            n = s.send(piece[at:])
            sent, at = sent + n, (at + n) % len(piece)
        except BlockingIOError:
            time.sleep(0.001)
        except OSError:
            break
        try:
            if s.recv(1, socket.MSG_PEEK):
                break
        except BlockingIOError:
            pass
    s.settimeout(30)
    expect_json(Response(s), 413, "endless")
    assert sent < 32 << 20, sent


def idle():
    """5,000 idle connections of one address: another is served at once, and so is a new client of the first."""
    descriptors(6000)
    held = []
    for _ in range(5000):
        try:
            held.append(connect())
        except OSError:
            pass
    worst = max(live("127.0.0.2") for _ in range(50))
    print(f"5,000 idle connections: another address waits {worst * 1e3:.1f} ms at most")
    assert worst < 0.5 * SLOW, worst
    assert metric("phasepipe:http_refused_connections_total") + metric("phasepipe:http_replaced_connections_total") >= 1900
    time.sleep(1.2)
    assert live("127.0.0.1") < 1 * SLOW
    time.sleep(16)  # a connection that has never sent a request is closed after 15 s
    assert metric("phasepipe:http_connections") < 100


def trickle():
    """4,300 request heads that arrive byte by byte (slowloris)."""
    descriptors(6000)
    held = []

    def add():
        try:
            s = connect()
            s.setblocking(False)
            held.append(s)
        except OSError:
            pass

    for _ in range(4300):
        add()
    worst, end = 0, time.monotonic() + 20
    while time.monotonic() < end:
        for s in list(held):
            try:
                s.send(b"G")
            except BlockingIOError:
                pass
            except OSError:
                held.remove(s)
                s.close()
                add()
        worst = max(worst, live("127.0.0.2"))
    print(f"4,300 trickled heads: another address waits {worst * 1e3:.1f} ms at most")
    assert worst < 1 * SLOW, worst
    assert metric("phasepipe:http_timeouts_total") + metric("phasepipe:http_replaced_connections_total") > 1000


def full():
    """More connections than the process has descriptors: each is served or refused, none hangs."""
    held, n = [], {200: 0, 503: 0, None: 0}
    for _ in range(200):
        s = connect(timeout=5)
        held.append(s)
        try:
            s.sendall(request("GET", "/live"))
        except OSError:
            pass  # refused already: the response can be read
    for s in held:
        try:
            r = Response(s)
            n[r.status] += 1
        except (OSError, http.client.HTTPException):
            n[None] += 1
    print(n)
    assert n[503] + n[None] > 100 and n[200] >= 16 and n[None] < 20, n
    for s in held:
        s.close()
    time.sleep(0.1)
    assert live() < 2 * SLOW


def unread():
    """Clients that request much and read nothing: their queues are bounded, and others are served."""
    body = json.dumps({"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "n": 8, "temperature": 1, "stream": True,
                       "logprobs": 20}).encode()
    held = []
    for _ in range(24):
        s = connect()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.sendall(request("POST", "/v1/completions", body))
        held.append(s)
    end, most, worst = time.monotonic() + 60, 0, 0
    while time.monotonic() < end:
        worst = max(worst, live())
        most = max(most, metric("phasepipe:http_queued_bytes"))
        if metric("phasepipe:client_gone_total") >= 4:
            break
        time.sleep(0.05)
    print(f"{most / 2**20:.1f} MiB were queued at most, another client waited {worst * 1e3:.1f} ms")
    assert metric("phasepipe:client_gone_total") >= 1
    assert most < (32 << 20) + 24 * (1 << 20), most
    assert worst < 2 * SLOW, worst


def logprobs():
    """Three responses with as many log-probabilities as the limit permits, while another client is served; more is 400."""
    limit, tokens = 262144, 13100
    body = {"prompt": [5] * tokens, "prompt_logprobs": 20, "max_tokens": 1}
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(send(request("POST", "/v1/completions", json.dumps(body).encode()))))
               for _ in range(3)]
    for t in threads:
        t.start()
    worst = 0
    while any(t.is_alive() for t in threads):
        worst = max(worst, live())
    for r in answers:
        assert r.status == 200, r.body[:300]
        assert len(json.loads(r.body)["choices"][0]["prompt_logprobs"]) == tokens
    print(f"{len(answers[0].body) / 1e6:.0f} MB of log-probabilities each: another client waited {worst * 1e3:.1f} ms")
    assert worst < 0.25 * SLOW, worst
    body["prompt"] = [5] * (limit // 20 + 1)
    r = send(request("POST", "/v1/completions", json.dumps(body).encode()))
    expect_json(r, 400, "logprobs")
    text = json.loads(r.body)["error"]
    assert "262144" in text["message"] and text["param"] == "prompt_logprobs", text


def large():
    """Bodies of up to 16 MB of text and of ids, valid and not, while another client is served."""
    bodies = (
        b'{"prompt":"' + b"word " * 3200000 + b'","max_tokens":1}',
        b'{"prompt":[' + b"1," * 5000000 + b'1],"max_tokens":1}',
        b'{"temperature":9,"prompt":[' + b"1," * 5000000 + b'1],"max_tokens":1}',
    )
    answers = []

    def ask():
        for body in bodies:
            answers.append(send(request("POST", "/v1/completions", body)).status)

    thread = threading.Thread(target=ask)
    thread.start()
    worst = 0
    while thread.is_alive():
        worst = max(worst, live())
        time.sleep(0.01)
    print(f"large bodies: another client waited {worst * 1e3:.1f} ms")
    assert answers == [400, 400, 400], answers
    assert worst < 0.25 * SLOW, worst


def rounds():
    """Three rounds of eight requests with 15 MB of stop texts, of token ids or of text, at once: each has an answer."""
    stop = json.dumps({"prompt": "a", "max_tokens": 1, "stop": ["x" * 3_700_000] * 4})
    ids = json.dumps({"prompt": [17] * 3_700_000, "max_tokens": 1})
    text = json.dumps({"prompt": "ab " * 5_000_000, "max_tokens": 1})
    status = []

    def ask(body):
        status.append(send(request("POST", "/v1/completions", body.encode())).status)

    for _ in range(3):
        threads = [threading.Thread(target=ask, args=([stop, ids, text][i % 3],)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    print(sorted(status))
    assert len(status) == 24 and set(status) <= {200, 400, 413, 429, 503}, status


def early():
    """The headers of a stream come when it is accepted, and comments while no worker runs (--sse-keepalive)."""
    body = json.dumps({"prompt": "a", "max_tokens": 2, "stream": True, "ignore_eos": True}).encode()
    with connect() as s:
        begin = time.monotonic()
        s.sendall(request("POST", "/v1/completions", body, Connection="close"))
        data = s.recv(65536)
        headers = time.monotonic() - begin
        assert data.startswith(b"HTTP/1.1 200 OK\r\n") and b"text/event-stream" in data, data[:200]
        while b"data: {" not in data:
            more = s.recv(65536)
            assert more
            data += more
        first = time.monotonic() - begin
    print(f"headers after {headers * 1e3:.0f} ms, first token after {first * 1e3:.0f} ms")
    assert headers < first / 2 and first > 1
    assert 1 <= data.count(b": keep-alive\n\n") <= first / 0.5 + 1, data


globals()[CHECK]()
