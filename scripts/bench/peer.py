"""llama.cpp as an independent peer: where its programs are, and its log-probabilities.

Its programs are taken from the folder LLAMA_DIR, or from PATH. Nothing here builds or fetches them."""

import os
import shutil
import struct
import subprocess
import tempfile


def find(name):
    """Path of a peer's program, or None."""
    folder = os.environ.get("LLAMA_DIR")
    if folder:
        for path in (os.path.join(folder, name), os.path.join(folder, "bin", name)):
            if os.access(path, os.X_OK):
                return path
        return None
    return shutil.which(name)


def missing(*names):
    """The names of missing programs and how to provide them, or None."""
    absent = [n for n in names if not find(n)]
    if not absent:
        return None
    where = f"in LLAMA_DIR={os.environ['LLAMA_DIR']}" if os.environ.get("LLAMA_DIR") else "on PATH"
    return (f"{', '.join(absent)} not found {where}: set LLAMA_DIR to a folder that holds the programs of llama.cpp "
            "to compare with it")


def log_probs(model, text_path, window, n_window, options=(), threads=2):
    """Yields (ids of the window, log-probabilities [n, vocab] of its positions window/2 … window-2) from
    llama-perplexity over windows of a text file; options as ("-ctk", "q8_0").

    The file it writes: "_logits_", n_ctx, n_vocab, n_chunk as int32, the ids, then for every position a scale and a
    minimum (float32) and a uint16 for each entry: log-probability = minimum + scale * number. The vocabulary is padded to
    an even number. What lies 16 nats or more under the best is written as the minimum: unknown, NaN here."""
    import numpy as np

    with tempfile.TemporaryDirectory() as tmp:
        base = os.path.join(tmp, "base")
        cmd = [find("llama-perplexity"), "-m", model, "-f", text_path, "-c", str(window), "-b", str(window), "-t",
               str(threads), "--chunks", str(n_window), "--kl-divergence-base", base, *options]
        # its threads would spin at every barrier, which beside other work takes hours
        run = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env={**os.environ, "OMP_WAIT_POLICY": "passive"})
        if run.returncode != 0:
            raise SystemExit(f"peer: llama-perplexity failed:\n{run.stdout[-2000:]}")
        with open(base, "rb") as f:
            if f.read(8) != b"_logits_":
                raise SystemExit("peer: llama-perplexity wrote something else than log-probabilities")
            n_ctx, n_vocab, n_chunk = struct.unpack("<3i", f.read(12))
            if n_ctx != window or n_chunk != n_window:
                raise SystemExit(f"peer: {n_chunk} windows of {n_ctx}, wanted {n_window} of {window}: text too short?")
            ids = np.frombuffer(f.read(4 * n_ctx * n_chunk), dtype="<i4").reshape(n_chunk, n_ctx)
            n_row = n_ctx - 1 - n_ctx // 2
            width = 2 * ((n_vocab + 1) // 2) + 4
            for c in range(n_chunk):
                raw = np.frombuffer(f.read(2 * width * n_row), dtype="<u2").reshape(n_row, width)
                head = raw[:, :4].copy().view("<f4")
                code = raw[:, 4:4 + n_vocab]
                lp = (head[:, 1:2] + head[:, 0:1] * code.astype(np.float32)).astype(np.float64)
                yield ids[c], np.where(code == 0, np.nan, lp)


def version():
    """One line that names the build, or an empty text."""
    path = find("llama-bench") or find("llama-perplexity")
    if not path:
        return ""
    out = subprocess.run([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    for line in out.splitlines():
        if "version" in line:
            return "llama.cpp " + line.strip()
    return "llama.cpp"
