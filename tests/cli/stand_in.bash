# bench against tests/tools/openai_stand_in.py, a server whose delays and tokens are known.

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    unset OPENAI_API_KEY
    server=
}

teardown() {
    [ -z "$server" ] || kill "$server" 2> /dev/null || true
}

# serve ARGUMENTS of the stand-in: it listens at $port
serve() {
    rm -f port
    "$PHASEPIPE_TOP/tests/tools/openai_stand_in.py" "$@" > port 2> stand-err 3>&- &
    server=$!
    for _ in $(seq 100); do
        [ ! -s port ] || break
        sleep 0.05
    done
    port=$(head -1 port)
}

# seen: what the server saw is in the file seen; it ends
seen() {
    kill "$server"
    wait "$server" || true
    server=
    tail -n +2 port > seen
    [ ! -s stand-err ] || { cat stand-err; false; }
}

load() {
    timeout 60 bench --port "$port" "$@" 3>&-
}

# holds EXPRESSION: true of the result in the file r
holds() {
    jq -e "$1" r > /dev/null || { jq -c 'del(.itls, .ttfts, .latencies, .queue_times, .generated_texts)' r; echo "not: $1"; false; }
}
