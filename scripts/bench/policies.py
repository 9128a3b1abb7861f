"""Sections about policies: goodput by policy on excerpts of published traces, with workers whose times follow from
coefficients; in virtual time, and with real processes."""

import calendar
import json
import os
import random
import statistics
import subprocess
import time

import pipe
from .programs import ROOT, Failed, Up, last_json, tool

TRACES = os.path.join(ROOT, "tests", "golden", "traces")
CONVERSATION, CODE, CHAT = (os.path.join(TRACES, n) for n in ("mooncake-conversation.jsonl", "azure-code.csv",
                                                              "azure-conv.csv"))
TTFT_MS, TPOT_MS = 4000, 100
MORE = 1.001                      # the order is strict
CHUNKS = (256, 512, 1024, 2048)   # of steps of workers that do both: the baseline has the best
WORKERS = 8

# Of the real processes: a token stands for SHRINK of the trace, and time goes FASTER times as fast.
SHRINK, FASTER = 4, 4
PREFILL, DECODE = (18.1e6, 0.1019e6, 7.122), (19.93e6, 627, 38500)  # ns; OPT-13B on an A100, by DistServe
WINDOW = 8192
TRIES = 3


def simulate(*args):
    return last_json([pipe.program("simulate"), "--json", *map(str, args)])


def split(policy, p, d, *args):
    return simulate("--policy", policy, "-P", p, "-D", d, *args)


def together(n, *args):
    """Workers that do both, at the chunk that is best for them."""
    got = [simulate("--policy", "colocate", "-P", 0, "-D", 0, "-B", n, "--max-num-batched-tokens", c, *args) for c in CHUNKS]
    return max(got, key=lambda g: g["goodput"])


def simulated(b):
    levels = ["--slo-ttft-ms", TTFT_MS, "--slo-tpot-ms", TPOT_MS]
    b.note(f"{'goodput a second, share of all; virtual time':50}{'kv':>14}{'fcfs':>14}{'colocate':>14}")
    for trace, name, n, scales, last in ((CONVERSATION, "conversations that share prefixes", 4, (0.25, 0.5, 1), 0),
                                         (CODE, "code: long prompts, short answers", 2, (0.5, 0.75, 1), 1)):
        for scale in scales:
            load = [*levels, "--scale", scale, trace]
            kv, fcfs, both = split("kv", n, n, *load), split("fcfs", n, n, *load), together(2 * n, *load)
            b.note(f"{name + f', load {scale:g}':50}" +
                   "".join(f"{g['goodput']:7.2f} {g['attained']:6.1%}" for g in (kv, fcfs, both)))
        if last:
            b.figure(f"{name}: split against no split", kv["goodput"] / both["goodput"], MORE, show="{:.3f}")
        else:
            b.figure(f"{name}: kv-aware against fcfs", kv["goodput"] / fcfs["goodput"], MORE, show="{:.3f}")


# ---- real processes ----


