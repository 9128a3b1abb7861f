#!/usr/bin/env bats
# API keys as tenants, with the real model: cached prompts, limits, roles, and the key file with its reload.

bats_require_minimum_version 1.5.0

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    cd "$BATS_FILE_TMPDIR" || return 1
    umask 077
    mkdir -m 700 up
    export RUN=$PWD/up
    : > pids
    printf 'k-alice name=alice\nk-bob name=bob\n' > up.keys
    timeout -k 1 60 phasepipe up --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --kv-cache-memory-bytes 32M --http "unix:$PWD/up.s" \
        --ollama off --api-key-file "$PWD/up.keys" --served-model-name smol --detach > up.log 2>&1 3>&-
}

teardown_file() {
    timeout -k 1 60 phasepipe down --run "$RUN" > /dev/null 2>&1 || true
    for pid in $(cat "$BATS_FILE_TMPDIR/pids"); do kill -9 "$pid" 2> /dev/null || true; done
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
    umask 077
}

# serve NAME [OPTION ...]: another gateway of the same services, at the socket NAME.s, with the keys of NAME.keys
serve() {
    mkfifo "$1.ready"
    stream --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/$1.s" --served-model-name smol --api-key-file "$1.keys" \
        "${@:2}" --ready-fd 4 4> "$1.ready" > "$1.log" 2>&1 3>&- &
    echo $! | tee -a pids > "$1.pid"
    timeout 20 head -1 "$1.ready" | grep -qx ready
}

# reload NAME TEXT: rereads the keys, and waits for a new line of the log that contains TEXT
reload() {
    local before=$(grep -c -- "$2" "$1.log")
    kill -HUP "$(cat "$1.pid")"
    for _ in $(seq 100); do [ "$(grep -c -- "$2" "$1.log")" -gt "$before" ] && return; sleep 0.05; done
    cat "$1.log"
    return 1
}

# get NAME KEY PATH [OPTION ...]: prints the status; the response is in `body` and `head`
get() {
    curl -sS -o body -D head -w '%{http_code}' --max-time 30 --unix-socket "$1.s" -H "Authorization: Bearer $2" \
        -H 'Content-Type: application/json' "${@:4}" "http://localhost$3"
}
complete() { get "$1" "$2" /v1/completions -d "$3"; }
header() { sed -nE "s/^$1: ([^\r]*)\r?$/\1/Ip" head; }
cached() {
    [ "$(complete "$@")" = 200 ] || { cat body; return 1; }
    jq .usage.prompt_tokens_details.cached_tokens body
}
long() { echo '{"prompt":['"$(seq -s, "$1" $(($1 + 99)))"'],"max_tokens":4,"temperature":0'"${2-}"'}'; }

@test "the cached prompt of a key is no hit for another, and its answer is the same" {
    [ "$(cached up k-alice "$(long 500)")" = 0 ]
    jq -r '.choices[0].text' body > alice
    [ "$(cached up k-alice "$(long 500)")" = 96 ]
    jq -r '.choices[0].text' body | diff alice -
    [ "$(cached up k-bob "$(long 500)")" = 0 ]
    jq -r '.choices[0].text' body | diff alice -
    [ "$(cached up k-bob "$(long 500)")" = 96 ]
    phasepipe ctl --run "$RUN" --json sched > /dev/null
}

