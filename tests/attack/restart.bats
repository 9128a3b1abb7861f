#!/usr/bin/env bats
# Requests arrive twice a second while a service is ended by SIGTERM and started again: all are answered.

bats_require_minimum_version 1.5.0

setup_file() {
    PHASEPIPE_TOP=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
    export PHASEPIPE_TOP
}

setup() {
    # shellcheck source=tests/service/faults.bash
    source "$PHASEPIPE_TOP/tests/service/faults.bash"
    cd "$BATS_TEST_TMPDIR"
    mkdir -m 700 run
    RUN=$PWD/run
    kv=(-m "$PHASEPIPE_TEST_MODEL" --kv-cache-memory-bytes 64M)
    sched_opts=()
    engine=(-m "$PHASEPIPE_TEST_MODEL" --threads 1)
    model=$PHASEPIPE_TEST_MODEL
    declare -gA alive=()
    start_kvstore
    start_sched
    start_tokenize
    worker p0 prefill
    worker d0 decode
    "$PHASEPIPE_TOP/tests/attack/restart.py" serve port stream --drain-seconds 30 --run "$RUN" -m "$model" 2> stream.err 3>&- &
    front=$!
    timeout 30 bash -c 'until [ -e port ] && curl -sf "http://127.0.0.1:$(cat port)/health" > /dev/null; do sleep 0.05; done'
}

teardown() {
    kill "$front" 2> /dev/null || true
    end_all
    cat stream.err ./*.err 2> /dev/null | tail -30
}

# end NAME: SIGTERM, and wait for its end
end() {
    local pid="pid_$1"
    kill -TERM "${!pid}"
    timeout 60 tail --pid="${!pid}" -f /dev/null
}

# during SECONDS COMMAND ...: while the load runs
during() {
    "$PHASEPIPE_TOP/tests/attack/restart.py" load port "$1" > load.out 2> load.err 3>&- &
    local load=$!
    sleep 1
    "${@:2}"
    wait "$load" || { cat load.err; return 1; }
    echo "${*:2}: $(cat load.out)"
    [ -z "${PHASEPIPE_PEAKS-}" ] || printf '%s\t%s\t\n' "restart of ${*:2}" "$(cat load.out)" >> "$PHASEPIPE_PEAKS"
}

sched_again() { end sched && start_sched; }
tokenize_again() { end tokenize && start_tokenize; }
kvstore_again() { end kvstore && start_kvstore; }
prefill_again() { end p0 && worker p0 prefill; }
decode_again() { end d0 && worker d0 decode; }
stream_again() { kill -USR1 "$front"; }

# bats test_tags=quick
@test "a scheduler ended by SIGTERM and started again loses no request" {
    during 3 sched_again
}

# bats test_tags=quick
@test "a gateway with an inherited socket leaves connections in the backlog when it is ended and started again" {
    during 3 stream_again
}

@test "the scheduler, tokenize, prefill and decode are ended and started again, five times each" {
    for i in 1 2 3 4 5; do
        during 4 sched_again
        during 4 tokenize_again
        during 5 prefill_again
        during 5 decode_again
        during 4 stream_again
    done
}

@test "kvstore is ended and started again" {
    during 8 kvstore_again
}
