#!/usr/bin/env bats
# A supervised service that no longer runs its event loop is started again; one that computes for long is not.

bats_require_minimum_version 1.5.0

setup() {
    load attack.bash
    cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() { down w; }

restarts() { phasepipe ps --run "$PWD/w" --json | jq -c "[.[] | select(.restarts $1) | .name] | sort"; }

# ask MAX_TOKENS: the text of an answer
ask() {
    curl -sS --max-time 60 --unix-socket w.s http://localhost/v1/completions -H 'Content-Type: application/json' \
        -d "{\"prompt\": \"a\", \"max_tokens\": $1, \"temperature\": 0}" | jq -e '.choices[0].text'
}

# bats test_tags=quick
@test "each stopped service is killed after the watchdog time and started again, and the answers are the same" {
    up w --engine fake:1e6,1e4,0,1e6,1,1000 --watchdog-seconds 2
    before=$(ask 5)
    for pid in $(phasepipe ps --run "$PWD/w" --json | jq '.[].pid'); do kill -STOP "$pid"; done
    for ((i = 0; i < 150; i++)); do
        [ "$(restarts '== 1')" = '["decode-0","kvstore","prefill-0","sched","stream","tokenize"]' ] && break
        sleep 0.1
    done
    [ "$(restarts '== 1')" = '["decode-0","kvstore","prefill-0","sched","stream","tokenize"]' ]
    phasepipe ps --run "$PWD/w" # for the log of a failure
    for ((i = 0; i < 100; i++)); do
        [ "$(phasepipe ps --run "$PWD/w" --json | jq -c '[.[].state] | unique')" = '["ready"]' ] && break
        sleep 0.1
    done
    grep -q 'decode-0 (pid [0-9]*) has not reported for 2 s: it hangs or is stopped, and is killed' w/log/up.log
    [ "$(ask 5)" = "$before" ]
}

# bats test_tags=quick
@test "a worker whose step takes longer than the watchdog time is not killed" {
    up w --engine fake:4e9,1e4,0,1e6,1,1000 --watchdog-seconds 2
    ask 2
    [ "$(restarts '> 0')" = '[]' ]
}
