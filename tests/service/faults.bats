#!/usr/bin/env bats
# Faults that the services must survive, with real processes: programs that are killed and stopped under load, stores that
# are full, damaged or gone, workers that do not match. The answers must be, bit for bit, those of an undisturbed pipeline;
# afterwards the counts must add up and no block be leased.
#
# scripts/check runs those that are tagged quick, `make check-faults` all.

load_helpers() {
    # shellcheck source=tests/service/faults.bash
    source "$PHASEPIPE_TOP/tests/service/faults.bash"
}

setup_file() {
    load_helpers
    [ -x "$PHASEPIPE_BUILD/tests/tools/cancel_load" ] || make -s -C "$PHASEPIPE_TOP" B="$PHASEPIPE_BUILD" tools
    cd "$BATS_FILE_TMPDIR"
    make_models .
    load > load
    undisturbed a.gguf load 14 > want
}

setup() {
    load_helpers
    cd "$BATS_TEST_TMPDIR"
    RUN=$(mktemp -d /tmp/pp.XXXXXX)
    model=$BATS_FILE_TMPDIR/a.gguf
    kv=(-m "$model" --kv-cache-memory-bytes 64M --handed-ms 3000)
    engine=(-m "$model" --threads 1)
    sched_opts=()
    declare -gA alive=()
}

teardown() {
    end_all
    ! mountpoint -q "$BATS_TEST_TMPDIR/small" || umount -l "$BATS_TEST_TMPDIR/small"
    rm -rf "$RUN"
}

fake() {
    kv=(--model-fingerprint "$(printf 'fa%.0s' {1..32})" --layers 1 --kv-heads 1 --head-dim 8 --arithmetic fake1
        --kv-cache-memory-bytes "${2:-16M}" --handed-ms 3000)
    engine=(-m "$model" --engine "fake:$1")
}

# begin: returns when the load is running and decode is writing answers
begin() {
    gateway g < "$BATS_FILE_TMPDIR/load"
    until_true 30 busy d0 decode
}

# bats test_tags=quick
@test "without faults the services answer as the pipeline does" {
    services
    gateway g < "$BATS_FILE_TMPDIR/load"
    finish g
    right g
    accounts
    sched_says '.submitted == 14 and .ended.length == 14 and .retried == 0'
}

# ---- killed ----

# bats test_tags=quick
@test "decode is killed during a stream" {
    services
    begin
    kill_service d0
    worker d0 decode
    finish g
    right g
    accounts
    sched_says '.submitted == 14 and .ended.length == 14 and .retried > 0'
}

# decoding: a worker runs an answer, and has computed steps of it; its name is in the file `decodes`
decoding() {
    sched_stat | jq -re '.workers[] | select(.decode + .whole > 0 and .batch > 0).name' > decodes
}

# bats test_tags=quick
@test "a long answer outlives more deaths of its workers than would be suspected of a request that kills them" {
    services
    jq -cn '{id: "long", prompt: "It rains", max_tokens: 7000, ignore_eos: true, temperature: 0}' > one
    undisturbed "$model" one 1 > "$BATS_FILE_TMPDIR/one.want"
    gateway g < one
    for _ in 1 2 3; do
        until_true 30 decoding
        sleep 0.2
        kill_service "$(cat decodes)"
        case $(cat decodes) in d0) worker d0 decode ;; p0) worker p0 prefill ;; esac
    done
    finish g
    right g one.want
    accounts
    sched_says '.retried >= 3 and .ended.error == 0'
}

@test "decode is killed repeatedly, with a second decode worker" {
    sched_opts=(--knob retries=100)
    D=2 services
    begin
    for _ in 1 2 3; do
        kill_service d0
        sleep 0.3
        worker d0 decode
        sleep 0.3
        kill_service d1
        sleep 0.3
        worker d1 decode
        sleep 0.3
    done
    finish g
    right g
    accounts
}

# bats test_tags=quick
@test "prefill is killed within a chunk" {
    engine+=(--max-num-batched-tokens 32 --max-num-seqs 16)
    services
    gateway g < "$BATS_FILE_TMPDIR/load"
    until_true 30 busy p0 prefill
    kill_service p0
    worker p0 prefill
    finish g
    right g
    accounts
    sched_says '.submitted == 14 and .ended.length == 14'
}

