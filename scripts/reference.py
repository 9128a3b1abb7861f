#!/usr/bin/env python3
"""The float32 reference: the Llama family in numpy over weights dequantised by the `gguf` package of PyPI.

It shares no code with the engine and follows none of its arithmetic: dense float32 matrix products (BLAS), norms and
softmax sums in float64, attention over the whole prefix without blocks, RoPE angles in float64. It is the authority for
log-probabilities and greedy choices (tests/golden, tests/quality).

    reference.py MODEL [--ids FILE] > LOGITS     raw float32 [n, vocab], ids as text, white space between

Needs: numpy, gguf.
"""

import argparse
import math
import sys

import numpy as np


def field(reader, name, default=None):
    f = reader.fields.get(name)
    if f is None:
        if default is None:
            raise SystemExit(f"reference: {name}: not in the file")
        return default
    return f.contents()


def rope_frequencies(reader, arch, n_rot, tensors):
    """Radians a token for each rotated pair, and the factor of cos and sin, for the scaling kinds of the format."""
    base = float(field(reader, f"{arch}.rope.freq_base", 10000.0))
    i = np.arange(n_rot // 2, dtype=np.float64)
    freq = base ** (-2.0 * i / n_rot)
    if "rope_freqs.weight" in tensors:
        freq = freq / tensors["rope_freqs.weight"].astype(np.float64)[: n_rot // 2]
    kind = field(reader, f"{arch}.rope.scaling.type", "none")
    factor = float(field(reader, f"{arch}.rope.scaling.factor", field(reader, f"{arch}.rope.scale_linear", 1.0)))
    attn = 1.0
    if kind == "linear" or (kind == "none" and factor != 1.0 and f"{arch}.rope.scale_linear" in reader.fields):
        freq = freq / factor
    elif kind == "yarn":
        trained = float(field(reader, f"{arch}.rope.scaling.original_context_length",
                              field(reader, f"{arch}.context_length")))
        fast = float(field(reader, f"{arch}.rope.scaling.yarn_beta_fast", 32.0))
        slow = float(field(reader, f"{arch}.rope.scaling.yarn_beta_slow", 1.0))

        def dim_of(turns):  # the dimension that makes so many turns over the trained window (YaRN, section 3.2)
            return n_rot * math.log(trained / (turns * 2.0 * math.pi)) / (2.0 * math.log(base))

        low = max(0.0, math.floor(dim_of(fast)))
        high = min(n_rot - 1.0, math.ceil(dim_of(slow)))
        keep = 1.0 - np.clip((i - low) / max(0.001, high - low), 0.0, 1.0)  # 1: turns fast, is not interpolated
        freq = freq / factor * (1.0 - keep) + freq * keep
        attn = (1.0 + 0.1 * math.log(factor)) * float(field(reader, f"{arch}.rope.scaling.attn_factor", 1.0))
    elif kind not in ("none", "llama3"):  # llama3 keeps its factors in rope_freqs.weight
        raise SystemExit(f"reference: rope scaling {kind}: not known")
    return freq, attn


class Cache:
    """Keys and values of one sequence, after RoPE, float32 [n_kv_head, n, head_dim] a layer."""

    def __init__(self, n_layer):
        self.n = 0
        self.k = [None] * n_layer
        self.v = [None] * n_layer

    def copy(self):
        c = Cache(len(self.k))
        c.n, c.k, c.v = self.n, list(self.k), list(self.v)
        return c


class Reference:
    def __init__(self, path):
        import gguf

        reader = gguf.GGUFReader(path)
        self.arch = field(reader, "general.architecture")
        if self.arch not in ("llama", "qwen2"):
            raise SystemExit(f"reference: architecture {self.arch}: not known")
        a = self.arch
        self.types = {t.name: t.tensor_type.name for t in reader.tensors}
        w = {}
        for t in reader.tensors:
            v = gguf.quants.dequantize(t.data, t.tensor_type)
            w[t.name] = np.ascontiguousarray(v.reshape(tuple(int(d) for d in reversed(t.shape))), dtype=np.float32)
        self.w = w
        self.n_layer = int(field(reader, f"{a}.block_count"))
        self.hidden = int(field(reader, f"{a}.embedding_length"))
        self.n_head = int(field(reader, f"{a}.attention.head_count"))
        self.n_kv = int(field(reader, f"{a}.attention.head_count_kv", self.n_head))
        self.head_dim = int(field(reader, f"{a}.attention.key_length", self.hidden // self.n_head))
        self.n_rot = int(field(reader, f"{a}.rope.dimension_count", self.head_dim))
        self.eps = float(field(reader, f"{a}.attention.layer_norm_rms_epsilon"))
        self.neox = a == "qwen2"
        self.freq, self.rope_factor = rope_frequencies(reader, a, self.n_rot, w)
        self.output = w.get("output.weight", w["token_embd.weight"])
        self.vocab = self.output.shape[0]

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        b = self.w.get(name + ".bias")
        return y if b is None else y + b

    def norm(self, x, name):
        x64 = x.astype(np.float64)
        r = 1.0 / np.sqrt((x64 * x64).mean(axis=-1, keepdims=True) + self.eps)
        return ((x64 * r) * self.w[name + ".weight"]).astype(np.float32)

    def rope(self, x, pos):
        """x [n, heads, head_dim], rotated in pairs (2i, 2i+1), or (i, i + n_rot/2) for the neox families."""
        ang = pos.astype(np.float64)[:, None] * self.freq[None, :]
        c = (np.cos(ang) * self.rope_factor).astype(np.float32)[:, None, :]
        s = (np.sin(ang) * self.rope_factor).astype(np.float32)[:, None, :]
        h = self.n_rot // 2
        first, second = (slice(0, h), slice(h, self.n_rot)) if self.neox else (
            slice(0, self.n_rot, 2), slice(1, self.n_rot, 2))
        out = x.copy()
        a, b = x[..., first], x[..., second]
        out[..., first] = a * c - b * s
        out[..., second] = a * s + b * c
        return out

    def attend(self, q, k, v, past):
        """q [n, n_head, hd]; k, v [n_kv, past + n, hd]. Row i sees keys 0 … past + i."""
        n, total = q.shape[0], k.shape[1]
        group = self.n_head // self.n_kv
        mask = np.arange(total)[None, :] > (past + np.arange(n))[:, None]
        out = np.empty((n, self.n_head, v.shape[2]), dtype=np.float32)
        scale = np.float32(1.0 / math.sqrt(self.head_dim))
        for h in range(self.n_head):
            kv = h // group
            s = (q[:, h, :] * scale) @ k[kv].T
            s[mask] = -np.inf
            s -= s.max(axis=1, keepdims=True)
            p = np.exp(s)
            p /= p.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
            out[:, h, :] = p @ v[kv]
        return out.reshape(n, -1)

    def forward(self, ids, cache=None):
        """Hidden states after the last norm, [n, hidden]; `cache` is read and extended."""
        ids = np.asarray(ids, dtype=np.int64)
        if ids.size == 0 or ids.min() < 0 or ids.max() >= self.w["token_embd.weight"].shape[0]:
            raise SystemExit("reference: no ids, or one outside the vocabulary")
        if cache is None:
            cache = Cache(self.n_layer)
        n, past = len(ids), cache.n
        pos = np.arange(past, past + n)
        x = self.w["token_embd.weight"][ids]
        for i in range(self.n_layer):
            b = f"blk.{i}."
            h = self.norm(x, b + "attn_norm")
            q = self.rope(self.linear(h, b + "attn_q").reshape(n, self.n_head, self.head_dim), pos)
            k = self.rope(self.linear(h, b + "attn_k").reshape(n, self.n_kv, self.head_dim), pos)
            v = self.linear(h, b + "attn_v").reshape(n, self.n_kv, -1)
            k, v = k.transpose(1, 0, 2), v.transpose(1, 0, 2)
            if past:
                k = np.concatenate([cache.k[i], k], axis=1)
                v = np.concatenate([cache.v[i], v], axis=1)
            cache.k[i], cache.v[i] = k, v
            x = x + self.linear(self.attend(q, k, v, past), b + "attn_output")
            h = self.norm(x, b + "ffn_norm")
            g = self.linear(h, b + "ffn_gate")
            # e^-|g|: never overflows, whichever sign
            e = np.exp(-np.abs(g))
            g = g * np.where(g >= 0, 1.0 / (1.0 + e), e / (1.0 + e)).astype(np.float32)
            x = x + self.linear(g * self.linear(h, b + "ffn_up"), b + "ffn_down")
        cache.n = past + n
        return self.norm(x, "output_norm")

    def logits(self, ids, cache=None):
        """[n, vocab] float32: row i is what follows ids[0 … i]."""
        y = self.forward(ids, cache) @ self.output.T
        b = self.w.get("output.bias")
        return y if b is None else y + b

    def log_probs(self, ids, cache=None):
        return log_softmax(self.logits(ids, cache))


def log_softmax(logits):
    """float64 [n, vocab]."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def kl(p_log, q_log):
    """KL(p || q) in nats, a row each, of log-probabilities [n, vocab]."""
    return (np.exp(p_log) * (p_log - q_log)).sum(axis=-1)


def main():
    ap = argparse.ArgumentParser(description="float32 logits of a GGUF model by numpy")
    ap.add_argument("model")
    ap.add_argument("--ids", help="file of ids as text (default: stdin)")
    args = ap.parse_args()
    text = open(args.ids).read() if args.ids else sys.stdin.read()
    ids = [int(t) for t in text.split()]
    if sys.stdout.isatty():
        raise SystemExit("reference: stdout is a terminal, logits are binary")
    sys.stdout.buffer.write(Reference(args.model).logits(ids).astype("<f4").tobytes())


if __name__ == "__main__":
    main()
