#!/usr/bin/env bats
# A worker that writes at random over everything that it can of the shared memory (tests/tools/kv_scribble), and thousands
# of cancelled requests: kvstore lives, holds nothing for nobody, and never serves a block that another process has changed.

bats_require_minimum_version 1.5.0

load attack
load ../service/kvstore

setup() {
    cd "$BATS_TEST_TMPDIR"
    kv=(--listen unix:kv.sock --model-fingerprint "$(printf '07%.0s' {1..32})" --layers 2 --kv-heads 1 --head-dim 64
        --arithmetic pp1 --kv-cache-memory-bytes $((16 * 12288)))
    tools=$PHASEPIPE_BUILD/tests/tools
}

teardown() {
    for pid in $(cat pids 2> /dev/null); do
        kill -9 "$pid" 2> /dev/null || true
    done
    [ ! -d run ] || down run
}

# commands LINE ...: one client runs these, and ends
commands() { printf '%s\n' "$@" | "$tools/kv_client" unix:kv.sock 07 pp1; }

compute=('lease 1 6' 'credit 6' 'publish 6' check release)

# bats test_tags=quick
@test "a worker cannot write what kvstore knows of the slots" {
    start
    commands "${compute[@]}" > first
    for seed in 1 2 3; do
        "$tools/kv_scribble" unix:kv.sock meta $seed 3>&-
        [ "$(commands 'lease 1 6' check release | tr '\n' ' ')" = "here seq 0 gen $((seed * 2 + 1)) blocks 6 tail 0 ok ok " ]
    done
    commands stat | grep "free 10 cached 6 leased 0 quarantined 0 credited 0 seqs 0 clients 1 .*sound"
    kill -0 "$store_pid"
    within kvstore "$store_pid" 16
}

# bats test_tags=quick
@test "a block that another worker has changed is not leased, nor after kvstore is killed" {
    start
    commands "${compute[@]}" > first
    grep -q "blocks 0 tail 0" first
    "$tools/kv_scribble" unix:kv.sock slots 1 3>&-
    commands "${compute[@]}" > again
    cmp <(sed 's/gen [0-9]*//' first) <(sed 's/gen [0-9]*//' again) # nothing is cached: it is computed again
    [ "$(grep -c 'has changed since it was published' store.err)" -eq 1 ]
    # A client keeps the arena while kvstore is killed; slots are changed before and after.
    mkfifo in
    "$tools/kv_client" unix:kv.sock 07 pp1 < in > keeper 3>&- &
    echo $! >> pids
    exec {keep}> in
    commands 'lease 1 6' release | grep "blocks 6"
    "$tools/kv_scribble" unix:kv.sock slots 2 3>&-
    kill -9 "$store_pid"
    start -v
    grep "arena adopted from a client" store.err
    commands "${compute[@]}" | grep "blocks 0 tail 0"
    commands 'lease 1 6' check stat | grep "^total 16 .* sound"
    exec {keep}>&-
    kill -0 "$store_pid"
    within "kvstore, scribbled on" "$store_pid" 16
}

# bats test_tags=quick
@test "a --disk file that cannot be opened is a permanent failure" {
    mkdir folder
    touch file
    for path in missing/kv.disk folder file/kv.disk; do
        run kvstore "${kv[@]}" --disk "$path"
        [ "$status" -eq 1 ]
        [[ $output == *"the file tier $path cannot be opened: "* ]]
    done
}

# bats test_tags=quick
@test "kvstore ends at once when only a transfer is left that nobody can take" {
    start --handed-ms 20000 --drain-seconds 20
    commands 'lease 1 4' 'credit 6' 'publish 4 7' hand | grep "blocks 4 tail 7"
    begin=$(date +%s%N)
    kill -TERM "$store_pid"
    wait "$store_pid"
    [ $(($(date +%s%N) - begin)) -lt 3000000000 ]
}

ask() {
    curl -sS --max-time 60 --unix-socket run.s http://x/v1/completions -H 'Content-Type: application/json' \
        -d "{\"model\":\"smol\",\"prompt\":\"$prompt\",\"max_tokens\":24,\"temperature\":0}" | jq -r '.choices[0].text'
}

