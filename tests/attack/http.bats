#!/usr/bin/env bats
# Hostile HTTP clients against stream --http with real services and the fake engine. The clients are in http_client.py. The
# peak of memory of each gateway is compared with its bound.

bats_require_minimum_version 1.5.0

load attack.bash

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    cd "$BATS_FILE_TMPDIR" || return 1
    : > pids
    up all --engine fake:1e6,1e4,0,5e6,1,1000 --kv-cache-memory-bytes 256M --max-num-seqs 400 --max-body 1M \
        --allowed-hosts llm.example
}

teardown_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    for pid in $(cat pids); do kill -9 "$pid" 2> /dev/null || true; done
    down all
}

setup() { cd "$BATS_FILE_TMPDIR" || return 1; }

# serve NAME [OPTION ...]: another gateway of the services, at ports of the loopback: $HTTP and $OLLAMA
serve() {
    mkfifo "$1.ready"
    stream --run "$PWD/all" -m "$PHASEPIPE_TEST_MODEL" --http 0 --ollama 0 --served-model-name smol "${@:2}" --ready-fd 4 \
        4> "$1.ready" > "$1.log" 2>&1 3>&- &
    PID=$!
    echo "$PID" >> pids
    timeout 20 cat "$1.ready" > "$1.addresses"
    HTTP=$(sed -n 's,^HTTP=https\?://,,p' "$1.addresses")
    OLLAMA=$(sed -n 's,^OLLAMA=https\?://,,p' "$1.addresses")
    [ -n "$HTTP" ] && [ -n "$OLLAMA" ]
}

end() { kill "$PID" && wait "$PID" || true; }
check() { timeout 150 python3 "$BATS_TEST_DIRNAME/http_client.py" "$@"; }

# bats test_tags=quick
@test "a request with a wrong key, an unknown route or method is refused before its body" {
    echo secret > keys
    chmod 600 keys
    serve keys --api-key-file keys
    check "$HTTP" wrong_key
    within "gateway, 60 bodies of 16 MiB under a wrong key" "$PID" 60
    end
}

# bats test_tags=quick
@test "pages of other sites are refused on both ports" {
    serve pages
    check "$HTTP" browsers /v1/completions
    check "$OLLAMA" browsers /v1/completions
    check "$OLLAMA" browsers /api/generate
    end
    serve named --allowed-hosts attacker.example --allowed-origins http://evil.example
    code() { curl -sS -o /dev/null -w '%{http_code}' "http://$HTTP/v1/models" "$@"; }
    [ "$(code -H 'Host: attacker.example')" = 200 ]
    [ "$(code -H 'Host: other.example')" = 403 ]
    [ "$(code -H 'Origin: http://evil.example')" = 200 ]
    [ "$(code -H 'Origin: http://other.example')" = 403 ]
    end
}

# bats test_tags=quick
@test "phasepipe up passes the limits on" {
    code() { curl -sS -o /dev/null -w '%{http_code}' --unix-socket all.s "http://localhost$@"; }
    [ "$(code /v1/completions --json @<(printf '{"prompt":"%01000000d","max_tokens":1}' 0))" != 413 ]
    [ "$(code /v1/completions --json @<(printf '{"prompt":"%01100000d","max_tokens":1}' 0))" = 413 ]
    ps -o args= -p "$(pid_of all stream)" | grep -q -- '--allowed-hosts llm.example'
    run ! up wrong --max-connections 0
    grep -q -- '--max-connections' wrong.log
    # A key that others can read is refused before anything is started.
    openssl req -x509 -newkey rsa:2048 -nodes -keyout open.pem -out cert.pem -days 2 -subj /CN=localhost 2> /dev/null
    chmod 640 open.pem
    run ! up open --ssl-certfile cert.pem --ssl-keyfile open.pem
    grep -q 'open.pem: other users can read or change this private key (mode 0640): chmod 600 it' open.log
    ! grep -q 'is ready' open.log
}

