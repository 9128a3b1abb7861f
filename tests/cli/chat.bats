#!/usr/bin/env bats
# phasepipe chat with its input from a pipe. Its answers are those of the same history sent as a JSON line.

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
}

answer() { # JSON line: its text
    tokenize --jsonl <<< "$1" | prefill | decode | stream --jsonl | jq -r .text
}

@test "each turn includes the earlier ones, and /reset drops them" {
    printf 'My name is Ada.\nWhat is my name?\n/reset\nWhat is my name?\n' | phasepipe chat -n 12 > got
    one=$(answer '{"messages":[{"role":"user","content":"My name is Ada."}],"max_tokens":12}')
    two=$(answer "$(jq -cn --arg a "$one" '{messages:[{role:"user",content:"My name is Ada."},{role:"assistant",content:$a},
        {role:"user",content:"What is my name?"}],max_tokens:12}')")
    three=$(answer '{"messages":[{"role":"user","content":"What is my name?"}],"max_tokens":12}')
    printf '%s\n' "$one" "$two" "$three" > want
    diff want got
}

@test "--system and the sampling flags have their effect" {
    echo 'Hello' | phasepipe chat -n 8 --system 'You are a pirate.' --temp 0.8 --seed 3 > got
    answer '{"messages":[{"role":"system","content":"You are a pirate."},{"role":"user","content":"Hello"}],"max_tokens":8,"temperature":0.8,"seed":3}' > want
    diff want got
}

@test "/help, an unknown command, // and /exit" {
    printf '/help\n/nope\n\n/exit\nnever asked\n' | phasepipe chat > got
    grep -q '^/reset' got
    grep -q "no command '/nope'" got
    ! grep -q asked got
    echo '//x' | phasepipe chat -n 4 > got
    answer '{"messages":[{"role":"user","content":"/x"}],"max_tokens":4}' > want
    diff want got
}

@test "a message that does not fit is reported, the conversation continues, the status is 1" {
    rc=0
    { yes word | head -9000 | paste -sd' '; echo Hi; } | phasepipe chat -n 4 > got 2> err || rc=$?
    [ "$rc" -eq 1 ]
    grep -q 'maximum context length is 8192 tokens' err
    answer '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":4}' > want
    diff want got
}

@test "no process is left running, after success or failure" {
    echo Hi | phasepipe chat -n 4 > /dev/null
    run bash -c 'echo Hi | phasepipe chat -m no-such-file 2>&1'
    [ "$status" -ne 0 ]
    [[ $output == *no-such-file* ]]
    echo 'Write a long story.' | timeout -s INT 60 phasepipe chat -n 4 > /dev/null
    [ -z "$(pgrep -P $$ tokenize)" ]
}

@test "Ctrl-C stops an answer and the conversation continues" {
    mkfifo in
    phasepipe chat -n 400 < in > got 2> err 3>&- &
    pid=$!
    exec 4> in
    echo 'Write a long story about the sea.' >&4
    for _ in $(seq 400); do [ -s got ] && break; sleep 0.05; done
    [ -s got ]
    kill -INT $pid
    for _ in $(seq 100); do grep -q '…$' got && break; sleep 0.05; done
    grep -q '…$' got
    echo '/help' >&4
    for _ in $(seq 100); do grep -q '^/exit' got && break; sleep 0.05; done
    grep -q '^/exit' got
    exec 4>&-
    wait $pid
}
