"""Runs requests through the real programs, tokenize | prefill | decode, and reads decode's frames with a msgpack reader of
its own (docs/protocol.md), so that ids and float32 values are seen as they travel. Standard library only."""

import json
import os
import shutil
import struct
import subprocess
import threading

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
OUT, END, ERR = 6, 7, 8


def program(name):
    """build/bin (or $PHASEPIPE_BIN) first, then PATH."""
    folder = os.environ.get("PHASEPIPE_BIN", os.path.join(ROOT, os.environ.get("B", "build"), "bin"))
    path = os.path.join(folder, name)
    if os.access(path, os.X_OK):
        return path
    path = shutil.which(name)
    if not path:
        raise SystemExit(f"pipe: {name}: not built")
    return path


def unpack(b, i=0):
    """One msgpack value of bytes b at i: (value, next i)."""
    t = b[i]
    i += 1
    if t < 0x80:
        return t, i
    if t < 0x90:
        return unpack_map(b, i, t & 15)
    if t < 0xa0:
        return unpack_array(b, i, t & 15)
    if t < 0xc0:
        return b[i:i + (t & 31)].decode("utf-8", "replace"), i + (t & 31)
    if t >= 0xe0:
        return t - 256, i
    if t in (0xc0, 0xc2, 0xc3):
        return {0xc0: None, 0xc2: False, 0xc3: True}[t], i
    fixed = {0xca: ">f", 0xcb: ">d", 0xcc: ">B", 0xcd: ">H", 0xce: ">I", 0xcf: ">Q", 0xd0: ">b", 0xd1: ">h",
             0xd2: ">i", 0xd3: ">q"}.get(t)
    if fixed:
        n = struct.calcsize(fixed)
        return struct.unpack_from(fixed, b, i)[0], i + n
    size = {0xc4: ">B", 0xc5: ">H", 0xc6: ">I", 0xd9: ">B", 0xda: ">H", 0xdb: ">I", 0xdc: ">H", 0xdd: ">I",
            0xde: ">H", 0xdf: ">I"}.get(t)
    if not size:
        raise ValueError(f"msgpack type {t:#x} at {i - 1}")
    n = struct.unpack_from(size, b, i)[0]
    i += struct.calcsize(size)
    if t in (0xde, 0xdf):
        return unpack_map(b, i, n)
    if t in (0xdc, 0xdd):
        return unpack_array(b, i, n)
    raw = b[i:i + n]
    return (raw.decode("utf-8", "replace") if t >= 0xd9 else raw), i + n


def unpack_array(b, i, n):
    v = []
    for _ in range(n):
        x, i = unpack(b, i)
        v.append(x)
    return v, i


def unpack_map(b, i, n):
    m = {}
    for _ in range(n):
        k, i = unpack(b, i)
        m[k], i = unpack(b, i)
    return m, i


def frames(b):
    """The frames of a recorded stream, as dictionaries."""
    i = 0
    while i < len(b):
        n, i = unpack(b, i)
        if i + n > len(b):
            raise ValueError(f"frame of {n} bytes at {i}: truncated")
        f, end = unpack(b, i)
        if end != i + n:
            raise ValueError(f"frame at {i}: {end - i} bytes, its prefix states {n}")
        yield f
        i = end


class Answer:
    def __init__(self):
        self.ids, self.lp = [], []                # generated
        self.prompt_ids, self.prompt_lp = [], []  # with echo; lp: (id, log-probability, {id: log-probability})
        self.text = ""
        self.end = None


def positions(lp):
    return [(p[0], p[1], {t[0]: t[1] for t in p[2]}) for p in lp]


def run(requests, model=None, prefill=(), decode=(), env=None):
    """Answers to the requests (dictionaries as `tokenize --jsonl` takes them), in their order."""
    m = ["-m", model] if model else []
    full_env = {**os.environ, **(env or {})}
    stages = [[program("tokenize"), *m, "--jsonl"], [program("prefill"), *m, *prefill], [program("decode"), *m, *decode]]
    procs = []
    for s in stages:
        procs.append(subprocess.Popen(s, env=full_env, stdout=subprocess.PIPE,
                                      stdin=procs[-1].stdout if procs else subprocess.PIPE))
        if len(procs) > 1:
            procs[-2].stdout.close()
    lines = "".join(json.dumps(r) + "\n" for r in requests).encode()

    def feed():
        try:
            procs[0].stdin.write(lines)
            procs[0].stdin.close()
        except BrokenPipeError:
            pass  # its exit status reports why

    feeder = threading.Thread(target=feed)
    feeder.start()
    raw = procs[-1].stdout.read()
    feeder.join()
    bad = [f"{os.path.basename(s[0])}: exit {p.wait()}" for s, p in zip(stages, procs) if p.wait() != 0]
    if bad:
        raise SystemExit("pipe: " + ", ".join(bad))
    answers = [Answer() for _ in requests]
    for f in frames(raw):
        if f["k"] == ERR:
            raise SystemExit(f"pipe: request {f['seq']}: {f['text']}")
        if f["k"] == END:
            answers[f["seq"]].end = f
        if f["k"] != OUT:
            continue
        a = answers[f["seq"]]
        if f.get("prompt"):
            a.prompt_ids += f.get("ids", [])
            a.prompt_lp += positions(f.get("lp", []))
        else:
            a.ids += f.get("ids", [])
            a.lp += positions(f.get("lp", []))
            a.text += f.get("text", "")
    for r, a in zip(requests, answers):
        if a.end is None:
            raise SystemExit(f"pipe: request {r.get('id')}: no end")
    return answers
