"""Sections over HTTP: the cost of the HTTP server, and whole servers under one load generator (`bench`, which counts and takes
the times for all of them)."""

import json
import os
import socket
import statistics
import subprocess
import tempfile
import time

import pipe

from . import peer
from .figures import percentile
from .programs import PEER_VLLM, Failed, Peer, Up, free_port, processors

SSE = {"streams": 1000, "tokens": 60, "step_ms": 100}
ONE = {"requests": 400, "at_once": 32, "prompt": 16}
TTFT = {"prompt": 16, "requests": 40}
RATES = {
    "shared prefix": {"args": ["--dataset-name", "prefix", "--prefix-repetition-num-prefixes", "4", "--prefix-repetition-prefix-len",
                               "1000", "--prefix-repetition-suffix-len", "32", "--prefix-repetition-output-len", "32"],
                      "rates": (1, 2, 4, 8), "n": (12, 16, 32, 64), "slo": {"ttft": 2000, "tpot": 100}},
    "long prompts": {"args": ["--dataset-name", "random", "--random-input-len", "2000", "--random-output-len", "48"],
                     "rates": (0.2, 0.4, 0.8), "n": (6, 6, 8), "slo": {"ttft": 5000, "tpot": 100}},
}
WINDOW = 4096
SLOTS = 16


def load(url, *options, limit=600):
    """A run of bench against a server; its result. A request that failed is a failure of the case."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        cmd = [pipe.program("bench"), "--base-url", url, "--seed", "1", "-o", out.name, *map(str, options)]
        run = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit)
        if run.returncode != 0:
            raise Failed(f"{' '.join(cmd)}: exit {run.returncode}: {run.stdout[-1500:].strip()}")
        return json.load(out)


class Ours(Up):
    """The services with HTTP at a free port."""

    def __init__(self, model, options, name):
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        super().__init__(model, ["--http", address, "--ollama", "off", *options], name)

    def pid_of(self, name):
        with open(os.path.join(self.run, "state.json"), encoding="utf-8") as f:
            state = json.load(f)
        services = state["services"] if isinstance(state, dict) else state
        return next(s["pid"] for s in services if s["name"] == name)


def llama(b, *options):
    return Peer([peer.find("llama-server"), "-m", b.a.model, "-t", str(b.a.threads), "--host", "127.0.0.1", *options],
                "llama.cpp's server")


def vllm(b):
    home = subprocess.run([PEER_VLLM, "where"], stdout=subprocess.PIPE, text=True).stdout.strip()
    cores = f"0-{b.a.threads - 1}" if b.a.threads > 1 else "0"
    return Peer([os.path.join(home, "venv", "bin", "vllm"), "serve", os.path.join(home, "model"), "--dtype", "bfloat16",
                 "--max-model-len", str(WINDOW), "--max-num-seqs", str(SLOTS), "--host", "127.0.0.1"], "vLLM on the CPU",
                {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": cores, "HF_HUB_OFFLINE": "1",
                 "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
                 "PATH": os.path.join(home, "venv", "bin") + ":" + os.environ["PATH"]}, limit=600)


# ---- 1,000 streams of a fake engine ----

def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        words = f.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def delays_ms(result):
    """All tokens of a step leave decode at once, so the delay of an event is counted from the first event of its step. Events
    belong to one step if they lie within half of its time. First tokens come from prefill, whose steps are others, and are
    not counted."""
    at = []
    for start, ttft, itls in zip(result["start_times"], result["ttfts"], result["itls"]):
        t = start + ttft
        for gap in itls:
            t += gap
            at.append(t)
    at.sort()
    first, out = at[0], []
    for t in at:
        if t - first > SSE["step_ms"] / 2000:
            first = t
        out.append(1e3 * (t - first))
    return out


def sse(b):
    n, tokens = SSE["streams"], SSE["tokens"]
    engine = f"fake:1e6,1e3,0,{SSE['step_ms']}e6,0,1"
    with Ours(b.a.model, ["--engine", engine, "--max-num-seqs", str(n), "--max-num-batched-tokens", str(max(1024, n)),
                          "--kv-cache-memory-bytes", "256M"], "ours") as s:
        edge = s.pid_of("stream")

        def turn():
            was = cpu_s(edge)
            r = load(s.url, "-n", n, "--random-input-len", 16, "--random-output-len", tokens, "--ignore-eos", "--save-detailed")
            return {"us": 1e6 * (cpu_s(edge) - was) / (n * tokens), "p99": percentile(delays_ms(r), 99),
                    "whole": sum(k == tokens for k in r["output_lens"]), "bench_us": r["client"]["cpu_us_per_event"]}

        got = b.rounds("sse", turn, b.a.rounds)
    median = statistics.median
    b.figure(f"{n:,} streams of a fake engine: CPU of the gateway, µs an event", median(g["us"] for g in got), 15, most=True,
             show="{:.1f}", detail=f"{n * tokens:,} events a round; bench itself {median(g['bench_us'] for g in got):.1f} µs")
    b.figure("… p99 of the delay after the first of a step, ms", median(g["p99"] for g in got), 25, most=True, show="{:.1f}")
    b.figure("… streams that are complete", min(g["whole"] for g in got), n, show="{:.0f}")


# ---- answers of one token ----

def requests(b):
    """In turns, so that a disturbance of the machine affects both. Both get the same prompts, new ones in each round, because
    llama.cpp's server finds any prompt that it has seen, however short."""
    seeds = {}

    def rate(s):
        seeds[s.name] = seeds.get(s.name, 0) + 1
        r = load(s.url, "-n", ONE["requests"], "--max-concurrency", ONE["at_once"], "--random-input-len", ONE["prompt"],
                 "--random-output-len", 1, "--ignore-eos", "--seed", seeds[s.name])
        return r["request_throughput"]

    missing = peer.missing("llama-server")
    with Ours(b.a.model, [], "ours") as ours:
        if missing:
            b.note(missing)
            b.figure("answers of one token, 32 at once: a second", statistics.median(b.rounds("ours", lambda: rate(ours))),
                     show="{:.0f}")
            return
        with llama(b, "-c", str(ONE["at_once"] * 256), "-np", str(ONE["at_once"])) as other:
            got = b.rounds("requests", lambda: (rate(ours), rate(other)))
    mine, theirs = (statistics.median(g[i] for g in got) for i in (0, 1))
    b.figure(f"answers of one token, {ONE['at_once']} at once: against llama.cpp's server",
             statistics.median(m / t for m, t in got), 2, detail=f"{mine:.0f} and {theirs:.0f} a second")


