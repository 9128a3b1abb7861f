"""What the sections of bench-peers share: programs that answer lines, probes between runs, rounds, figures beside goals.
Standard library only."""

import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import peer

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "phasepipe")
MODELS = os.path.join(CACHE, "bench")
PERCENT = "{:.1%}"


class Failed(Exception):
    """A program of a case failed: what it was, and what it said."""


def tool(name):
    return os.path.join(ROOT, os.environ.get("B", "build"), "tests", "tools", name)


def progress(text):
    """One line on a terminal, nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


class Closing:
    """Closed at the end of its `with`."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Lines(Closing):
    """A program that answers each line on its stdin with one line of JSON."""

    def __init__(self, cmd):
        self.cmd = cmd
        self.said = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True)

    def read(self):
        for line in self.p.stdout:
            if line.startswith("{"):
                return json.loads(line)
        rc = self.p.wait()
        self.said.seek(0)
        raise Failed(f"{' '.join(self.cmd)}: exit {rc}: {self.said.read()[-1500:].strip()}")

    def ask(self, line):
        try:
            self.p.stdin.write(line + "\n")
            self.p.stdin.flush()
        except BrokenPipeError:
            pass  # read says why
        return self.read()

    def close(self):
        if self.p.poll() is None:
            self.p.stdin.close()
            self.p.wait()
        self.said.close()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Peer(Closing):
    """A server of another make at a free port, ready when its /health says so."""

    def __init__(self, cmd, name, env=None, limit=300):
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.said = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen([*cmd, "--port", str(self.port)], stdin=subprocess.DEVNULL, stdout=self.said, stderr=self.said,
                                  env={**os.environ, **(env or {})}, start_new_session=True)
        try:
            wait_until(self.healthy, limit)
        except Failed:
            self.close()
            raise

    def healthy(self):
        if self.p.poll() is not None:
            self.said.seek(0)
            raise Failed(f"{self.name}: exit {self.p.returncode}: {self.said.read()[-1500:].strip()}")
        try:
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            c.request("GET", "/health")
            return c.getresponse().status == 200
        except OSError:
            return False

    def close(self):
        if self.p.poll() is None:
            os.killpg(self.p.pid, signal.SIGTERM)
            try:
                self.p.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.p.pid, signal.SIGKILL)
                self.p.wait()
        self.said.close()


class Engine(Lines):
    """Our engine on one model, which stays open."""

    def __init__(self, model, kv="int8"):
        super().__init__([tool("bench_engine"), "-m", model, "--lines", "--reps", "1", "--kv-cache-dtype", kv])

    def packed(self):
        """Paths of the packed weights that it maps."""
        with open(f"/proc/{self.p.pid}/maps", encoding="utf-8") as f:
            return {line.split(None, 5)[5].strip() for line in f if line.rstrip().endswith(".pack")}


def last_json(cmd):
    """The last line of JSON that a program prints."""
    run = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [x for x in run.stdout.splitlines() if x.startswith("{")]
    if run.returncode != 0 or not lines:
        raise Failed(f"{' '.join(cmd)}: exit {run.returncode}: {run.stderr[-1500:].strip()}")
    return json.loads(lines[-1])


class Vllm(Lines):
    """vLLM in its venv, on the default model; loading it takes a minute or two, so it stays."""

    def __init__(self, threads):
        super().__init__([os.path.join(HERE, "peer-vllm"), "measure", "--threads", str(threads)])
        self.read()  # it is ready


def spread(values):
    """The median, and how far the others lie from it: half of their range over it."""
    m = statistics.median(values)
    return m, (max(values) - min(values)) / (2 * m) if m else 0


class Bench:
    """Holds the probe and the peers of a run, and its results."""

    def __init__(self, args):
        self.a = args
        self.items = []
        self.short = 0
        self.section = ""
        self.machine = Lines([tool("probe"), "-l", "-s", "0.1"])
        self.no_llama = peer.missing("llama-bench")
        self.no_batched = peer.missing("llama-batched-bench")
        self.no_vllm = None
        if subprocess.run([os.path.join(HERE, "peer-vllm"), "where"], stdout=subprocess.DEVNULL).returncode != 0:
            self.no_vllm = "vLLM is not installed: scripts/peer-vllm install"
        self.vllm_ = None

    def close(self):
        self.machine.close()
        if self.vllm_:
            self.vllm_.close()

    # ---- figures ----

    def figure(self, name, value, goal=None, most=False, detail="", show="{:.2f}", **more):
        """Prints a line: ok or short of the goal (a value at least `goal`, or at most where `most`), or no goal."""
        met = goal is None or (value <= goal if most else value >= goal)
        self.short += not met
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
        """tokens/s of vLLM with all threads, or None where it cannot run; a failure is said once."""
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
        """Sequences share a prompt, which is read once; each has KV of its own, copied."""
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


# ---- models ----

def default_model():
    return os.path.join(CACHE, "SmolLM2-135M-Instruct.Q4_1.gguf")


def made(path, cmd):
    """`path`, made by cmd(temporary name) where it is not there."""
    if not os.path.exists(path):
        progress(f"making {os.path.basename(path)}")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temp = f"{path}.{os.getpid()}"
        run = subprocess.run(cmd(temp), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if run.returncode != 0:
            if os.path.exists(temp):
                os.unlink(temp)
            raise Failed(f"{' '.join(cmd(temp))}: exit {run.returncode}: {run.stdout[-1500:].strip()}")
        os.replace(temp, path)
    return path


def requantised(model, kind):
    """The model in another type, by the peer's quantiser; None where that is missing."""
    stem = os.path.basename(model).removesuffix(".gguf")
    path = os.path.join(MODELS, f"{stem}.{kind}.gguf")
    if not os.path.exists(path) and peer.missing("llama-quantize"):
        return None
    return made(path, lambda out: [peer.find("llama-quantize"), "--allow-requantize", model, out, kind])


def shaped(kind):
    """Random weights in the shape of Llama 3.2 1B."""
    return made(os.path.join(MODELS, f"1b.{kind}.gguf"),
                lambda out: [sys.executable, os.path.join(HERE, "make-random-model"), "--type", kind, out])


def remove(model, packed):
    """A model of this folder and its packed copies; others stay."""
    if os.path.dirname(model) == MODELS:
        for path in (model, *packed):
            if os.path.exists(path):
                os.unlink(path)


def wait_until(ready, seconds):
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise Failed(f"nothing after {seconds} s")
        time.sleep(0.02)
