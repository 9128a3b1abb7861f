#!/usr/bin/env bats
# Peers that cause log lines.

bats_require_minimum_version 1.5.0

setup() { cd "$BATS_TEST_TMPDIR"; }

teardown() { ! [ -e pid ] || kill -9 "$(cat pid)" 2> /dev/null || true; }

# bats test_tags=quick
@test "three thousand connections with bytes that are not frames cause few log lines of kvstore" {
    mkfifo ready
    kvstore --listen "unix:$PWD/kv.sock" --kv-cache-memory-bytes 16M --ready-fd 4 4> ready 2> log 3>&- &
    echo $! > pid
    [ "$(timeout 20 head -n 1 ready)" = ready ]
    before=$(wc -l < log)
    SECONDS=0
    python3 - <<'P'
import socket
for i in range(3000):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(10)
    s.connect("kv.sock")
    s.sendall(b"\xce\x00\x00\x00\x04GET /")
    while s.recv(4096):
        pass
P
    lines=$(($(wc -l < log) - before))
    echo "$lines lines in $SECONDS s"
    [ "$lines" -ge 10 ]
    [ "$lines" -le $((12 * (SECONDS + 2))) ]
    phasepipe ctl kv --kv "unix:$PWD/kv.sock" > /dev/null
}