@test "a cache_salt of the request divides the cache of its key, and reaches no other" {
    [ "$(cached up k-alice "$(long 700 ',"cache_salt":"s"')")" = 0 ]
    [ "$(cached up k-alice "$(long 700)")" = 0 ]
    [ "$(cached up k-alice "$(long 700 ',"cache_salt":"s"')")" = 96 ]
    [ "$(cached up k-bob "$(long 700 ',"cache_salt":"s"')")" = 0 ]
    # The salt of alice's key itself, as a salt of bob's request.
    salt=$(printf k-alice | python3 -c 'import hashlib, sys
key = hashlib.blake2b(sys.stdin.buffer.read(), digest_size=32).digest()
print(hashlib.blake2b(b"phasepipe cache salt\0", key=key, digest_size=32).hexdigest())')
    [ "$(cached up k-bob "$(long 700 ",\"cache_salt\":\"$salt\"")")" = 0 ]
    [ "$(complete up k-bob "$(long 700 ',"cache_salt":""')")" = 400 ]
    jq -e '.error.message | test("cache_salt: 0 bytes")' body
    [ "$(complete up k-bob "$(long 700 ',"cache_salt":5')")" = 400 ]
    jq -e '.error.message | test("cache_salt: expected a string")' body
    # Without keys that salt is alice's: so it is what the gateway adds.
    mkfifo open.ready
    stream --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/open.s" --ready-fd 4 4> open.ready > open.log 2>&1 3>&- &
    echo $! >> pids
    timeout 20 head -1 open.ready | grep -qx ready
    [ "$(cached open none "$(long 700 ",\"cache_salt\":\"$salt\"")")" = 96 ]
}

@test "a long request, which a background thread converts, has the salt of its key too" {
    python3 -c 'import json; print(json.dumps({"prompt": "word " * 200 , "max_tokens": 1, "temperature": 0, "pad": "x" * 300000}))' > big
    for want in 'k-alice 0' 'k-alice 1' 'k-bob 0'; do
        n=$(cached up "${want% *}" @big)
        echo "$want: $n"
        if [ "${want#* }" = 0 ]; then [ "$n" = 0 ]; else [ "$n" -gt 100 ]; fi
    done
}

@test "the Ollama API divides its cached prompts by key too" {
    cp up.keys ollama.keys
    serve ollama --ollama "unix:$PWD/ollama-api.s"
    seen() {
        [ "$(get ollama-api "$1" /api/generate -d '{"model":"smol","raw":true,"stream":false,"prompt":"'"$(seq -s' ' 1 200)"'","options":{"num_predict":1}}')" = 200 ]
        jq .prompt_eval_cached_count body
    }
    seen k-alice
    [ "$(seen k-alice)" -gt 100 ]
    [ "$(seen k-bob)" = 0 ]
    [ "$(seen k-bob)" -gt 100 ]
}

@test "with --shared-cache the prompt of a key is a hit for another" {
    cp up.keys shared.keys
    serve shared --shared-cache
    [ "$(cached shared k-alice "$(long 900)")" = 0 ]
    [ "$(cached shared k-bob "$(long 900)")" = 96 ]
    [ "$(cached up k-bob "$(long 900)")" = 0 ]
}

@test "beyond its requests a minute a key gets 429 with the time to wait, and is served after it" {
    printf 'k-few name=few requests-per-minute=20\nk-free\n' > rate.keys
    serve rate --ollama "unix:$PWD/rate-ollama.s"
    local body='{"prompt":"a","max_tokens":1}'
    [ "$(complete rate k-few "$body")" = 200 ]
    [ "$(header x-ratelimit-limit-requests)" = 20 ]
    [ "$(header x-ratelimit-remaining-requests)" = 19 ]
    [[ $(header x-ratelimit-reset-requests) =~ ^([0-2](\.[0-9]{3})?s|3s|[0-9]+ms)$ ]]
    [ -z "$(header x-ratelimit-limit-tokens)" ]
    for _ in $(seq 40); do
        status=$(complete rate k-few "$body")
        [ "$status" = 200 ] || break
    done
    [ "$status" = 429 ]
    jq -e '.error.code == "rate_limit_exceeded" and .error.type == "requests"' body
    jq -e '.error.message | test("^rate limit of API key few: 20 requests a minute; retry in [1-3] s$")' body
    ! grep -q k-few body
    [ "$(header x-ratelimit-remaining-requests)" = 0 ]
    local wait=$(header Retry-After)
    [[ $wait =~ ^[1-3]$ ]]
    # Its other requests are refused, those that need no computing are not, and other keys do not notice.
    [ "$(get rate k-few /tokenize -d '{"prompt":"a"}')" = 429 ]
    [ "$(get rate-ollama k-few /api/generate -d '{"model":"smol","prompt":"a"}')" = 429 ]
    jq -e '.error | test("^rate limit of API key few")' body
    [[ $(header Retry-After) =~ ^[1-3]$ ]]
    [ "$(get rate k-few /v1/models)" = 200 ]
    [ "$(complete rate k-free "$body")" = 200 ]
    [ -z "$(header x-ratelimit-limit-requests)" ]
    sleep "$wait"
    [ "$(complete rate k-few "$body")" = 200 ]
}

@test "a refusal by a limit comes before the body" {
    printf 'k-one name=one requests-per-minute=1\n' > early.keys
    serve early
    [ "$(complete early k-one '{"prompt":"a","max_tokens":1}')" = 200 ]
    python3 - << 'END'
import socket
s = socket.socket(socket.AF_UNIX)
s.settimeout(5)
s.connect("early.s")
s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k-one\r\nContent-Type: application/json\r\n"
          b"Content-Length: 1000000\r\n\r\n{")
got = b""
while chunk := s.recv(65536):
    got += chunk
assert got.startswith(b"HTTP/1.1 429 "), got
assert b"\r\nRetry-After: " in got, got
END
}

