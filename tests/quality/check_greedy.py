#!/usr/bin/env python3
"""Greedy choices of the pipe beside those of the float32 reference (tests/golden/greedy.json).

    check_greedy.py [-m MODEL] [--kv-cache-dtype T]

At every position where the reference's two best lie more than 1.0 apart its best must be taken; where they are closer, one
within 1.0 of it. Checked in two ways: along the reference's own path, all positions in one request by echo; and running
free from the prompt, up to the first near tie that goes another way. Prompts go in as text once, so that ids and templates
are checked too. Standard library only."""

import argparse
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import pipe  # noqa: E402

GOLDEN = os.path.join(HERE, "..", "golden", "greedy.json")
NEAR = 1.0


def wrong(row, taken):
    """Why `taken` is wrong before the golden row [[id, log-probability] …], or None."""
    best = row[0]
    for i, lp in row:
        if i == taken and best[1] - lp <= NEAR:
            return None
    return f"took {taken}, the reference has {row[:3]}"


def forced(case, answer):
    bad = []
    n = len(case["prompt"])
    for k, row in enumerate(case["rows"]):
        best = answer.prompt_lp[n + k][2]
        why = wrong(row, max(best, key=best.get))
        if why:
            bad.append(f"{case['name']}: along the reference's path, step {k}: {why}")
    return bad


def free(case, answer):
    """(errors, steps judged)."""
    if answer.end["prompt_tokens"] != len(case["prompt"]):
        return [f"{case['name']}: {answer.end['prompt_tokens']} prompt ids, golden has {len(case['prompt'])}"], 0
    # the end-of-turn id ends an answer and is not part of it
    taken = answer.ids + ([answer.end["stop_id"]] if "stop_id" in answer.end and answer.ids[-1:] != [
        answer.end["stop_id"]] else [])
    for k, row in enumerate(case["rows"]):
        if k >= len(taken):
            return [f"{case['name']}: answer ends after {len(taken)} ids"], k
        why = wrong(row, taken[k])
        if why:
            return [f"{case['name']}: running free, step {k}: {why}"], k
        if taken[k] != case["path"][k]:
            return [], k + 1
    return [], len(case["rows"])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("-m", "--model")
    ap.add_argument("--kv-cache-dtype", default="auto")
    args = ap.parse_args()
    with open(GOLDEN, encoding="utf-8") as f:
        cases = json.load(f)["cases"]
    kv = ["--kv-cache-dtype", args.kv_cache_dtype]
    answers = pipe.run([{"id": c["name"], "prompt": c["prompt"] + c["path"], "echo": True, "logprobs": 8,
                         "max_tokens": 0, "temperature": 0} for c in cases], args.model, prefill=kv)
    bad = [b for c, a in zip(cases, answers) for b in forced(c, a)]
    n_forced = sum(len(c["rows"]) for c in cases)
    answers = pipe.run([{"id": c["name"], **c["request"], "max_tokens": len(c["path"]), "temperature": 0}
                        for c in cases], args.model, prefill=kv)
    n_free = same = 0
    for c, a in zip(cases, answers):
        errors, n = free(c, a)
        bad += errors
        n_free += n
        same += n == len(c["rows"]) and not errors
    for b in bad:
        print("NOT OK " + b)
    print(f"greedy: {n_forced} steps along the reference's paths and {n_free} running free, {same} of {len(cases)} answers "
          f"equal to the end, {len(bad)} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
