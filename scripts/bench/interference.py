"""Section about interference: how a long prompt delays streams that are being decoded, and how fast a request is that has all
cores to itself."""

import http.client
import json
import random
import statistics
import threading
import time

from . import peer
from .figures import percentile
from .programs import Failed, Lines, Peer, Up, processors, tool, wait_until

STREAMS = 3
DEPTH = 64      # ids of a stream's prompt
QUIET = 200     # tokens of a stream before the prompt comes
WARM = 8        # of a stream, before they count
PROMPT = 4000
WINDOW = 8192
CHUNKS = (32, 64, 128, 256, 512)
LONE = (1000, 128)
PAIRS = 5


class Services(Up):
    """The services, and a gateway that measures times. It runs on the first processor, with everything that computes no answer:
    decode has the last processor to itself."""

    def __init__(self, model, options, name):
        self.gateway = None
        super().__init__(model, ["--http", "off", "--ollama", "off", *options], name)  # several run at once
        self.gateway = Lines(["taskset", "-c", str(processors()[0]), tool("bench_serve"), "--sched",
                              f"ipc://{self.run}/sched.sock", "--tokenize", f"ipc://{self.run}/tokenize.sock"])

    def ask(self, job):
        return self.gateway.ask(job)

    def mixed(self):
        return self.ask(f"streams {STREAMS} depth {DEPTH} skip {WARM} quiet {QUIET} prompt {PROMPT} tokens 2")

    def quiet_as(self, mixed):
        """The same without a prompt: times between as many tokens at the same depths as those while it was read."""
        n = max(100, round(len(mixed["during"]) / STREAMS))
        return self.ask(f"streams {STREAMS} depth {DEPTH} skip {WARM + QUIET} quiet {n}")["quiet"]

    def alone(self):
        return self.ask(f"prompt {PROMPT} tokens 2")

    def lone(self):
        return self.ask(f"prompt {LONE[0]} tokens {LONE[1]}")

    def close(self):
        if self.gateway:
            self.gateway.close()
        super().close()


