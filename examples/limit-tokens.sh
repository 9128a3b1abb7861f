#!/usr/bin/env bash
# A stage of a pipeline, written in jq: no answer may have more than N tokens.
#   tokenize -p '…' | examples/limit-tokens.sh 20 | prefill | decode | stream
# Uses the programs on the PATH: eval "$(build/bin/phasepipe env)"
set -euo pipefail
frames --full | jq -c --argjson n "${1:-20}" 'if .k == "tok" then .max_tokens = ([.max_tokens // $n, $n] | min) else . end' |
    frames -e
