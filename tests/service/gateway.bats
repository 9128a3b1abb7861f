#!/usr/bin/env bats
# The HTTP gateway with misbehaving clients and services: stream --http with real services and the fake engine, which takes
# time but computes nothing. The clients are in gateway_client.py.

bats_require_minimum_version 1.5.0

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    cd "$BATS_FILE_TMPDIR" || return 1
    mkdir -m 700 up
    export RUN=$PWD/up SOCKET=$PWD/s
    : > pids
    timeout -k 1 60 phasepipe up --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --engine fake:1e6,1e4,0,5e6,1,1000 --max-num-seqs 400 \
        --kv-cache-memory-bytes 32M --http "unix:$SOCKET" --ollama off --served-model-name smol --detach > up.log 2>&1 3>&-
}

teardown_file() {
    timeout -k 1 60 phasepipe down --run "$RUN" > /dev/null 2>&1 || true
    for pid in $(cat "$BATS_FILE_TMPDIR/pids"); do kill -9 "$pid" 2> /dev/null || true; done
}

setup() { cd "$BATS_FILE_TMPDIR" || return 1; }

check() { timeout 120 python3 "$PHASEPIPE_TOP/tests/service/gateway_client.py" "$SOCKET" "$@"; }

# serve NAME [OPTION ...]: another gateway of the same services, at the socket NAME.s
serve() {
    mkfifo "$1.ready"
    stream --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/$1.s" --served-model-name smol "${@:2}" --ready-fd 4 \
        4> "$1.ready" > "$1.log" 2>&1 3>&- &
    echo $! | tee -a pids > "$1.pid"
    [ "$(timeout 20 cat "$1.ready")" = "$(printf 'ready\nHTTP=unix:%s' "$PWD/$1.s")" ]
}
load_of() { curl -sS --max-time 20 --unix-socket "$1.s" http://localhost/load | jq .server_load; }
# code NAME PATH [OPTION ...]
code() { curl -sS -o body -w '%{http_code}' --max-time 20 --unix-socket "$1.s" -H 'Content-Type: application/json' "${@:3}" "http://localhost$2"; }

@test "a disconnect is detected while the answer is computed, and everything is released" { check gone; }
@test "a half-closed client gets its answer" { check half; }
@test "a client that does not read delays no other" { check slow; }
@test "300 streams at once are complete, while health and metrics respond" { check many 300; }
@test "a service that dies during a stream does not change the answer" { check dying; }

@test "a request that takes seconds to parse delays no other" { check large; }

@test "an answer ends at the context length, and a longer prompt is refused with both numbers" { check window; }

@test "the number of waiting requests is bounded" {
    serve full --max-waiting 4
    SOCKET=$PWD/full.s check full
    SOCKET=$PWD/full.s check too_many 4
    # By default a batch of 1,024 prompts is accepted.
    python3 -c 'import json; print(json.dumps({"prompt": ["a"] * 1024, "max_tokens": 1}))' > batch
    curl -sS --unix-socket "$SOCKET" http://localhost/v1/completions -H 'Content-Type: application/json' -d @batch > out
    jq -e '.choices | length == 1024' out
}

@test "SIGTERM shuts down gracefully, a second one at once" {
    serve drains
    SOCKET=$PWD/drains.s check drains "$(cat drains.pid)"
    wait "$(cat drains.pid)"
    [ ! -e drains.s ]
    serve twice
    curl -sN --unix-socket twice.s http://localhost/v1/completions --json '{"prompt":"a","max_tokens":5000,"stream":true}' > out 3>&- &
    for _ in $(seq 100); do [ -s out ] && break; sleep 0.05; done
    kill "$(cat twice.pid)"
    sleep 0.2
    kill "$(cat twice.pid)"
    timeout 3 tail --pid="$(cat twice.pid)" -f /dev/null
    grep -q '^data: {' out
}

@test "SIGTERM waits for clients that still read their response" {
    serve reads
    SOCKET=$PWD/reads.s check reads_on "$(cat reads.pid)"
    wait "$(cat reads.pid)"
    serve deaf --drain-seconds 2
    SOCKET=$PWD/deaf.s check reads_on "$(cat deaf.pid)" deaf
    wait "$(cat deaf.pid)"
    grep -q 'shutdown deadline reached: 1 responses were not read to their end' deaf.log
}

@test "API keys come from a file, which SIGHUP reloads" {
    printf '# keys\nfirst\n\n  second \n' > keys
    chmod 600 keys
    serve keys --api-key-file keys
    [ "$(code keys /v1/models)" = 401 ]
    jq -e '.error.type == "AuthenticationError"' body
    [ "$(code keys /v1/models -H 'Authorization: Bearer wrong')" = 401 ]
    [ "$(code keys /v1/models -H 'Authorization: Bearer first')" = 200 ]
    [ "$(code keys /v1/models -H 'Authorization: bearer second')" = 200 ]
    [ "$(code keys /health)" = 200 ] && [ "$(code keys /metrics)" = 200 ]
    echo third > keys
    kill -HUP "$(cat keys.pid)"
    for _ in $(seq 50); do [ "$(code keys /v1/models -H 'Authorization: Bearer third')" = 200 ] && break; sleep 0.05; done
    [ "$(code keys /v1/models -H 'Authorization: Bearer third')" = 200 ]
    [ "$(code keys /v1/models -H 'Authorization: Bearer first')" = 401 ]
    : > none
    chmod 600 none
    run -1 stream --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/none.s" --api-key-file none
    [[ $output == *"contains no API key"* ]]
}

@test "TLS with PEM files" {
    openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost \
        -addext subjectAltName=DNS:localhost 2> /dev/null
    serve tls --ssl-certfile cert.pem --ssl-keyfile key.pem
    curl -sS --cacert cert.pem --unix-socket tls.s https://localhost/v1/models | jq -e '.data[0].id == "smol"'
    curl -sSN --cacert cert.pem --unix-socket tls.s https://localhost/v1/completions \
        --json '{"prompt":"a","max_tokens":5,"stream":true}' | grep -q 'DONE'
    run -100 stream --run "$RUN" --http "unix:$PWD/x.s" --ssl-certfile cert.pem
    openssl req -x509 -newkey rsa:2048 -nodes -keyout other.pem -out /dev/null -days 2 -subj /CN=x 2> /dev/null
    run -1 stream --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/x.s" --ssl-certfile cert.pem --ssl-keyfile other.pem
    [[ $output == *"does not match the certificate"* ]]
}

@test "CORS allows the configured origins" {
    code full /v1/models -H 'Origin: http://a.example' -D head > /dev/null
    ! grep -qi '^access-control' head
    [ "$(code full /v1/completions -X OPTIONS -H 'Origin: http://a.example' -H 'Access-Control-Request-Method: POST')" = 403 ]
    serve cors --allowed-origins 'http://a.example, http://b.example'
    code cors /v1/models -H 'Origin: http://b.example' -D head > /dev/null
    grep -qi '^access-control-allow-origin: http://b.example' head
    code cors /v1/models -H 'Origin: http://c.example' -D head > /dev/null
    ! grep -qi '^access-control-allow' head
    [ "$(code cors /v1/completions -X OPTIONS -H 'Origin: http://a.example' -H 'Access-Control-Request-Method: POST' -D head)" = 204 ]
    grep -qi '^access-control-allow-methods: .*POST' head
}

@test "errors about bodies and addresses name the limit" {
    serve small --max-body 2000 --access-log
    head -c 3000 /dev/zero | tr '\0' a > long
    [ "$(code small /v1/completions -d @long)" = 413 ]
    jq -e '.error.message | contains("2000")' body
    [ "$(code small /v1/completions -H 'Transfer-Encoding: chunked' -d @long)" = 413 ]
    [ "$(code small /v1/completions -d '{"prompt":"a","max_tokens":1}' -H 'X-Request-Id: seen-1')" = 200 ]
    grep -q '"POST /v1/completions" 200 .* seen-1' small.log
    run -1 stream --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/small.s"
    [[ $output == *"address already in use"* ]]
    run -100 stream --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --http nowhere
    run -100 stream --run "$RUN" --http 0 -p hi
}

@test "a blocked stderr delays nobody; lost log lines are counted" {
    mkfifo err
    exec 9<> err
    mkfifo pipe.ready
    stream --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/pipe.s" --access-log --ready-fd 4 4> pipe.ready \
        > /dev/null 2>&9 3>&- &
    echo $! | tee -a pids > pipe.pid
    [ "$(timeout 20 cat pipe.ready)" = "$(printf 'ready\nHTTP=unix:%s' "$PWD/pipe.s")" ]
    one() { [ "$(curl -sS -o body -w '%{http_code}' --max-time 5 -H "X-Request-Id: $1" --unix-socket pipe.s http://localhost/ping)" = 200 ]; }
    one before
    timeout 5 dd if=/dev/zero bs=4096 of=err oflag=nonblock conv=notrunc 2> /dev/null || true # as much as it takes
    for i in 1 2 3 4 5; do one "full-$i"; done
    timeout 1 cat <&9 > got || true # all that is there
    grep -q 'ping" 200 .* before' got
    run ! grep -q full- got
    one again
    kill "$(cat pipe.pid)"
    wait "$(cat pipe.pid)"
    timeout 1 cat <&9 > got || true
    exec 9>&-
    [ "$(grep -n 'log lines dropped because stderr was not read: 5$' got | cut -d: -f1)" = 1 ]
    [ "$(sed -n 2p got | grep -c 'ping" 200 .* again')" = 1 ]
}

# bats test_tags=long
@test "a stopped tokenize makes the gateway not ready, and requests that wait for it fail with a reason" {
    mkdir -m 700 stops
    tokenize --listen "ipc://$PWD/stops/tokenize.sock" -m "$PHASEPIPE_TEST_MODEL" > /dev/null 2>&1 3>&- &
    echo $! | tee -a pids > tokenize.pid
    serve stops --tokenize "ipc://$PWD/stops/tokenize.sock"
    ask=(-d '{"prompt":"a","max_tokens":2}')
    [ "$(code stops /v1/completions "${ask[@]}")" = 200 ] && [ "$(code stops /health)" = 200 ]
    # With a scheduler without workers: requests that are tokenized already keep waiting.
    sched --listen "ipc://$PWD/stops/sched.sock" > /dev/null 2>&1 3>&- &
    echo $! >> pids
    RUN=$PWD/stops serve idle
    curl -sS -o /dev/null --max-time 60 --unix-socket idle.s http://localhost/v1/completions \
        -H 'Content-Type: application/json' "${ask[@]}" > /dev/null 3>&- &
    for _ in $(seq 100); do [ "$(phasepipe ctl --run stops --json sched | jq .waiting)" = 1 ] && break; sleep 0.05; done
    [ "$(phasepipe ctl --run stops --json sched | jq .waiting)" = 1 ]
    kill -STOP "$(cat tokenize.pid)"
    begin=$(date +%s%N)
    curl -sS -o /dev/null --max-time 60 --unix-socket idle.s http://localhost/v1/completions \
        -H 'Content-Type: application/json' "${ask[@]}" 3>&- &
    for _ in $(seq 100); do [ "$(load_of idle)" = 2 ] && break; sleep 0.05; done
    past() { echo $((($(date +%s%N) - begin) / 1000000)); } # milliseconds
    curl -sS -o waits -w '%{http_code} %{time_total}' --max-time 60 --unix-socket stops.s http://localhost/v1/completions \
        -H 'Content-Type: application/json' "${ask[@]}" > waited 3>&- &
    waits=$!
    while [ "$(code stops /health)" = 200 ]; do [ "$(past)" -lt 9000 ]; sleep 0.1; done
    [ "$(past)" -gt 4900 ]
    [ "$(code stops /live)" = 200 ]
    while [ "$(past)" -lt 12000 ]; do sleep 0.1; done
    [[ $(code stops /v1/completions "${ask[@]}" -w '%{http_code} %{time_total}') == "503 0."* ]]
    jq -e '.error.message == "the scheduler or the tokenizer cannot be reached"' body
    wait $waits
    read -r status seconds < waited || true
    [ "$status" = 503 ] && [ "${seconds%.*}" -ge 29 ] && [ "${seconds%.*}" -lt 35 ]
    jq -e '.error.message == "the scheduler or the tokenizer cannot be reached"' waits
    grep -q 'waiting for ipc://.*/stops/tokenize.sock' stops.log
    for _ in $(seq 60); do [ "$(load_of idle)" = 1 ] && break; sleep 0.05; done
    sleep 1
    [ "$(load_of idle)" = 1 ]
    kill -CONT "$(cat tokenize.pid)"
    for _ in $(seq 60); do [ "$(code stops /health)" = 200 ] && break; sleep 0.05; done
    [ "$(code stops /health)" = 200 ] && [ "$(code stops /v1/completions "${ask[@]}")" = 200 ]
}

@test "without a worker the gateway is alive and not ready" {
    mkdir -m 700 alone
    sched --listen "ipc://$PWD/alone/sched.sock" > /dev/null 2>&1 3>&- &
    echo $! >> pids
    tokenize --listen "ipc://$PWD/alone/tokenize.sock" -m "$PHASEPIPE_TEST_MODEL" > /dev/null 2>&1 3>&- &
    echo $! >> pids
    RUN=$PWD/alone serve lone
    [ "$(code lone /health)" = 503 ] && [ "$(code lone /live)" = 200 ] && [ "$(code lone /metrics)" = 200 ]
}
