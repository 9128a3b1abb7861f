#!/usr/bin/env bats
# stream as a gateway: requests through services give the same lines as through the pipeline, also if services die; and
# stream alone with a fake scheduler (tests/tools/sched_peer) that answers with numbers. The pipeline is the reference for
# answers: tests/quality compares it with other programs.

bats_require_minimum_version 1.5.0

setup_file() {
    [ -x "$PHASEPIPE_BUILD/tests/tools/sched_peer" ] || make -s -C "$PHASEPIPE_TOP" B="$PHASEPIPE_BUILD" tools
    cd "$BATS_FILE_TMPDIR" || return 1
    without_sched > without.out 2>&1 3>&- &
    long 6 > in
    pipe < in > want
}

setup() {
    cd "$BATS_TEST_TMPDIR"
    export PHASEPIPE_RUN=
    : > pids
}

teardown() {
    [ ! -e up ] || timeout -k 1 30 phasepipe down --run "$PWD/up" > /dev/null 2>&1 || true
    for pid in $(cat pids); do
        kill -CONT "$pid" 2> /dev/null || true
        kill -9 "$pid" 2> /dev/null || true
    done
}

# ready PID_FILE COMMAND …: starts it with --ready-fd and waits for it
ready() {
    rm -f ready
    mkfifo ready
    "${@:2}" --ready-fd 4 4> ready 2>> err.log 3>&- &
    echo $! | tee -a pids > "$1"
    [ "$(timeout 20 cat ready)" = ready ]
}

# peer [DELAY_MS]: starts the fake scheduler and a real tokenize
peer() {
    "$PHASEPIPE_BUILD/tests/tools/sched_peer" "ipc://$PWD/sched.sock" "$@" > peer.log 2>&1 3>&- &
    echo $! | tee -a pids > peer.pid
    ready tokenize.pid tokenize --listen "ipc://$PWD/tokenize.sock"
    eventually grep -q ready peer.log
}

eventually() {
    local i
    for ((i = 0; i < 200; i++)); do
        "$@" && return 0
        sleep 0.05
    done
    echo "never: $*"
    return 1
}

up() {
    mkdir -m 700 up
    timeout -k 1 120 phasepipe up --run "$PWD/up" --kv-cache-memory-bytes 96M --detach "$@" > up.log 2>&1 3>&-
}

pid_of() { phasepipe ps --json --run "$PWD/up" | jq -r --arg n "$1" '.[] | select(.name == $n or .program == $n) | .pid'; }

# The parts of lines that are equal in two runs: all but times and cached counts.
same='del(.timings) | if .usage then .usage |= del(.cached_tokens) else . end'

