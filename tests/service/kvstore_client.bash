# For tests with the clients of tests/tools/kv_client, which runs one command a line; its KV has 2 layers, a head of 64, int8:
# 12288 bytes a slot (2 tiles of 2 × 32 × 64 and 2 × 32 × 4 bytes, rounded up to an odd number of pages of 4096).

load kvstore

setup_file() {
    # Built already by make; not built here, since the flags of that build are not known.
    [ -x "$PHASEPIPE_BUILD/tests/tools/kv_client" ] || make -s -C "$PHASEPIPE_TOP" B="$PHASEPIPE_BUILD" tools
}

setup() {
    cd "$BATS_TEST_TMPDIR"
    kv=(--listen unix:kv.sock --model-fingerprint "$(printf '07%.0s' {1..32})" --layers 2 --kv-heads 1 --head-dim 64
        --kv-cache-memory-bytes $((16 * 12288)))
    store_pid=
}

teardown() {
    for pid in $store_pid $(cat pids 2> /dev/null); do
        kill -CONT "$pid" 2> /dev/null || true
        kill -9 "$pid" 2> /dev/null || true
    done
    ! mountpoint -q "$BATS_TEST_TMPDIR/small" || umount -l "$BATS_TEST_TMPDIR/small"
}

# client NAME [MODEL [ARITH]]: starts a client for `command_to NAME COMMAND`
client() {
    mkfifo "$1.in" "$1.out"
    "$PHASEPIPE_BUILD/tests/tools/kv_client" unix:kv.sock "${2:-07}" "${@:3}" < "$1.in" > "$1.out" 2> "$1.err" 3>&- &
    eval "$1_pid=$!"
    echo $! >> pids
    eval "exec {$1_in}> $1.in {$1_out}< $1.out"
    answer "$1" > /dev/null
}

answer() {
    local out="$1_out" line
    IFS= read -r -t 20 -u "${!out}" line
    echo "$line"
}

# command_to NAME COMMAND: sends a command to a client and prints its answer
command_to() {
    local in="$1_in"
    echo "${@:2}" >&"${!in}"
    answer "$1"
}

# counts NAME: "free cached leased quarantined credited" as numbers
counts() {
    command_to "$1" stat | awk '/ sound$/ { print $4, $6, $8, $10, $12 }'
}

# until_counts NAME MS WANT: waits at most MS for these counts
until_counts() {
    local end=$(($(date +%s%N) + $2 * 1000000)) got
    while got=$(counts "$1") && [ "$got" != "$3" ]; do
        [ "$(date +%s%N)" -lt $end ] || { echo "counts: $got, not $3"; return 1; }
        sleep 0.01
    done
}
