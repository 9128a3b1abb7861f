#!/usr/bin/env bats
# Processes that are killed together, in the middle of a hand-over, and while the policy is replaced. The answers must be, bit
# for bit, those of an undisturbed pipeline, and afterwards no block may be leased.

bats_require_minimum_version 1.5.0

load_helpers() {
    # shellcheck source=tests/service/faults.bash
    source "$PHASEPIPE_TOP/tests/service/faults.bash"
}

# brief: short answers, so that a prefill worker transfers sequences all the time
brief() {
    local i
    for i in $(seq "$1"); do
        jq -cn --arg p "$i$(seq -s' ' 1 $((i % 40)))" --argjson i "$i" \
            '{id: "brief\($i)", prompt: $p, max_tokens: (2 + $i % 7), ignore_eos: true, temperature: ($i % 2), seed: $i}'
    done
}

setup_file() {
    load_helpers
    PHASEPIPE_TOP=${PHASEPIPE_TOP:-$(cd "$BATS_TEST_DIRNAME/../.." && pwd)}
    cd "$BATS_FILE_TMPDIR"
    make_models .
    load 60 > load
    undisturbed a.gguf load 14 > want.load
}

setup() {
    load_helpers
    cd "$BATS_TEST_TMPDIR"
    RUN=$(mktemp -d /tmp/pp.XXXXXX)
    model=$BATS_FILE_TMPDIR/a.gguf
    kv=(-m "$model" --kv-cache-memory-bytes 64M --handed-ms 3000)
    engine=(-m "$model" --threads 1)
    sched_opts=(--knob retries=1000 --knob deaths=1000)
    declare -gA alive=()
}

teardown() {
    end_all
    rm -rf "$RUN"
}

# again NAME: starts a service that was killed
again() {
    case $1 in
    p0) worker p0 prefill ;;
    d0) worker d0 decode ;;
    *) "start_$1" ;;
    esac
}

# bats test_tags=quick
@test "kvstore and sched are killed together" {
    services
    gateway g < "$BATS_FILE_TMPDIR/load"
    until_true 30 busy d0 decode
    kill_service kvstore
    kill_service sched
    again sched
    again kvstore
    finish g
    right g want.load
    accounts
}

@test "two of five services are killed at once, forty times: each pair four times" {
    local names=(kvstore sched tokenize p0 d0) a b round n=0
    services
    for round in 1 2 3 4; do
        for a in 0 1 2 3; do
            for b in $(seq $((a + 1)) 4); do
                gateway g < "$BATS_FILE_TMPDIR/load"
                until_true 30 busy d0 decode
                sleep "0.$((RANDOM % 4))"
                kill_service "${names[a]}"
                kill_service "${names[b]}"
                # In either order, but for kvstore, for which a worker waits before it is ready.
                if ((round % 2)) || [ "${names[a]}" = kvstore ]; then
                    again "${names[a]}"
                    again "${names[b]}"
                else
                    again "${names[b]}"
                    again "${names[a]}"
                fi
                finish g || { echo "round $round: ${names[a]} and ${names[b]}"; false; }
                right g want.load || { echo "round $round: ${names[a]} and ${names[b]}"; false; }
                n=$((n + 1))
            done
        done
    done
    [ "$n" -eq 40 ]
    accounts
}

# handing: a sequence is between the two workers, or is being transferred
handing() {
    kv_says '.seqs > 0' > /dev/null
}

@test "prefill or decode is killed during a hand-over, two hundred times" {
    local n=0 names=(p0 d0)
    brief 600 > "$BATS_FILE_TMPDIR/brief"
    (cd "$BATS_FILE_TMPDIR" && undisturbed a.gguf brief 600 > want.brief)
    services
    while ((n < 200)); do
        gateway g < "$BATS_FILE_TMPDIR/brief"
        while ((n < 200)) && kill -0 "$pid_g" 2> /dev/null; do
            until_true 5 handing || break
            kill_service "${names[n % 2]}"
            again "${names[n % 2]}"
            n=$((n + 1))
        done
        finish g 120
        right g want.brief
    done
    accounts
}

@test "the policy is replaced and the new one killed while it starts, twenty times" {
    local i pid
    mkdir -m 700 up
    phasepipe up --run "$PWD/up" -m "$model" --http off --ollama off --kv-cache-memory-bytes 64M --detach 3>&-
    for i in $(seq 20); do
        timeout 60 stream --run up --jsonl -m "$model" < "$BATS_FILE_TMPDIR/load" > g.out 2> g.err 3>&- &
        pid_g=$!
        sleep 0.3
        policy=sched-fcfs
        ((i % 2)) || policy=sched
        phasepipe ctl sched-swap $policy --run up > swap.log 2>&1 3>&- &
        swap=$!
        sleep "0.0$((RANDOM % 10))"
        pid=$(phasepipe ps --run up --json | jq -r '.[] | select(.name == "sched").pid')
        ! ((pid > 1)) || kill -9 "$pid" || true
        wait "$swap" || true # it may be reported as failed; then the former policy continues
        finish g || { echo "round $i"; cat swap.log; false; }
        right g want.load || { echo "round $i"; cat swap.log; false; }
    done
    [ "$(phasepipe ps --run up --json | jq '[.[] | select(.state == "ready")] | length')" = 5 ]
    timeout 60 phasepipe down --run up
}
