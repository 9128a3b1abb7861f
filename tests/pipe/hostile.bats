#!/usr/bin/env bats
# Streams that our programs never write, or only in rare cases: each is handled by its rule, and nothing hangs.

load pipe

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    for i in 1 2 3; do echo "Line $i says"; done | tokenize --raw --lines -n 4 > three.tok
    frames --full < three.tok > three.json
    for i in 1 2; do seq -s ' ' "$i" $((i + 40)); done | tokenize --raw --lines -n 4 --ignore-eos > two.tok
    prefill < two.tok | frames --full > two.json
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
}

# Its arguments are a jq program over an array of frames, and a file of them as JSON.
edited() {
    jq -sc "$1 | .[]" "$2" | frames -e
}

# Runs a command on standard input with a time limit; sets rc.
bounded() {
    rc=0
    timeout 60 "$@" 2> err || rc=$?
}

@test "a refused request does not block the input that ends it" {
    edited 'map(select(.seq == "0")) as $a | map(select(.seq == "1")) as $c |
        ($a[0] | .seq = "9" | .ids = [range(8000) | 5] | del(.digests)) as $b |
        [.[0], $a[0], $b, $c[0]] + $a[1:] + [($a[-1] | .seq = "9" | .n_token = 0 | del(.prompt))] + $c[1:] + [.[-1]]' \
        two.json > refused.kv
    for budget in 2M 2500K 3M; do
        bounded decode --kv-cache-memory-bytes $budget < refused.kv > out
        [ $rc = 0 ]
        [ "$(frames < out | jq -r 'select(.k == "end" or .k == "err") | .k' | sort | uniq -c | tr -s ' \n' ' ')" = ' 2 end 1 err ' ]
    done
}

@test "prefill may have a smaller pool than decode" {
    n=$(jq -s '.[1].ids | length' two.json)
    for flags in "--max-model-len $((n + 1))" '--kv-cache-memory-bytes 2000K'; do
        prefill $flags < two.tok > less.kv
        bounded decode < less.kv > out
        [ $rc = 0 ]
        [ "$(frames < out | jq -r 'select(.k == "end" and .seq == "0") | .completion_tokens')" = 4 ]
    done
}

@test "unknown fields of a span are forwarded" {
    # the following frames use the same memory of the reader
    edited '(.[] | select(.k == "kv")).spans[0].x_mine = "A" * 3000 | [.[] | if .k == "kv" and .seq == "0" then
        ., ({k:"err",seq:"\(range(100; 140))",index:0,id:"",code:1,text:("B" * 60000)}) else . end]' two.json > span.kv
    bounded decode < span.kv > out
    [ $rc = 0 ]
    [ "$(frames < out | jq 'select(.k == "end") | any(.spans[]; .x_mine == "A" * 3000)')" = $'true\ntrue' ]
}

@test "missing prompt log-probabilities are an error" {
    edited 'map(if .k == "open" then .echo = true | .logprobs = 0 else . end)' two.json > nolp.kv
    bounded decode < nolp.kv > out
    [ $rc = 2 ]
    grep -q '0 prompt log-probabilities' err
}

@test "a kv frame with a wrong token count is an error" {
    edited 'map(if .k == "kv" then .n_token = 3 else . end)' two.json > count.kv
    bounded decode < count.kv > out
    [ $rc = 2 ]
    grep -q 'holds 3 tokens' err
}

@test "a stop string that is not UTF-8 fails only its request" {
    for min in 0 3; do
        edited "map(if .seq == \"1\" then .stop = [{base64:\"//4=\"}] | .min_tokens = $min else . end)" three.json > stop.tok
        bounded prefill < stop.tok > out
        [ $rc = 0 ]
        bounded decode < out > out2
        [ $rc = 0 ]
        bounded decode < stop.tok > out3
        [ $rc = 0 ]
        for o in out2 out3; do
            frames < $o | jq -r 'select(.k == "err") | .seq + .text' | grep -q '^1.*UTF-8'
            [ "$(frames < $o | jq -r 'select(.k == "end") | .seq' | tr -d '\n')" = 02 ]
        done
    done
}

@test "an empty stop string stops nothing" {
    edited 'map(if .seq == "1" then .stop = [""] else . end)' three.json > empty.tok
    for stage in prefill decode; do
        bounded $stage < empty.tok > out
        [ $rc = 0 ]
    done
    [ "$(frames < out | jq -r 'select(.k == "end") | .completion_tokens' | tr -d '\n')" = 444 ]
}

@test "an err frame of an unknown request is refused" {
    edited '[.[0], .[1], {k:"err",seq:"0",index:0,id:"",code:1,text:"x"}, .[-1]]' three.json > done.tok
    bounded decode < done.tok > out
    [ $rc = 2 ]
    grep -q 'err frame of request 0.0' err
}

@test "twenty thousand empty prompts are twenty thousand errors" {
    edited '.[1] as $t | [.[0]] + [range(20000) | . as $i | $t | .seq = "\($i)" | .ids = []] + [.[-1]]' three.json > many.tok
    for stage in prefill decode; do
        bounded $stage < many.tok > out
        [ $rc = 0 ]
        [ "$(frames < out | jq -r 'select(.k == "err" and .text == "prompt is empty") | .k' | wc -l)" = 20000 ]
    done
}

@test "a pool of one block serves one prompt after another" {
    seq 100 | tokenize --raw --lines -n 2 > hundred.tok
    bounded prefill --kv-cache-memory-bytes 500K < hundred.tok > out
    [ $rc = 0 ]
    bounded decode --kv-cache-memory-bytes 500K < out > out2
    [ $rc = 0 ]
    [ "$(frames < out2 | jq -r 'select(.k == "end") | .k' | wc -l)" = 100 ]
}

@test "the maximum number of spans is accepted" {
    edited 'map(if .seq == "1" then .spans = [range(256) | {stage: "s"}] else . end)' three.json > spans.tok
    bounded decode < spans.tok > out
    [ $rc = 0 ]
    [ "$(frames < out | jq -r 'select(.k == "end") | .seq' | tr -d '\n')" = 012 ]
}

@test "a vocabulary with more entries than embedding rows is refused" {
    model=${XDG_CACHE_HOME:-$HOME/.cache}/phasepipe/SmolLM2-135M-Instruct.Q4_1.gguf
    cp "$model" small.gguf
    # its name, the number of dimensions, the first of them, then the rows
    at=$(($(grep -abo -m 1 token_embd.weight small.gguf | head -n 1 | cut -d: -f1) + 17 + 4 + 8))
    printf '\x00\x10\0\0\0\0\0\0' | dd of=small.gguf bs=1 seek=$at conv=notrunc status=none
    for stage in prefill decode; do
        XDG_CACHE_HOME=$PWD/cache bounded $stage -m small.gguf < three.tok > out
        [ $rc = 1 ]
        grep -q '49152 entries' err
    done
}
