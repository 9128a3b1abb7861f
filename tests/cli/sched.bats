#!/usr/bin/env bats
# The scheduler's programs as filters: frames and lines, reported faults, custom policies.

ROOT="$BATS_TEST_DIRNAME/../.."

setup() {
    PATH="${PHASEPIPE_BIN:-$ROOT/${B:-build}/bin}:$PATH"
    cd "$BATS_TEST_TMPDIR" || return 1
    bats_require_minimum_version 1.5.0
}

load_of() { simulate "$@" --record load gen:n=60,rate=8,prompt=400,out=8,shared=0.5 > /dev/null; }

@test "the same events give the same decisions to the byte, as frames or JSON" {
    load_of -P 2 -D 2
    sched --stat -k transfer_us=2 < load > once
    sched --stat -k transfer_us=2 < load | cmp - once
    frames load | sched --jsonl --stat -k transfer_us=2 > lines
    frames once | jq -c 'select(.k != "hello" and .k != "bye")' > want
    diff want lines
    [ "$(tail -1 want | jq -r '.submitted + " " + .length')" = "60 60" ]
}

@test "each policy ends every request of its load" {
    for p in kv:sched fcfs:sched-fcfs; do
        load_of -P 2 -D 2 --policy "${p%:*}"
        [ "$("${p#*:}" --stat -k retries=3 < load | frames | jq -r 'select(.k == "stat").length')" -ge 1 ]
    done
    load_of -P 0 -D 0 -B 3 --policy colocate
    [ "$(sched-colocate --stat < load | frames | jq -r 'select(.k == "stat").length')" = 60 ]
}

@test "policies of examples/, in Python and in shell" {
    for policy in policy.py policy.sh; do
        load="gen:n=30,rate=8,prompt=300,out=6"
        [ "$(simulate -P 1 -D 1 --policy exec --command "$ROOT/examples/$policy" --json $load | jq .done)" = 30 ]
    done
    simulate -P 1 -D 1 --policy exec --command "$ROOT/examples/policy.py" --record load gen:n=9,rate=9,out=4 > /dev/null
    sched-exec --stat "$ROOT/examples/policy.py" < load | frames > out
    [ "$(jq -r 'select(.k == "stat").length' out)" = 9 ]
}

@test "a policy that dies, sends nonsense or is missing is reported, exit 111, 2, 100" {
    load_of -P 1 -D 1
    run sched-exec true < load
    [ "$status" -eq 100 ]
    [[ "$output" == *"the policy 'true' ended at its start (exit 0)"* ]]
    run sched-exec 'sleep 0.4' < load
    [ "$status" -eq 111 ]
    [[ "$output" == *"without an answer"* ]]
    run sched-exec 'while read -r l; do echo "{"; done' < load
    [ "$status" -eq 2 ]
    run sched-exec -k answer_ms=50 'sleep 5' < load
    [ "$status" -eq 111 ]
    [[ "$output" == *"sent no decisions within 50 ms (setting answer_ms)"* ]]
    run sched-exec < load
    [ "$status" -eq 100 ]
}

@test "nonsensical events are reported and skipped" {
    cat > events <<'.'
{"k":"join","worker":"w","role":"cook","seqs":2,"blocks":"64"}
{"k":"report","worker":"w","gw":"g","job":"1","what":"sung"}
{"k":"tok","seq":"0","index":0,"id":"a","ids":[]}
{"k":"knob","name":"no_such"}
not json
{"k":"capacity","worker":"stranger"}
{"k":"stat"}
.
    run --separate-stderr sched --jsonl < events
    [ "$status" -eq 0 ]
    [[ "$stderr" == *"line 1: join: role 'cook'"*"line 2: report: 'sung'"*"line 3: a tok frame"*"line 4: knob"*"line 5"* ]]
    [ "$(jq -r .k <<< "$output" | xargs)" = "refuse stat" ]
    run sched -k nonsense=1 < /dev/null
    [ "$status" -eq 100 ]
}

@test "a worker of another model is refused with a reason" {
    cat > events <<'.'
{"k":"join","worker":"a","role":"both","seqs":2,"blocks":"64","compat":"m1 int8 cpu-1"}
{"k":"join","worker":"b","role":"both","seqs":2,"blocks":"64","compat":"m2 int8 cpu-1"}
.
    sched --jsonl < events > out
    [[ "$(jq -r 'select(.k == "refuse" and .to == "b").text' out)" == *"'m2 int8 cpu-1'"*"'m1 int8 cpu-1'"* ]]
}

@test "a refusal by a full queue names its limit, a request that is given up the last failure" {
    cat > events <<'.'
{"k":"join","at_ns":"1","worker":"w","role":"both","seqs":2,"blocks":"64","max_len":1000,"chunk":512}
{"k":"submit","at_ns":"2","gw":"g","job":"1","n_prompt":64,"max_tokens":8}
{"k":"submit","at_ns":"3","gw":"g","job":"2","n_prompt":64,"max_tokens":8}
{"k":"capacity","at_ns":"4","worker":"w","seqs":2,"tokens":4096,"blocks":"64"}
{"k":"gone","at_ns":"5","worker":"w"}
.
    sched --jsonl -k queue_max=1 -k retries=0 < events > out
    [ "$(jq -r 'select(.k == "refuse").text' out)" = \
        "the scheduler's queue is full: 1 requests wait, the limit is 1 (setting queue_max); retry later" ]
    [[ "$(jq -r 'select(.k == "done").text' out)" == "given up after 1 failed attempts (setting retries): "*"; last: worker w disconnected" ]]
}

@test "requests beyond the byte limit are refused, those that ended no longer count" {
    body=$(printf '%0200d' 0) # hex of 100 bytes
    submit() { printf '{"k":"submit","at_ns":"%s","gw":"g","job":"%s","n_prompt":64,"max_tokens":8,"body":"%s"}\n' "$1" "$1" "$body"; }
    {
        submit 1
        submit 2
        submit 3
        echo '{"k":"cancel","at_ns":"4","gw":"g","job":"1"}'
        submit 5
    } > events
    sched --jsonl -k queue_bytes=200 -k tenant_share=1 < events > out
    [ "$(jq -r 'select(.k == "refuse") | [.job, .never // false, .text] | @tsv' out)" = \
        "$(printf "3\tfalse\tthe scheduler's requests would have 300 bytes, the limit is 200 (setting queue_bytes); retry later")" ]
}

@test "sched-exec with a command that cannot run exits at once with the reason" {
    run --separate-stderr timeout 10 sched-exec --listen "ipc://$BATS_TEST_TMPDIR/s" /nonexistent
    [ "$status" -eq 100 ]
    [[ $stderr == *"the policy '/nonexistent' ended at its start (exit 127)"* ]]
}

@test "phasepipe up with such a policy fails at once" {
    mkdir -m 700 "$BATS_TEST_TMPDIR/up"
    run timeout 20 phasepipe up --run "$BATS_TEST_TMPDIR/up" -m "$PHASEPIPE_TEST_MODEL" --http off --ollama off \
        --sched 'sched-exec /nonexistent'
    [ "$status" -eq 100 ]
    [[ $output == *"the policy '/nonexistent' ended at its start"* ]]
}
