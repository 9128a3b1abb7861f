#!/usr/bin/env python3
"""Makes tests/golden/greedy.json: the float32 reference's greedy continuations of the prompts in
tests/golden/texts/greedy.jsonl, with its 8 best at every step.

    golden-greedy.py MODEL [-n 48] [-o FILE]

Ids by Hugging Face `tokenizers`, chats by the file's own template through jinja2. A continuation ends with the end-of-turn
id. Needs: numpy, gguf, tokenizers, jinja2."""

import argparse
import hashlib
import json
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "tests", "golden")
sys.path.insert(0, HERE)
import reference  # noqa: E402
from hf_tokenizer import GgufTokenizer  # noqa: E402

BEST = 8


def continuation(ref, prompt, n, stop):
    """(path, rows): greedy ids, and [[id, log-probability] × BEST] before each."""
    cache = reference.Cache(ref.n_layer)
    row = ref.log_probs(prompt, cache)[-1]
    path, rows = [], []
    while True:
        best = np.argsort(-row, kind="stable")[:BEST]
        path.append(int(best[0]))
        rows.append([[int(i), round(float(row[i]), 4)] for i in best])
        if len(path) == n or path[-1] == stop:
            return path, rows
        row = ref.log_probs([path[-1]], cache)[-1]


def main():
    ap = argparse.ArgumentParser(description="makes tests/golden/greedy.json")
    ap.add_argument("model")
    ap.add_argument("-n", type=int, default=48)
    ap.add_argument("-o", default=os.path.join(GOLDEN, "greedy.json"))
    args = ap.parse_args()
    ref = reference.Reference(args.model)
    tok = GgufTokenizer(args.model)
    cases = []
    with open(os.path.join(GOLDEN, "texts", "greedy.jsonl"), encoding="utf-8") as f:
        for line in f:
            case = json.loads(line)
            prompt = tok.chat(case["messages"]) if "messages" in case else tok.encode(case["prompt"])
            path, rows = continuation(ref, prompt, args.n, tok.eos)
            cases.append({"request": {k: v for k, v in case.items() if k != "name"}, "name": case["name"],
                          "prompt": prompt, "path": path, "text": tok.decode(path), "rows": rows})
            near = sum(r[0][1] - r[1][1] <= 1.0 for r in rows)
            print(f"{case['name']:10} {len(path):3} ids, {near:2} near ties  {tok.decode(path)!r}", file=sys.stderr)
    with open(args.model, "rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    with open(args.o, "w", encoding="utf-8") as f:
        head = {"from": "scripts/golden-greedy.py: float32 numpy reference over weights dequantised by the gguf package, "
                        f"numpy {np.__version__}, ids by Hugging Face tokenizers, templates by jinja2",
                "model_sha256": digest, "row": "the reference's best [id, log-probability] before each id of path"}
        f.write(json.dumps(head)[:-1] + ',\n"cases": [\n')
        for i, c in enumerate(cases):
            rows = c.pop("rows")
            f.write(json.dumps(c, ensure_ascii=False)[:-1] + ',\n"rows": [\n')
            f.write(",\n".join(json.dumps(r, separators=(",", ":")) for r in rows))
            f.write("]}" + (",\n" if i + 1 < len(cases) else "\n"))
        f.write("]}\n")


if __name__ == "__main__":
    main()
