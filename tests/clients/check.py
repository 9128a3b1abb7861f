"""Shared by the client checks: addresses of the servers, one result line per check, waiting until nothing runs.

A check is a function with @check; the first line of its docstring is its name. An exception fails the check; LeftOut skips it.
main() runs the checks whose name contains a word of the command line, or all if there is none."""

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
KEYED, KEY = os.environ.get("PHASEPIPE_KEYED", ""), os.environ.get("PHASEPIPE_KEY", "")  # a server that requires a key
NARROW = os.environ.get("PHASEPIPE_NARROW", "")  # a server with --max-waiting 1
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
    """Calls it; returns the exception, whose class must be exactly kind."""
    try:
        got = call()
    except kind as e:
        if type(e) is not kind:
            raise AssertionError(f"{what} raised {type(e).__name__}, not {kind.__name__}: {e}"[:600]) from None
        return e
    except Exception as e:
        raise AssertionError(f"{what} raised {type(e).__name__}, not {kind.__name__}: {e}"[:600]) from None
    raise AssertionError(f"{what} raised nothing, but returned {got!r}"[:600])


def http(path, body=None, url=None, method=None, headers=None, timeout=60):
    """(status, headers, text) of a plain request; body: a value to encode as JSON, or bytes."""
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
    """The number of running requests: the server's /load plus, with RUN, the scheduler's running and waiting ones."""
    n = get("/load")["server_load"]
    if RUN:
        s = json.loads(subprocess.run([os.path.join(BIN, "phasepipe"), "ctl", "--run", RUN, "--json", "sched"],
                                      stdout=subprocess.PIPE, check=True, timeout=20).stdout)
        n += s["running"] + s["waiting"]
    return n


def quiet(seconds=2.0):
    """Waits until no request runs; returns the seconds that took."""
    begin = time.monotonic()
    while True:
        n = busy()
        took = time.monotonic() - begin
        if not n:
            return took
        true(took < seconds, f"{n} requests still run after {took:.1f} s")
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
