#!/usr/bin/env bash
# Each phase by itself, from a recording of the stage before: what prefill costs without decode, and the other way round.
#   examples/phase-times.sh [PROMPT]
# Uses the programs on the PATH: eval "$(build/bin/phasepipe env)"
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

tokenize -n 32 -p "${1:-Explain memory bandwidth in two sentences.}" > "$dir/tok"
echo 'prefill:'
prefill --profile < "$dir/tok" 2>&1 > "$dir/kv"
echo 'decode:'
decode --profile < "$dir/kv" 2>&1 > "$dir/out"
stream --stats < "$dir/out" 2>&1
