"""Figures beside goals: rounds, probes of the machine between runs, peers, and the lines that are printed."""

import math
import statistics
import subprocess
import sys

from . import peer
from .programs import PEER_VLLM, Failed, Lines, Vllm, last_json, tool

PERCENT = "{:.1%}"


def progress(text):
    """One line on a terminal, nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def percentile(values, p):
    """The nearest rank."""
    if not values:
        raise Failed("no tokens came while the prompt was read")
    v = sorted(values)
    return v[min(len(v) - 1, max(0, math.ceil(p / 100 * len(v)) - 1))]


def spread(values):
    """The median, and how far the others lie from it: half of their range over it."""
    m = statistics.median(values)
    return m, (max(values) - min(values)) / (2 * m) if m else 0


class Bench:
    """One run: the probe, the peers, and the results."""

    def __init__(self, args):
        self.a = args
        self.items = []
        self.section = ""
        self.machine = Lines([tool("probe"), "-l", "-s", "0.1"])
        self.no_llama = peer.missing("llama-bench")
        self.no_batched = peer.missing("llama-batched-bench")
        self.no_vllm = None
        if subprocess.run([PEER_VLLM, "where"], stdout=subprocess.DEVNULL).returncode != 0:
            self.no_vllm = "vLLM is not installed: scripts/peer-vllm install"
        self.vllm_ = None

    def close(self):
        self.machine.close()
        if self.vllm_:
            self.vllm_.close()

    # ---- figures ----

    def figure(self, name, value, goal=None, most=False, detail="", show="{:.2f}", **more):
        """Prints a line: ok or SHORT if there is a goal (at least `goal`; with `most`, at most `goal`)."""
        met = goal is None or (value <= goal if most else value >= goal)
        verdict = "     " if goal is None else "ok   " if met else "SHORT"
        want = "" if goal is None else f"{'<=' if most else '>='} {show.format(goal)}"
        progress("")
        print(f"{verdict} {name:60} {show.format(value):>8}  {want:10}  {detail}".rstrip(), flush=True)
        self.items.append({"section": self.section, "name": name, "value": value, "goal": goal, "met": met,
                           "detail": detail, **more})

    def note(self, text):
        progress("")
        print(f"      {text}", flush=True)
        self.items.append({"section": self.section, "note": text})

    # ---- limits and peers ----

    def probe(self, kinds, threads, mb=None):
        """The greatest of the limits `kinds` now: GMAC/s of the best pass, which is what the cores can do, or GB/s of the
        median pass over mb megabytes."""
        if kinds == ("read",):
            return self.machine.ask(f"read {round(mb)} {threads}")["median"]
        return max(self.machine.ask(f"{k} {threads}")["best"] for k in kinds)

    def vllm(self, job):
        """tokens/s of vLLM with all threads, or None if it cannot run; a failure is reported once."""
        if self.no_vllm:
            return None
        try:
            if not self.vllm_:
                progress("loading vLLM")
                self.vllm_ = Vllm(self.a.threads)
            return self.vllm_.ask(job)["tokens_per_s"]
        except Failed as e:
            self.no_vllm = f"vLLM left out: {e}"
            self.note(self.no_vllm)
            return None

    def llama_prefill(self, model, n, threads, cold=False):
        if self.no_llama:
            return None
        cold = ["--no-warmup"] if cold or n >= 2048 else []  # a warm-up is as long as the test itself
        return last_json([peer.find("llama-bench"), "-m", model, "-t", str(threads), "-p", str(n), "-n", "0", "-r", "1",
                          "-o", "jsonl", *cold])["avg_ts"]

    def llama_decode(self, model, depth, batch, threads, steps=32):
        """The prompt is computed once and its KV copied for each sequence."""
        if batch == 1 and not self.no_llama:
            return last_json([peer.find("llama-bench"), "-m", model, "-t", str(threads), "-p", "0", "-n", str(steps), "-d",
                              str(depth), "-r", "1", "-o", "jsonl"])["avg_ts"]
        if self.no_batched:
            return None
        return last_json([peer.find("llama-batched-bench"), "-m", model, "-t", str(threads), "-c",
                          str((depth + steps + 32) * batch), "-pps", "-no-kvu", "-npp", str(depth), "-ntg", str(steps),
                          "-npl", str(batch), "--output-format", "jsonl"])["speed_tg"]

    # ---- rounds ----

    def rounds(self, name, one, n=None):
        """The results of one() in each round."""
        n = n or self.a.rounds
        out = []
        for i in range(n):
            progress(f"{self.section}: {name}, round {i + 1} of {n}")
            out.append(one())
        return out

    def case(self, name, engine, job, threads, kinds, goal=None, peers=(), n=None, of=None, peer_n=None):
        """Rounds of probe, ours, probe, peers. Prints our share of the limit and a ratio for each peer, a tuple (name,
        function that gives tokens/s or None, goal). Returns the answers of our engine."""
        job = f"{job} threads {threads}"
        mb = None
        if kinds == ("read",):
            first = engine.ask(job)
            mb = (first["weight_bytes"] + first["kv_bytes"]) / 1e6
        count = [0]

        def one():
            before = self.probe(kinds, threads, mb)
            ours = engine.ask(job)
            after = self.probe(kinds, threads, mb)
            limit = (before + after) / 2 if mb else max(before, after)
            count[0] += 1
            theirs = [p[1]() if count[0] <= (peer_n or self.a.rounds) else None for p in peers]
            return ours, limit, theirs

        got = self.rounds(name, one, n)
        rate, off = spread([o["tokens_per_s"] for o, _, _ in got])
        limit, swing = spread([x for _, x, _ in got])
        share, _ = spread([share_of(o, x) for o, x, _ in got])
        what = of or ("plain read" if mb else f"{'/'.join(kinds)} peak")
        detail = (f"{rate:,.0f} tokens/s ±{100 * off:.0f} %; " +
                  (f"read of {mb:,.0f} MB {limit:.1f} GB/s ±{100 * swing:.0f} %" if mb else f"{what} {limit:.0f} GMAC/s"))
        self.figure(f"{name}: share of {what}", share, goal, detail=detail, show=PERCENT, tokens_per_s=rate, limit=limit,
                    mb=mb, rounds=[{"tokens_per_s": o["tokens_per_s"], "limit": x, "peers": t} for o, x, t in got])
        for i, (who, _, want) in enumerate(peers):
            pairs = [(o["tokens_per_s"], t[i]) for o, _, t in got if t[i]]
            if pairs:
                self.figure(f"{name}: times {who}", statistics.median(a / b for a, b in pairs), want, peer=who,
                            detail=f"{statistics.median(b for _, b in pairs):,.0f} tokens/s" +
                            (" (one run)" if len(pairs) == 1 else ""))
        return [o for o, _, _ in got]


def share_of(answer, limit):
    """Of GMAC/s (linears, the head once a prompt), or of GB/s (weights and KV of each step)."""
    if answer["test"] == "prefill":
        return answer["linear_macs"] / answer["ns"] / limit
    return (answer["weight_bytes"] + answer["kv_bytes"]) * answer["steps"] / answer["ns"] / limit
