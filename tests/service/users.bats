#!/usr/bin/env bats
# Processes of other users: who may use the sockets of services. Needs root, to be two users.

bats_require_minimum_version 1.5.0

setup() {
    [ "$(id -u)" = 0 ] || skip "needs root, to be two users"
    dir=$(mktemp -d /tmp/usersXXXXXX) # short, and on a path that others can enter
    cd "$dir"
}

teardown() {
    for pid in $(tac pids 2> /dev/null); do kill -9 "$pid" 2> /dev/null || true; done
    cat ./*.err 2> /dev/null || true
    cd /
    rm -rf "$dir"
}

nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups) # no function: the process in the background is the program

# start NAME PROGRAM [OPTION ...]: in the background, until it is ready
start() {
    local name=$1
    shift
    mkfifo -m 666 "$name.ready"
    "$@" --ready-fd 4 4> "$name.ready" 2>> "$name.err" 3>&- &
    echo $! >> pids
    [ "$(timeout 60 head -n 1 "$name.ready")" = ready ]
}

# closed PATH: a connection of another user to the socket is closed at once. Of TYPE, STREAM if it is not given.
closed() {
    "${nobody[@]}" /usr/bin/python3 - "$1" "${2-STREAM}" <<'P'
import socket, sys
s = socket.socket(socket.AF_UNIX, getattr(socket, "SOCK_" + sys.argv[2]))
s.settimeout(5)
s.connect(sys.argv[1])
try:
    sys.exit(s.recv(1) != b"")
except ConnectionResetError:
    pass
P
}

@test "a process of another user is not served, even if the mode of a socket lets it connect" {
    mkdir -m 700 run
    start store kvstore --listen "unix:$dir/run/kv.sock" -m "$PHASEPIPE_TEST_MODEL" --kv-cache-memory-bytes 16M
    start sched sched --run "$dir/run"
    chmod 711 "$dir" run
    chmod 666 run/*.sock
    closed "$dir/run/kv.sock"
    closed "$dir/run/sched.sock"
    phasepipe ctl sched --run "$dir/run" > /dev/null # our user is served
    phasepipe ctl kv --run "$dir/run" > /dev/null
}

@test "the supervisor does not serve another user" {
    mkdir -m 700 run
    timeout 60 phasepipe up --run "$dir/run" -m "$PHASEPIPE_TEST_MODEL" --engine fake:0,1000,0,1000,0,0 --http off \
        --ollama off --kv-cache-memory-bytes 16M --detach 3>&-
    chmod 711 "$dir" run
    chmod 666 run/up.sock
    closed "$dir/run/up.sock" SEQPACKET
    timeout 60 phasepipe down --run "$dir/run"
}

@test "a gateway of root's reaches the workers of another user, in whose directory the sockets are" {
    cp "$PHASEPIPE_TEST_MODEL" model.gguf
    cp -r "$PHASEPIPE_BUILD/bin" bin
    mkdir -m 700 run
    chmod 711 "$dir"
    chown 65534:65534 run
    export HOME=$dir/run
    start store "${nobody[@]}" "$dir/bin/kvstore" --listen "unix:$dir/run/kv.sock" -m "$dir/model.gguf" --kv-cache-memory-bytes 64M
    start sched "${nobody[@]}" "$dir/bin/sched" --run "$dir/run"
    start tok "${nobody[@]}" "$dir/bin/tokenize" --listen "ipc://$dir/run/tokenize.sock" -m "$dir/model.gguf"
    start decode "${nobody[@]}" "$dir/bin/decode" --run "$dir/run" -m "$dir/model.gguf" --threads 1
    timeout 60 stream --run "$dir/run" -p 'The sky is' -n 4 --temp 0 --jsonl > got
    [ "$(jq -r .usage.completion_tokens got)" = 4 ]
}
