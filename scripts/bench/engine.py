"""Sections that time the engine: prompts, decode steps, weight types, a shape too large for caches, KV
types, attention, and a core that another process uses."""

import os
import subprocess
import sys
from statistics import median

from .figures import PERCENT
from .models import remove, requantised, shaped
from .programs import Engine

# The arithmetic of a weight type: its activations are int8, bf16 or float32. Where bf16 products are slower than float32
# ones (some CPUs), the larger of the two peaks is the limit.
PEAK = {"BF16": ("bf16", "f32"), "F16": ("f32",), "F32": ("f32",)}
INT8 = ("int8",)


def threads_of(b):
    return sorted({1, b.a.threads}, reverse=True)


def count_of(threads):
    return f"{threads} thread{'s' if threads > 1 else ''}"


def prefill(b):
    """Prompts of the default model; at 512 beside llama.cpp on the same file and on the type it is best at, and vLLM."""
    goals = {128: 0.42, 512: 0.45, 2048: 0.35}
    best = requantised(b.a.model, "Q4_0") if b.is_default else None
    with Engine(b.a.model) as e:
        for t in threads_of(b):
            for n, goal in goals.items():
                peers = [("llama.cpp", lambda n=n, t=t: b.llama_prefill(b.a.model, n, t), 11 if n == 512 else None)]
                if n == 512 and best:
                    peers.append(("llama.cpp Q4_0", lambda t=t: b.llama_prefill(best, 512, t), 4.5))
                if n == 512 and t == b.a.threads and b.is_default:
                    peers.append(("vLLM bf16", lambda: b.vllm("pp 512"), 4.5))
                b.case(f"prefill {n:,}, {count_of(t)}", e, f"pp {n}", t, INT8, goal, peers,
                       peer_n=1 if n > 512 else None)


def types(b):
    """The default model in other weight types."""
    for kind in ("Q4_0", "Q8_0", "Q4_K_M", "Q6_K", "F16", "BF16"):
        model = requantised(b.a.model, kind)
        if not model:
            b.note(f"{kind}: left out, llama-quantize is missing")
            continue
        t = b.a.threads
        with Engine(model) as e:
            peers = [("llama.cpp", lambda: b.llama_prefill(model, 512, t), None)]
            if kind == "BF16" and b.is_default:
                peers.append(("vLLM bf16", lambda: b.vllm("pp 512"), 1.3))
            b.case(f"{kind}, prefill 512", e, "pp 512", t, PEAK.get(kind, INT8), 0.6 if kind == "BF16" else None, peers)
            b.case(f"{kind}, decode, depth 64", e, "tg 32 depth 64", t, ("read",), None,
                   [("llama.cpp", lambda: b.llama_decode(model, 64, 1, t), None)])
            packed = e.packed()
        if b.a.clean:
            remove(model, packed)


def shape(b):
    """Random weights in the shape of Llama 3.2 1B: weights that no cache holds. llama.cpp runs once."""
    goals = {"Q8_0": 0.6, "Q4_0": 0.6, "Q4_1": 0.55, "Q4_K": 0.55, "Q6_K": 0.5, "BF16": 0.6, "F16": None}
    t = b.a.threads
    for kind, goal in goals.items():
        model = shaped(kind)
        with Engine(model) as e:
            b.case(f"1B {kind}, prefill 512", e, "pp 512", t, PEAK.get(kind, INT8), goal,
                   [("llama.cpp", lambda: b.llama_prefill(model, 512, t, cold=True), None)], peer_n=1)
            b.case(f"1B {kind}, decode, depth 64", e, "tg 16 depth 64", t, ("read",), 0.85,
                   [("llama.cpp", lambda: b.llama_decode(model, 64, 1, t, 16), None)], peer_n=1)
            if kind == "Q4_0":
                long_prompts(b, e, t)
            packed = e.packed()
        if b.a.clean:
            remove(model, packed)


def long_prompts(b, e, t):
    """How much a prompt slows down as it grows: 512 on both sides of each long one."""
    for n, goal, times in ((2048, 0.9, b.a.rounds), (8192, 0.65, min(2, b.a.rounds))):
        def one():
            a = e.ask(f"pp 512 threads {t}")["tokens_per_s"]
            x = e.ask(f"pp {n} threads {t}")["tokens_per_s"]
            z = e.ask(f"pp 512 threads {t}")["tokens_per_s"]
            return x, (a + z) / 2
        got = b.rounds(f"1B prefill {n}", one, times)
        b.figure(f"1B Q4_0, prefill {n:,} against 512, int8 KV", median(x / y for x, y in got), goal,
                 detail=f"{median(x for x, _ in got):,.0f} of {median(y for _, y in got):,.0f} tokens/s",
                 rounds=got)


