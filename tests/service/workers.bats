#!/usr/bin/env bats
# prefill and decode as workers, with the real kvstore, scheduler, tokenize and gateway: answers are those of the pipeline
# `tokenize | prefill | decode`, to the bit (log-probabilities are printed with nine digits), on any placement.

load ../pipe/pipe

# Nine lines, eleven answers: those of pipe.bash, choices, a prompt longer than a step, scores only, one token.
lines() {
    requests | sed 's/"18446744073709551615"/18446744073709551615/'
    cat <<J
{"id":"choices","prompt":"$(seq -s ' ' 1 90)","n":3,"max_tokens":30,"temperature":1,"seed":5,"logprobs":0}
{"id":"long","prompt":"$(seq -s ', ' 200 420)","max_tokens":40,"logprobs":1}
{"id":"scores","prompt":"The capital of France is Paris.","max_tokens":0,"echo":true,"logprobs":1}
{"id":"one","prompt":"One, two, three,","max_tokens":1,"logprobs":2}
J
}

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    lines > lines.jsonl
    tokenize --jsonl lines.jsonl > all.tok
    prefill < all.tok | decode | stream --jsonl | jq -cS 'del(.timings, .usage.cached_tokens)' > want
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
}

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    want=$BATS_FILE_TMPDIR/want lines=$BATS_FILE_TMPDIR/lines.jsonl
    export PHASEPIPE_RUN=$PWD
}

