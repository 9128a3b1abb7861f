#!/usr/bin/env bash
# Shows the two phases in a minute: the same 200-token answer after a prompt of 200 and of 2,000 tokens. The time to the
# first token (TTFT) is prefill's and grows with the prompt; the time per token after it (TPOT) is decode's and stays about the same.
#
#   examples/two-phases.sh [MODEL]
set -euo pipefail

dir=$(mktemp -d)
trap 'phasepipe down --run "$dir/run" >"$dir/down" 2>&1 || true; rm -rf "$dir"' EXIT
phasepipe up ${1:+-m "$1"} --run "$dir/run" --http "unix:$dir/http" --ollama off --detach 2>"$dir/up" || {
    cat "$dir/up" >&2
    exit 1
}
for n in 200 2000; do
    bench --base-url "unix:$dir/http" -n 3 --max-concurrency 1 --random-input-len "$n" --random-output-len 200 --ignore-eos \
        --temperature 0 --seed "$n" -o "$dir/$n.json" >"$dir/bench" || {
        cat "$dir/bench" >&2
        exit 1
    }
    jq -r '"prompt of \(.total_input_tokens / .completed) tokens, answer of \(.total_output_tokens / .completed): " +
        "TTFT \(.median_ttft_ms | round) ms, TPOT \(.median_tpot_ms * 100 | round / 100) ms"' "$dir/$n.json"
done
