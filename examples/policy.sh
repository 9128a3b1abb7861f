#!/usr/bin/env bash
# A policy in shell: every request whole, to the worker with the most free slots; at most one a line.
#   sched-exec examples/policy.sh < events > decisions
while read -r line; do
    jq -c '([.workers[] | select(.seqs > 0 and .tokens > 0)] | max_by(.seqs)) as $w | .queued[0] as $job |
        if $w and $job then {place: [{id: $job.id, worker: $w.worker, phase: "whole"}]} else {} end' <<<"$line" || exit
done
