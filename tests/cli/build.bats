#!/usr/bin/env bats
# scripts/build: runs make for quickstart and check.

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    export B=$PWD/b
    mkdir b
    build=$PHASEPIPE_TOP/scripts/build
}

@test "a successful build prints nothing, a failed one prints the reason and fails, also on a terminal" {
    run "$build" "$B/obj/lib/err/err.o"
    [ "$status" -eq 0 ]
    [ -z "$output" ]
    run "$build" no-such-target
    [ "$status" -ne 0 ]
    [[ $output == *no-such-target* ]]
    run script -qec "$build no-such-target" /dev/null
    [ "$status" -ne 0 ]
    [[ $output == *no-such-target* ]]
    rm "$B/obj/lib/err/err.o"
    run script -qec "$build $B/obj/lib/err/err.o" /dev/null
    [ "$status" -eq 0 ]
    [[ $output == *"1 of 1 files"* ]]
    [ -s "$B/obj/lib/err/err.o" ]
}

@test "two builds in one folder take turns" {
    flock b/.lock sleep 1 3>&- &
    sleep 0.2
    begin=$(date +%s%N)
    "$build" "$B/obj/lib/err/err.o"
    [ $(($(date +%s%N) - begin)) -ge 500000000 ]
}
