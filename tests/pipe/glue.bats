#!/usr/bin/env bats
# Pipelines rearranged with the shell.

load pipe

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    for i in 1 2 3 4 5 6 7 8; do
        jq -cn --arg i $i '{id:("r"+$i),prompt:("Question "+$i+": what is "+$i+" plus one? Answer:"),max_tokens:6}'
    done > eight.jsonl
    tokenize --jsonl eight.jsonl > eight.tok
    prefill < eight.tok > eight.kv
    decode < eight.kv | stream --jsonl | jq -cS 'del(.timings)' > eight.want
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
}

@test "tee records a stage and the recording replays to the same answers" {
    tokenize -n 12 -p 'Name a colour.' | prefill | tee rec.kv | decode | tee rec.out | stream > live
    stream < rec.out > again
    cmp live again
    decode < rec.kv | stream > again
    cmp live again
    decode < rec.kv | frames | jq -c 'select(.k=="out")' > a
    frames < rec.out | jq -c 'select(.k=="out")' > b
    cmp a b
    [ -s live ]
}

@test "a recording of prefill has the same bytes each time except for clocks" {
    strip='del(.spans, .born_ns, .load_ns, .pid)'
    prefill < eight.tok | frames --full | jq -cS "$strip" > a
    frames --full < eight.kv | jq -cS "$strip" > b
    cmp a b
}

@test "cat a b | decode" {
    tokenize --raw -n 5 -p 'One two three' | prefill > a.kv
    tokenize --raw -n 5 -p 'Monday Tuesday' | prefill > b.kv
    { decode < a.kv | stream --jsonl; decode < b.kv | stream --jsonl; } | answers > want
    cat a.kv b.kv | decode | stream --jsonl | answers > got
    diff want got
    [ "$(wc -l < got)" = 2 ]
}

@test "two prefills, dealt and merged, give the same answers" {
    mkfifo in1 in2 out1 out2
    prefill < in1 > out1 3>&- &
    prefill < in2 > out2 3>&- &
    frames deal in1 in2 < eight.tok 3>&- &
    frames merge out1 out2 | decode | stream --jsonl | answers > got
    wait
    diff eight.want got
}

@test "a stage works at the far end of a byte stream" {
    # in place of ssh: another process passes the bytes on in odd pieces
    prefill < eight.tok | dd bs=61 iflag=fullblock status=none | dd bs=4099 status=none | decode |
        dd bs=13 status=none | stream --jsonl | answers > got
    diff eight.want got
}

@test "a stage can be written in jq" {
    tokenize -n 50 --raw -p 'One two three four' | frames --full |
        jq -c 'if .k == "tok" then .max_tokens = 3 else . end' | frames -e | prefill | decode | stream --jsonl > got
    [ "$(jq .usage.completion_tokens got)" = 3 ]
    [ "$(jq -r .finish_reason got)" = length ]
}

@test "a thousand prompts give a thousand answers in order" {
    for i in $(seq 1000); do echo "Line $i says"; done > prompts
    tokenize --raw --lines -n 2 prompts | prefill | decode | stream --jsonl > got
    [ "$(wc -l < got)" = 1000 ]
    jq -r .id got > ids
    seq 0 999 | sed 's/^/req-/' | diff - ids
    sed -n 500p got | jq -cS 'del(.timings, .id)' > a
    sed -n 500p prompts | tokenize --raw --lines -n 2 | prefill | decode | stream --jsonl | jq -cS 'del(.timings, .id)' > b
    diff a b
}

@test "a pool for two requests completes eight interleaved ones" {
    # open frames first, then all blocks: the worst order a merge can make
    frames --full < eight.kv > eight.json
    { jq -c 'select(.k=="hello")' eight.json
      jq -c 'select(.k=="open")' eight.json
      jq -cs 'map(select(.k=="blk")) | sort_by(.layer, .block)[]' eight.json
      jq -c 'select(.k=="kv")' eight.json
      jq -c 'select(.k=="bye")' eight.json; } | frames -e > mixed.kv
    for slots in 1 2 3; do
        timeout 120 decode --kv-cache-memory-bytes $((slots * 397312)) < mixed.kv | stream --jsonl | answers > got
        diff eight.want got
    done
}

@test "a pool for two requests completes prompts too" {
    timeout 120 decode --kv-cache-memory-bytes 800K < eight.tok | stream --jsonl | answers > got
    diff eight.want got
    timeout 120 prefill --kv-cache-memory-bytes 800K < eight.tok | decode --kv-cache-memory-bytes 800K | stream --jsonl | answers > got
    diff eight.want got
}

@test "an empty input gives an empty output" {
    tokenize --jsonl < /dev/null | prefill | decode | stream --jsonl > got
    [ ! -s got ]
}