# bats test_tags=quick
@test "kvstore is killed; its workers pass the arena to the next one" {
    services
    begin
    kill_service kvstore
    start_kvstore
    finish g
    right g
    accounts
    sched_says '.submitted == 14 and .ended.length == 14'
}

# bats test_tags=quick
@test "sched is killed; the next one learns the requests in flight" {
    services
    begin
    kill_service sched
    start_sched
    finish g
    right g
    accounts
    sched_says '.ended.length == .submitted and .retried == 0'
}

@test "sched is replaced under load, policy by policy" {
    services
    begin
    for policy in sched-fcfs sched-colocate sched; do
        kill_service sched
        start_sched
        sleep 0.7
    done
    finish g
    right g
    accounts
}

# bats test_tags=quick
@test "a gateway is killed: its requests end, and those of another continue" {
    services
    gateway h < "$BATS_FILE_TMPDIR/load"
    begin
    kill_service h
    finish g
    right g
    accounts
    sched_says '.submitted == 28 and .ended.length + .ended.cancelled == 28 and .gateways == 0'
}

@test "tokenize is killed" {
    services
    begin
    kill_service tokenize
    start_tokenize
    gateway h < "$BATS_FILE_TMPDIR/load"
    finish g
    finish h
    right g
    right h
    accounts
}

@test "all but the gateway are killed at once" {
    services
    begin
    for name in sched kvstore tokenize p0 d0; do kill_service $name; done
    services
    finish g
    right g
    accounts
}

# ---- stopped ----

@test "decode is stopped for ever: another worker takes over" {
    D=2 services
    begin
    kill_service d0 STOP
    finish g
    right g
    kill_service d0
    accounts
    sched_says '.submitted == 14 and .ended.length == 14'
}

@test "prefill is stopped for ever: another worker takes over" {
    engine+=(--max-num-batched-tokens 32 --max-num-seqs 16)
    P=2 services
    gateway g < "$BATS_FILE_TMPDIR/load"
    until_true 30 busy p0 prefill
    kill_service p0 STOP
    finish g
    right g
    kill_service p0
    accounts
}

# stop_and_go NAME SECONDS: stops a service under load and continues it; the heartbeat is 3 s, leases are 10 s
stop_and_go() {
    kill_service "$1" STOP
    sleep "$2"
    kill_service "$1" CONT
    finish g
    right g
    accounts
}

@test "decode is stopped for a second and continues" {
    services
    begin
    stop_and_go d0 1
    sched_says '.retried == 0'
}

@test "decode is stopped past its heartbeat and comes back" {
    services
    begin
    stop_and_go d0 5
}

@test "decode is stopped beyond its leases: its slots are reassigned, and it resyncs" {
    D=2 services
    begin
    stop_and_go d0 14
}

@test "prefill is stopped beyond its leases" {
    engine+=(--max-num-batched-tokens 32 --max-num-seqs 16)
    P=2 services
    gateway g < "$BATS_FILE_TMPDIR/load"
    until_true 30 busy p0 prefill
    stop_and_go p0 14
}

@test "the store is stopped for four seconds" {
    services
    begin
    stop_and_go kvstore 4
}

@test "the store is stopped beyond the leases" {
    services
    begin
    stop_and_go kvstore 14
}

@test "sched is stopped for two seconds" {
    services
    begin
    stop_and_go sched 2
    sched_says '.retried == 0'
}

@test "sched is stopped beyond the leases" {
    services
    begin
    stop_and_go sched 14
}

@test "tokenize is stopped for a while" {
    services
    kill_service tokenize STOP
    gateway g < "$BATS_FILE_TMPDIR/load"
    sleep 4
    kill_service tokenize CONT
    finish g
    right g
    accounts
}

@test "a gateway is stopped, counts as dead, and comes back" {
    services
    begin
    kill_service g STOP
    until_true 10 sched_says '.gateways == 0 and .running == 0'
    kill_service g CONT
    finish g
    right g
    accounts
}

@test "a gateway is stopped for a second and continues" {
    services
    begin
    stop_and_go g 1
}

# ---- between prefill and decode ----

