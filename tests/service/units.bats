#!/usr/bin/env bats
# Services that systemd starts, not phasepipe up: ps finds them, and they lend cores to each other.

bats_require_minimum_version 1.5.0

setup() {
    # shellcheck source=tests/service/faults.bash
    source "$PHASEPIPE_TOP/tests/service/faults.bash"
    cd "$BATS_TEST_TMPDIR"
    RUN=$(mktemp -d /tmp/pp.XXXXXX)
    model=$PHASEPIPE_TEST_MODEL
    kv=(--model-fingerprint "$(printf 'fa%.0s' {1..32})" --layers 1 --kv-heads 1 --head-dim 8 --arithmetic fake1
        --kv-cache-memory-bytes 16M)
    engine=(-m "$model" --engine fake:0,1000,0,1000,0,0)
    sched_opts=()
    declare -gA alive=()
}

teardown() {
    end_all
    rm -rf "$RUN"
}

listed() { phasepipe ps --run "$RUN" --json | jq -e --arg n "$1" --argjson p "$2" "any(.[]; .name == \$n and .pid == \$p $3)" > /dev/null; }

@test "ps lists services without a supervisor: their processes, roles and states" {
    run -1 phasepipe ps --run "$RUN"
    [[ $output == *"nothing runs in $RUN"* ]]
    services
    mkfifo requests
    exec 7<> requests # open, and without a request
    gateway g <&7
    exec 7>&-
    listed kvstore "$pid_kvstore" 'and .role == "store" and .program == "kvstore" and .restarts == null'
    listed sched "$pid_sched" 'and .role == "scheduler"'
    listed tokenize "$pid_tokenize" 'and .role == "tokenizer"'
    listed p0 "$pid_p0" 'and .role == "prefill" and .state == "ready"'
    listed d0 "$pid_d0" 'and .role == "decode"'
    until_true 10 listed stream "$pid_g" 'and .role == "edge"'
    [ "$(phasepipe ps --run "$RUN" --json | jq length)" = 6 ]
    phasepipe ps --run "$RUN" > table
    [ "$(awk '$1 == "d0" { print $2, $3, $4, $5, $6 }' table)" = "decode decode $pid_d0 ready -" ]
    kill -STOP "$pid_d0"
    listed d0 "$pid_d0" 'and .state == "stopped"'
    kill -CONT "$pid_d0"
    phasepipe ctl drain d0 --run "$RUN"
    until_true 10 listed d0 "$pid_d0" 'and .state == "draining"'
    kill_service tokenize
    [ "$(phasepipe ps --run "$RUN" --json | jq '[.[] | select(.name == "tokenize")] | length')" = 0 ]
}
