#!/usr/bin/env python3
"""Log-probabilities of the pipe beside those of the float32 reference (tests/golden/logprobs.json).

    check_logprobs.py [-m MODEL] [--kv-cache-dtype f16|bf16|int8|auto] …

The bound is llama.cpp's own distance on the same positions with f16 KV, kept in the golden file: its KL divergence times
1.1, times 1.2 with int8 KV; the mean difference of the next id's log-probability and the share of equal best ids follow with the same
slack. Standard library only."""

import argparse
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import pipe  # noqa: E402
from judge import Judge  # noqa: E402

GOLDEN = os.path.join(HERE, "..", "golden", "logprobs.json")
SLACK = {"f16": 1.1, "bf16": 1.1, "int8": 1.2, "auto": 1.2}


def judge_answers(golden, answers):
    judge = Judge()
    first = golden["first"]
    for w, a in zip(golden["windows"], answers):
        if a.prompt_ids != w["ids"] or len(a.prompt_lp) != len(w["ids"]):
            raise SystemExit(f"check_logprobs: {w['text']}: echo gave {len(a.prompt_ids)} ids and {len(a.prompt_lp)} "
                             f"positions, the prompt has {len(w['ids'])}")
        for i, row in enumerate(w["rows"], start=first + 1):
            tid, lp, best = a.prompt_lp[i]
            if tid != w["ids"][i] or len(best) < 64:
                raise SystemExit(f"check_logprobs: {w['text']}: position {i}: id {tid}, {len(best)} best")
            judge.position(row, lp, best)
    return judge


def verdict(got, peer, kv):
    """Texts of what is out of bounds."""
    slack = SLACK[kv]
    out = []
    for name in ("kl", "next_abs"):
        if not got[name] <= peer[name] * slack:
            out.append(f"{name} {got[name]} > {slack} x {peer[name]}")
    # 1,524 positions: two deviations of a share of 0.96 are 0.01
    if not got["same_top"] >= peer["same_top"] - 0.01:
        out.append(f"same_top {got['same_top']} < {peer['same_top']} - 0.01")
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("-m", "--model")
    ap.add_argument("--kv-cache-dtype", action="append", choices=sorted(SLACK))
    args = ap.parse_args()
    with open(GOLDEN, encoding="utf-8") as f:
        golden = json.load(f)
    requests = [{"id": str(i), "prompt": w["ids"], "echo": True, "logprobs": 64, "max_tokens": 0, "temperature": 0}
                for i, w in enumerate(golden["windows"])]
    bad = 0
    peer = golden["peer"]["f16"]
    print(f"llama.cpp f16: {json.dumps(peer)}")
    for kv in args.kv_cache_dtype or ["f16", "bf16", "int8"]:
        got = judge_answers(golden, pipe.run(requests, args.model, prefill=["--kv-cache-dtype", kv])).figures()
        out = verdict(got, peer, kv)
        print(f"{'ok' if not out else 'NOT OK'} {kv}: {json.dumps(got)} {'; '.join(out)}")
        bad += bool(out)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
