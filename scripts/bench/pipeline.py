"""Sections that run the real programs as a pipe: time from start to the first token, transfer of KV into decode, memory."""

import json
import os
import statistics
import struct
import subprocess
import tempfile
import time

import pipe
from .programs import Failed, wait_until


def first_out(fd):
    """Reads decode's frames until one brings tokens."""
    raw = b""
    while True:
        more = os.read(fd, 65536)
        if not more:
            raise Failed("the pipe ended without a token")
        raw += more
        try:
            for f in pipe.frames(raw):
                if f["k"] == pipe.ERR:
                    raise Failed(f"the pipe: {f['text']}")
                if f["k"] == pipe.OUT and f.get("ids"):
                    return
        except (ValueError, IndexError, struct.error):
            pass  # the last frame is not whole yet


def start_once(model, line):
    """Seconds from starting the three programs to the first token."""
    begin = time.monotonic()
    tok = subprocess.Popen([pipe.program("tokenize"), "-m", model, "--jsonl"], stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE)
    pre = subprocess.Popen([pipe.program("prefill"), "-m", model], stdin=tok.stdout, stdout=subprocess.PIPE)
    dec = subprocess.Popen([pipe.program("decode"), "-m", model], stdin=pre.stdout, stdout=subprocess.PIPE)
    tok.stdout.close()
    pre.stdout.close()
    tok.stdin.write(line)
    tok.stdin.close()
    first_out(dec.stdout.fileno())
    took = time.monotonic() - begin
    while os.read(dec.stdout.fileno(), 65536):
        pass
    dec.stdout.close()
    if any([p.wait() for p in (tok, pre, dec)]):
        raise Failed("the pipe failed")
    return took


def start(b):
    """tokenize | prefill | decode with packed weights present: the first run, which may pack, is not counted."""
    line = (json.dumps({"prompt": [(7 * k) % 1000 + 100 for k in range(16)], "max_tokens": 4}) + "\n").encode()
    start_once(b.a.model, line)
    took = b.rounds("start", lambda: start_once(b.a.model, line), max(7, b.a.rounds))
    b.figure("start to first token, 16-token prompt, ms", 1e3 * statistics.median(took), 150, most=True, show="{:.0f}",
             detail=f"of {len(took)}: {1e3 * min(took):.0f} to {1e3 * max(took):.0f}", rounds=took)


def mapped(pid):
    """Bytes of packed weights of a process: size, and its part of them where processes share pages."""
    size = part = 0
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as f:
        ours = False
        for line in f:
            word = line.split()
            if "-" in word[0] and len(word) >= 5:
                ours = line.rstrip().endswith(".pack")
            elif ours and word[0] == "Size:":
                size += 1024 * int(word[1])
            elif ours and word[0] == "Pss:":
                part += 1024 * int(word[1])
    return size, part


def memory(b):
    """Two prefills and two decodes on one model: the pages of its weights are there once."""
    names = ("prefill", "prefill", "decode", "decode")
    procs = [subprocess.Popen([pipe.program(n), "-m", b.a.model], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)  # they report that no hello came
             for n in names]
    try:
        wait_until(lambda: all(mapped(p.pid)[1] > 0 for p in procs), 60)
        time.sleep(0.5)
        got = [mapped(p.pid) for p in procs]
    finally:
        for p in procs:
            p.stdin.close()
            p.wait()
    size, total = got[0][0], sum(part for _, part in got)
    b.figure("weights of 4 workers, of one packed copy", total / size, 1.01, most=True,
             detail=f"{total / 1e6:.0f} MB in memory; packed {size / 1e6:.0f} MB, "
             f"the GGUF file {os.path.getsize(b.a.model) / 1e6:.0f} MB")


def record(b, path, n_token):
    """A recording of prefill: what it writes for a prompt of n_token ids. Its KV is sent, and the first token ends it, so
    decode computes nothing."""
    line = json.dumps({"prompt": [(7 * k) % 1000 + 100 for k in range(n_token)], "max_tokens": 2, "logit_bias": {"50": 100},
                       "stop_token_ids": [50]}) + "\n"
    toks = subprocess.run([pipe.program("tokenize"), "-m", b.a.model, "--jsonl"], input=line.encode(),
                          stdout=subprocess.PIPE, check=True).stdout
    with open(path, "wb") as f:
        subprocess.run([pipe.program("prefill"), "-m", b.a.model, "--max-num-batched-tokens", "512"], input=toks, stdout=f,
                       check=True)
    return toks


def exposed(b, toks):
    """Seconds from the end of prefill's last step to the last of the KV in decode, from the spans of the answer."""
    pre = subprocess.Popen([pipe.program("prefill"), "-m", b.a.model, "--max-num-batched-tokens", "512"],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    dec = subprocess.Popen([pipe.program("decode"), "-m", b.a.model], stdin=pre.stdout, stdout=subprocess.PIPE)
    pre.stdout.close()
    time.sleep(0.5)  # both are loaded before the request comes
    pre.stdin.write(toks)
    pre.stdin.close()
    raw = dec.stdout.read()
    dec.stdout.close()
    if pre.wait() or dec.wait():
        raise Failed("the pipe failed")
    end = next(f for f in pipe.frames(raw) if f["k"] == pipe.END)
    span = {s["stage"]: s for s in end["spans"]}
    return max(0, span["decode"]["start_ns"] - span["prefill"]["end_ns"]) * 1e-9


def through(consumer, rec, n):
    t = time.monotonic()
    with subprocess.Popen(["cat", *[rec] * n], stdout=subprocess.PIPE) as feed:
        subprocess.run(consumer, stdin=feed.stdout, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - t


def transfer(b):
    """KV from prefill into decode: how fast beside cat, and how much of it prefill does not hide."""
    few, many = 4, 24
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as tmp:
        rec = os.path.join(tmp, "rec")
        toks = record(b, rec, 2048)
        size = os.path.getsize(rec)

        def rate(consumer):
            # the slope between few and many recordings: starting a program and loading a model drop out
            return (many - few) * size / (through(consumer, rec, many) - through(consumer, rec, few)) / 1e9

        decode = [pipe.program("decode"), "-m", b.a.model]
        got = b.rounds("KV into decode", lambda: (rate(decode), rate(["cat"])))
        hidden = statistics.median(b.rounds("KV that is not hidden", lambda: exposed(b, toks)))
    speed = statistics.median(x for x, _ in got)
    whole = size / (speed * 1e9)
    b.figure("KV of 2,048 tokens into decode: of plain cat", statistics.median(x / y for x, y in got),
             detail=f"{size / 1e6:.1f} MB at {speed:.2f} GB/s", rounds=got)
    b.figure("transfer of KV that prefill does not hide (4 chunks)", hidden / whole, 0.1, most=True, show="{:.1%}",
             detail=f"{1e3 * hidden:.2f} of {1e3 * whole:.2f} ms")