# ---- what HTTP adds ----

def edge(b):
    """One gateway for a pipe and one for HTTP on the same services: the same requests in turns, each with a new prompt. The pipe
    reports its own time from the arrival of a request to its first token; over HTTP the client takes the time from writing the
    request to the first event."""
    def by_pipe(s):
        lines = "".join(json.dumps({"prompt": prompt(), "max_tokens": 1, "ignore_eos": True, "temperature": 0}) + "\n"
                        for _ in range(TTFT["requests"]))
        run = subprocess.run([pipe.program("stream"), "--run", s.run, "--jsonl", "--max-running", "1"], input=lines,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if run.returncode:
            raise Failed(f"stream: exit {run.returncode}: {run.stderr[-800:]}")
        return statistics.median(json.loads(x)["timings"]["ttft_ns"] for x in run.stdout.splitlines()) / 1e6

    def by_http(s):
        times = []
        with socket.create_connection(("127.0.0.1", int(s.url.rsplit(":", 1)[1])), 60) as c:
            for _ in range(TTFT["requests"]):
                body = json.dumps({"prompt": prompt(), "max_tokens": 1, "ignore_eos": True, "temperature": 0, "stream": True})
                ask = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       f"Content-Length: {len(body)}\r\n\r\n{body}").encode()
                got = b""
                begin = time.perf_counter()
                c.sendall(ask)
                while b"data: {" not in got:
                    piece = c.recv(65536)
                    got += piece
                    if not piece or (b"\r\n\r\n" in got and not got.startswith(b"HTTP/1.1 200")):
                        raise Failed(f"ours: {got[:200]}")
                times.append(1e3 * (time.perf_counter() - begin))
                while not got.endswith(b"\r\n0\r\n\r\n"):
                    piece = c.recv(65536)
                    got += piece
                    if not piece:
                        raise Failed(f"ours: ends within an answer: {got[-200:]}")
        return statistics.median(times)

    seen = [0]

    def prompt():
        seen[0] += 1
        return [(7 * k + 13 * seen[0]) % 40000 + 100 for k in range(TTFT["prompt"])]

    with Ours(b.a.model, [], "ours") as s:
        by_pipe(s), by_http(s)
        got = b.rounds("edge", lambda: (by_pipe(s), by_http(s)), max(5, b.a.rounds))
    b.figure(f"TTFT that HTTP adds to the pipe, {TTFT['prompt']} tokens, ms", statistics.median(h - p for p, h in got), 2, most=True,
             detail=f"{statistics.median(h for _, h in got):.2f} and {statistics.median(p for p, _ in got):.2f} ms")