@test "decode dies between the end of prefill and the transfer in" {
    services
    until_true 10 sched_says 'any(.workers[]; .name == "d0" and .seqs > 0)'
    kill_service d0 STOP # it lives as far as sched knows, and takes nothing
    grep '"id":"short' "$BATS_FILE_TMPDIR/load" > short
    gateway g < short
    until_true 10 busy d0 decode
    kill_service d0
    worker d0 decode
    finish g
    grep '"id":"short' "$BATS_FILE_TMPDIR/want" > "$BATS_FILE_TMPDIR/want.short"
    right g want.short
    accounts
    sched_says '.ended.length == 6 and .retried > 0'
}

# bats test_tags=quick
@test "requests that wait for decode longer than the TTL of a transfer are answered" {
    kv+=(--handed-ms 100)
    D=0 services
    worker d0 decode --max-num-seqs 1
    gateway g < "$BATS_FILE_TMPDIR/load"
    # All wait but the one that decodes, and the store has ended the sequences of those.
    until_true 30 sched_says '.running == 1 and .waiting >= 10 and any(.workers[]; .decode == 1)'
    until_true 10 kv_says '.seqs <= 1'
    sched_says '.running == 1 and .waiting >= 9'
    finish g
    right g
    accounts
    sched_says '.submitted == 14 and .ended.length == 14 and .retried == 0'
}

@test "a lease expires while a worker reads: no slot is read after it was reassigned" {
    kv+=(--lease-ms 1000 --kv-cache-memory-bytes 6M)
    D=2 services
    begin
    stop_and_go d0 2
}

# ---- full pools ----

@test "the store is full: all requests wait their turn" {
    kv+=(--kv-cache-memory-bytes 4M)
    services
    gateway g < "$BATS_FILE_TMPDIR/load"
    finish g
    right g
    accounts
}

@test "the store is full, and ends what waits in it before its turn" {
    kv+=(--kv-cache-memory-bytes 4M --handed-ms 50)
    services
    gateway g < "$BATS_FILE_TMPDIR/load"
    finish g
    right g
    accounts
    sched_says '.submitted == 14 and .ended.length == 14 and .retried == 0'
}

# bats test_tags=quick
@test "a request larger than the pool is refused with a reason, others are served" {
    kv+=(--kv-cache-memory-bytes 3M)
    services
    { jq -cn --arg p "$(seq -s' ' 1 1100)" '{id: "big", prompt: $p, max_tokens: 50}'
        head -n 2 "$BATS_FILE_TMPDIR/load"; } > mixed
    gateway g < mixed
    finish g || [ $? -eq 1 ]
    grep -q '"id":"big".*"error"' g.out
    grep -v '"id":"big"' g.out | answers > got
    head -n 2 "$BATS_FILE_TMPDIR/want" | diff - got
    accounts
    sched_says '.ended.refused >= 1 and .ended.length == 2'
}

# ---- the disk ----

@test "blocks damaged on the disk are detected, dropped and computed again" {
    kv+=(--disk disk --disk-size 256M)
    services
    gateway g < "$BATS_FILE_TMPDIR/load"
    finish g
    right g
    for name in p0 d0; do kill_service $name TERM && wait "$(eval echo "\$pid_$name")"; done
    kill_service kvstore TERM
    wait "$pid_kvstore"
    python3 - disk <<'P'
import sys
with open(sys.argv[1], "r+b") as f:
    size = f.seek(0, 2)
    for at in range(1 << 20, size, 50021):
        f.seek(at)
        b = f.read(1)
        f.seek(at)
        f.write(bytes([b[0] ^ 0x55]))
P
    start_kvstore
    worker p0 prefill
    worker d0 decode
    gateway h < "$BATS_FILE_TMPDIR/load"
    finish h
    right h
    accounts
    kv_says '.disk_bad > 0'
}

@test "the disk is full" {
    mkdir small
    mount -t tmpfs -o size=1M none small 2> /dev/null || skip "no file system can be mounted here"
    kv+=(--disk small/disk --disk-size 256M --kv-cache-memory-bytes 6M)
    services
    gateway g < "$BATS_FILE_TMPDIR/load"
    finish g
    right g
    accounts
}

# ---- mismatches ----

