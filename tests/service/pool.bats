#!/usr/bin/env bats
# Services with a pool smaller than the load: workers with the fake engine and a store of 75 blocks of 32 tokens. Every
# request ends, and abandoned blocks are freed at once.

setup() {
    cd "$BATS_TEST_TMPDIR"
    bats_require_minimum_version 1.5.0
    export PHASEPIPE_RUN=$PWD/run
}

teardown() {
    [ ! -e "$PHASEPIPE_RUN/state.json" ] || timeout 60 phasepipe down --timeout 5 || true
    kill -9 $(cat "$BATS_TEST_TMPDIR/pids" 2> /dev/null) 2> /dev/null || true
}

up() {
    phasepipe up --detach -m "$PHASEPIPE_TEST_MODEL" --kv-cache-memory-bytes 300K "$@" 2> up.err 3>&- ||
        { cat up.err; false; }
    [ "$(kv .total)" -eq 75 ]
}

kv() { phasepipe ctl kv --json | jq "$1"; }

sched() { phasepipe ctl sched --json | jq "$1"; }

# lines COUNT PROMPT ANSWER
lines() {
    jq -nc --argjson n "$1" --argjson p "$2" --argjson a "$3" \
        'range($n) as $k | {id: "\($k)", prompt: [range($p) | (. * 7 + $k * 3) % 200 + 5], max_tokens: $a, ignore_eos: true}'
}

within() {
    local end=$((SECONDS + $1 + 1))
    until [ "$("${@:3}")" = "$2" ]; do
        [ $SECONDS -lt $end ] || { echo "not $2 within $1 s: ${*:3}"; phasepipe ctl kv; phasepipe ctl sched; return 1; }
        sleep 0.05
    done
}

@test "a request of more than half of the pool is not blocked by its own blocks" {
    up --engine fake:1e6,1e6,0,1e5,1,1000 # its prompt takes longer than what is known of the pool stays true
    lines 1 1200 1000 | timeout -k 1 60 stream --jsonl | jq -e '.usage.completion_tokens == 1000'
}

@test "more prefilled prompts than the pool can decode: all end" {
    up --engine fake:1e6,1e5,0,1e6,1,1000
    lines 24 140 600 | timeout -k 1 120 stream --jsonl > got
    [ "$(jq -s 'map(select(.usage.completion_tokens == 600)) | length' got)" -eq 24 ]
    within 5 0 kv .leased
}

@test "a gateway dies while its requests wait for decode: their blocks are freed at once" {
    up --engine fake:1e6,1e5,0,2e7,1,1000 --max-num-seqs 1
    lines 4 140 500 | timeout 60 stream --jsonl > /dev/null 3>&- &
    within 20 3 sched .waiting
    within 20 4 kv .seqs
    kill -9 $(pgrep -P $! stream)
    within 3 0 kv .leased
    [ "$(sched .ended.cancelled)" -eq 4 ]
}