# ---- whole servers at rising rates ----

def servers(b):
    many = str(len(processors()))
    yield "split", lambda: Ours(b.a.model, [], "split")
    yield "colocated", lambda: Ours(b.a.model, ["--sched", "sched-colocate", "-P", "0", "-D", many, "--cores", "fixed"], "colocated")
    missing = peer.missing("llama-server")
    if missing:
        b.note(missing)
    else:
        yield "llama.cpp", lambda: llama(b, "-c", str(SLOTS * WINDOW))
    if b.no_vllm:
        b.note(b.no_vllm)
    else:
        yield "vLLM-CPU", lambda: vllm(b)


def measure(b, start, name):
    """One server at a time has the machine: every workload at every rate, each rate with prompts of its own."""
    got = {}
    with start() as s:
        load(s.url, "-n", 4, "--random-input-len", 32, "--random-output-len", 8, "--ignore-eos", "--temperature", 0)
        for workload, w in RATES.items():
            for i, rate in enumerate(w["rates"]):
                got[workload, rate] = load(s.url, *w["args"], "-n", w["n"][i], "--request-rate", rate, "--ignore-eos",
                                           "--temperature", 0, "--seed", 100 + i,
                                           *(x for k, v in w["slo"].items() for x in ("--goodput", f"{k}:{v}")), limit=1200)
    b.items.append({"section": b.section, "server": name, "rates": [{"workload": k[0], "rate": k[1], **v} for k, v in got.items()]})
    return got


def rates(b):
    all_of = {}
    for name, start in servers(b):
        try:
            all_of[name] = measure(b, start, name)
        except (Failed, subprocess.TimeoutExpired) as e:
            b.note(f"{name}: {e}")
    for workload, w in RATES.items():
        b.note(f"{workload + '; good: TTFT ' + str(w['slo']['ttft']) + ' ms, TPOT ' + str(w['slo']['tpot']) + ' ms':58}"
               f"{'req/s':>8}{'good':>8}{'out/s':>8}{'TTFT':>9}{'p99':>9}{'ITL':>8}{'p99':>9}")
        for rate in w["rates"]:
            for name, got in all_of.items():
                r = got[workload, rate]
                b.note(f"  {rate:g} a second, {name:40}{r['request_throughput']:8.2f}{r['request_goodput']:8.2f}"
                       f"{r['output_throughput']:8.0f}{r['median_ttft_ms']:9.0f}{r['p99_ttft_ms']:9.0f}{r['median_itl_ms']:8.1f}"
                       f"{r['p99_itl_ms']:9.0f}")
    verdicts(b, all_of)


def verdicts(b, all_of):
    """If all servers keep up with the rate, throughput equals the rate, and only goodput can differ."""
    ours = all_of.get("split")
    for name in ("llama.cpp", "vLLM-CPU"):
        if not ours or name not in all_of:
            continue
        for key, what in (("output_throughput", "throughput"), ("request_goodput", "goodput")):
            ahead = {k: r[key] / max(all_of[name][k][key], 1e-9) for k, r in ours.items() if r[key] or all_of[name][k][key]}
            if ahead:
                k = min(ahead, key=ahead.get)
                b.figure(f"split against {name}: {what}, the least of all rates", min(ahead[k], 99), 1,
                         detail=f"{k[0]} at {k[1]:g} a second")
    if ours and "colocated" in all_of:
        k, r = max(((k, ours[k]["p99_itl_ms"] / all_of["colocated"][k]["p99_itl_ms"]) for k in ours if k[0] == "long prompts"),
                   key=lambda x: x[1])
        b.figure("split against colocated: ITL p99, long prompts, the most of all rates", r, 1, most=True,
                 detail=f"at {k[1]:g} a second")