@test "tokens a minute are charged by prompt and longest answer, then by what was used" {
    printf 'k-tok name=tok tokens-per-minute=300\n' > tokens.keys
    serve tokens
    [ "$(complete tokens k-tok "$(long 100)")" = 200 ]
    [ "$(header x-ratelimit-limit-tokens)" = 300 ]
    [ "$(header x-ratelimit-remaining-tokens)" = 196 ]
    # 5 tokens a second come back; 100 and 150 are more than the 196 that are left.
    [ "$(complete tokens k-tok "$(long 100 | sed 's/"max_tokens":4/"max_tokens":150/')")" = 429 ]
    jq -e '.error.code == "rate_limit_exceeded" and .error.type == "tokens"' body
    jq -e '.error.message | test("^rate limit of API key tok: 300 tokens a minute, [0-9]+ are left, and this request needs 250 \\(prompt 100, answer at most 150\\); retry in [0-9]+ s$")' body
    local wait=$(header Retry-After)
    [ "$wait" -ge 1 ] && [ "$wait" -le 11 ]
    # Refused ones cost nothing. An answer that ends early costs what it has: 1 + at most 190 of them, of which 3 are used.
    [ "$(complete tokens k-tok '{"prompt":[1],"max_tokens":190,"min_tokens":1,"temperature":0,"seed":1,"stop":["e","a","o","i"]}')" = 200 ]
    local used=$(jq .usage.total_tokens body)
    [ "$used" -lt 100 ]
    [ "$(complete tokens k-tok '{"prompt":[1],"max_tokens":1}')" = 200 ]
    [ "$(header x-ratelimit-remaining-tokens)" -gt $((196 - 2 - used - 2)) ]
    # A request that is larger than the limit begins when the bucket is full. In a stream the refusal is a status.
    [ "$(complete tokens k-tok "$(long 100 ',"stream":true' | sed 's/"max_tokens":4/"max_tokens":1000/')")" = 429 ]
    jq -e '.error.message | test("needs 300 \\(prompt 100, answer at most 1000\\)")' body
}

@test "concurrent requests of a key are limited, and an end makes room" {
    printf 'k-two name=two concurrent=2\n' > few.keys
    serve few
    for i in 1 2; do
        curl -sSN --max-time 60 --unix-socket few.s -H 'Authorization: Bearer k-two' -H 'Content-Type: application/json' \
            -d '{"prompt":"a","max_tokens":1000,"ignore_eos":true,"stream":true}' http://localhost/v1/completions > "s.$i" 3>&- &
        echo $! | tee -a pids > "s.$i.pid"
    done
    for i in 1 2; do for _ in $(seq 100); do [ -s "s.$i" ] && break; sleep 0.05; done; done
    [ "$(complete few k-two '{"prompt":"a","max_tokens":1}')" = 429 ]
    jq -e '.error.message == "rate limit of API key two: 2 requests at a time; retry in 1 s"' body
    [ "$(header Retry-After)" = 1 ]
    kill "$(cat s.1.pid)"
    for _ in $(seq 100); do
        [ "$(complete few k-two '{"prompt":"a","max_tokens":1}')" = 200 ] && break
        sleep 0.05
    done
    jq -e '.choices | length == 1' body
    kill "$(cat s.2.pid)"
}

