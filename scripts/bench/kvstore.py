"""Section about kvstore: transferring a prefilled request out of one client and into another."""

import os
import statistics
import subprocess
import tempfile

import pipe
from .programs import Failed, tool

SLOT = 12288  # bytes of a block of tests/tools/kv_client


class Store:
    """A kvstore of the kind that tests/tools/kv_client has."""

    def __init__(self, folder, n_block):
        self.url = f"unix:{folder}/kv.sock"
        ready, ready_fd = os.pipe()
        self.p = subprocess.Popen(
            [pipe.program("kvstore"), "--listen", self.url, "--model-fingerprint", "07" * 32, "--layers", "2",
             "--kv-heads", "1", "--head-dim", "64", "--kv-cache-memory-bytes", str(n_block * SLOT), "--ready-fd", str(ready_fd)],
            pass_fds=[ready_fd])
        os.close(ready_fd)
        with os.fdopen(ready) as f:
            if f.read() != "ready\n":
                raise Failed("kvstore is not ready")

    def close(self):
        self.p.terminate()
        self.p.wait()


class Client:
    """A client that runs one command a line."""

    def __init__(self, store):
        self.p = subprocess.Popen([tool("kv_client"), store.url, "07"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True)
        self.p.stdout.readline()

    def run(self, command):
        self.p.stdin.write(command + "\n")
        self.p.stdin.flush()
        reply = self.p.stdout.readline().strip()
        if not reply or reply.startswith("no "):
            raise Failed(f"kv_client, {command}: {reply}")
        return reply

    def close(self):
        self.p.stdin.close()
        self.p.wait()


def handover(b):
    """Transfer out and in, two round trips, of a sequence of 128 tokens and of one of 8,000, in turns."""
    blocks = {128: 4, 8000: 250}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(folder, 600)
        clients = {}
        try:
            for n, count in blocks.items():
                c = clients[n] = Client(store)
                cached = int(c.run(f"lease {n} {count}").split()[5])  # all prompts of the tool share their first two blocks
                c.run(f"credit {count}")
                c.run(f"publish {count - cached}")

            def one():
                got = {n: c.run("time-hand").split() for n, c in clients.items()}
                return {n: (int(ns), int(size)) for n, (ns, _, size) in got.items()}

            got = b.rounds("handing over", one, max(9, b.a.rounds))
        finally:
            for c in clients.values():
                c.close()
            store.close()
    took = {n: statistics.median(r[n][0] for r in got) for n in blocks}
    ratio = statistics.median(r[8000][0] / r[128][0] for r in got)
    size = {n: {r[n][1] for r in got} for n in blocks}
    detail = f"{took[8000] / 1e3:.1f} and {took[128] / 1e3:.1f} us, medians of {len(got)} rounds of 1,001"
    b.figure("handing over 8,000 tokens: times 128 tokens", ratio, 1.1, most=True, detail=detail,
             rounds=[{str(n): v for n, v in r.items()} for r in got])
    b.figure("handing over 8,000 tokens, ms", took[8000] / 1e6, 0.5, most=True, show="{:.3f}")
    b.figure("bytes of the handle: of 8,000 tokens less of 128", max(size[8000]) - min(size[128]), 0, most=True,
             show="{:.0f}", detail=f"{max(size[8000])} bytes")
