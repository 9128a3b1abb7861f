#!/usr/bin/env bash
# A chat over one long document: its KV is computed for the first question and found in the store from the second on.
#
#   examples/long-document.sh DOCUMENT [MODEL]
set -euo pipefail

document=${1:?usage: examples/long-document.sh DOCUMENT [MODEL]}
dir=$(mktemp -d)
trap 'phasepipe down --run "$dir/run" >"$dir/down" 2>&1 || true; rm -rf "$dir"' EXIT
phasepipe up ${2:+-m "$2"} --run "$dir/run" --http "unix:$dir/http" --ollama off --detach 2>"$dir/up" || {
    cat "$dir/up" >&2
    exit 1
}

for question in 'What is this about?' 'Which numbers are in it?' 'Who should read it?'; do
    jq -n --rawfile d "$document" --arg q "$question" \
        '{messages: [{role: "system", content: $d}, {role: "user", content: $q}], max_tokens: 24, temperature: 0}' |
        curl -sS --fail-with-body -w '\n%{time_total}\n' --unix-socket "$dir/http" http://localhost/v1/chat/completions --json @- |
        jq -rs --arg q "$question" 'if .[0].error then error(.[0].error.message) else . end | "\($q) \(.[0].usage.prompt_tokens) tokens, \(.[0].usage.prompt_tokens_details.cached_tokens) of them found, \(.[1] * 1000 | round) ms"'
done
