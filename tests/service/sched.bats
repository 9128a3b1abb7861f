#!/usr/bin/env bats
# The scheduler as a service, with real processes: workers, gateways and schedulers that are killed, stopped, replaced, and
# hostile peers. tests/tools/sched_client acts as the other processes; its workers only take time.

setup_file() {
    # Built already by make; not built here, since the flags of that build are not known.
    [ -x "$PHASEPIPE_BUILD/tests/tools/sched_client" ] || make -s -C "$PHASEPIPE_TOP" B="$PHASEPIPE_BUILD" tools
}

setup() {
    cd "$BATS_TEST_TMPDIR"
    # The path of a socket must be short.
    dir=$(mktemp -d /tmp/schedXXXXXX)
    url=ipc://$dir/s
    client=$PHASEPIPE_BUILD/tests/tools/sched_client
}

teardown() {
    for pid in $(cat pids 2> /dev/null); do
        kill -CONT "$pid" 2> /dev/null || true
        kill -9 "$pid" 2> /dev/null || true
    done
    rm -rf "$dir"
}

# start PROGRAM [OPTION ...]: a scheduler that is ready
start() {
    rm -f ready
    mkfifo ready
    "$1" --listen "$url" "${@:2}" 4> ready --ready-fd 4 2>> sched.err 3>&- &
    sched_pid=$!
    echo $! >> pids
    [ "$(timeout 20 cat ready)" = ready ]
}

# worker NAME ROLE SEQS PREFILL_MS TOKEN_MS. PHASEPIPE_SLOW (1) multiplies the times, for builds in which all else is slow.
worker() {
    local slow=${PHASEPIPE_SLOW:-1}
    "$client" worker "$url" "$1" "$2" "$3" $(($4 * slow)) $(($5 * slow)) 2>> worker.err 3>&- &
    eval "$1_pid=$!"
    echo $! >> pids
}

# gateway NAME N OPEN MAX_TOKENS CANCEL_EVERY: runs in the background, with its output in NAME.out
gateway() {
    "$client" gateway "$url" "$@" > "$1.out" 2> "$1.err" 3>&- &
    eval "$1_pid=$!"
    echo $! >> pids
}

# output_of NAME: prints the gateway's output after it has ended
output_of() {
    local pid="$1_pid"
    timeout $((60 * ${PHASEPIPE_SLOW:-1})) tail --pid="${!pid}" -f /dev/null
    cat "$1.out"
    cat "$1.out" "$1.err" >&2
}

# stat FILTER: applies a jq filter to the scheduler's statistics
stat() {
    timeout 10 "$client" stat "$url" | jq -r "select(.k == \"stat\") | $1"
}

# workers: the names of those that are listed, a line each
workers() {
    timeout 10 "$client" stat "$url" | jq -c 'select(.k == "worker") | .name' | sort
}

# until_stat CONDITION
until_stat() {
    for _ in $(seq 200); do
        [ "$(stat "$1")" != true ] || return 0
        sleep 0.05
    done
    echo "never: $1" >&2
    stat .
    return 1
}

sum='[.stop, .length, .cancelled, .expired, .error, .refused, .running, .waiting] | map(tonumber? // 0) | add'

