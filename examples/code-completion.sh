#!/usr/bin/env bash
# Code completion: 24 editors send requests at once: short prompts, four suggestions each. There is little to prefill and much to
# decode, so one worker runs prefill and two run decode, with 128 slots each (64 by default). Prints how many answers were decoded
# at once.
#
#   examples/code-completion.sh [MODEL]
set -euo pipefail

dir=$(mktemp -d)
trap 'phasepipe down --run "$dir/run" >"$dir/down" 2>&1 || true; rm -rf "$dir"' EXIT
phasepipe up ${1:+-m "$1"} -P 1 -D 2 --max-num-seqs 128 --run "$dir/run" --http "unix:$dir/http" --ollama off --detach 2>"$dir/up" || {
    cat "$dir/up" >&2
    exit 1
}

prompts=('for i in range(' 'import numpy as' 'def add(a, b): return' 'if __name__ == ' 'while True: ' 'print("Hello, ' 'from os import '
    'x = [1, 2, 3]; x.')
mapfile -t asks < <(jq -nc '$ARGS.positional[] | {prompt: ., n: 4, max_tokens: 32, temperature: 0.4, seed: 1}' --args "${prompts[@]}")
clients=()
for ((i = 0; i < 24; i++)); do
    curl -sS --fail-with-body --unix-socket "$dir/http" http://localhost/v1/completions --json "${asks[i % 8]}" -o "$dir/answer.$i" &
    clients+=($!)
done

# A sum over the workers, from the scheduler.
sched() { phasepipe ctl sched --run "$dir/run" --json | jq "[.workers[] | $1] | add // 0"; }
most=0
while [ -n "$(jobs -r)" ]; do
    now=$(sched '.decode + .whole')
    most=$((now > most ? now : most))
done
for client in "${clients[@]}"; do
    wait "$client" || {
        echo "code-completion: a completion failed: $(cat "$dir"/answer.*)" >&2
        exit 1
    }
done

for i in "${!prompts[@]}"; do
    jq -r --arg p "${prompts[i]}" '$p + .choices[0].text | split("\n")[0]' "$dir/answer.$i"
done
handed=$(curl -sS --unix-socket "$dir/http" http://localhost/metrics | awk '/^phasepipe:handover_seconds_count/ { print $2 }')
echo "at once: $most of 96 answers, in $(sched 'select(.role == "decode").seqs_all') decode slots;" \
    "read by $(sched 'select(.role == "prefill") | 1') prefill worker and handed over: $handed"