def conversation(n):
    """(ms, ids, tokens of the answer) of requests whose blocks of 512 tokens have names."""
    with open(CONVERSATION, encoding="utf-8") as f:
        for r in [json.loads(line) for line in f if not line.startswith("#")][:n]:
            ids = []
            for name in r["hash_ids"]:
                rnd = random.Random(name)
                ids += [rnd.randrange(100, 40000) for _ in range(512 // SHRINK)]
            yield r["timestamp"], ids[:max(1, r["input_length"] // SHRINK)], r["output_length"]


def code(n):
    with open(CODE, encoding="utf-8") as f:
        rows = [line.strip().split(",") for line in f if line[:1].isdigit()][:n]
    rnd = random.Random(7)
    for when, n_prompt, n_out in rows:
        whole, part = when.split(".")
        at = calendar.timegm(time.strptime(whole, "%Y-%m-%d %H:%M:%S")) + float(f"0.{part}")
        yield 1e3 * at, [rnd.randrange(100, 40000) for _ in range(max(1, int(n_prompt) // SHRINK))], int(n_out)


def lines(requests, scale):
    first = None
    for at, ids, n_out in requests:
        first = at if first is None else first
        if len(ids) + n_out < WINDOW:
            yield f"{(at - first) / scale / FASTER:.3f} " + json.dumps(
                {"prompt": ids, "max_tokens": n_out, "temperature": 0, "ignore_eos": True}) + "\n"


def coefficients():
    ns = (PREFILL[0], PREFILL[1] * SHRINK, PREFILL[2] * SHRINK ** 2, DECODE[0], DECODE[1] * SHRINK, DECODE[2])
    return "fake:" + ",".join(f"{c / FASTER:.6g}" for c in ns)


def play(b, name, options, text):
    """Services that have cached nothing, and the requests."""
    with Up(b.a.model, ["--engine", coefficients(), "--kv-cache-memory-bytes", "256M", "--sched", name, *options]) as s:
        run = subprocess.run([tool("replay"), "--sched", f"ipc://{s.run}/sched.sock", "--tokenize",
                              f"ipc://{s.run}/tokenize.sock", "--slo-ttft-ms", str(TTFT_MS / FASTER), "--slo-tpot-ms",
                              str(TPOT_MS / FASTER)], input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if run.returncode != 0:
            raise Failed(f"replay: exit {run.returncode}: {run.stderr[-1500:].strip()}")
        return json.loads(run.stdout)


def real(b):
    """Two policies in turns, each three times; next to the result of simulate for the same requests."""
    apart, both = ["-P", "2", "-D", "2"], ["-P", "0", "-D", "4"]
    for trace, requests, n, scale, name, other, options in (
            (CONVERSATION, conversation, 56, 0.5, "kv-aware against fcfs", "sched-fcfs", apart),
            (CODE, code, 60, 2, "split against no split", "sched-colocate", both)):
        text = "".join(lines(requests(n), scale))

        def turn():
            return play(b, "sched", apart, text), play(b, other, options, text)

        got = b.rounds(name, turn, TRIES)
        load = ["--shared", "--slo-ttft-ms", TTFT_MS, "--slo-tpot-ms", TPOT_MS, "-n", n, "--scale", scale, trace]
        expected = split("kv", 2, 2, *load)["attained"], (
            split("fcfs", 2, 2, *load) if options is apart else
            simulate("--policy", "colocate", "-P", 0, "-D", 0, "-B", 4, *load))["attained"]
        rates = [[g[i]["goodput"] for g in got] for i in range(2)]
        a, o = map(statistics.median, rates)
        apart_by = " but not in each" if min(rates[0]) <= max(rates[1]) else ""
        b.figure(f"real processes, {name}", a / o if o else float("inf"), MORE, show="{:.3f}", rounds=got,
                 detail=f"{a:.2f} and {o:.2f} a second{apart_by}; shares " + ", ".join(
                     f"{statistics.median(g[i]['good'] / g[i]['requests'] for g in got):.1%} (simulate {expected[i]:.1%})"
                     for i in range(2)))


# ---- load that turns ----


def turning(b):
    """Code, then chat: roles that change against every split that stays."""
    levels = ["--slo-ttft-ms", 2000, "--slo-tpot-ms", 60, "--max-num-seqs", 32]
    for scale in (2, 3):
        load = [*levels, "--scale", scale, CODE, CHAT]
        counts = range(1, WORKERS)
        fixed = [split("kv", p, WORKERS - p, "-k", "roles=0", *load)["goodput"] for p in counts]
        moving = [split("kv", p, WORKERS - p, *load)["goodput"] for p in counts]
        b.note(f"goodput a second, load {scale}, prefill + decode: " + "  ".join(f"{p}+{WORKERS - p}" for p in counts))
        for name, row in (("that stay", fixed), ("to begin with", moving)):
            b.note(f"{name:>{len('goodput a second, load 2, prefill + decode:')}}" + "".join(f"{g:5.2f}" for g in row))
        b.figure(f"code, then chat, load {scale}: roles that change against the best fixed split",
                 min(moving) / max(fixed), 0.95, show="{:.1%}", detail="the worst beginning")
