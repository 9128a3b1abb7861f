#!/usr/bin/env bats
# Every supervised service has given up what it does not need.

bats_require_minimum_version 1.5.0

setup() {
    load attack.bash
    cd "$BATS_TEST_TMPDIR" || return 1
}

teardown() { down s; }

# bats test_tags=quick
@test "every service runs with a filter of system calls and without new privileges" {
    [ "$(awk '/^Seccomp:/ { print $2 }' /proc/self/status)" ] || skip "the kernel has no seccomp"
    up s --engine fake:1e6,1e4,0,1e6,1,1000
    for name in kvstore sched tokenize prefill-0 decode-0 stream; do
        status=/proc/$(pid_of s "$name")/status
        [ "$(awk '/^Seccomp:/ { print $2 }' "$status")" = 2 ] || { echo "$name has no filter"; false; }
        [ "$(awk '/^NoNewPrivs:/ { print $2 }' "$status")" = 1 ] || { echo "$name can gain privileges"; false; }
    done
    # It is off only if it is turned off.
    down s
    PHASEPIPE_SANDBOX=0 up s --engine fake:1e6,1e4,0,1e6,1,1000
    [ "$(awk '/^Seccomp:/ { print $2 }' "/proc/$(pid_of s decode-0)/status")" != 2 ]
}