requests() {
    cat << 'J'
{"prompt":"The capital of France is","max_tokens":12,"foo":[1,{"a":null}]}
{"id":"chat","messages":[{"role":"user","content":"Count to five."}],"max_tokens":20}
{"custom_id":"b-1","method":"POST","url":"/v1/completions","body":{"prompt":"Once upon a time","max_tokens":16,"temperature":0.9,"seed":7}}
{"prompt":"One two three four five six seven","max_tokens":24,"temperature":1.1,"top_p":0.9,"seed":"18446744073709551615","n":3}
{"prompt":"Hello","max_tokens":5,"logprobs":2,"echo":true}
{"prompt":"a, b, c, d,","max_tokens":20,"stop":[" g","xyz"]}
{"prompt":[19556,28,905],"max_tokens":6,"logprobs":0}
{"prompt":"no tokens","max_tokens":0}
{"prompt":"echo only","max_tokens":0,"echo":true,"logprobs":1}
{"prompt":"wrong","max_tokens":-1}
{"prompt":
{"prompt":"one","max_tokens":1}
{"prompt":"Write a very long story about a dog who lives in a small house by the sea and likes to run along the beach every morning with his friend the cat, and","max_tokens":40}
{"prompt":"Write a very long story about a dog who lives in a small house by the sea and likes to run along the beach every morning with his friend the cat, and","max_tokens":40,"temperature":0.7,"seed":3}
{"prompt":"漢字 and emoji 🙂🙂","max_tokens":30,"temperature":1.5,"seed":11,"ignore_eos":true}
{"prompt":"x","tools":[{"type":"function"}]}
J
}

# long N: N requests of 200 tokens
long() {
    local i
    for ((i = 0; i < $1; i++)); do
        echo "{\"prompt\":\"Story number $i begins\",\"max_tokens\":200,\"temperature\":0.8,\"seed\":$i,\"ignore_eos\":true}"
    done
}

pipe() { tokenize --jsonl 2> /dev/null | prefill | decode | stream --jsonl 2> /dev/null | jq -cS "$same"; }

# ask [OPTION …]: through the services
ask() { timeout -k 1 -s KILL 120 stream --run "$PWD/up" --jsonl "$@" 2>> err.log | jq -cS "$same"; }

@test "services give the lines of the pipeline" {
    requests > in
    pipe < in > want
    [ "$(wc -l < want)" = 18 ]
    up
    ask < in > got
    diff want got
    ask --unordered < in | sort | diff <(sort want) -
    ask --max-running 1 < in | diff want -
    jq -r 'select(.id == "chat").text' want > chat
    # Text, and a flag that is a default of each line.
    tokenize -n 9 --jsonl < <(head -n 2 in) 2> /dev/null | prefill | decode | stream > want
    timeout -k 1 30 stream --run "$PWD/up" -p 'Count to five.' -n 20 > got
    diff chat got
    sed 's/,"max_tokens":[0-9]*//' in | head -n 2 > short
    diff <(tokenize -n 9 --jsonl short 2> /dev/null | prefill | decode | stream --jsonl | jq -cS "$same") <(ask -n 9 < short)
    [ "$(phasepipe ctl sched --json --run "$PWD/up" | jq '.running + .waiting + .ended.error + .ended.cancelled')" = 0 ]
}

# long_lines N: N of the long requests as `in`, and what the pipe gives for them as `want`
long_lines() {
    head -n "$1" "$BATS_FILE_TMPDIR/in" > in
    head -n "$1" "$BATS_FILE_TMPDIR/want" > want
}

@test "a decode worker that is killed, and a prefill, change no line" {
    long_lines 6
    up -D 2
    ask < in > got &
    asks=$!
    for who in decode-0 prefill-0 decode-1; do
        sleep 0.4
        kill -9 "$(pid_of $who)"
    done
    wait $asks
    diff want got
}

@test "a scheduler and a tokenize that are killed and come back change no line" {
    long_lines 6
    up
    ask < in > got &
    asks=$!
    sleep 0.5
    kill -9 "$(pid_of sched)"
    kill -9 "$(pid_of tokenize)"
    wait $asks
    diff want got
}

@test "a scheduler that is stopped for longer than a heartbeat changes no line, nor does a gateway" {
    long_lines 4
    up
    ask < in > got &
    asks=$!
    sleep 0.3
    kill -STOP "$(pid_of sched)"
    sleep 4
    kill -CONT "$(pid_of sched)"
    wait $asks
    diff want got
    stream --run "$PWD/up" --jsonl < in > raw 2>> err.log 3>&- &
    echo $! >> pids
    sleep 0.2
    kill -STOP $!
    sleep 4
    kill -CONT $!
    wait $!
    jq -cS "$same" raw | diff want -
}

@test "a thousand lines, few of them at once" {
    peer
    for ((i = 0; i < 1000; i++)); do echo "{\"prompt\":\"hello $i\",\"max_tokens\":3,\"id\":$i}"; done > in
    timeout -k 1 60 stream --run . --jsonl --max-running 16 < in > got
    [ "$(jq -r .id got | uniq | wc -l)" = 1000 ]
    jq -e -s 'all(.text == "1 2 3 " and .finish_reason == "length") and ([.[].id | tonumber] == [range(1000)])' got
}

@test "the environment variable is enough if the input is not frames" {
    peer
    export PHASEPIPE_RUN=$PWD
    [ "$(echo '{"prompt":"x","max_tokens":2}' | timeout -k 1 20 stream --jsonl | jq -r .text)" = "1 2 " ]
    [ "$(timeout -k 1 20 stream -p x -n 2)" = "1 2 " ]
    tokenize -p hi -n 3 > t
    run -0 timeout -k 1 60 stream --stats < <(prefill < t | decode)
    [[ "$output" =~ eval\ count:\ +3\ tokens ]]
}

@test "--lines reads lines, otherwise standard input is one prompt" {
    peer
    printf 'a\nb\n' > in
    [ "$(timeout -k 1 20 stream --run . --lines -n 2 < in)" = $'1 2 \n\n1 2 ' ]
    [ "$(timeout -k 1 20 stream --run . --lines --jsonl -n 1 < in | jq -r .id | paste -sd' ')" = "req-0 req-1" ]
    [ "$(timeout -k 1 20 stream --run . -n 3 < in)" = "1 2 3 " ]
}

@test "text is shown as it arrives, and Ctrl-C cancels" {
    peer 100
    stream --run . -p hi -n 1000 > got 2> err 3>&- &
    pid=$!
    echo $pid >> pids
    eventually grep -q '1 2 3' got
    kill -INT $pid
    status=0
    wait $pid || status=$?
    [ $status -eq 1 ]
    grep -q '1 answer was cancelled' err
    [ "$(tail -c 1 got)" = "" ]
    eventually grep -q '^cancel' peer.log
}

@test "SIGTERM stops reading and shows the answers to what was read" {
    peer 20
    mkfifo in
    stream --run . --jsonl < in > got 3>&- &
    pid=$!
    echo $pid >> pids
    exec 5> in
    echo '{"prompt":"x","max_tokens":40}' >&5
    eventually grep -q '^report' peer.log
    kill -TERM $pid
    wait $pid
    exec 5>&-
    [ "$(jq -r '.usage.completion_tokens' got)" = 40 ]
}

@test "a slow reader delays no connection, a closed one cancels" {
    peer
    for ((i = 0; i < 400; i++)); do echo '{"prompt":"x","max_tokens":20}'; done > in
    timeout -k 1 60 stream --run . --jsonl < in 2> err | (sleep 3.5; wc -l) > lines
    [ "$(cat lines)" = 400 ]
    kill -TERM "$(cat peer.pid)"
    eventually grep -q '^connections' peer.log
    [ "$(sed -n 's/^connections //p' peer.log)" = 1 ]
    rm peer.log
    "$PHASEPIPE_BUILD/tests/tools/sched_peer" "ipc://$PWD/sched.sock" 1000000 > peer.log 3>&- &
    echo $! >> pids
    eventually grep -q ready peer.log
    # The reader closes before the first byte is written.
    (timeout -k 1 20 stream --run . -p x 2> err || echo $? > status) | sleep 0.5
    eventually test -s status
    [ "$(cat status)" = 111 ]
    grep -q 'Broken pipe' err
}

# without_sched: stream beside a tokenize alone gives up after ten seconds, in which other tests run
without_sched() {
    local rc=0
    mkdir without && cd without
    tokenize --listen "ipc://$PWD/tokenize.sock" &
    timeout -k 1 30 stream --run . -p x || rc=$?
    echo "status $rc"
    kill $!
}

@test "a missing service is an error that names its address" {
    for _ in 1 2 3; do ! eventually grep -q '^status' "$BATS_FILE_TMPDIR/without.out" || break; done
    run cat "$BATS_FILE_TMPDIR/without.out"
    [[ "$output" == *"status 111"* ]]
    [[ "$output" == *"waiting for ipc://./sched.sock"* ]]
    [[ "$output" == *"no service listens at ipc://./sched.sock"* ]]
}

@test "requests without services, and contradicting flags, are misuse" {
    for args in '-p x' '--lines' '-n 3' '--sched ipc://x -p y' '--run . --raw --jsonl' '--run . --lines -p x' \
        '--run . --raw --system x -p y' '--run . -p x --stop-id z' '--run . -p x --min-tokens 600'; do
        run -100 timeout -k 1 10 stream $args < /dev/null
    done
}

@test "a deadline ends requests that take longer" {
    peer 1000000
    run -1 timeout -k 1 20 stream --run . -p x --deadline 0.3 --jsonl
    [[ "$output" == *"the deadline of 0.3 s has passed"* ]]
    eventually grep -q '^cancel' peer.log
}

@test "tokenize as a service: readiness, an address in use, and its end" {
    ready tokenize.pid tokenize --listen "ipc://$PWD/tokenize.sock"
    run -1 timeout -k 1 10 tokenize --listen "ipc://$PWD/tokenize.sock"
    run -100 timeout -k 1 10 tokenize --listen nonsense
    run -100 timeout -k 1 10 tokenize --listen "ipc://$PWD/x.sock" --jsonl
    pid=$(cat tokenize.pid)
    kill -9 "$pid"
    ready tokenize.pid tokenize --listen "ipc://$PWD/tokenize.sock" # what the dead one left is replaced
    kill -TERM "$(cat tokenize.pid)"
    wait "$(cat tokenize.pid)"
    [ ! -e tokenize.sock ]
}

# padded BYTES [FIELDS]: a line with an unknown field of so many bytes
padded() {
    printf '{"prompt":"x","max_tokens":1,%s"pad":"' "${2-}"
    head -c "$1" /dev/zero | tr '\0' 'a'
    printf '"}\n'
}

# bats test_tags=long
@test "a request of 16 MiB less its other fields runs" {
    peer
    padded 16776000 > in
    timeout -k 1 60 stream --run . --jsonl < in | jq -e '.usage.prompt_tokens == 1'
}

@test "what is longer than services carry is refused with the limit, and what comes after it runs" {
    peer
    (padded 16777170; padded 9000000 '"n":128,'; echo '{"prompt":"x","max_tokens":1,"id":"short"}') > in
    run -1 timeout -k 1 60 stream --run . --jsonl < in
    grep '^{' <<< "$output" | jq -r '.error.message // (.usage.prompt_tokens | tostring)' > messages
    [ "$(wc -l < messages)" = 3 ]
    sed -n 1p messages | grep 'a frame of 1677[0-9]* bytes, the limit of services is 16777216'
    sed -n 2p messages | grep 'its 128 choices have more than 64 MiB'
    [ "$(sed -n 3p messages)" = 1 ]
    kill -0 "$(cat peer.pid)" "$(cat tokenize.pid)"
}

@test "a line of megabytes delays no short one, and one over the limit fails alone" {
    peer
    (printf '{"prompt":"'; head -c 3000000 /dev/zero | tr '\0' 'a'; printf '","id":"long"}\n') > in
    (printf '{"prompt":"'; head -c 17000000 /dev/zero | tr '\0' 'a'; printf '","id":"over"}\n') >> in
    echo '{"prompt":"x","max_tokens":1,"id":"short"}' >> in
    run -1 timeout -k 1 60 stream --run . --jsonl --unordered < in
    [ "$(grep -c '^{' <<< "$output")" = 3 ]
    grep '^{' <<< "$output" | jq -se 'map(select(.error)) | length == 2'
    [ "$(grep '^{' <<< "$output" | tail -n 1 | jq -r .id)" = long ]
}