# bats test_tags=quick
@test "what cannot be parsed is answered in JSON" {
    serve errors
    check "$HTTP" errors
    check "$HTTP" endless
    within "gateway, 100 MB in chunks" "$PID" 80
    end
}

# bats test_tags=quick
@test "the socket of a killed gateway is removed by the next" {
    for _ in 1 2; do
        serve "killed$((++n))"
        kill -9 "$PID"
        wait "$PID" || true
    done
    [ "$(find all -name "gw-$PID-*" | wc -l)" = 1 ]
    serve successor
    [ "$(find all -name 'gw-*' | wc -l)" = 2 ] # its own, and that of the gateway of `phasepipe up`
    end
}

# bats test_tags=quick
@test "with few descriptors connections are refused, and the log reports it" {
    (ulimit -n 64 && exec stream --run "$PWD/all" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/few.s" > few.log 2>&1 3>&-) &
    PID=$!
    echo "$PID" >> pids
    for _ in $(seq 100); do [ -S few.s ] && break; sleep 0.05; done
    check few.s full
    grep -q -- '--max-connections 4096 needs .* file descriptors, the limit (ulimit -Hn) is 64' few.log
    [ "$(grep -c 'refused a connection' few.log)" = 1 ]
    end
}

# bats test_tags=quick
@test "a stream has its headers at once, and comments while it waits" {
    serve early --sse-keepalive 0.5
    local pids
    pids="$(pid_of all prefill-0) $(pid_of all decode-0)"
    kill -STOP $pids
    (sleep 2 && kill -CONT $pids) 3>&- &
    check "$HTTP" early
    end
}

@test "bodies that are never finished have a limit together" {
    serve bodies --max-bodies 64M
    check "$HTTP" bodies
    within "gateway, 40 unfinished bodies, --max-bodies 64M" "$PID" 190
    end
}

@test "5,000 idle connections of one address do not lock out another" {
    serve idle
    check "$HTTP" idle
    [ "$(grep -c 'refused a connection' idle.log)" -le 1 ] # a line a minute
    within "gateway, 5,000 idle connections" "$PID" 60
    end
}

@test "4,300 request heads that trickle in do not lock out another address" {
    serve trickle
    check "$HTTP" trickle
    within "gateway, 4,300 trickled heads" "$PID" 60
    end
}

@test "what clients do not read has a limit together" {
    serve unread --max-outputs 32M
    check "$HTTP" unread
    within "gateway, 24 clients that do not read, --max-outputs 32M" "$PID" 120
    end
}

@test "log-probabilities of a long prompt have a limit, and below it delay nobody" {
    "$BATS_TEST_DIRNAME/../../scripts/make-random-model" --type F16 --layers 1 --hidden 64 --heads 1 \
        --kv-heads 1 --head-dim 64 --ffn 128 --vocab 512 --context 262144 long.gguf
    up long -m long.gguf --kv-cache-memory-bytes 512M
    check long.s logprobs
    within "gateway, three responses of 262,000 log-probabilities" "$(pid_of long stream)" 150
    down long
}

@test "large bodies of text and of ids delay nobody" {
    serve large
    check "$HTTP" large
    within "gateway, bodies of 16 MB" "$PID" 400
    end
}

@test "certificates that are reloaded a thousand times take no memory" {
    openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost 2> /dev/null
    serve tls --ssl-certfile cert.pem --ssl-keyfile key.pem
    run ! timeout 5 openssl s_client -connect "$HTTP" -tls1_1 < /dev/null
    timeout 5 openssl s_client -connect "$HTTP" -tls1_2 < /dev/null > /dev/null
    for _ in $(seq 100); do kill -HUP "$PID"; sleep 0.005; done
    before=$(awk '/^VmRSS:/ { print $2 }' "/proc/$PID/status")
    for _ in $(seq 1000); do kill -HUP "$PID"; sleep 0.005; done
    after=$(awk '/^VmRSS:/ { print $2 }' "/proc/$PID/status")
    echo "$before KiB, then $after KiB"
    [ $((after - before)) -lt 2048 ]
    end
}
