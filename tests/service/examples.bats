#!/usr/bin/env bats
# The examples that serve over HTTP, with the real model: what each is there to show must be seen.

setup() { cd "$BATS_TEST_TMPDIR" || return 1; }

# so EXPRESSION: it is true of numbers
so() { awk "BEGIN { exit !($1) }" || { echo "not so: $1"; cat out; return 1; }; }

@test "two phases: the first token waits for the prompt, the others do not" {
    timeout 120 "$PHASEPIPE_TOP/examples/two-phases.sh" "$PHASEPIPE_TEST_MODEL" > out 3>&-
    [ "$(wc -l < out)" -eq 2 ]
    read -r t0 p0 t1 p1 < <(sed -E 's/.*TTFT ([0-9.]+) ms, TPOT ([0-9.]+) ms/\1 \2/' out | xargs)
    so "$t1 > 3 * $t0"
    so "$p1 < 2.5 * $p0"
}

@test "code completion: many short ones at once" {
    timeout 120 "$PHASEPIPE_TOP/examples/code-completion.sh" "$PHASEPIPE_TEST_MODEL" > out 3>&-
    [ "$(wc -l < out)" -eq 8 ]
    grep -qx 'import numpy as np' out
}

@test "a long document: from the second question on its prefix is found" {
    for _ in $(seq 60); do echo "The price of item $RANDOM is $RANDOM."; done > document
    timeout 120 "$PHASEPIPE_TOP/examples/long-document.sh" document "$PHASEPIPE_TEST_MODEL" > out 3>&-
    read -r n0 c0 n1 c1 n2 c2 < <(sed -E 's/.*\? ([0-9]+) tokens, ([0-9]+) of them.*/\1 \2/' out | xargs)
    [ "$c0" -eq 0 ]
    so "$c1 >= 0.85 * $n1 && $c2 >= 0.85 * $n2 && $n0 > 500"
}