def decode(b):
    """Steps of the default model; deep ones first, since the KV of a shallow one is part of them."""
    goals = {(64, 1): 0.90, (64, 4): 0.75, (64, 8): 0.60, (64, 16): 0.45,
             (2048, 1): 0.85, (2048, 4): 0.75, (2048, 8): 0.70, (2048, 16): 0.65}
    ratio = {(64, 1): 5.5, (2048, 1): 17}
    with Engine(b.a.model) as e:
        for t in threads_of(b):
            e.ask(f"tg 1 depth 2048 batch 16 threads {t}")  # allocates the KV of all of them
            for depth in (2048, 64):
                for batch in (1, 4, 7, 8, 16):
                    peers = []
                    if batch in (1, 7, 16) and (batch == 1 or t == b.a.threads):
                        want = ratio.get((depth, batch), 4) if t == b.a.threads else None
                        peers.append(("llama.cpp", lambda d=depth, n=batch, t=t: b.llama_decode(b.a.model, d, n, t), want))
                    if batch in (1, 8, 16) and depth == 64 and t == b.a.threads and b.is_default:
                        peers.append(("vLLM bf16", lambda n=batch: b.vllm(f"tg 32 depth 64 batch {n}"),
                                      15 if batch == 1 else None))
                    got = b.case(f"decode, depth {depth:,}, batch {batch}, {count_of(t)}", e,
                                 f"tg {64 if batch == 1 else 32} depth {depth} batch {batch}", t, ("read",),
                                 goals.get((depth, batch)), peers,
                                 peer_n=1 if depth == 2048 and t < b.a.threads else None)
                    if (depth, batch, t) == (64, 1, b.a.threads):
                        profile(b, got)


def profile(b, got):
    """The parts of a step's time on the caller's thread; "wait" is for other threads, and what is in no part is the choice of
    the best id (greedy)."""
    parts = {k: median(o["parts_ms"][k] / (o["ns"] / 1e6) for o in got) for k in got[0]["parts_ms"]}
    large = ("qkv", "attention", "out", "gate-up", "down", "head")
    parts["argmax"] = max(0.0, 1 - sum(parts.values()))
    b.figure("decode, depth 64, batch 1: small operations, waits, argmax",
             sum(v for k, v in parts.items() if k not in large), 0.12, most=True, show=PERCENT, parts=parts,
             detail=", ".join(f"{k} {100 * v:.0f}" for k, v in parts.items()) + " % of a step")


def attention(b):
    """Attention of a long prompt: 2 · head_dim multiply-adds for each key that a head of a row sees."""
    with Engine(b.a.model) as e:
        for t in threads_of(b):
            def one(t=t):
                before = b.probe(INT8, t)
                got = e.ask(f"pp 2048 threads {t}")
                return got["attn_gmacs"], max(before, b.probe(INT8, t)), got["parts_ms"]["attention"] * 1e6 / got["ns"]
            got = b.rounds("attention", one)
            b.figure(f"attention in prefill 2,048, {count_of(t)}: share of int8 peak", median(x / y for x, y, _ in got),
                     0.35, show=PERCENT, rounds=got,
                     detail=f"{median(x for x, _, _ in got):.0f} of "
                     f"{median(y for _, y, _ in got):.0f} GMAC/s; "
                     f"{100 * median(z for _, _, z in got):.0f} % of the time")


def kv_speed(b):
    """int8 KV against f16 KV, in turns; a difference of 2 % is a tie."""
    t = b.a.threads
    with Engine(b.a.model, "int8") as small, Engine(b.a.model, "f16") as large:
        sizes = None
        for job, name in (("pp 512", "prefill 512"), ("pp 2048", "prefill 2,048"), ("tg 64 depth 512", "decode, depth 512"),
                          ("tg 64 depth 2048", "decode, depth 2,048"),
                          ("tg 32 depth 2048 batch 8", "decode, depth 2,048, batch 8")):
            def one(job=job):
                return [e.ask(f"{job} threads {t}") for e in (small, large)]
            got = b.rounds(name, one)
            sizes = [x["key_bytes"] for x in got[0]]
            b.figure(f"int8 KV against f16 KV: {name}", median(x["tokens_per_s"] / y["tokens_per_s"] for x, y in got),
                     0.98, detail=f"{median(x['tokens_per_s'] for x, _ in got):,.0f} and "
                     f"{median(y['tokens_per_s'] for _, y in got):,.0f} tokens/s")
        b.figure("int8 KV against f16 KV: bytes", sizes[0] / sizes[1], 0.55, most=True,
                 detail=f"{sizes[0]:,.0f} and {sizes[1]:,.0f} a token")


SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print('on', flush=True)
while True:
    pass
"""


class Busy:
    """A process that never waits, on one of the cores that we may use."""

    def __enter__(self):
        core = max(os.sched_getaffinity(0))
        self.p = subprocess.Popen([sys.executable, "-c", SPIN, str(core)], stdout=subprocess.PIPE)
        self.p.stdout.readline()
        return self

    def __exit__(self, *_):
        self.p.kill()
        self.p.wait()
        self.p.stdout.close()


def busy(b):
    """Decode beside a foreign busy process on one core."""
    t = b.a.threads
    if t < 2:
        b.note("a busy core: needs two threads")
        return
    with Engine(b.a.model) as e:
        job = f"tg 128 depth 64 threads {t}"

        def one(ask):
            quiet = ask()
            with Busy():
                return ask(), quiet

        e.ask(job)
        ours = b.rounds("a busy core", lambda: one(lambda: e.ask(job)["tokens_per_s"]))
        theirs = []
        if not b.no_llama:
            theirs = b.rounds("a busy core, llama.cpp", lambda: one(lambda: b.llama_decode(b.a.model, 64, 1, t)), 1)
        b.figure("decode beside a busy process on one core: of undisturbed", median(x / y for x, y in ours), 0.45,
                 detail=f"{median(x for x, _ in ours):,.0f} of {median(y for _, y in ours):,.0f} tokens/s" +
                 "".join(f"; llama.cpp {x / y:.2f}" for x, y in theirs), rounds=ours)
