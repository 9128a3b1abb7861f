#!/usr/bin/env bats
# phasepipe up, ps, ctl, down: how services are started, supervised, restarted and ended. Most tests use a stand-in for the
# services (tests/tools/stand_in.py), the others the real ones.

setup() {
    cd "$BATS_TEST_TMPDIR"
    bats_require_minimum_version 1.5.0
    mkdir -p bin stand cache/phasepipe
    # up checks the model before it starts anything: at its default path, and at another.
    export XDG_CACHE_HOME=$PWD/cache
    ln -s "$PHASEPIPE_TEST_MODEL" cache/phasepipe/SmolLM2-135M-Instruct.Q4_1.gguf
    ln -s "$PHASEPIPE_TEST_MODEL" some.gguf
    cp "$(command -v phasepipe)" bin/
    for p in kvstore sched sched-fcfs tokenize stream prefill decode; do
        cp "$PHASEPIPE_TOP/tests/tools/stand_in.py" "bin/$p"
        chmod +x "bin/$p"
    done
    real=$PATH
    PATH="$PWD/bin:$PATH"
    export STAND=$PWD/stand
    unset PHASEPIPE_RUN
    run=$PWD/run
}

teardown() {
    for r in "$BATS_TEST_TMPDIR"/run*/state.json; do
        [ -e "$r" ] || continue
        for pid in $(jq -r '.pid, .services[].pid' "$r"); do
            [ "$pid" -le 1 ] || kill -9 "$pid" 2> /dev/null || true
        done
    done
    ! [ -e "$BATS_TEST_TMPDIR/up.pid" ] || kill -9 "$(cat "$BATS_TEST_TMPDIR/up.pid")" 2> /dev/null || true
    ! [ -e "$BATS_TEST_TMPDIR/mounted" ] || umount -l "$BATS_TEST_TMPDIR/run" || true
}

# start [OPTION ...]: up in the background, when all are ready
start() {
    rm -f up.err
    phasepipe up --run "$run" "$@" > up.out 2> up.err 3>&- &
    echo $! > up.pid
    until_true 20 grep -q ' ready in ' up.err
}

# until_true SECONDS COMMAND ...: waits at most so long for the command to succeed
until_true() {
    local end=$((SECONDS + $1 + 1))
    while ! "${@:2}" > /dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "not within $1 s: ${*:2}"; cat up.err || true; return 1; }
        sleep 0.02
    done
}

pid_of() { phasepipe ps --run "$run" --json | jq ".[] | select(.name == \"$1\").pid"; }
state_of() { phasepipe ps --run "$run" --json | jq -r ".[] | select(.name == \"$1\").state"; }
supervisor() { jq .pid "$run/state.json"; }
is_state() { [ "$(state_of "$1")" = "$2" ]; }
no() { ! "$@" || { echo "not wanted: $*"; false; }; }
# gone PID: succeeds if the process has ended or is a zombie
gone() { [ ! -e "/proc/$1" ] || grep -qs '^State:.Z' "/proc/$1/status"; }
# changed NAME PID: succeeds if the service is ready again as another process
changed() { [ "$(state_of "$1")" = ready ] && [ "$(pid_of "$1")" != "$2" ]; }

# nothing_left: no process of the directory, no socket, no lock
nothing_left() {
    [ -z "$(find "$run" -type s 2> /dev/null)" ]
    [ ! -e "$run/lock" ] && [ ! -e "$run/state.json" ]
    ! grep -lsaz "^PHASEPIPE_RUN=$run\$" /proc/[0-9]*/environ || { echo "a process is left"; false; }
}