@test "answers stay equal while a worker changes every cached block between them" {
    up run --kv-cache-memory-bytes 96M --verify always
    prompt=$(printf 'The story of the lighthouse keeper and the sea, part %s. ' {1..30})
    right=$(ask)
    [ -n "$right" ] && [ "$right" != null ]
    store=$(pid_of run kvstore)
    for seed in 1 2 3 4 5 6; do
        [ "$(ask)" = "$right" ] # from the cache
        "$tools/kv_scribble" "unix:$PWD/run/kv.sock" slots $seed "$PHASEPIPE_TEST_MODEL" 3>&-
        [ "$(ask)" = "$right" ] # computed again
        "$tools/kv_scribble" "unix:$PWD/run/kv.sock" meta $seed "$PHASEPIPE_TEST_MODEL" 3>&-
    done
    [ "$(pid_of run kvstore)" = "$store" ]
    [ "$(grep -c 'has changed since it was published' run/log/kvstore.log)" -ge 6 ]
    within "kvstore of changed blocks" "$store" 160
}

# resident NAME SERVICE: MiB of its own memory that is resident, without the shared mapping of the weights and of the KV
resident() { awk '/^RssAnon:/ { print int($2 / 1024) }' "/proc/$(pid_of "$1" "$2")/status"; }

# given_back: each service has at most 48 MiB more than before
given_back() {
    local s
    for s in stream tokenize sched prefill-0 decode-0 kvstore; do
        [ "$(resident run $s)" -le $(($(cat "before.$s") + 48)) ] || return 1
    done
}

@test "memory is given back after rounds of requests of 15 MB" {
    up run --kv-cache-memory-bytes 64M --engine fake:20000,100,0,100000,0,1000 --prefill 1 --decode 1
    for s in stream tokenize sched prefill-0 decode-0 kvstore; do resident run $s > before.$s; done
    timeout 100 python3 "$BATS_TEST_DIRNAME/http_client.py" "$PWD/run.s" rounds
    for _ in $(seq 40); do
        ! given_back || break
        sleep 0.1
    done
    for s in stream tokenize sched prefill-0 decode-0 kvstore; do echo "$s: $(cat before.$s) $(resident run $s) MiB"; done
    given_back
    within "gateway, rounds of 15 MB" "$(pid_of run stream)" 640
    within "tokenize, rounds of 15 MB" "$(pid_of run tokenize)" 448
    within "sched, rounds of 15 MB" "$(pid_of run sched)" 192
    within "prefill, rounds of 15 MB" "$(pid_of run prefill-0)" 256
    within "decode, rounds of 15 MB" "$(pid_of run decode-0)" 256
}

@test "five thousand random cancellations leave nothing held, and down ends at once" {
    up run --kv-cache-memory-bytes 64M --engine fake:20000,100,0,100000,0,1000 --prefill 1 --decode 1
    timeout 300 "$tools/cancel_load" "ipc://$PWD/run/sched.sock" "ipc://$PWD/run/tokenize.sock" 5300 100 9 > load
    grep "^asked 5300 ended 5300 cancelled .* failed 0 differ 0" load
    held() { phasepipe ctl kv --json --run "$PWD/run" | jq -c '[.leased, .quarantined, .seqs, .waiting]'; }
    for _ in $(seq 50); do
        [ "$(held)" != '[0,0,0,0]' ] || break
        sleep 0.1
    done
    [ "$(held)" = '[0,0,0,0]' ]
    for _ in $(seq 30); do # idle workers release their reserved slots after a second
        [ "$(phasepipe ctl kv --json --run "$PWD/run" | jq .credited)" != 0 ] || break
        sleep 0.1
    done
    [ "$(phasepipe ctl kv --json --run "$PWD/run" | jq .credited)" = 0 ]
    within "kvstore after cancellations" "$(pid_of run kvstore)" 128
    begin=$(date +%s%N)
    timeout 60 phasepipe down --run "$PWD/run"
    [ $(($(date +%s%N) - begin)) -lt 5000000000 ]
}
