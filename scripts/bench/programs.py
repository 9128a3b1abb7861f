"""The programs that sections run: programs that answer a line with a line, HTTP servers of peers, and our services."""

import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time

import pipe

SCRIPTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(SCRIPTS)
PEER_VLLM = os.path.join(SCRIPTS, "peer-vllm")


class Failed(Exception):
    """A program of a case failed: its name, and the end of its output."""


def tool(name):
    """Path of a program of tests/tools in the build folder."""
    return os.path.join(ROOT, os.environ.get("B", "build"), "tests", "tools", name)


def wait_until(ready, seconds):
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise Failed(f"not ready after {seconds} s")
        time.sleep(0.02)


def last_json(cmd):
    """The last line of JSON that a program prints."""
    run = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [x for x in run.stdout.splitlines() if x.startswith("{")]
    if run.returncode != 0 or not lines:
        raise Failed(f"{' '.join(cmd)}: exit {run.returncode}: {run.stderr[-1500:].strip()}")
    return json.loads(lines[-1])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def processors():
    return sorted(os.sched_getaffinity(0))


class Program:
    """A process whose log, kept in a temporary file, is part of the error if the process ends early. `with` closes it."""

    def __init__(self, cmd, name=None, **popen):
        """popen: further arguments of Popen. stdout and stderr go to the log unless they are among them."""
        self.name = name or " ".join(cmd)
        self.log = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen(cmd, **{"stdout": self.log, "stderr": self.log, **popen})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def failure(self):
        rc = self.p.wait()
        self.log.seek(0)
        return Failed(f"{self.name}: exit {rc}: {self.log.read()[-1500:].strip()}")

    def check(self):
        if self.p.poll() is not None:
            raise self.failure()

    def close(self):
        self.log.close()


class Lines(Program):
    """A program that answers each line on its stdin with one line of JSON."""

    def __init__(self, cmd):
        super().__init__(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read(self):
        for line in self.p.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise self.failure()

    def ask(self, line):
        try:
            self.p.stdin.write(line + "\n")
            self.p.stdin.flush()
        except BrokenPipeError:
            pass  # read reports the reason
        return self.read()

    def close(self):
        if self.p.poll() is None:
            self.p.stdin.close()
            self.p.wait()
        super().close()


class Engine(Lines):
    """Our engine with one model loaded."""

    def __init__(self, model, kv="int8"):
        super().__init__([tool("bench_engine"), "-m", model, "--lines", "--reps", "1", "--kv-cache-dtype", kv])

    def packed(self):
        """Paths of the packed weights that it maps."""
        with open(f"/proc/{self.p.pid}/maps", encoding="utf-8") as f:
            return {line.split(None, 5)[5].strip() for line in f if line.rstrip().endswith(".pack")}


class Vllm(Lines):
    """vLLM in its venv, on the default model. It takes a minute or two to load, so one process serves all cases."""

    def __init__(self, threads):
        super().__init__([PEER_VLLM, "measure", "--threads", str(threads)])
        self.read()  # it is ready


class Peer(Program):
    """A peer's HTTP server at a free port. It is ready once GET /health returns 200."""

    def __init__(self, cmd, name, env=None, limit=300):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__([*cmd, "--port", str(self.port)], name, stdin=subprocess.DEVNULL,
                         env={**os.environ, **(env or {})}, start_new_session=True)
        try:
            wait_until(self.healthy, limit)
        except Failed:
            self.close()
            raise

    def healthy(self):
        self.check()
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
        super().close()


class Up(Program):
    """Our services, started by `phasepipe up` in a directory of their own."""

    def __init__(self, model, options, name="phasepipe up"):
        self.dir = tempfile.TemporaryDirectory(prefix="bench.")
        self.run = os.path.join(self.dir.name, "run")
        notify = os.path.join(self.dir.name, "notify")
        self.ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ready.bind(notify)
        self.ready.setblocking(False)
        super().__init__([pipe.program("phasepipe"), "up", "-m", model, "--run", self.run, *options], name,
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={**os.environ, "NOTIFY_SOCKET": notify})
        try:
            wait_until(self.is_ready, 120)
        except Failed:
            self.close()
            raise

    def is_ready(self):
        self.check()
        try:
            return b"READY=1" in self.ready.recv(4096)
        except BlockingIOError:
            return False

    def close(self):
        if self.p.poll() is None:
            self.p.terminate()
            self.p.wait()
        self.ready.close()
        super().close()
        self.dir.cleanup()