# bats test_tags=quick
@test "a worker with another model, or with other arithmetic, is refused with a reason" {
    services
    run timeout 20 decode --run "$RUN" --name other -m "$BATS_FILE_TMPDIR/b.gguf"
    [ "$status" -eq 2 ]
    [[ "$output" == *"decode: "*model* ]]
    run timeout 20 decode --run "$RUN" --name other -m "$model" --kv-cache-dtype f16
    [ "$status" -eq 2 ]
    run timeout 20 decode --run "$RUN" --name other -m "$model" --engine fake:1,1,1,1,1,1
    [ "$status" -eq 2 ]
    # A worker with a store of its own is refused by the scheduler only.
    start other_kv kvstore --listen unix:other.sock -m "$BATS_FILE_TMPDIR/b.gguf" --kv-cache-memory-bytes 16M
    decode --sched "ipc://$RUN/sched.sock" --kv unix:other.sock --name other -m "$BATS_FILE_TMPDIR/b.gguf" \
        2> other.err 3>&- &
    echo $! >> pids
    until_true 10 grep -q "start all workers with the same model" other.err
    gateway g < "$BATS_FILE_TMPDIR/load"
    finish g
    right g
    sched_says '[.workers[].name] | sort == ["d0", "p0"]'
    accounts
}

# ---- clocks ----

@test "the realtime clock jumps by hours, forth and back" {
    local lib
    lib=$(find /usr/lib -name libfaketimeMT.so.1 2> /dev/null | head -n 1)
    [ -n "$lib" ] || skip "there is no libfaketime"
    echo "+0" > clock
    export LD_PRELOAD=$lib FAKETIME_TIMESTAMP_FILE=$PWD/clock FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1
    services
    gateway g < "$BATS_FILE_TMPDIR/load"
    unset LD_PRELOAD
    until_true 30 busy d0 decode
    for by in +5h -3d +0 +400d; do
        echo "$by" > clock
        sleep 0.3
    done
    finish g
    right g
    accounts
    sched_says '.retried == 0'
}

# ---- many ----

# bats test_tags=quick
@test "a hundred cold requests with one system prompt compute it once" {
    fake 1000000,20000,0,1000000,0,10000
    P=2 services
    local text
    text=$(seq -s' ' 1 700)
    for i in $(seq 100); do
        jq -cn --arg p "$text" --argjson i "$i" '{id: "\($i)", prompt: "\($p) question \($i)", max_tokens: 8, ignore_eos: true}'
    done > cold
    gateway g < cold
    finish g
    [ "$(wc -l < g.out)" -eq 100 ]
    accounts
    # The common blocks were computed once: the misses are one prompt and the remainders.
    jq -s '(map(.usage.prompt_tokens - .usage.cached_tokens) | add) as $new | .[0].usage.prompt_tokens as $one
        | {new: $new, one: $one}' g.out
    jq -es '(map(.usage.prompt_tokens - .usage.cached_tokens) | add) as $new | .[0].usage.prompt_tokens as $one
        | $one > 600 and $new < $one + 100 * 64' g.out
}

@test "ten thousand requests with random cancellations leave no lease" {
    fake 20000,100,0,100000,0,1000
    P=2 D=2 services
    run timeout 300 "$PHASEPIPE_BUILD/tests/tools/cancel_load" "ipc://$RUN/sched.sock" "ipc://$RUN/tokenize.sock" 10000 200 7
    echo "$output"
    [ "$status" -eq 0 ]
    [[ "$output" == "asked 10000 ended 10000 cancelled "*" failed 0 differ 0" ]]
    accounts
    sched_says '.submitted > 8000 and .ended.cancelled > 500 and .ended.error == 0'
}

@test "random cancellations leave no lease while workers are killed and sched is restarted" {
    fake 20000,100,0,100000,0,1000
    P=2 D=2 services
    timeout 300 "$PHASEPIPE_BUILD/tests/tools/cancel_load" "ipc://$RUN/sched.sock" "ipc://$RUN/tokenize.sock" 10000 200 8 \
        > load.out 2> load.err 3>&- &
    pid_load=$!
    echo $! >> pids
    for name in d0 p0 sched d1 p1 kvstore sched; do
        sleep 1
        kill -0 $pid_load 2> /dev/null || break
        kill_service $name
        case $name in
        sched) start_sched ;;
        kvstore) start_kvstore ;;
        d*) worker $name decode ;;
        p*) worker $name prefill ;;
        esac
    done
    finish load 200
    cat load.out load.err
    [[ "$(cat load.out)" == "asked 10000 ended 10000 cancelled "*" failed 0 differ 0" ]]
    accounts
}
