#!/usr/bin/env bats
# Compares the goodput of policies on the traces of tests/golden/traces, which name their origin and licence. The coefficients of
# the simulated workers are those that DistServe published for OPT-13B on an A100.

ROOT="$BATS_TEST_DIRNAME/../.."
TRACES="$ROOT/tests/golden/traces"

setup() {
    PATH="${PHASEPIPE_BIN:-$ROOT/${B:-build}/bin}:$PATH"
}

goodput() { simulate --json "$@" | jq .goodput; }
more() { awk -v a="$1" -v b="$2" -v x="${3:-1}" 'BEGIN { print a, "against", b; exit !(a > x * b) }'; }

@test "kv has more goodput than fcfs on conversations that share prefixes" {
    load="--slo-ttft-ms 4000 --slo-tpot-ms 100 -P 4 -D 4 $TRACES/mooncake-conversation.jsonl"
    kv=$(goodput --policy kv $load) fcfs=$(goodput --policy fcfs $load)
    more "$kv" "$fcfs" 1.2
    kv=$(goodput --policy kv --scale 0.5 $load) fcfs=$(goodput --policy fcfs --scale 0.5 $load)
    more "$kv" "$fcfs"
    hit() { simulate --json --scale 0.4 "$@" -k admit=0 $load | jq .cached; }
    kv=$(hit --policy kv) fcfs=$(simulate --json --scale 0.4 --policy fcfs $load | jq .cached)
    more "$kv" "$fcfs"
}

@test "split pools have more goodput than colocation on long prompts with short answers" {
    load="--scale 0.5 --slo-ttft-ms 4000 --slo-tpot-ms 100 $TRACES/azure-code.csv"
    split=$(goodput --policy fcfs -P 2 -D 2 $load) together=$(goodput --policy colocate -P 0 -D 0 -B 4 $load)
    more "$split" "$together"
    split=$(goodput --policy kv -P 2 -D 2 $load)
    more "$split" "$together"
}

@test "if load moves from prefill to decode, changing roles reach 95 % of the best fixed split" {
    load="--policy kv --slo-ttft-ms 2000 --slo-tpot-ms 60 --max-num-seqs 32 $TRACES/azure-code.csv $TRACES/azure-conv.csv"
    for scale in 2 3; do
        best=0
        for p in 1 2 3 4 5 6 7; do
            fixed=$(goodput --scale $scale -k roles=0 -P $p -D $((8 - p)) $load)
            best=$(awk -v a="$best" -v b="$fixed" 'BEGIN { print (a > b ? a : b) }')
        done
        for p in 2 4 6; do
            moving=$(goodput --scale $scale -P $p -D $((8 - p)) $load)
            more "$moving" "$best" 0.95
        done
    done
}

@test "of a burst as many requests are admitted as can have their first token in time" {
    request() { echo "{\"timestamp\": 0, \"input_length\": $1, \"output_length\": 2, \"hash_ids\": [$2]}"; }
    for i in 1 2 3 4 5 6; do
        request 1000 "${i}1, ${i}2" # a second each: the first two of a worker are in time, the third is not
    done >"$BATS_TEST_TMPDIR/burst"
    for i in 7 8; do
        request 5000 "${i}1, ${i}2, ${i}3, ${i}4, ${i}5, ${i}6, ${i}7, ${i}8, ${i}9, ${i}10" # never in time
    done >>"$BATS_TEST_TMPDIR/burst"
    run simulate --json --policy kv -P 2 -D 2 --coefs-prefill 0,1,0 --slo-ttft-ms 2500 "$BATS_TEST_TMPDIR/burst"
    [ "$(jq -c '[.done, .good, .refused]' <<<"$output")" = '[4,4,4]' ]
}

@test "a simulation is reproducible" {
    run_it() { simulate --json -P 3 -D 3 --slo-ttft-ms 2000 "$TRACES/azure-conv.csv"; }
    [ "$(run_it)" = "$(run_it)" ]
}
