#!/usr/bin/env bats
# Clients leave while a service cannot receive their cancels: every request is cancelled all the same, and nothing stays running.

bats_require_minimum_version 1.5.0

setup() {
    # shellcheck source=tests/attack/attack.bash
    source "$PHASEPIPE_TOP/tests/attack/attack.bash"
    cd "$BATS_TEST_TMPDIR"
    # A token takes 20 ms, so an answer of 4000 tokens outlasts the test.
    up run --kv-cache-memory-bytes 64M --engine fake:1e6,1e4,0,2e7,1,1000 --prefill 1 --decode 1
}

teardown() {
    for s in sched tokenize stream; do kill -CONT "$(pid_of run $s)" 2> /dev/null || true; done
    down run
}

# clients N: N requests, each with an own prompt; clients_leave disconnects them
clients() {
    local i
    leave=()
    for i in $(seq "$1"); do
        curl -sN -o "out.$i" --unix-socket run.s http://h/v1/completions -H 'Content-Type: application/json' \
            -d "{\"prompt\":\"client $i of $RANDOM\",\"max_tokens\":4000,\"ignore_eos\":true,\"stream\":true}" 3>&- &
        leave+=($!)
    done
}
clients_leave() {
    kill -9 "${leave[@]}" 2> /dev/null || true
    wait "${leave[@]}" 2> /dev/null || true
}

sched_says() { timeout 5 phasepipe ctl sched --json --run "$PWD/run" | jq -c "$1"; }

# until WHAT VALUE SECONDS: the scheduler's statistics have this value in time
until_is() {
    local end=$((SECONDS + $3))
    until [ "$(sched_says "$1")" = "$2" ]; do
        if [ $SECONDS -ge $end ]; then
            sched_says .
            return 1
        fi
        sleep 0.1
    done
}

# nothing_is_left SECONDS: no request runs or waits, at the scheduler, the gateway and the store; each one submitted has ended
nothing_is_left() {
    until_is '[.running, .waiting, ([.workers[] | .prefill + .decode + .whole] | add)]' '[0,0,0]' "$1"
    [ "$(sched_says '.submitted == ([.ended[]] | add)')" = true ]
    until_is_zero() { [ "$(curl -s --unix-socket run.s http://h/metrics | awk '/^phasepipe:(answers_running|answers_waiting|prompt_bytes)/ { n += $2 } END { print n + 0 }')" = 0 ]; }
    for _ in $(seq 50); do ! until_is_zero || break; sleep 0.1; done
    until_is_zero
    for _ in $(seq 50); do
        [ "$(phasepipe ctl kv --json --run "$PWD/run" | jq -c '[.leased, .quarantined, .seqs]')" != '[0,0,0]' ] || return 0
        sleep 0.1
    done
    false
}

# bats test_tags=quick
@test "clients that leave while the scheduler does not answer are cancelled when it does" {
    clients 12
    until_is .running 12 20
    kill -STOP "$(pid_of run sched)"
    clients_leave
    sleep 0.5
    kill -CONT "$(pid_of run sched)"
    nothing_is_left 10
}

# bats test_tags=quick
@test "clients that leave while the scheduler is restarted are cancelled by its successor" {
    clients 12
    until_is .running 12 20
    kill -9 "$(pid_of run sched)"
    clients_leave
    for _ in $(seq 50); do ! sched_says .running || break; sleep 0.1; done
    nothing_is_left 15 # workers report their work items, and nobody claims them within grace_ms
}

# bats test_tags=quick
@test "clients that leave while tokenize has their requests are not computed" {
    clients 1
    until_is .running 1 20
    clients_leave
    nothing_is_left 10
    kill -STOP "$(pid_of run tokenize)"
    clients 12
    sleep 1
    clients_leave
    sleep 0.5
    kill -CONT "$(pid_of run tokenize)"
    nothing_is_left 10
    [ "$(sched_says .submitted)" = 1 ]
}

# It is stopped for longer than three heartbeats, so the scheduler ends its session and cancels its requests.
@test "clients that leave while the gateway is stopped are cancelled, and not submitted again" {
    clients 12
    until_is .running 12 20
    kill -STOP "$(pid_of run stream)"
    clients_leave
    until_is .gateways 0 10
    kill -CONT "$(pid_of run stream)"
    until_is .gateways 1 10
    nothing_is_left 10
}
