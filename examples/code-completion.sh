#!/usr/bin/env bash
# Code completion: short prompts that come all at once, answers of a line. Little to read and much to write, so one worker reads
# prompts and the other has many seats for answers.
#
#   examples/code-completion.sh [MODEL]
set -euo pipefail

dir=$(mktemp -d)
trap 'phasepipe down --run "$dir/run" >"$dir/down" 2>&1 || true; rm -rf "$dir"' EXIT
phasepipe up ${1:+-m "$1"} -P 1 -D 1 --max-num-seqs 64 --run "$dir/run" --http "unix:$dir/http" --ollama off --detach 2>"$dir/up" || {
    cat "$dir/up" >&2
    exit 1
}

complete() {
    jq -n --arg p "$1" '{prompt: $p, max_tokens: 16, temperature: 0, stop: ["\n"]}' |
        curl -sS --fail-with-body --unix-socket "$dir/http" http://localhost/v1/completions --json @- |
        jq -r --arg p "$1" '$p + (.choices[0].text // error(.error.message))'
}

clients=()
for prompt in 'for i in range(' 'import numpy as' 'def add(a, b): return' 'if __name__ == ' 'while True: ' 'print("Hello, ' \
    'from os import ' 'x = [1, 2, 3]; x.'; do
    complete "$prompt" >"$dir/out.${#clients[@]}" &
    clients+=($!)
done
for client in "${clients[@]}"; do
    wait "$client" || {
        echo 'code-completion: a completion failed' >&2
        exit 1
    }
done
cat "$dir"/out.*
