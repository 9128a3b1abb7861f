#!/usr/bin/env python3
"""Makes tests/golden/logprobs.json: log-probabilities of the float32 reference (scripts/reference.py) on windows of three
texts, and how far llama.cpp lies from it on the same positions (where LLAMA_DIR has llama-perplexity).

    golden-logprobs.py MODEL [-o FILE]

Texts: the GPL-3 of /usr/share/common-licenses, and prose.txt and mixed.txt of tests/golden/texts. Ids by Hugging Face
`tokenizers`. A window is 256 ids, of which positions 128 … 254 are judged, as llama-perplexity does. A position keeps the
next id's log-probability and every id of probability >= 0.003; the rest counts as one outcome.

Needs: numpy, gguf, tokenizers."""

import argparse
import hashlib
import json
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "..", "tests", "quality"))
from bench import peer  # noqa: E402
import reference  # noqa: E402
from hf_tokenizer import GgufTokenizer  # noqa: E402
from judge import Judge  # noqa: E402

WINDOW = 256
FLOOR = 3e-3
TEXTS = [("licence", "/usr/share/common-licenses/GPL-3", 7),
         ("prose", os.path.join(HERE, "..", "tests", "golden", "texts", "prose.txt"), 2),
         ("mixed", os.path.join(HERE, "..", "tests", "golden", "texts", "mixed.txt"), 3)]


def rows_of(lp, ids, first):
    """Golden rows [[next log-probability, [[id, log-probability] …]] …] of lp[first …]."""
    rows = []
    for i in range(first, WINDOW - 1):
        keep = np.flatnonzero(lp[i] >= np.log(FLOOR))
        keep = keep[np.argsort(-lp[i][keep], kind="stable")][:40]
        rows.append([round(float(lp[i][ids[i + 1]]), 3), [[int(j), round(float(lp[i][j]), 3)] for j in keep]])
    return rows


def judged(judge, rows, lp, ids, first):
    """Feeds the judge what a program with the full distribution `lp` would show of it."""
    for row, q, nxt in zip(rows, lp, ids[first + 1:]):
        q = np.where(np.isnan(q), np.nanmin(q), q)  # unknown: 16 nats under the best
        best = np.argsort(-q, kind="stable")[:64]
        judge.position(row, float(q[nxt]), {int(j): float(q[j]) for j in best})


def main():
    ap = argparse.ArgumentParser(description="makes tests/golden/logprobs.json")
    ap.add_argument("model")
    ap.add_argument("-o", default=os.path.join(HERE, "..", "tests", "golden", "logprobs.json"))
    args = ap.parse_args()
    ref = reference.Reference(args.model)
    tok = GgufTokenizer(args.model)
    first = WINDOW // 2
    no_peer = peer.missing("llama-perplexity")
    kv_types = {} if no_peer else {"f16": (), "q8_0": ("-ctk", "q8_0", "-ctv", "q8_0")}
    judges = {k: Judge() for k in kv_types}
    windows = []
    for name, path, n in TEXTS:
        with open(path, encoding="utf-8") as f:
            ids = tok.encode(f.read())
        part = []
        for w in range(n):
            win = ids[w * WINDOW:(w + 1) * WINDOW]
            if len(win) < WINDOW:
                raise SystemExit(f"golden-logprobs: {path}: {len(ids)} ids, too short for {n} windows")
            part.append({"text": name, "ids": win, "rows": rows_of(ref.log_probs(win), win, first)})
        for kind, options in kv_types.items():
            for got, (pids, lp) in zip(part, peer.log_probs(args.model, path, WINDOW, n, options)):
                if list(pids) != got["ids"]:
                    raise SystemExit(f"golden-logprobs: {path}: llama.cpp sees other ids than Hugging Face tokenizers")
                judged(judges[kind], got["rows"], lp, got["ids"], first)
        windows += part
        print(f"golden-logprobs: {name}: {n} windows", file=sys.stderr)
    with open(args.model, "rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    import gguf
    head = {
        "from": "scripts/golden-logprobs.py: float32 numpy reference over weights dequantised by the gguf package, "
                f"numpy {np.__version__}, ids by Hugging Face tokenizers",
        "model_sha256": digest, "first": first, "floor": FLOOR,
        "row": "[log-probability of the next id, [[id, log-probability] of probability >= floor]]",
        "peer": {"program": peer.version(), **{k: j.figures() for k, j in judges.items()}},
    }
    if no_peer:
        print(f"golden-logprobs: {no_peer}", file=sys.stderr)
    with open(args.o, "w", encoding="utf-8") as f:
        f.write(json.dumps(head)[:-1] + ',\n"windows": [\n')
        for i, w in enumerate(windows):
            f.write(json.dumps({"text": w["text"], "ids": w["ids"]})[:-1] + ',\n"rows": [\n')
            f.write(",\n".join(json.dumps(r, separators=(",", ":")) for r in w["rows"]))
            f.write("]}" + (",\n" if i + 1 < len(windows) else "\n"))
        f.write("]}\n")
    print(json.dumps(head["peer"]), file=sys.stderr)


if __name__ == "__main__":
    main()