teardown() {
    for pid in $(tac pids 2> /dev/null); do
        kill -CONT "$pid" 2> /dev/null || true
        kill -9 "$pid" 2> /dev/null || true
    done
    cat ./*.err 2> /dev/null || true
}

# start NAME PROGRAM [OPTION ...]: in the background, until it is ready; $NAME is its process
start() {
    local name=$1 ready
    shift
    mkfifo "$name.ready"
    "$@" --ready-fd 4 4> "$name.ready" 2>> "$name.err" 3>&- &
    eval "$name=$!"
    echo $! >> pids
    read -r -t 60 ready < "$name.ready"
    rm "$name.ready"
    [ "$ready" = ready ]
}

services() {
    start store kvstore --listen "unix:$PWD/kv.sock" --kv-cache-memory-bytes "${BYTES:-128M}"
    start sched "${SCHED:-sched}" --run . "$@"
    start tok tokenize --listen "ipc://$PWD/tokenize.sock"
}

ask() {
    timeout 120 stream --run . --jsonl "$@"
}

# same FILE: succeeds if FILE has the answers of the pipeline
same() {
    jq -cS 'del(.timings, .usage.cached_tokens)' "$1" | diff "$want" -
}

# until_true SECONDS COMMAND ...
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ]
        sleep 0.05
    done
}

# has ID CONDITION FILE: succeeds if the condition holds for the answer with this id
has() {
    jq -es --arg id "$1" "map(select(.id == \$id)) | length == 1 and (.[0] | $2)" "$3"
}

# leased: prints the number of leased slots, without reserved ones
leased() {
    phasepipe ctl --run . kv --json | jq .leased
}

nothing_leased() {
    [ "$(leased)" = 0 ]
}

@test "prefill and decode workers give the answers of the pipeline, also from cached blocks" {
    services -k local_tokens=0
    start p prefill --run .
    start d decode --run .
    ask < "$lines" > got
    same got
    has long '.timings.prompt_eval_duration > 0 and .usage.cached_tokens == 0' got
    ask < "$lines" > again
    same again
    has long '.usage.cached_tokens >= 800' again
    has echo '.usage.cached_tokens == 0' again
    until_true 3 nothing_leased
}

@test "a decode worker alone does both stages, in chunks" {
    services
    start d decode --run . --max-num-batched-tokens 100
    ask < "$lines" > got
    same got
}

@test "a prefill worker alone does both stages" {
    services
    start p prefill --run .
    ask < "$lines" > got
    same got
}

@test "several workers, chosen by the policy" {
    services
    start p prefill --run . --max-num-batched-tokens 64
    start d decode --run .
    start e decode --run . --max-num-batched-tokens 300
    for i in 1 2 3; do
        ask < "$lines" > got
        same got
    done
}

@test "with too few blocks some requests wait, some are preempted, and all are answered" {
    BYTES=28M services -k reserve=0
    start p prefill --run .
    start d decode --run .
    ask < "$lines" > got
    same got
    # 72 blocks of 32 tokens: this one never fits
    run ask <<< "{\"prompt\":\"$(seq -s ' ' 1 1500)\",\"max_tokens\":4}"
    [[ $output == *'"finish_reason":"error"'* || $output == *'"error"'* ]]
    [[ $output == *blocks* ]]
    until_true 3 nothing_leased
}

# decoding N: so many answers are being decoded
decoding() { [ "$(phasepipe ctl --run . sched --json | jq '[.workers[] | .decode + .whole] | add')" = "$1" ]; }

@test "a draining worker passes its requests to another" {
    services
    start d decode --run . --drain-timeout 0
    head -n 5 "$lines" | jq -c '.max_tokens = 800 | .ignore_eos = true | del(.stop) | if .seed then .seed = 7 else . end' > long.jsonl
    tokenize --jsonl long.jsonl | decode | stream --jsonl | jq -cS 'del(.timings, .usage.cached_tokens)' > long.want
    ask < long.jsonl > got &
    asked=$!
    until_true 30 decoding 5 # long before the first of them ends
    start e decode --run .
    kill "$d"
    wait "$d"
    wait $asked
    jq -cS 'del(.timings, .usage.cached_tokens)' got | diff long.want -
    [ "$(phasepipe ctl --run . sched --json | jq .preempted)" -gt 0 ]
}

@test "the second turn of a chat finds the blocks of the first" {
    services -k local_tokens=0
    start p prefill --run .
    start d decode --run .
    line() { jq -cn --args '{messages: [$ARGS.positional | to_entries[] | {role: (if .key % 2 == 0 then "user" else "assistant" end), content: .value}], max_tokens: 200}' "$@"; }
    q='Tell me a story about a small village near the sea, in many words.'
    first=$(ask <<< "$(line "$q")")
    a=$(jq -r .text <<< "$first")
    n=$(jq '.usage.prompt_tokens + .usage.completion_tokens' <<< "$first")
    second=$(ask <<< "$(line "$q" "$a" 'And then?')")
    jq -e --argjson n "$n" '.usage.cached_tokens >= ($n - 64) and .usage.cached_tokens > 100' <<< "$second"
    line "$q" "$a" 'And then?' | tokenize --jsonl | prefill | decode | stream --jsonl | jq -r .text |
        diff - <(jq -r .text <<< "$second")
}

@test "short answers in a row release their capacity at once, before the worker's next report" {
    services
    start pre prefill --run . --max-num-seqs 4
    seq 40 | jq -c '{id: "\(.)", prompt: "a", max_tokens: 1}' > row
    # ten rounds of the whole capacity: half a second each if it is released only by the worker's report
    for try in 1 2 3; do
        begin=$(date +%s%N)
        ask --max-running 1 < row > out
        [ "$(jq -s length out)" -eq 40 ]
        took=$((($(date +%s%N) - begin) / 1000000))
        [ $took -ge 2000 ] || return 0
    done
    echo "40 answers of one token took $took ms"
    false
}

@test "with the fake engine a hundred prompts take the configured time" {
    start store kvstore --listen "unix:$PWD/kv.sock" --kv-cache-memory-bytes 8M --layers 1 --kv-heads 1 --head-dim 8 \
        --arithmetic fake1 --model-fingerprint "$(printf 'fa%.0s' {1..32})"
    start sched sched --run . -k local_tokens=0
    start tok tokenize --listen "ipc://$PWD/tokenize.sock"
    start p prefill --run . --engine fake:1000000,20000,0,2000000,0,100000
    start d decode --run . --engine fake:1000000,20000,0,2000000,0,100000
    for i in $(seq 100); do
        echo "{\"prompt\":\"$i. $(seq -s ' ' 50)\",\"max_tokens\":50}"
    done > many.jsonl
    begin=$(date +%s%N)
    ask < many.jsonl > got
    ms=$((($(date +%s%N) - begin) / 1000000))
    [ "$(jq -s 'map(select(.usage.completion_tokens == 50)) | length' got)" = 100 ]
    # 100 prompts of about 100 tokens at 20 us a token: 0.2 s and what each step costs; 64 slots, two rounds of 50 steps
    # of 2 to 8.4 ms.
    echo "$ms ms"
    [ $ms -gt 500 ]
    tokenize --jsonl many.jsonl | decode --engine fake:0,0,0,0,0,0 | stream --jsonl | jq -c .token_ids |
        diff - <(jq -c .token_ids got)
    until_true 3 nothing_leased
}

@test "a worker with another model or arithmetic is refused with a reason, and accepted when it matches" {
    services
    start d decode --run .
    run timeout 20 prefill --run . --engine fake:0,0,0,0,0,0
    [ "$status" -eq 2 ]
    [[ $output == *"another model than this store"* ]]
    run timeout 20 prefill --run . --kv-cache-dtype bf16
    [ "$status" -eq 2 ]
    [[ $output == *"KV of type bf16, this store has int8"* ]]
}

@test "workers may start first, and in any order" {
    start tok tokenize --listen "ipc://$PWD/tokenize.sock"
    prefill --run . 2>> p.err 3>&- &
    echo $! >> pids
    decode --run . 2>> d.err 3>&- &
    echo $! >> pids
    sleep 0.5
    start store kvstore --listen "unix:$PWD/kv.sock" --kv-cache-memory-bytes 64M
    start sched sched --run .
    ask < "$lines" > got
    same got
}