@test "up starts the services in a private directory; ps lists them; down ends them in order" {
    start -P 2 -m some.gguf --kv-cache-memory-bytes 1M --kv-cache-dtype f16 --max-num-seqs 9 --engine cuda
    [ "$(stat -c %a "$run")" = 700 ]
    phasepipe ps --run "$run" --json > ps
    [ "$(jq -r '.[] | "\(.name) \(.program) \(.role) \(.state)"' ps | sort)" = "decode-0 decode decode ready
kvstore kvstore store ready
prefill-0 prefill prefill ready
prefill-1 prefill prefill ready
sched sched scheduler ready
tokenize tokenize tokenizer ready" ]
    for pid in $(jq '.[].pid' ps); do kill -0 "$pid"; done
    [ "$(PHASEPIPE_RUN=$run phasepipe ps | grep -c ' ready ')" -eq 6 ]
    # The arguments of each service.
    args() { jq -r "select(.name == \"$1\").args | join(\" \")" stand/starts; }
    [[ $(args kvstore) == "--listen unix:$run/kv.sock --model some.gguf --kv-cache-dtype f16 --kv-cache-memory-bytes 1M --ready-fd "* ]]
    [[ $(args sched) == "--listen ipc://$run/sched.sock --kv unix:$run/kv.sock --drain-seconds 40 --ready-fd "* ]]
    [[ $(args tokenize) == "--listen ipc://$run/tokenize.sock --model some.gguf --ready-fd "* ]]
    [[ $(args decode-0) == *"--sched ipc://$run/sched.sock --kv unix:$run/kv.sock --name decode-0 --model some.gguf"*"--max-num-seqs 9 --engine cuda"* ]]
    # Standard streams and the readiness pipe; the next descriptor is that of the listing itself.
    jq -e '.fds | length == 5 or (length == 6 and max < 7)' stand/starts > /dev/null
    for name in kvstore sched tokenize prefill-0 prefill-1 decode-0; do grep -q "^$name | $name prints hello" up.err; done
    phasepipe down --run "$run"
    [ "$(jq -r 'if startswith("prefill") or startswith("decode") then "worker" else . end' stand/ends | tr '\n' ' ')" \
        = "sched worker worker worker tokenize kvstore " ]
    wait "$(cat up.pid)"
    nothing_left
    [ ! -e "$run" ]
    [ ! -s up.out ]
    run -1 phasepipe ps --run "$run"
    run -0 phasepipe down --run "$run"
}

@test "the pools have separate cores, and decode shares its own with no one" {
    [ "$(nproc)" -ge 2 ] || skip "one processor"
    start
    decode=$(jq -r 'select(.name == "decode-0").args as $a | $a[($a | index("--cpus")) + 1]' stand/starts)
    jq -r 'select(.name | test("prefill")).args as $a | $a[($a | index("--cpus")) + 1]' stand/starts | tr , '\n' > others
    jq -r 'select(.name | test("kvstore|sched|tokenize")).cpus[]' stand/starts >> others
    [ "$(wc -l < others)" -ge 4 ]
    for cpu in ${decode//,/ }; do no grep -qx "$cpu" others; done
    [ "$(jq -r 'select(.name == "decode-0").args | join(" ")' stand/starts | grep -c -e '--cores lease')" -eq 1 ]
    phasepipe down --run "$run"
    # With one processor no service is pinned.
    rm stand/starts
    run=$PWD/run1
    taskset -c 0 bash -c "exec bin/phasepipe up --cores fixed --run $run --detach" 3>&-
    no grep -q -e --cpus stand/starts
    phasepipe down --run "$run"
}

@test "a service that dies is restarted with a growing delay and a log line; a stopped one is detected" {
    start
    for name in kvstore sched tokenize prefill-0 decode-0; do
        pid=$(pid_of $name)
        kill -9 "$pid"
        until_true 5 changed $name "$pid"
        grep -q "$name ended with signal 9 (Killed); it is started again in 100 ms" up.err
    done
    pid=$(pid_of decode-0)
    kill -9 "$pid"
    until_true 5 changed decode-0 "$pid"
    grep -q "decode-0 ended with signal 9 (Killed); it is started again in 200 ms" up.err
    [ "$(phasepipe ps --run "$run" --json | jq '.[] | select(.name == "decode-0").restarts')" = 2 ]
    echo 7 > stand/fail-decode-0
    kill -9 "$(pid_of decode-0)"
    until_true 5 is_state decode-0 backing-off
    until_true 10 grep -q "decode-0 ended with exit status 7; it is started again in 1600 ms" up.err
    rm stand/fail-decode-0 # it was ready once: it is tried for ever
    until_true 10 is_state decode-0 ready
    kill -STOP "$(pid_of sched)"
    until_true 5 is_state sched stopped
    phasepipe down --run "$run"
    nothing_left
}

# starts_of NAME: how many processes of it there have been
starts_of() { grep -c "\"name\": \"$1\"" "$STAND/starts" || true; }

# own NAME: a directory and a folder of the stand-ins for one run, beside which others go on
own() {
    run=$PWD/run-$1 STAND=$PWD/stand-$1
    mkdir "$STAND"
}

# never_up STATUS_OF_KVSTORE STATUS_OF_UP [OPTION]
never_up() {
    local rc=0
    own "$1${3-}"
    echo "$1" > "$STAND/fail-kvstore"
    timeout 30 phasepipe up --run "$run" ${3-} 2> "$STAND/err" 3>&- || rc=$?
    [ "$rc" -eq "$2" ]
    grep -q "phasepipe up: kvstore failed 5 times before it was ready: exit status $1: kvstore: no model here" "$STAND/err"
    [ "$(starts_of kvstore)" -eq 5 ]
    nothing_left
}

@test "a service that never comes up ends all, with its own words and status" {
    never_up 111 111 & # for example no memory
    a=$!
    never_up 7 1 & # none of ours
    b=$!
    never_up 7 1 --detach
    grep -q "no model here" "$run/log/kvstore.log"
    wait $a
    wait $b
}

# not_tried_again STATUS
not_tried_again() {
    local rc=0
    own "$1"
    touch "$STAND/stuck-tokenize" # does not end by itself: it is not waited for either
    echo "$1" > "$STAND/fail-decode-0"
    timeout 15 phasepipe up --run "$run" --detach 2> "$STAND/err" 3>&- || rc=$? # the drain of what is stuck would be 40 s
    [ "$rc" -eq "$1" ]
    grep -qx "phasepipe up: decode-0 cannot start: exit status $1: decode: no model here" "$STAND/err"
    [ "$(starts_of decode-0)" -eq 1 ]
    nothing_left
}

@test "what a service refuses at its start is not tried again: up ends with its words and status" {
    runs=
    for status in 1 2 100; do
        not_tried_again $status &
        runs="$runs $!"
    done
    for one in $runs; do wait "$one"; done
    # One that was ready once is tried again, whatever its status.
    start
    echo 1 > stand/fail-decode-0
    kill -9 "$(pid_of decode-0)"
    until_true 10 grep -q "decode-0 ended with exit status 1; it is started again" up.err
    rm stand/fail-decode-0
    until_true 10 is_state decode-0 ready
    phasepipe down --run "$run"
}

# refused STATUS TEXT OPTION ...: up ends with this status and text before it starts anything
refused() {
    local rc=0 begin=$SECONDS
    rm -f stand/starts
    timeout 10 phasepipe up --run "$run" "${@:3}" 2> err 3>&- || rc=$?
    [ "$rc" -eq "$1" ] || { echo "status $rc"; cat err; false; }
    grep -qF "phasepipe up: $2" err || { cat err; false; }
    [ ! -e stand/starts ] && [ $((SECONDS - begin)) -le 3 ]
    nothing_left
}

@test "a wrong model, a missing file and an address in use are refused before anything is started" {
    refused 1 "nothing.gguf: no such file" -m nothing.gguf
    head -c 1000 "$PHASEPIPE_TEST_MODEL" > short.gguf
    refused 1 "short.gguf: " -m short.gguf
    head -c 4000000 /dev/zero > zero.gguf
    refused 1 "zero.gguf: " -m zero.gguf
    head -c 20000000 "$PHASEPIPE_TEST_MODEL" > cut.gguf
    refused 1 "cut.gguf: tensor token_embd.weight ends past the end of the file" -m cut.gguf
    python3 "$PHASEPIPE_TOP/scripts/make-random-model" --type F16 --hidden 64 --layers 1 --ffn 64 --heads 1 --kv-heads 1 \
        --head-dim 64 --vocab 512 small.gguf
    sed 's/llama/other/' small.gguf > other.gguf # the first of each line: the value of general.architecture
    refused 1 "other.gguf: architecture other is not supported" -m other.gguf
    sed 's/llama-bpe/llama-xxx/' small.gguf > words.gguf
    refused 1 "words.gguf: tokenizer.ggml.pre 'llama-xxx' is not supported" -m words.gguf
    rm cache/phasepipe/*.gguf
    refused 1 "" --detach
    grep -q get-model err
    ln -s "$PHASEPIPE_TEST_MODEL" cache/phasepipe/SmolLM2-135M-Instruct.Q4_1.gguf
    refused 111 "keys: No such file" --http unix:http --api-key-file keys
    [ ! -e http ]

    python3 -c 'import socket, sys, time
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen()
print(s.getsockname()[1], flush=True)
time.sleep(60)' > port 3>&- &
    echo $! > listener
    until_true 20 test -s port
    port=$(cat port)
    refused 1 "127.0.0.1:$port: address already in use" --http "127.0.0.1:$port"
    refused 1 "127.0.0.1:$port: address already in use" --http "127.0.0.1:$port" --detach
    refused 1 "127.0.0.1:$port: address already in use" --http unix:http --ollama "127.0.0.1:$port"
    [ ! -e http ]
    kill "$(cat listener)"
    echo text > file
    refused 1 "unix:file: address already in use" --http unix:file
    [ "$(cat file)" = text ]
    refused 100 "invalid address 'nowhere'" --http nowhere
}

@test "addresses are bound once, reported by the readiness message, and outlive the server process" {
    printf 'HTTP=http://example:1\nOTHER=x\nOLLAMA=unix:there\n' > stand/addresses-stream
    start --http unix:http --ollama 127.0.0.1:0
    [ "$(jq -r 'select(.name == "stream").listen' stand/starts)" = http:ollama ]
    [ "$(jq -r 'select(.name == "decode-0").listen' stand/starts)" = "" ]
    grep -qx 'phasepipe up: the OpenAI API and metrics: http://example:1' up.err
    grep -qx 'phasepipe up: the Ollama API: unix:there' up.err
    # Output on stderr is not taken for an address.
    [ "$(grep -c 'the OpenAI API and metrics' up.err)" -eq 1 ]
    connects() { python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("http")'; }
    connects
    pid=$(pid_of stream)
    touch stand/slow-stream
    kill -9 "$pid"
    connects # while there is no server
    until_true 20 is_state stream starting
    connects
    rm stand/slow-stream
    kill -9 "$(pid_of stream)"
    until_true 20 is_state stream ready
    [ "$(jq -r 'select(.name == "stream").listen' stand/starts | sort -u)" = http:ollama ]
    [ "$(grep -c 'the OpenAI API and metrics: http://example:1' up.err)" -eq 2 ]
    phasepipe down --run "$run"
    [ ! -e http ]
    nothing_left
}

@test "other output on --ready-fd than a readiness message is ignored" {
    cat > bin/tokenize << 'P'
#!/bin/sh
while [ "$1" != --ready-fd ]; do shift; done
eval "echo READY >&$2"
exec sleep 100
P
    phasepipe up --run "$run" 2> up.err 3>&- &
    echo $! > up.pid
    until_true 20 grep -q "tokenize wrote 'READY.*' to --ready-fd, which is not a readiness message" up.err
    is_state tokenize starting
    kill -TERM "$(cat up.pid)"
    rc=0
    wait "$(cat up.pid)" || rc=$?
}

@test "a service that is not ready for long is logged by name; a signal ends the wait" {
    touch stand/slow-tokenize
    phasepipe up --run "$run" --detach 2> up.err 3>&- &
    echo $! > up.pid
    until_true 20 grep -q "tokenize is not ready yet after 10 s: tokenize prints hello" up.err
    is_state tokenize starting
    kill -TERM "$(cat up.pid)"
    rc=0
    wait "$(cat up.pid)" || rc=$?
    [ "$rc" -eq 1 ]
    grep -q "ended before all services were ready" up.err
    nothing_left
}

@test "--detach returns when all are ready, and holds no descriptor of its caller" {
    echo in | phasepipe up --run "$run" --detach > out 2> err # bats waits for descriptor 3 if it is kept
    grep -q "ready in .* s: stream --run $run -p" err
    [ "$(phasepipe ps --run "$run" | grep -c ' ready ')" -eq 5 ]
    grep -q "^....-..-..T..:..:..Z decode-0 prints hello" "$run/log/decode-0.log"
    grep -q "decode-0 is ready" "$run/log/up.log"
    find "/proc/$(supervisor)/fd" -type l -printf '%l\n' > fds
    grep -q "$run/log/up.log" fds
    no grep -v -e "^$run/" -e '^/dev/null$' -e ^socket: -e ^pipe: -e ^anon_inode: fds
    phasepipe down --run "$run"
    nothing_left
}

@test "the size of a log is bounded" {
    cat > bin/tokenize << 'P'
#!/bin/sh
while [ "$1" != --ready-fd ]; do shift; done
yes "$(printf 'x%.0s' $(seq 999))" | head -n 12000 >&2
eval "echo ready >&$2"
exec sleep 100
P
    phasepipe up --run "$run" --detach 2> err 3>&-
    [ "$(stat -c %s "$run/log/tokenize.log")" -le 4194304 ]
    [ "$(stat -c %s "$run/log/tokenize.log.1")" -le 4194304 ]
    [ "$(find "$run/log" -name 'tokenize*' | wc -l)" -eq 2 ]
    phasepipe down --run "$run" --timeout 5
}

@test "a full disk is logged once and ends nothing: services are restarted, and the state is written later" {
    mkdir -m 700 "$run"
    if mount -t tmpfs -o size=256k,mode=700 none "$run"; then
        touch mounted
        fill() { ! dd if=/dev/zero of="$run/filler" bs=4096 2> /dev/null; }
        make_room() { rm "$run/filler"; }
        why="No space left on device"
    else # nobody may mount: what cannot be written for another reason is the same
        fill() { mkdir "$run/state.json.new"; }
        make_room() { rmdir "$run/state.json.new"; }
        why="Is a directory"
    fi
    phasepipe up --run "$run" --detach 2> up.err 3>&-
    started() { [ "$(grep -c '"name": "decode-0"' stand/starts)" -eq "$1" ]; }
    last() { jq 'select(.name == "decode-0").pid' stand/starts | tail -n 1; }
    restarts() { phasepipe ps --run "$run" --json | jq '.[] | select(.name == "decode-0").restarts'; }
    first=$(pid_of decode-0)
    fill
    kill -9 "$first"
    until_true 5 started 2
    echo 100 > stand/lines-decode-0 # more than the last page of a log has room for
    kill -9 "$(last)"
    until_true 5 started 3
    rm stand/lines-decode-0
    sleep 1.5 # up retries, but does not log it again
    [ "$(grep -c "state.json.new: $why; the services keep running" "$run/log/up.log")" -eq 1 ]
    [ "$(restarts)" = 0 ]
    make_room
    until_true 5 changed decode-0 "$first"
    [ "$(restarts)" = 2 ]
    [ "$(grep -c 'state.json is written again' "$run/log/up.log")" -eq 1 ]
    if [ -e mounted ]; then
        kill -9 "$(last)"
        until_true 5 eval 'tail -n 1 "$run/log/decode-0.log" | grep -q "decode-0 prints hello$"'
        n=$(sed -n 's/.*Z lines that found no room: //p' "$run/log/decode-0.log" | jq -s add)
        [ "$n" -gt 50 ]
        [ $((n + $(grep -c "decode-0 line [0-9]* x*$" "$run/log/decode-0.log"))) -eq 100 ]
    fi
    phasepipe down --run "$run"
    # At the start a full disk is fatal.
    fill
    run -111 timeout 30 phasepipe up --run "$run"
    [[ $output == *"$why"* ]]
    make_room
}

@test "a second up is refused while the first lives; a killed one is replaced, and nothing of it is left" {
    start
    first=$(supervisor)
    run -1 phasepipe up --run "$run" --detach
    [[ $output == *"pid $first"*"runs in $run already"* ]]
    pids=$(phasepipe ps --run "$run" --json | jq '.[].pid')
    kill -9 "$first"
    for pid in $pids; do until_true 10 gone "$pid"; done
    [ "$(phasepipe ps --run "$run" --json | jq -r '[.[].state] | unique | join(" ")')" = exited ]
    touch stand/stuck-decode-0
    start
    kill -9 "$(supervisor)"
    stuck=$(pid_of decode-0)
    until_true 5 is_state decode-0 orphaned
    rm stand/stuck-decode-0
    start # the stuck one is ended first
    until_true 10 gone "$stuck"
    [ "$(phasepipe ps --run "$run" | grep -c ' ready ')" -eq 5 ]
    # down cleans up if no other up is started
    touch stand/stuck-sched
    phasepipe ctl restart sched --run "$run"
    kill -9 "$(supervisor)"
    phasepipe down --run "$run"
    nothing_left
}

@test "of two that start at once one wins" {
    for i in 1 2 3 4 5 6; do phasepipe up --run "$run" --detach 2> "err$i" 3>&- && echo $i >> won & done
    wait
    [ "$(wc -l < won)" -eq 1 ]
    [ "$(grep -l "runs in $run already" err? | wc -l)" -eq 5 ]
    phasepipe down --run "$run"
    nothing_left
}

@test "a service that does not end in time is killed, and the others still get theirs" {
    touch stand/stuck-prefill-0
    start
    rc=0
    phasepipe down --run "$run" --timeout 1 2> err || rc=$?
    [ "$rc" -eq 1 ]
    grep -q "services that had to be killed: 1" err
    grep -q "prefill-0 (pid [0-9]*) does not end: it is killed" up.err
    grep -q kvstore stand/ends
    nothing_left
    # A second signal ends at once.
    start
    kill -INT "$(cat up.pid)"
    sleep 0.3
    kill -TERM "$(cat up.pid)"
    until_true 10 gone "$(cat up.pid)"
    nothing_left
}

@test "a stopped supervisor can be ended" {
    start
    kill -STOP "$(cat up.pid)"
    phasepipe down --run "$run" --timeout 5
    nothing_left
}

@test "a running supervisor starts only the policies beside it, unless it was started with --any-policy" {
    start
    pid=$(pid_of sched)
    cp bin/sched bin/mine
    for policy in ./bin/mine "$PWD/bin/mine" "sched-exec ./bin/mine" ../x; do
        run -1 phasepipe ctl sched-swap "$policy" --run "$run"
        [[ $output == *"'$policy' may run any program; a running supervisor starts only the policies beside it"* ]]
    done
    [ "$(pid_of sched)" = "$pid" ]
    phasepipe down --run "$run"
}

@test "ctl restart works by name and by role; ctl sched-swap falls back if the new policy fails" {
    start -P 2 --any-policy
    pid=$(pid_of decode-0)
    phasepipe ctl restart decode --run "$run"
    changed decode-0 "$pid"
    [ "$(tail -n 1 stand/ends)" = '"decode-0"' ]
    run -1 phasepipe ctl restart prefill --run "$run" # two
    [[ $output == *"unknown service 'prefill'"* ]]
    phasepipe ctl restart prefill-1 --run "$run"
    pid=$(pid_of sched)
    phasepipe ctl sched-swap sched-fcfs --run "$run"
    changed sched "$pid"
    [ "$(phasepipe ps --run "$run" --json | jq -r '.[] | select(.name == "sched").program')" = sched-fcfs ]
    pid=$(pid_of sched)
    kill -9 "$pid" # it stays the policy
    until_true 5 changed sched "$pid"
    [ "$(phasepipe ps --run "$run" --json | jq -r '.[] | select(.name == "sched").program')" = sched-fcfs ]
    cp bin/sched bin/mine
    echo 1 > stand/fail-mine
    run -1 phasepipe ctl sched-swap ./bin/mine --run "$run"
    [[ $output == *"mine does not run (exit status 1: mine: no model here); sched-fcfs is started again"* ]]
    until_true 5 is_state sched ready
    run -100 phasepipe ctl sched-swap no-such-policy --run "$run"
    [[ $output == *"unknown policy 'no-such-policy'"* ]]
    is_state sched ready
    phasepipe down --run "$run"
}

@test "a directory of another user, or readable by others, is refused" {
    mkdir open && touch open/something && chmod 755 open
    run -1 phasepipe up --run open
    [[ $output == *"it is readable by others"* ]]
    [ "$(stat -c %a open)" = 755 ]
    mkdir -m 755 empty
    run=$PWD/empty
    phasepipe up --run empty --detach 3>&-
    [ "$(stat -c %a empty)" = 700 ]
    phasepipe down --run empty
    run -111 phasepipe up --run no/such/folder
    touch file
    run -1 phasepipe up --run file
    run -100 phasepipe up --run "/tmp/$(printf 'x%.0s' {1..90})"
    [[ $output == *"its sockets need"* ]]
    if [ "$(id -u)" -eq 0 ]; then
        mkdir -m 700 hers && chown 12345 hers
        run -1 phasepipe up --run hers
        [[ $output == *"belongs to user 12345"* ]]
    fi
    run -100 phasepipe up --run "$PWD/run" -P 0 -D 0
}

@test "a file at a socket of the supervisor is refused and stays" {
    for name in up notify; do
        rm -rf "$run"
        mkdir -m 700 "$run"
        echo data > "$run/$name.sock"
        rc=0
        timeout 20 phasepipe up --run "$run" 2> err 3>&- || rc=$?
        [ "$rc" -eq 1 ]
        grep -q "$run/$name.sock: not a socket: remove it" err
        [ "$(cat "$run/$name.sock")" = data ]
    done
}

@test "a service that is refused by a flag: --detach reports its reason, not the hint at --help" {
    rc=0
    PATH=$real timeout 20 phasepipe up --run "$run" --http off --ollama off --engine fake:1,2 --detach 2> err 3>&- || rc=$?
    [ "$rc" -eq 100 ]
    grep -q -- '--engine is fake:A,B,C,D,E,F' err
}

@test "ctl reports the service that does not respond, and misuse" {
    timeout 20 phasepipe ctl sched --run "$run" 2> err.sched &
    rc=0
    timeout 20 phasepipe ctl kv --json --run "$run" 2> err || rc=$?
    [ "$rc" -eq 1 ]
    grep -q "no response from unix:$run/kv.sock within 5 s" err
    rc=0
    wait $! || rc=$?
    [ "$rc" -eq 1 ]
    grep -q "no response from ipc://$run/sched.sock within 5 s" err.sched
    run -1 phasepipe ctl restart sched --run "$run"
    [[ $output == *"no supervisor runs in $run"* ]]
    for bad in "" nothing "kv 1" drain "role w cook" "set x" "set x=y" "set =1" "sched-swap"; do
        run -100 phasepipe ctl --run "$run" $bad
    done
}

@test "the arena outlives kvstore without a client that holds it" {
    kv_client=$PHASEPIPE_BUILD/tests/tools/kv_client
    rm bin/kvstore
    cat > bin/kvstore << P
#!/bin/sh
exec $(PATH=$real command -v kvstore) -v --model-fingerprint $(printf '07%.0s' {1..32}) --layers 2 --kv-heads 1 --head-dim 64 "\$@"
P
    chmod +x bin/kvstore
    start --kv-cache-memory-bytes $((16 * 12288))
    ctl() { phasepipe ctl kv --json --run "$run" | jq "$1"; }
    [ "$(ctl .total)" -ge 16 ]
    printf '%s\n' 'lease 1 4' 'credit 4' 'publish 4' release | "$kv_client" "unix:$run/kv.sock" 07 > got 2>&1
    [ "$(ctl .cached)" = 4 ]
    find "/proc/$(supervisor)/fd" -lname '/memfd:*' | grep -q .
    pid=$(pid_of kvstore)
    kill -9 "$pid"
    until_true 10 changed kvstore "$pid"
    grep -q "^kvstore | kvstore: arena adopted from the service manager" up.err
    [ "$(ctl .cached)" = 4 ]
    pid=$(pid_of kvstore)
    phasepipe ctl restart kvstore --run "$run"
    changed kvstore "$pid"
    [ "$(ctl .cached)" = 4 ]
    [ "$(ctl '.total - .free - .cached - .leased - .quarantined - .credited')" = 0 ]
    phasepipe ctl kv --run "$run" | grep -qx 'cached  *4'
    phasepipe down --run "$run"
    nothing_left
}
