#!/usr/bin/env bats
# Services that connect over tls+tcp://, as on several hosts, and the peers that are refused there. The certificates are those of phasepipe
# tls-init; tests/unit/session_tls_test.c has those of openssl.

bats_require_minimum_version 1.5.0

setup_file() {
    [ -x "$PHASEPIPE_BUILD/tests/tools/sched_client" ] || make -s -C "$PHASEPIPE_TOP" B="$PHASEPIPE_BUILD" tools
}

setup() {
    cd "$BATS_TEST_TMPDIR"
    client=$PHASEPIPE_BUILD/tests/tools/sched_client
    phasepipe tls-init pki > /dev/null
}

teardown() {
    for pid in $(tac pids 2> /dev/null); do kill -9 "$pid" 2> /dev/null || true; done
    cat ./*.err 2> /dev/null || true
}

# start NAME PROGRAM [OPTION ...]: in the background, until it is ready; its messages are in NAME.err, its process is $NAME, and
# its address, if it has a port, $NAME_url
start() {
    local name=$1 line
    shift
    mkfifo "$name.ready"
    "$@" --ready-fd 4 4> "$name.ready" 2>> "$name.err" 3>&- &
    eval "$name=$!"
    echo $! >> pids
    timeout 60 cat "$name.ready" > "$name.message"
    [ "$(head -n 1 "$name.message")" = ready ]
    line=$(sed -n 's/^LISTEN=//p' "$name.message")
    eval "${name}_url=$line"
    rm "$name.ready"
}

scheduler() { start sched sched --listen tls+tcp://127.0.0.1:0 --peer-tls pki; }

# refused COMMAND ...: fails, and its message contains $reason
refused() {
    run ! timeout 20 "$@"
    echo "$output"
    [[ $output == *"$reason"* ]]
}

@test "an answer over tls+tcp is that of the pipeline" {
    start store kvstore --listen "unix:$PWD/kv.sock" --kv-cache-memory-bytes 64M
    start sched sched --listen tls+tcp://127.0.0.1:0 --kv "unix:$PWD/kv.sock" --peer-tls pki
    start tok tokenize --listen tls+tcp://127.0.0.1:0 --peer-tls pki
    # Each host has the certificate of its role alone.
    phasepipe tls-init pki --role worker --to host2 > /dev/null
    [ "$(ls host2)" = $'ca.pem\nworker.pem' ]
    for phase in prefill decode; do
        start $phase $phase --sched "$sched_url" --kv "unix:$PWD/kv.sock" --peer-tls host2
    done
    timeout 60 stream --sched "$sched_url" --tokenize "$tok_url" --listen tls+tcp://127.0.0.1:0 --peer-tls pki \
        -p 'The sky is' -n 20 --temp 0 --jsonl > got
    tokenize -p 'The sky is' -n 20 --temp 0 | prefill | decode | stream --jsonl > want
    diff <(jq -r .text want) <(jq -r .text got)
    phasepipe ctl sched --sched "$sched_url" --peer-tls pki > table
    grep -q decode table
    phasepipe ctl set queue_bytes=1000000000 --sched "$sched_url" --peer-tls pki
}

@test "without a certificate, with one of another cluster, or for another role, a peer is refused in words" {
    scheduler
    phasepipe tls-init other > /dev/null
    reason="TLS between services needs credentials: --peer-tls DIR" refused phasepipe ctl sched --sched "$sched_url"
    reason="certificate of the peer is refused" refused phasepipe ctl sched --sched "$sched_url" --peer-tls other
    # A worker's credentials make no tool: it can neither read statistics nor change settings.
    export PEER_TLS=$PWD/pki PEER_ROLE=worker
    reason="role tool is not accepted here, only: worker"
    refused "$client" stat "$sched_url"
    refused "$client" set "$sched_url" heartbeat_ms 1
    export PEER_ROLE=gateway
    reason="role tool is not accepted here, only: gateway monitor" refused "$client" set "$sched_url" heartbeat_ms 1
    PEER_ROLE=tool "$client" stat "$sched_url"
    # In clear, on the same port.
    run ! timeout 20 phasepipe ctl sched --sched "${sched_url#tls+}"
    kill -0 "$sched"
}

@test "a worker that holds another role's or a stolen name's certificate does not join" {
    scheduler
    phasepipe tls-init pki --role worker --name w1 --to bound > /dev/null
    export PEER_TLS=$PWD/bound PEER_ROLE=worker
    "$client" worker "$sched_url" w2 decode 1 1 1 2> w2.err 3>&- &
    echo $! >> pids
    "$client" worker "$sched_url" w1 decode 1 1 1 2> w1.err 3>&- &
    echo $! >> pids
    for i in $(seq 100); do
        PEER_TLS=$PWD/pki PEER_ROLE=tool "$client" stat "$sched_url" > stat
        ! grep -q '"w1"' stat || break
        sleep 0.1
    done
    grep -q '"w1"' stat
    run ! grep -q '"w2"' stat
}

@test "beyond the loopback nothing listens or connects in clear without --peer-plaintext" {
    for program in "sched --listen" "tokenize --listen" "decode --kv unix:kv.sock --sched" \
        "stream --tokenize ipc://t --listen tcp://127.0.0.1:1 -p hi --sched" "phasepipe ctl sched --sched"; do
        # shellcheck disable=SC2086 # words
        run -100 timeout 20 $program tcp://192.0.2.1:7000
        echo "$output"
        [[ $output == *"tcp://192.0.2.1:7000: beyond this host, tcp:// is neither encrypted nor authenticated: use tls+tcp:// with --peer-tls DIR, or --peer-plaintext"* ]]
    done
    start sched sched --listen tcp://0.0.0.0:0 --peer-plaintext
    phasepipe ctl sched --sched "${sched_url/0.0.0.0/127.0.0.1}" > /dev/null
}

@test "a gateway states an address to which workers can connect" {
    run -100 timeout 20 stream --sched tls+tcp://192.0.2.1:7000 --tokenize ipc://t --peer-tls pki -p hi
    [[ $output == *"give an address of this host, to which its workers can connect (--listen URL)"* ]]
    run -100 timeout 20 stream --sched tls+tcp://192.0.2.1:7000 --tokenize ipc://t --peer-tls pki -p hi \
        --listen tls+tcp://0.0.0.0:7002
    [[ $output == *"tls+tcp://0.0.0.0:7002: workers connect to this address: name one of this host"* ]]
}

@test "a scheduler that is not reachable is reported with the reason" {
    reason="no response from tcp://127.0.0.1:1 within 5 s: Connection refused" refused phasepipe ctl sched \
        --sched tcp://127.0.0.1:1
    reason="tcp://no-such-host.invalid:1 within 5 s: Address invalid" refused phasepipe ctl sched \
        --sched tcp://no-such-host.invalid:1 --peer-plaintext
}

@test "tls-init makes no file twice, and what it makes openssl verifies" {
    run -1 phasepipe tls-init pki --role worker
    [[ $output == *"pki/worker.pem exists: remove it first to replace it"* ]]
    for role in sched tokenize gateway worker tool; do
        openssl verify -x509_strict -CAfile pki/ca.pem "pki/$role.pem"
        [ "$(stat -c %a "pki/$role.pem")" = 600 ]
        openssl x509 -in "pki/$role.pem" -noout -ext subjectAltName | grep -q "URI:urn:phasepipe:role:$role\b"
    done
    [ "$(stat -c %a pki/ca-key.pem)" = 600 ]
    phasepipe tls-init pki --role sched --to host > /dev/null
    cmp pki/ca.pem host/ca.pem
    phasepipe tls-init pki --role gateway --to host > /dev/null # the authority is there already
    phasepipe tls-init other > /dev/null
    run -1 phasepipe tls-init other --role tool --to host
    [[ $output == *"host/ca.pem exists"* ]]
    run -100 phasepipe tls-init pki --role cook
    [[ $output == *"--role cook: must be sched, tokenize, gateway, worker or tool"* ]]
    run -100 phasepipe tls-init pki --name w
    run -100 phasepipe tls-init
}
