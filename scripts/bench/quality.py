"""Sections about right values, because speed must not cost accuracy: perplexity of KV types over a long text, and KL
divergence from the float32 reference, computed by check-peers, whose packages this one needs."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import math
import os
import re
import subprocess

import pipe

from . import peer
from .figures import progress
from .programs import SCRIPTS, Failed, tool

LICENSES = "/usr/share/common-licenses"
TEXTS = ("GPL-3", "GFDL-1.3", "MPL-2.0", "Apache-2.0", "Artistic", "CC0-1.0", "LGPL-2.1")
WINDOW, WINDOWS = 2048, 10


def text_ids(b):
    """The first WINDOWS windows of the texts, one after the other."""
    ids = []
    for path in b.a.text or [os.path.join(LICENSES, t) for t in TEXTS]:
        if len(ids) < WINDOW * WINDOWS and os.path.exists(path):
            run = subprocess.run([pipe.program("tokenize"), "-m", b.a.model, "--raw", "--ids", path],
                                 stdout=subprocess.PIPE, check=True, text=True)
            ids += run.stdout.split()
    return ids[:WINDOW * WINDOWS]


def kv_quality(b):
    ids = text_ids(b)
    if len(ids) < WINDOW * WINDOWS:
        b.note(f"perplexity of KV types left out: {len(ids):,} ids of text, {WINDOW * WINDOWS:,} wanted; name files with "
               "--text")
        return
    got = {}
    for kv in ("f16", "bf16", "int8"):
        progress(f"perplexity, {kv} KV")
        run = subprocess.run([tool("logits"), "-m", b.a.model, "--kv-cache-dtype", kv, "--threads", str(b.a.threads),
                              "--perplexity", str(WINDOW)], input=" ".join(ids) + "\n", stdout=subprocess.PIPE, text=True)
        if run.returncode != 0:
            raise Failed(f"logits: exit {run.returncode}")
        got[kv] = json.loads(run.stdout)
    for kv, goal in (("bf16", None), ("int8", 0.001)):
        ratio = math.exp(got[kv]["nll"] - got["f16"]["nll"])
        b.figure(f"{kv} KV against f16 KV: perplexity, off by", abs(ratio - 1), goal, most=True, show="{:.5f}",
                 detail=f"{got[kv]['perplexity']:.4f} and {got['f16']['perplexity']:.4f} over {got[kv]['n']:,} ids, windows "
                 f"of {WINDOW:,}")


def load_check_peers():
    """(check-peers as a module, None), or (None, the packages it misses)."""
    loader = importlib.machinery.SourceFileLoader("check_peers", os.path.join(SCRIPTS, "check-peers"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    try:
        loader.exec_module(module)
    except SystemExit as e:
        return None, str(e)
    return module, None


def quality(b):
    """KL over a few windows; goals are those of check-peers, a multiple of llama.cpp's."""
    check, why = load_check_peers()
    text = os.path.join(LICENSES, "GPL-3")
    if not check or not os.path.exists(text):
        b.note(f"KL against the float32 reference left out: {why or text + ' is missing'}")
        return
    progress("KL against the float32 reference")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        check.check_kl("", b.a.model, text, b.a.windows, not peer.missing("llama-perplexity"))
    figures = {}
    for line in printed.getvalue().splitlines():
        m = re.search(r"(llama\.cpp|ours, \w+) *,?.*KV: +KL ([0-9.]+).*perplexity ratio ([0-9.]+)", line)
        if m:
            figures[m.group(1)] = (float(m.group(2)), float(m.group(3)))
    bound = figures.get("llama.cpp")
    for kv, times in check.KV_TYPES.items():
        kl, ppl = figures[f"ours, {kv}"]
        b.figure(f"KL from the float32 reference, {kv} KV", kl, times * bound[0] if bound else None, most=True,
                 show="{:.5f}", detail=f"perplexity ratio {ppl:.4f}, {check.WINDOW * b.a.windows:,} ids" +
                 (f"; llama.cpp {bound[0]:.5f}, {bound[1]:.4f}" if bound else ""))