adds_up() {
    [ "$(stat "(.submitted | tonumber? // 0) == ($sum)")" = true ]
}

n='| tonumber? // 0'

# gone PID: waits up to ten seconds for its end; exit status in $status
gone() {
    timeout 10 tail --pid="$1" -f /dev/null
    status=0
    wait "$1" || status=$?
}

@test "a scheduler accepts, places and ends requests; its counts agree; SIGTERM ends it" {
    start sched
    [ "$(command stat -c %a "$dir/s")" = 600 ]
    worker w1 both 16 2 1
    worker w2 both 16 2 1
    gateway g1 300 40 8 0
    [ "$(output_of g1)" = "submitted 300 stop 0 length 300 cancelled 0 error 0 refused 0 twice 0 again 1" ]
    adds_up
    [ "$(stat '.length, .policy, .workers')" = "$(printf '300\nkv\n2')" ]
    [ "$(timeout 10 "$client" stat "$url" | jq -c 'select(.k == "worker") | [.name, .role, .seqs_all]' |
        sort)" = "$(printf '["w1","both",16]\n["w2","both",16]')" ]
    kill "$sched_pid"
    gone "$sched_pid"
    [ "$status" = 0 ]
    [ ! -e "$dir/s" ]
    [ ! -s sched.err ]
}

@test "a second scheduler at the address is refused, a stale socket is replaced, an invalid address is misuse" {
    start sched
    run timeout 10 sched --listen "$url"
    [ "$status" = 1 ]
    [[ $output == *"$url: address in use: another program listens on it"* ]]
    kill -9 "$sched_pid"
    gone "$sched_pid"
    [ -e "$dir/s" ]
    start sched-fcfs
    [ "$(stat .policy)" = fcfs ]
    run timeout 10 sched --listen http://x
    [ "$status" = 100 ]
    run timeout 10 sched --ready-fd 4 < /dev/null
    [ "$status" = 100 ]
    kill "$sched_pid"
    gone "$sched_pid"
    start sched --run "$dir"
    start_url=$url
    kill -9 "$sched_pid"
    gone "$sched_pid"
    sched --run "$dir" 2>> sched.err 3>&- &
    echo $! >> pids
    url=ipc://$dir/sched.sock
    until_stat '.policy == "kv"'
    url=$start_url
}

@test "requests are cancelled in each state" {
    start sched-fcfs
    # Waiting for prefill: there are no workers.
    gateway g1 20 20 8 1
    [ "$(output_of g1)" = "submitted 20 stop 0 length 0 cancelled 20 error 0 refused 0 twice 0 again 1" ]
    adds_up
    # In prefill, and waiting for decode without a decode worker: the gateway disconnects, which cancels its requests.
    worker p1 prefill 4 300 1
    gateway g2 30 30 50 0
    until_stat "(.running $n) > 0"
    kill -9 "$g2_pid"
    until_stat "(.running $n) == 0 and (.waiting $n) == 0 and (.cancelled $n) == 50"
    adds_up
    # In decode.
    kill -9 "$p1_pid"
    worker w1 both 32 1 1000
    gateway g3 30 30 50 2
    until_stat "(.running $n) == 15 and (.cancelled $n) == 65"
    kill -9 "$g3_pid"
    until_stat "(.running $n) == 0 and (.cancelled $n) == 80 and (.tombs $n) == 0"
    adds_up
    [ "$(timeout 10 "$client" stat "$url" | jq -c 'select(.name == "w1") | .seqs')" = 32 ]
}

@test "requests of a killed worker continue on another one at once" {
    start sched
    worker w1 both 32 5 20
    worker w2 both 32 5 20
    gateway g1 200 60 20 0
    until_stat "(.length $n) > 30"
    kill -9 "$w1_pid"
    until_stat '.workers == 1 or .workers == 2'
    [ "$(output_of g1)" = "submitted 200 stop 0 length 200 cancelled 0 error 0 refused 0 twice 0 again 1" ]
    adds_up
    [ "$(stat "(.retried $n) > 0 and (.retried $n) <= 32")" = true ]
}

@test "a scheduler that is killed and started again loses nothing" {
    start sched
    worker w1 both 32 10 10
    worker w2 both 32 10 10
    gateway g1 400 60 20 0
    gateway g2 400 60 20 10
    for _ in 1 2 3; do
        until_stat "(.length $n) > 40"
        kill -9 "$sched_pid"
        gone "$sched_pid"
        start sched
    done
    [[ $(output_of g1) == "submitted 400 stop 0 length 400 cancelled 0 error 0 refused 0 twice "*" again "* ]]
    [[ $(output_of g2) == "submitted 400 stop 0 length "*" error 0 refused 0 twice "*" again "* ]]
    until_stat "(.running $n) == 0 and (.waiting $n) == 0"
    adds_up
    [ "$(grep -c "cancelled 0 error 0 .* again [34]$" g1.out)" = 1 ]
    # Each scheduler counts each request once, except those that ended during the resync.
    [ "$(stat "(.submitted $n) < 800")" = true ]
}

@test "another policy takes over under load, and no request is lost" {
    start sched
    worker w1 both 32 10 10
    worker w2 both 32 10 10
    gateway g1 1200 60 20 0
    for policy in sched-fcfs sched-colocate sched; do
        until_stat "(.length $n) > 40"
        kill -9 "$sched_pid"
        gone "$sched_pid"
        start $policy
    done
    [[ $(output_of g1) == "submitted 1200 stop 0 length 1200 cancelled 0 error 0 refused 0 twice "*" again "* ]]
    adds_up
}

@test "a scheduler stopped for five seconds considers no peer dead" {
    start sched
    worker w1 both 32 5 200
    worker w2 both 32 5 200
    gateway g1 40 40 40 0
    until_stat "(.running $n) == 40"
    kill -STOP "$sched_pid"
    sleep 5
    kill -CONT "$sched_pid"
    [ "$(output_of g1)" = "submitted 40 stop 0 length 40 cancelled 0 error 0 refused 0 twice 0 again 1" ]
    [ "$(stat "[(.retried $n), (.placed $n), .workers]" | tr -d ' \n')" = "[0,40,2]" ]
    adds_up
}

@test "a stopped worker counts as dead after three heartbeats, and comes back" {
    start sched --knob heartbeat_ms=300
    worker w1 both 32 5 10
    worker w2 both 32 5 10
    gateway g1 300 40 10 0
    until_stat "(.length $n) > 20"
    kill -STOP "$w1_pid"
    [ "$(output_of g1)" = "submitted 300 stop 0 length 300 cancelled 0 error 0 refused 0 twice 0 again 1" ]
    [ "$(workers)" = '"w2"' ] # one whose session has ended is not listed
    kill -CONT "$w1_pid"
    for _ in $(seq 100); do
        [ "$(workers | wc -l)" != 2 ] || break
        sleep 0.1
    done
    gateway g2 100 64 10 0
    [ "$(output_of g2)" = "submitted 100 stop 0 length 100 cancelled 0 error 0 refused 0 twice 0 again 1" ]
    adds_up
    [ "$(workers | tr -d '\n')" = '"w1""w2"' ]
}

@test "hostile peers are refused with a reason, and harm no other" {
    start sched
    worker w1 both 32 2 2
    gateway g1 500 32 10 0
    "$client" crowd "$url" 1000 > crowd.out 2>&1 3>&- &
    echo $! >> pids
    until_stat "(.length $n) > 20"
    run timeout 60 "$client" hostile "$url" g1
    [ "$status" = 0 ]
    [ "$output" = "23 refused" ]
    [ "$(output_of g1)" = "submitted 500 stop 0 length 500 cancelled 0 error 0 refused 0 twice 0 again 1" ]
    [ "$(cat crowd.out)" = there ]
    adds_up
    [ "$(workers)" = '"w1"' ]
    run timeout 10 "$client" set "$url" no_such_setting 1
    [ "$status" = 1 ]
    [[ $output == *no_such_setting* ]]
}

@test "a worker is drained and restored, and a policy's setting is changed" {
    start sched
    worker w1 both 32 2 2
    until_stat '.workers == 1'
    timeout 10 "$client" set "$url" drain 1 w1
    gateway g1 10 10 4 0
    sleep 0.5
    [ "$(stat "[(.waiting $n), (.running $n)]" | tr -d ' \n')" = "[10,0]" ]
    [ "$(timeout 10 "$client" stat "$url" | jq -c 'select(.name == "w1") | .draining')" = true ]
    timeout 10 "$client" set "$url" drain 0 w1
    [ "$(output_of g1)" = "submitted 10 stop 0 length 10 cancelled 0 error 0 refused 0 twice 0 again 1" ]
    timeout 10 "$client" set "$url" queue_max 5
}

@test "SIGTERM ends a scheduler at once; its successor completes the requests that ran and waited" {
    start sched
    worker w1 both 4 2 20
    gateway g1 8 8 20 0
    until_stat "(.running $n) == 4"
    kill "$sched_pid"
    timeout 2 tail --pid="$sched_pid" -f /dev/null
    gone "$sched_pid"
    [ "$status" = 0 ]
    start sched
    [[ $(output_of g1) == "submitted 8 stop 0 length 8 cancelled 0 error 0 refused 0 "* ]]
}

@test "with --drain-seconds new requests are refused after SIGTERM, running ones complete" {
    start sched --drain-seconds 60
    worker w1 both 8 2 100
    gateway g1 8 8 20 0
    until_stat "(.running $n) == 8"
    kill "$sched_pid"
    gateway g2 5 5 4 0
    [ "$(output_of g2)" = "submitted 5 stop 0 length 0 cancelled 0 error 0 refused 5 twice 0 again 1" ]
    [ "$(output_of g1)" = "submitted 8 stop 0 length 8 cancelled 0 error 0 refused 0 twice 0 again 1" ]
    gone "$sched_pid"
    [ "$status" = 0 ]
}
