"""What the checks of clients share: where the servers are, one line a check, and when all is quiet again.

A check is a function with @check; its docstring's first line is its name. It fails by an exception, and is left out by
LeftOut. main() runs those whose name contains a word of the command line (all without one)."""

import json
import os
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request

URL = os.environ.get("PHASEPIPE_URL", "http://127.0.0.1:8000")  # the OpenAI API, without /v1
OLLAMA = os.environ.get("PHASEPIPE_OLLAMA", "")
KEYED, KEY = os.environ.get("PHASEPIPE_KEYED", ""), os.environ.get("PHASEPIPE_KEY", "")  # one that wants a key
NARROW = os.environ.get("PHASEPIPE_NARROW", "")  # one that lets a single answer wait
RUN, BIN = os.environ.get("PHASEPIPE_RUN_DIR", ""), os.environ.get("PHASEPIPE_BIN", "")

CHECKS = []


class LeftOut(Exception):
    pass


def check(f):
    CHECKS.append(((f.__doc__ or f.__name__).strip().split("\n")[0], f))
    return f


def need(value, what):
    if not value:
        raise LeftOut(f"needs {what}")
    return value


def equal(got, want, what="value"):
    if got != want:
        raise AssertionError(f"{what}: got {got!r}, wanted {want!r}"[:600])


def true(cond, what):
    if not cond:
        raise AssertionError(str(what)[:600])


def raises(kind, call, what=""):
    """The exception of exactly that class."""
    try:
        got = call()
    except kind as e:
        if type(e) is not kind:
            raise AssertionError(f"{what} raised {type(e).__name__}, not {kind.__name__}: {e}"[:600]) from None
        return e
    except Exception as e:
        raise AssertionError(f"{what} raised {type(e).__name__}, not {kind.__name__}: {e}"[:600]) from None
    raise AssertionError(f"{what} raised nothing, but answered {got!r}"[:600])


def http(path, body=None, url=None, method=None, headers=None, timeout=60):
    """(status, headers, text) of a plain request; body: what becomes JSON, or bytes."""
    data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    r = urllib.request.Request((url or URL) + path, data=data, method=method,
                               headers={"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(r, timeout=timeout) as a:
            return a.status, a.headers, a.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.headers, e.read().decode()


def get(path, url=None):
    status, _, text = http(path, url=url)
    equal(status, 200, f"status of {path}")
    return json.loads(text)


def post(path, body, url=None):
    status, _, text = http(path, body, url=url)
    if status != 200:
        raise AssertionError(f"{path}: {status} {text}"[:600])
    return json.loads(text)


def model():
    return get("/v1/models")["data"][0]["id"]


def busy():
    """The number of running requests: by the server's /load, and by its scheduler if that can be queried."""
    n = get("/load")["server_load"]
    if RUN:
        s = json.loads(subprocess.run([os.path.join(BIN, "phasepipe"), "ctl", "--run", RUN, "--json", "sched"],
                                      stdout=subprocess.PIPE, check=True, timeout=20).stdout)
        n += s["running"] + s["waiting"]
    return n


def quiet(seconds=2.0):
    """Waits until nothing runs any more; how long that took."""
    begin = time.monotonic()
    while True:
        n = busy()
        took = time.monotonic() - begin
        if not n:
            return took
        true(took < seconds, f"{n} still run after {took:.1f} s")
        time.sleep(0.02)


def until(cond, seconds, what):
    end = time.monotonic() + seconds
    while not cond():
        true(time.monotonic() < end, f"not within {seconds} s: {what}")
        time.sleep(0.02)


def main(client, words=None):
    words = sys.argv[1:] if words is None else words
    failed = 0
    for name, f in CHECKS:
        if words and not any(w in name for w in words):
            continue
        begin = time.monotonic()
        try:
            detail = f()
            verdict = f"ok        {client}: {name}" + (f": {detail}" if isinstance(detail, str) else "")
        except LeftOut as e:
            verdict = f"left out  {client}: {name}: {e}"
        except Exception as e:
            failed += 1
            why = str(e) if isinstance(e, AssertionError) and str(e) else f"{type(e).__name__}: {e}"
            verdict = f"NOT OK    {client}: {name}: {' '.join(why.split())[:700]}"
            if os.environ.get("CHECK_TRACE"):
                traceback.print_exc()
        took = time.monotonic() - begin
        print(verdict + (f" ({took:.1f} s)" if took >= 5 else ""), flush=True)
    return 1 if failed else 0
