#!/usr/bin/env bash
# Records what prefill sends, then answers from the recording: once more, and twice in one stream.
# Uses the programs on the PATH: eval "$(build/bin/phasepipe env)"
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

tokenize -n 16 -p 'Name three colours.' | prefill | tee "$dir/a.kv" | decode | stream > "$dir/first"
decode < "$dir/a.kv" | stream | cmp - "$dir/first"
cat "$dir/a.kv" "$dir/a.kv" | decode | stream
