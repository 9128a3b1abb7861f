#!/usr/bin/env bats
# A fault in a pipeline is reported by name, with the documented exit status; nothing hangs, and no fault looks like an end.

load pipe

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    for i in $(seq 60); do seq -s ' ' "$i" 500; done | tokenize --raw --lines -n 400 --ignore-eos > long.tok
    for i in 1 2 3; do echo "Line $i says"; done | tokenize --raw --lines -n 4 > three.tok
    prefill < three.tok > three.kv
    decode < three.kv > three.out
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
}

# Kills stage $1 while all stages are busy. The others end by themselves and report the fault.
kill_stage() {
    rm -f p1 p2
    mkfifo p1 p2
    prefill --threads 1 < long.tok > p1 2> prefill.err 3>&- & a=$!
    decode --threads 1 < p1 > p2 2> decode.err 3>&- & b=$!
    stream --jsonl < p2 > stream.out 2> stream.err 3>&- & c=$!
    sleep 1
    case $1 in
    prefill) kill -9 $a ;;
    decode) kill -9 $b ;;
    stream) kill -9 $c ;;
    esac
    ra=0 rb=0 rc=0
    wait $a || ra=$?
    wait $b || rb=$?
    wait $c || rc=$?
}

@test "tokenize killed between two frames is an error" {
    rm -f p0 p1 p2
    mkfifo p0 p1 p2
    tokenize --jsonl < p0 > p1 2> /dev/null 3>&- & t=$!
    prefill < p1 2> prefill.err 3>&- > p2 & a=$!
    decode < p2 > decode.out 2> decode.err 3>&- & b=$!
    exec 9> p0
    echo '{"prompt":"One two","max_tokens":3}' >&9
    for _ in $(seq 100); do [ -s decode.out ] && break; sleep 0.05; done
    kill -9 $t
    ra=0 rb=0
    wait $a || ra=$?
    wait $b || rb=$?
    exec 9>&-
    [ $ra = 2 ] && grep -q 'tokenize' prefill.err
    [ $rb = 2 ] && grep -q 'prefill' decode.err
}

@test "a killed prefill is an error that names it" {
    kill_stage prefill
    [ $rb = 2 ]
    grep -q 'prefill' decode.err
    [ $rc = 2 ]
    grep -q 'decode' stream.err
}

@test "a killed decode is an error that names it" {
    kill_stage decode
    [ $rc = 2 ]
    grep -q 'decode' stream.err
    [ $ra = 111 ]
    grep -q 'next stage has ended' prefill.err
}

@test "a killed stream ends the stages before it" {
    kill_stage stream
    [ $rb = 111 ]
    grep -q 'next stage has ended' decode.err
}

@test "a recording cut anywhere is an error that names the stage before and the place" {
    size=$(stat -c%s three.kv)
    for at in 1 4 5 100 $((size / 2)) $((size - 1)); do
        rc=0
        head -c $at three.kv | decode > cut.out 2> cut.err || rc=$?
        [ $rc = 2 ]
        grep -Eq 'byte|ended without' cut.err
    done
    size=$(stat -c%s three.out)
    for at in 3 50 $((size / 2)) $((size - 1)); do
        rc=0
        head -c $at three.out | stream --jsonl > cut.json 2> cut.err || rc=$?
        [ $rc = 2 ]
    done
}

@test "a recording cut between two frames is an error too" {
    frames --full < three.kv | sed '$d' | frames -e > nobye.kv || true
    rc=0
    decode < nobye.kv > cut.out 2> cut.err || rc=$?
    [ $rc = 2 ]
    grep -q 'prefill' cut.err
}

@test "a damaged block is found by its checksum" {
    frames --full < three.kv | jq -c 'if .k == "blk" and .layer == 4 then .sum = "1" else . end' | frames -e > bad.kv
    rc=0
    decode < bad.kv > bad.out 2> bad.err || rc=$?
    [ $rc = 2 ]
    grep -q 'checksum' bad.err
}

@test "a full disk is a system failure" {
    [ -c /dev/full ]
    for stage in 'prefill < three.tok' 'decode < three.kv' 'stream --jsonl < three.out' 'tokenize -p x' 'frames < three.kv'; do
        rc=0
        eval "$stage" > /dev/full 2> full.err || rc=$?
        [ $rc = 111 ]
        grep -Eq 'disk is full|No space left' full.err
    done
}

@test "a limit on the file size is a system failure" {
    for stage in 'prefill < three.tok' 'decode < three.kv'; do
        rc=0
        (ulimit -f 0; eval "$stage" > limited.out 2> >(cat > limited.err)) || rc=$?
        [ $rc = 111 ]
    done
}