@test "role=user does inference only; metrics by key are for role=admin" {
    printf 'k-user name=user role=user\nk-admin name=admin role=admin\nk-old\n' > roles.keys
    serve roles --metrics-by-key
    [ "$(complete roles k-user "$(long 1100)")" = 200 ]
    [ "$(complete roles k-user "$(long 1100)")" = 200 ]
    for path in /metrics /load; do
        [ "$(get roles k-user $path)" = 403 ]
        jq -e --arg p $path '.error.message == "API key user has role=user, which may not read " + $p + ": use a key with role=admin"' body
        [ "$(get roles k-wrong $path)" = 401 ]
        [ "$(get roles k-old $path)" = 200 ]
        ! grep -q phasepipe:key_ body
        [ "$(get roles k-admin $path)" = 200 ]
    done
    [ "$(get roles k-user /v1/models)" = 200 ] && [ "$(get roles k-wrong /health)" = 200 ]
    get roles k-admin /metrics
    cp body page
    for row in 'requests_total{key="user"} 2' 'requests_running{key="user"} 0' 'refused_total{key="user",limit="role"} 2' \
        'refused_total{key="user",limit="tokens"} 0' 'prompt_tokens_total{key="user"} 200' 'cached_tokens_total{key="user"} 96' \
        'generation_tokens_total{key="user"} 8' 'requests_total{key="admin"} 0'; do
        grep -qxF "phasepipe:key_$row" page || { grep phasepipe:key_ page; echo "not $row"; false; }
    done
    # A key without a name has one from its hash.
    grep -qxF "phasepipe:key_requests_total{key=\"key-$(printf k-old | b2sum -l 256 | cut -c1-16)\"} 0" page
    ! grep -q 'k-user\|k-admin\|k-old' page
    # The manual lists these families, and only these.
    sed -n 's/^# TYPE \(phasepipe:key_[a-z_]*\) \(.*\)/\1 \2/p' page | sort > there
    sed -n '/^\.Ss By API key/,/^\.S[sh] [^B]/s/^\.It Ic \(phasepipe:key_[a-z_]*\) Pq \([a-z]*\).*/\1 \2/p' \
        "$PHASEPIPE_TOP/docs/man/phasepipe-metrics.7" | sort | diff - there
}

@test "SIGHUP reads the keys again; a wrong file changes nothing, and counts continue" {
    printf 'k-a name=a requests-per-minute=2\nk-admin name=admin role=admin\n' > hup.keys
    serve hup --metrics-by-key
    [ "$(complete hup k-a '{"prompt":"a","max_tokens":1}')" = 200 ]
    printf 'k-a name=a\nk-b name=a\n' > hup.keys
    reload hup "hup.keys:2: name: 'a' is that of line 1 too; the API keys are unchanged"
    [ "$(get hup k-a /v1/models)" = 200 ] && [ "$(get hup k-b /v1/models)" = 401 ]
    printf 'k-b name=a\n' > hup.keys
    reload hup 'hup.keys: no key has role=admin, and --metrics-by-key shows its numbers to such keys only; the API keys are unchanged'
    [ "$(get hup k-a /v1/models)" = 200 ]
    chmod 644 hup.keys
    reload hup 'hup.keys: other users can read or change this key file (mode 0644): chmod 600 it; the API keys are unchanged'
    printf 'k-b name=a\nk-admin name=admin role=admin\n' > hup.keys
    chmod 600 hup.keys
    reload hup 'hup.keys: 2 API keys are in use'
    [ "$(get hup k-a /v1/models)" = 401 ] && [ "$(get hup k-b /v1/models)" = 200 ]
    for _ in 1 2 3; do [ "$(complete hup k-b '{"prompt":"a","max_tokens":1}')" = 200 ]; done
    get hup k-admin /metrics
    grep -qxF 'phasepipe:key_requests_total{key="a"} 4' body
}

@test "a key file that others can read, is no file, or has a wrong line is refused by name" {
    refused() { # KEYS TEXT [OPTION ...]
        run -1 stream --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/no.s" --api-key-file "$1" "${@:3}"
        [[ $output == *"$2"* ]] || { echo "$output"; false; }
        run -1 phasepipe up --run "$PWD/other" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/no.s" --ollama off \
            --api-key-file "$PWD/$1" "${@:3}"
        [[ $output == *"$2"* ]] || { echo "$output"; false; }
    }
    echo k-secret > open
    for mode in 0644 0640 0604; do
        chmod $mode open
        refused open "open: other users can read or change this key file (mode $mode): chmod 600 it"
    done
    mkfifo pipe
    refused pipe "pipe: expected a regular file (key file)"
    ln -s open link
    refused link "link: other users can read"
    printf 'k-first\nk-secret nmae=x\n' > wrong
    refused wrong "wrong:2: word 2 is not a setting NAME=VALUE; the settings are name, role"
    [[ $output != *secret* ]] && [[ $output != *nmae* ]]
    echo k-plain > plain
    refused plain "plain: no key has role=admin" --metrics-by-key
    # A credential of systemd may have any mode.
    mkdir cred
    echo k-cred > cred/api-keys
    chmod 644 cred/api-keys
    cp cred/api-keys credential.keys
    mkfifo cred.ready
    CREDENTIALS_DIRECTORY=$PWD/cred stream --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/cred.s" --ready-fd 4 \
        --api-key-file "$PWD/cred/api-keys" 4> cred.ready > cred.log 2>&1 3>&- &
    echo $! >> pids
    timeout 20 head -1 cred.ready | grep -qx ready
    [ "$(get cred k-cred /v1/models)" = 200 ]
    for flag in --shared-cache --metrics-by-key; do
        run -100 stream --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/no.s" $flag
        [[ $output == *"$flag needs --api-key-file"* ]]
        run -100 phasepipe up --run "$PWD/other" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/no.s" $flag
        [[ $output == *"$flag needs --api-key-file"* ]]
    done
}

