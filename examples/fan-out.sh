#!/usr/bin/env bash
# Deals the requests of a file of JSON lines (or of standard input) out to N prefills and merges them before one decode.
#   examples/fan-out.sh [-n N] [FILE]
# Uses the programs on the PATH: eval "$(build/bin/phasepipe env)"
set -euo pipefail
n=2
while getopts n: opt; do
    case $opt in
    n) n=$OPTARG ;;
    *) exit 100 ;;
    esac
done
shift $((OPTIND - 1))

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
to=() from=()
for ((i = 0; i < n; i++)); do
    to+=("$dir/to$i")
    from+=("$dir/from$i")
done
mkfifo "${to[@]}" "${from[@]}"
for ((i = 0; i < n; i++)); do
    prefill < "${to[i]}" > "${from[i]}" &
done
tokenize --jsonl "${1:--}" | frames deal "${to[@]}" &
frames merge "${from[@]}" | decode | stream --jsonl
wait