@test "packed weights that are truncated while in use are an error" {
    export XDG_CACHE_HOME=$PWD/cache
    mkdir -p cache
    mkfifo held
    prefill -m "$PHASEPIPE_TEST_MODEL" < held > cut.out 2> cut.err 3>&- & a=$!
    exec 9> held
    for _ in $(seq 200); do ls cache/phasepipe/packed/*.pack > /dev/null 2>&1 && break; sleep 0.05; done
    sleep 0.5
    truncate -s 4096 cache/phasepipe/packed/*.pack
    cat three.tok >&9
    exec 9>&-
    rc=0
    wait $a || rc=$?
    [ $rc = 111 ]
    grep -q 'packed weights' cut.err
    # the next run packs them again
    prefill -m "$PHASEPIPE_TEST_MODEL" < three.tok | decode -m "$PHASEPIPE_TEST_MODEL" > again.out
}

@test "only the prompt beyond the context length or the budget fails" {
    { jq -cn --arg p "$(seq -s ' ' 6000)" '{id:"window",prompt:$p,max_tokens:4}'
      jq -cn --arg p "$(seq -s ' ' 300)" '{id:"budget",prompt:$p,max_tokens:4}'
      echo '{"id":"fits","prompt":"One two three","max_tokens":4}'; } > sizes.jsonl
    rc=0
    tokenize --jsonl sizes.jsonl | prefill | decode --kv-cache-memory-bytes 4M | stream --jsonl > got 2> err || rc=$?
    [ $rc = 1 ]
    [ "$(jq -r 'select(.id=="fits") | .finish_reason' got)" = length ]
    [ "$(jq -r 'select(.id=="window") | .finish_reason' got)" = error ]
    jq -r 'select(.id=="window") | .error | tostring' got | grep -q 8192
    jq -r 'select(.id=="budget") | .error | tostring' got | grep -q 'KV blocks'
}

@test "an answer that outgrows the budget ends by length" {
    tokenize --raw -n 4000 --ignore-eos -p 'One two three four five' > grow.tok
    timeout 60 decode --kv-cache-memory-bytes 1200K < grow.tok | stream --jsonl > got
    [ "$(jq -r .finish_reason got)" = length ]
    [ "$(jq .usage.completion_tokens got)" -lt 100 ]
}

@test "an answer at the context length ends by length" {
    tokenize --raw -n 4000 --ignore-eos -p 'One two three four five' | decode --max-model-len 40 | stream --jsonl > got
    [ "$(jq -r .finish_reason got)" = length ]
    [ "$(jq '.usage | .prompt_tokens + .completion_tokens' got)" = 40 ]
}

@test "a stage that dies before its hello is an error" {
    for stage in prefill decode 'stream --jsonl'; do
        rc=0
        $stage < /dev/null > junk.out 2> junk.err || rc=$?
        [ $rc = 2 ]
        grep -Eq 'stage before|hello' junk.err
    done
}

@test "input that is not a stream is refused" {
    for stage in prefill decode 'stream --jsonl' frames; do
        rc=0
        echo 'hello there' | $stage > junk.out 2> junk.err || rc=$?
        [ $rc = 2 ]
        [ -s junk.err ]
    done
}

@test "frames in the wrong place are refused" {
    for stage in prefill decode; do
        rc=0
        $stage < three.out > junk.out 2> junk.err || rc=$?
        [ $rc = 2 ]
        grep -q 'frame' junk.err
    done
    rc=0
    prefill < three.kv > junk.out 2> junk.err || rc=$?
    [ $rc = 2 ]
    grep -q 'prefilled already' junk.err
}

@test "KV types that do not match are refused" {
    rc=0
    decode --kv-cache-dtype f16 < three.kv > junk.out 2> junk.err || rc=$?
    [ $rc = 2 ]
    grep -q 'int8' junk.err
}

@test "ids beyond the model's vocabulary are refused" {
    frames --full < three.tok | jq -c 'if .k == "tok" and .seq == "1" then .ids = [49152] else . end' | frames -e > ids.tok
    for stage in prefill decode; do
        rc=0
        if [ $stage = prefill ]; then prefill < ids.tok | decode; else decode < ids.tok; fi | stream --jsonl > got 2> err || rc=$?
        [ $rc = 1 ]
        [ "$(jq -r 'select(.finish_reason=="error") | .error | tostring' got | grep -c 49152)" = 1 ]
        [ "$(jq -r 'select(.finish_reason=="length") | .id' got | wc -l)" = 2 ]
    done
}

@test "invalid flags are misuse" {
    for cmd in 'prefill --nope' 'prefill --threads 0' 'decode --max-num-seqs x' 'prefill --kv-cache-dtype int9' \
        'decode --kv-cache-memory-bytes 1Q' 'prefill --max-num-batched-tokens' 'prefill extra'; do
        rc=0
        $cmd < three.tok > junk.out 2> junk.err || rc=$?
        [ $rc = 100 ]
        [ ! -s junk.out ]
        [ -s junk.err ]
    done
    rc=0
    PHASEPIPE_ISA=sse9 prefill < three.tok > junk.out 2> junk.err || rc=$?
    [ $rc = 100 ]
    grep -q sse9 junk.err
}