@test "phasepipe up passes --shared-cache and --metrics-by-key to stream" {
    printf 'k-1 role=admin\nk-2\n' > pass.keys
    mkdir -m 700 pass
    timeout -k 1 60 phasepipe up --run "$PWD/pass" -m "$PHASEPIPE_TEST_MODEL" --engine fake:0,0,0,0,0,0 \
        --kv-cache-memory-bytes 2M --http "unix:$PWD/pass.s" --ollama off --api-key-file "$PWD/pass.keys" --shared-cache \
        --metrics-by-key --detach > pass.log 2>&1 3>&-
    [ "$(get pass k-1 /metrics)" = 200 ]
    grep -q '^phasepipe:key_requests_total{' body
    n=$(cached pass k-1 "$(long 100)")
    m=$(cached pass k-2 "$(long 100)")
    timeout -k 1 60 phasepipe down --run "$PWD/pass" > /dev/null 2>&1
    [ "$n" = 0 ] && [ "$m" = 96 ]
}

@test "the weight of a key is that of its tenant in the scheduler, also after a restart and a reload" {
    printf 'k-heavy name=heavy weight=4\nk-light name=light\nk-block name=block\n' > weight.keys
    mkdir -m 700 weight
    # One request at a time, of 10 ms.
    timeout -k 1 60 phasepipe up --run "$PWD/weight" -m "$PHASEPIPE_TEST_MODEL" --engine fake:1e7,0,0,1e7,0,0 -P 0 -D 1 \
        --max-num-seqs 1 --kv-cache-memory-bytes 2M --http "unix:$PWD/weight.s" --ollama off --api-key-file "$PWD/weight.keys" \
        --detach > weight.log 2>&1 3>&-
    sched() { phasepipe ctl --run "$PWD/weight" --json sched | jq "$1"; }
    waiting() { for _ in $(seq 400); do [ "$(sched .waiting)" = "$1" ] && return; sleep 0.05; done; return 1; }
    post() { # KEY BODY, in a subshell
        exec curl -sS --max-time 60 --unix-socket weight.s -H "Authorization: Bearer k-$1" -H 'Content-Type: application/json' \
            -d "$2" http://h/v1/completions
    }
    # first: prints how many of the first 12 answers are those of the key heavy, of 16 requests each that wait together
    first() {
        local i block
        rm -f ends
        post block '{"prompt":"b","max_tokens":2000,"ignore_eos":true,"stream":true}' > blocked 2> /dev/null 3>&- &
        block=$!
        for _ in $(seq 200); do [ -s blocked ] && break; sleep 0.05; done
        for i in $(seq 32); do
            name=$([ $((i % 2)) = 0 ] && echo light || echo heavy)
            ((post $name '{"prompt":"a","max_tokens":1}') > /dev/null && echo $name >> ends) 3>&- &
        done
        waiting 32 || return 1
        kill $block
        wait
        [ "$(wc -l < ends)" = 32 ]
        head -12 ends | grep -c heavy || true
    }
    n=$(first)
    echo "weight 4: $n of 12"
    [ "$n" -ge 8 ]
    kill -9 "$(phasepipe ps --run "$PWD/weight" --json | jq -r '.[] | select(.name == "sched").pid')"
    for _ in $(seq 100); do
        sleep 0.05
        [ "$(get weight k-light /health)" = 200 ] && [ "$(sched '.workers | length')" = 1 ] && break
    done
    n=$(first)
    echo "after a restart of the scheduler: $n of 12"
    [ "$n" -ge 8 ]
    printf 'k-heavy name=heavy\nk-light name=light weight=4\nk-block name=block\n' > weight.keys
    kill -HUP "$(phasepipe ps --run "$PWD/weight" --json | jq -r '.[] | select(.program == "stream").pid')"
    for _ in $(seq 100); do grep -q 'API keys are in use' weight/log/stream.log && break; sleep 0.05; done
    n=$(first)
    echo "weight 4 of the other: $n of 12"
    [ "$n" -le 4 ]
    timeout -k 1 60 phasepipe down --run "$PWD/weight" > /dev/null 2>&1
}