class Llama(Peer):
    """llama.cpp's server with a slot a request, asked over HTTP."""

    def __init__(self, model, threads, options, name):
        super().__init__([peer.find("llama-server"), "-m", model, "-t", str(threads), "-c", str((STREAMS + 1) * WINDOW), "-np",
                          str(STREAMS + 1), "--host", "127.0.0.1", *options], name, limit=120)

    def follow(self, n_id, n_out, came):
        """Calls came(time) for each token until that returns True."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        ids = [random.randrange(100, 40000) for _ in range(n_id)]
        c.request("POST", "/completion", json.dumps({"prompt": ids, "n_predict": n_out, "stream": True, "temperature": 0,
                                                     "ignore_eos": True, "cache_prompt": False}),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            raise Failed(f"llama-server: {r.read()[:500]}")
        for line in r:
            if line.startswith(b"data: ") and came(time.monotonic()):
                break
        c.close()

    def mixed(self):
        """Counts as bench_serve does: times between tokens of the streams before the prompt was sent, and those that begin
        before its first token."""
        times = [[] for _ in range(STREAMS)]
        over = threading.Event()

        def stream(i):
            self.follow(DEPTH, 4000, lambda t: times[i].append(t) or over.is_set())

        threads = [threading.Thread(target=stream, args=(i,), daemon=True) for i in range(STREAMS)]
        for t in threads:
            t.start()
        wait_until(lambda: all(len(t) >= WARM + QUIET for t in times), 600)
        asked = time.monotonic()
        first = []
        self.follow(PROMPT, 2, lambda t: first.append(t) or True)
        wait_until(lambda: all(t[-1] > first[0] for t in times), 600)
        over.set()
        for t in threads:
            t.join()
        gaps = [(b, 1e3 * (b - a)) for t in times for a, b in zip(t[WARM - 1:], t[WARM:])]
        return {"quiet": [g for t, g in gaps if t <= asked],
                "during": [g for t, g in gaps if asked < t and t - g / 1e3 < first[0]],
                "ttft_ms": 1e3 * (first[0] - asked)}


def goals(b, fixed, lease, one):
    """In turns, so that a disturbance of the machine affects all of them."""
    def turn():
        got = {"alone": fixed.alone(), "fixed": fixed.mixed()}
        return {**got, "quiet": fixed.quiet_as(got["fixed"]), "lease": lease.mixed(), "lone": lease.lone(), "one": one.lone(),
                "lone_fixed": fixed.lone()}

    def ratio(g, who, p):
        return percentile(g[who]["during"], p) / percentile(g["quiet"], p)

    for s in (fixed, lease, one):
        s.lone()
    got = b.rounds("pairs", turn, max(PAIRS, b.a.rounds))
    median = statistics.median
    name = f"{STREAMS} streams while a prompt of {PROMPT:,} tokens is read"
    for p, goal in ((50, 1.1), (99, 1.2)):
        b.figure(f"{name}, fixed: ITL p{p} against quiet", median(ratio(g, "fixed", p) for g in got), goal, most=True,
                 detail=f"{median(percentile(g['fixed']['during'], p) for g in got):.1f} and "
                 f"{median(percentile(g['quiet'], p) for g in got):.1f} ms at the same depths")
    b.figure(f"{name}, fixed: its TTFT against alone", median(g["fixed"]["ttft_ms"] / g["alone"]["ttft_ms"] for g in got),
             1.1, most=True, detail=f"{median(g['fixed']['ttft_ms'] for g in got):,.0f} and "
             f"{median(g['alone']['ttft_ms'] for g in got):,.0f} ms")
    b.figure(f"{name}, lease: ITL p99 against quiet, fixed", median(ratio(g, "lease", 99) for g in got), 1.2, most=True,
             detail=f"{median(percentile(g['lease']['during'], 99) for g in got):.1f} ms")
    for key, what in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT")):
        for beside, whom, goal in (("one", "one process on all cores", 1.1), ("lone_fixed", "fixed cores", 0.75)):
            b.figure(f"a lone request of {LONE[0]:,} + {LONE[1]} tokens, lease: {what} against {whom}",
                     median(g["lone"][key] / g[beside][key] for g in got), goal, most=True,
                     detail=f"{median(g['lone'][key] for g in got):.2f} and {median(g[beside][key] for g in got):.2f} ms")
    return [("prefill and decode, fixed cores", [g["fixed"] for g in got]),
            ("prefill and decode, leased cores", [g["lease"] for g in got])]


def row(b, name, got):
    median = statistics.median
    cell = lambda when, p: median(percentile(g[when], p) for g in got)
    ttft = median(g["ttft_ms"] for g in got)
    b.note(f"{name:38}{cell('quiet', 50):9.1f}{cell('quiet', 99):9.1f}{cell('during', 50):9.1f}{cell('during', 99):9.1f}"
           f"{max(max(g['during']) for g in got):9.1f}{ttft / 1e3:9.2f}")
    b.items[-1].update(rounds=[{**g, "name": name} for g in got])


def others(b):
    """What it is compared with: one worker that mixes chunks of the prompt into its steps, no split, llama.cpp's server."""
    whole = ["-P", "0", "-D", "1", "--cores", "fixed"]
    many = str(len(processors()))
    yield from ((f"one worker, steps of {n} rows", lambda n=n: Services(
        b.a.model, [*whole, "--max-num-seqs", "16", "--max-num-batched-tokens", str(n)], "chunked")) for n in CHUNKS)
    yield "sched-colocate, a worker a core", lambda: Services(
        b.a.model, ["--sched", "sched-colocate", "-P", "0", "-D", many, "--cores", "fixed"], "colocate")
    missing = peer.missing("llama-server")
    if missing:
        b.note(missing)
        return
    yield "llama.cpp's server", lambda: Llama(b.a.model, b.a.threads, [], "llama")
    yield "llama.cpp's server, batches of 128", lambda: Llama(b.a.model, b.a.threads, ["-b", "128", "-ub", "128"], "llama")


def interference(b):
    if len(processors()) < 2:
        b.note("prefill and decode on cores of their own: needs two")
        return
    with Services(b.a.model, ["--cores", "fixed"], "fixed") as fixed, \
            Services(b.a.model, ["--cores", "lease"], "lease") as lease, \
            Services(b.a.model, ["-P", "0", "-D", "1", "--cores", "fixed"], "one") as one:
        rows = goals(b, fixed, lease, one)
    b.note(f"{'ms between tokens of ' + str(STREAMS) + ' streams; TTFT, s':38}{'quiet':>9}{'p99':>9}{'prompt':>9}{'p99':>9}"
           f"{'most':>9}{'TTFT':>9}")
    for name, got in rows:
        row(b, name, got)
    for name, start in others(b):
        try:
            with start() as s:
                row(b, name, b.rounds(name, s.mixed))
        except Failed as e:
            b.note(f"{name}: {e}")
