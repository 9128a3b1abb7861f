#!/usr/bin/env bats
# A client with a flood of requests and a client with one at a time, distinguished by their API keys.

bats_require_minimum_version 1.5.0

setup() {
    # shellcheck source=tests/attack/attack.bash
    source "$PHASEPIPE_TOP/tests/attack/attack.bash"
    cd "$BATS_TEST_TMPDIR"
    printf 'flood\nlone\n' > keys
    chmod 600 keys
    up a --api-key-file "$PWD/keys"
}

teardown() { down a; }

# ask KEY NUMBER: the seconds until the answer
ask() {
    curl -s -o /dev/null -w '%{time_total} %{http_code}\n' --unix-socket a.s -H "Authorization: Bearer $1" \
        -H 'Content-Type: application/json' -d "{\"prompt\":\"$2 $(seq -s' ' 1 100)\",\"max_tokens\":1,\"temperature\":0}" \
        http://h/v1/completions
}

@test "a client with one request at a time does not wait for the 96 of another" {
    for i in 1 2 3 4 5; do ask lone "first $i"; done > alone
    for i in $(seq 96); do ask flood "$i" > "flood.$i" 3>&- & done
    sleep 0.3
    for i in 1 2 3 4 5; do ask lone "second $i"; done > beside
    wait
    [ "$(cat beside alone flood.* | grep -c ' 200$')" = 106 ]
    paste alone beside
    flood=$(cat flood.* | sort -n | tail -1 | cut -d' ' -f1)
    slowest=$(sort -n beside | tail -1 | cut -d' ' -f1)
    echo "the slowest answer of the flood took $flood s, that of the lone client $slowest s"
    awk -v a="$slowest" -v b="$flood" 'BEGIN { exit !(a < b / 3) }'
}
