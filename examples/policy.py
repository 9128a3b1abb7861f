#!/usr/bin/env python3
# A policy of its own: the shortest prompt first, to the worker with the least to prefill; prefilled requests to the decode
# worker with the least context.
#   sched-exec examples/policy.py < events > decisions
#   simulate --policy exec --command examples/policy.py TRACE
import json
import sys


def best(workers, roles, load):
    able = [w for w in workers if w["seqs"] > 0 and w["role"] in roles]
    return min(able, key=load, default=None)


def decide(view):
    place = []
    for job in sorted(view["queued"], key=lambda j: j["n_prompt"]):
        able = [w for w in view["workers"] if w["tokens"] > 0]
        w = best(able, ("prefill", "both"), lambda w: w["prefill_left_ms"])
        if w is None:
            break
        w["seqs"] -= 1
        w["tokens"] -= job["n_prompt"]
        w["prefill_left_ms"] += job["n_prompt"] / 10
        place.append({"id": job["id"], "worker": w["worker"], "phase": "prefill"})
    for job in view["ready"]:
        w = best(view["workers"], ("decode", "both"), lambda w: w["context"])
        if w is None:
            break
        w["seqs"] -= 1
        w["context"] += job["n_prompt"]
        place.append({"id": job["id"], "worker": w["worker"], "phase": "decode"})
    return {"place": place}


for line in sys.stdin:
    print(json.dumps(decide(json.loads(line))), flush=True)
