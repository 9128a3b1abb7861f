#!/usr/bin/env bats
# Common clients with the real services and the real model: the quick part of `make check-clients`. The packages openai and
# ollama are in a venv of the cache folder, which scripts/check creates.

setup() {
    bats_require_minimum_version 1.5.0
    cd "$BATS_TEST_TMPDIR"
    unset PHASEPIPE_RUN PHASEPIPE_RUN_DIR
    export PHASEPIPE_BIN=$PHASEPIPE_BUILD/bin
    clients=("$PHASEPIPE_TOP/scripts/check-clients" --no-install -m "$PHASEPIPE_TEST_MODEL" --only)
}

teardown() {
    [ ! -e "$BATS_TEST_TMPDIR/run/state.json" ] || timeout 60 phasepipe down --run "$BATS_TEST_TMPDIR/run" --timeout 5 || true
    [ ! -e "$BATS_TEST_TMPDIR/listener" ] || kill "$(cat "$BATS_TEST_TMPDIR/listener")" 2> /dev/null || true
}

packages() {
    [ -e "${XDG_CACHE_HOME:-$HOME/.cache}/phasepipe/clients/quick/installed" ] ||
        skip "scripts/check-clients --install --quick has not been run"
}

# listen PORT: listens on the loopback for the time of the test; false: the port is in use
listen() {
    python3 -c 'import socket, sys, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1])))
s.listen()
open("listens", "w").close()
time.sleep(120)' "$1" > /dev/null 2>&1 3>&- &
    echo $! > listener
    for _ in $(seq 200); do
        [ ! -e listens ] || return 0
        kill -0 "$(cat listener)" 2> /dev/null || return 1
        sleep 0.05
    done
    return 1
}

# free PORT: succeeds if the port is not in use
free() { listen "$1" && kill "$(cat listener)" && rm listens; }

@test "the package openai" {
    packages
    timeout 300 "${clients[@]}" openai
}

@test "the package openai, asynchronous" {
    packages
    timeout 300 "${clients[@]}" openai-async
}

@test "the package ollama; what is cached, twice against the same server" {
    packages
    timeout 300 "${clients[@]}" ollama,ollama cached > out
    [ "$(tail -n 1 out)" = "2 passed, 0 failed" ]
}

@test "common curl commands work" {
    timeout 300 "${clients[@]}" curl
}

# bats test_tags=long
@test "the check of the README's commands detects wrong responses" {
    timeout 300 python3 "$PHASEPIPE_TOP/tests/clients/wrong_server.py" "$PHASEPIPE_TEST_MODEL"
}

@test "the README's commands work unchanged at ports 8000 and 11434" {
    for port in 8000 11434; do free $port || skip "port $port is in use"; done
    unset PHASEPIPE_HTTP
    export PHASEPIPE_RUN=$PWD/run # the commands do not name the directory
    PATH="$PHASEPIPE_BIN:$PATH"
    up=$(grep -x 'phasepipe up --served-model-name .* --detach' "$PHASEPIPE_TOP/README.md")
    bash -c "$up" 2> err 3>&- || rc=$?
    ! grep -q 'address already in use' err || skip "another program took a port meanwhile"
    [ "${rc-0}" -eq 0 ] || { cat err; false; }
    grep -qx 'phasepipe up: the OpenAI API and metrics: http://127.0.0.1:8000' err
    grep -qx 'phasepipe up: the Ollama API: http://127.0.0.1:11434' err
    PHASEPIPE_AS_WRITTEN=1 PHASEPIPE_URL=http://localhost:8000 PHASEPIPE_OLLAMA=http://localhost:11434 \
        timeout 300 python3 "$PHASEPIPE_TOP/tests/clients/curl_recipes.py" 'the README' > out || { cat out; false; }
    grep -q '^ok  .*: 4 commands' out
    phasepipe down
}

@test "if Ollama's default port is in use, up logs it and serves the rest; if the port was given, it fails" {
    listen 11434 || skip "port 11434 is in use by another program"
    unset PHASEPIPE_HTTP
    PATH="$PHASEPIPE_BIN:$PATH"
    # Nothing is generated, so the fake engine is enough.
    up=(phasepipe up --run "$PWD/run" -m "$PHASEPIPE_TEST_MODEL" --engine 'fake:0,0,0,0,0,0' --detach)
    "${up[@]}" --http 127.0.0.1:0 2> err 3>&- || { cat err; false; }
    grep -qx 'phasepipe up: 127.0.0.1:11434: address already in use; the Ollama API is not served' err
    ! grep -q 'the Ollama API:' err
    url=$(sed -n 's/^phasepipe up: the OpenAI API and metrics: //p' err)
    [[ $url =~ ^http://127.0.0.1:[1-9][0-9]*$ ]]
    [ "$(curl -s -o models -w '%{http_code}' "$url/v1/models")" = 200 ]
    # A restarted server reports its address again.
    phasepipe ctl restart stream --run "$PWD/run"
    [ "$(grep -c 'the OpenAI API and metrics: http://127.0.0.1:' run/log/up.log)" -eq 2 ]
    phasepipe down --run "$PWD/run"
    rc=0
    "${up[@]}" --http 127.0.0.1:0 --ollama 127.0.0.1:11434 2> err 3>&- || rc=$?
    [ "$rc" -eq 1 ]
    grep -qx 'phasepipe up: 127.0.0.1:11434: address already in use' err
    # Without --detach it prints the same at the end.
    phasepipe up --run "$PWD/run" -m "$PHASEPIPE_TEST_MODEL" --engine 'fake:0,0,0,0,0,0' --http "unix:$PWD/http" 2> err 3>&- &
    up=$!
    for _ in $(seq 400); do ! grep -q ' ready in ' err || break; sleep 0.05; done
    grep -A 2 -x "phasepipe up: the OpenAI API and metrics: unix:$PWD/http" err | grep -q 'the Ollama API is not served'
    phasepipe down --run "$PWD/run"
    wait $up
}
