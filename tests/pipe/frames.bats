#!/usr/bin/env bats
# frames: JSON lines and back, deal and merge.

setup() {
    PATH="${PHASEPIPE_BIN:-$BATS_TEST_DIRNAME/../../${B:-build}/bin}:$PATH"
    cd "$BATS_TEST_TMPDIR"
}

hello='{"k":"hello","version":7,"from":"tokenize","vocab":{"fp":"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f","n":49152}}'

# requests FIRST LAST: a stream of tok frames
requests() {
    echo "$hello"
    seq "$1" "$2" | sed 's/.*/{"k":"tok","seq":"&","index":0,"id":"r&","ids":[1,2,&]}/'
    echo "{\"k\":\"bye\",\"from\":\"tokenize\",\"n_ok\":\"$(($2 - $1 + 1))\",\"n_error\":\"0\"}"
}

# blocks FIRST LAST: a stream of open, blk and kv frames, each payload of 3,000 bytes
blocks() {
    requests 0 0 | head -1
    data=$(head -c 3000 /dev/zero | base64 -w 0)
    for i in $(seq "$1" "$2"); do
        echo "{\"k\":\"open\",\"seq\":\"$i\",\"index\":0,\"id\":\"r$i\",\"ids\":[1,2,$i]}"
        for b in 0 1 2; do
            echo "{\"k\":\"blk\",\"seq\":\"$i\",\"index\":0,\"block\":\"$b\",\"layer\":0,\"n_layer\":1,\"n_token\":32,\"sum\":\"1\",\"data\":\"$data\"}"
        done
        echo "{\"k\":\"kv\",\"seq\":\"$i\",\"index\":0,\"n_token\":3,\"first\":[5,-0.5,[],1]}"
    done
    echo "{\"k\":\"bye\",\"from\":\"prefill\",\"n_ok\":\"$(($2 - $1 + 1))\",\"n_error\":\"0\"}"
}

@test "JSON lines to frames and back, to the byte" {
    requests 0 3 > want
    frames -e < want > a
    frames --full < a > got
    diff want got
    blocks 0 2 | frames -e > b
    cat a b > ab
    frames --full ab | frames -e | cmp - ab
    frames b | grep -q '"data":{"bytes":"3000","sum":"'
}

@test "an empty input is accepted, an input without bye is an error with stage and offset" {
    run frames < /dev/null
    [ "$status" -eq 0 ] && [ -z "$output" ]
    requests 0 1 | frames -e > a
    n=$(stat -c %s a)
    head -c $((n - 38)) a > cut
    run frames cut
    [ "$status" -eq 2 ]
    [[ "$output" == *"frames: cut: ended without bye at byte $((n - 38)): tokenize failed or was killed"* ]]
    [[ "$output" == *'"id":"r1"'* ]]
    head -c $((n - 3)) a > cut
    run frames cut
    [ "$status" -eq 2 ]
    [[ "$output" == *"truncated frame at byte $((n - 38)): tokenize failed or was killed"* ]]
}

@test "text is refused as a stream, and invalid JSON is named by its line" {
    run bash -c 'echo The cat | frames'
    [ "$status" -eq 2 ]
    [ "$output" = 'frames: stdin: not a phasepipe stream (byte 0 is 0x54, "T")' ]
    run bash -c 'printf "\n\n{\"k\":\"tok\"}\n" | frames -e'
    [ "$status" -eq 2 ]
    [[ "$output" == "frames: stdin: line 3: tok frame: field seq: it is missing"* ]]
}

@test "frames are never written to a terminal, misuse is reported" {
    command -v script > /dev/null || skip "no script(1) to make a terminal"
    run script -qec "echo | frames -e" /dev/null
    [ "$status" -eq 100 ]
    [[ "$output" == *"not for a terminal"* ]]
    run frames deal
    [ "$status" -eq 100 ]
    run frames -e x
    [ "$status" -eq 100 ]
    run frames no-such-file
    [ "$status" -eq 111 ]
}

@test "deal goes round-robin by request, with hello to all and its own counts in bye" {
    blocks 0 4 | frames -e | frames deal x y
    frames x > x.json
    frames y > y.json
    [ "$(grep -c '"k":"blk"' x.json)" -eq 9 ]
    [ "$(grep -c '"k":"blk"' y.json)" -eq 6 ]
    [ "$(grep '"k":"open"' x.json | grep -o '"seq":"[0-9]*"' | tr -d '\n')" = '"seq":"0""seq":"2""seq":"4"' ]
    grep -q '"from":"frames","n_ok":"3","n_error":"0"' x.json
    grep -q '"from":"frames","n_ok":"2","n_error":"0"' y.json
    for f in x y; do
        head -1 $f.json | grep -q '"k":"hello".*"n":49152'
    done
}

@test "deal counts a failed request as failed" {
    { requests 0 2 | head -3
      echo '{"k":"err","seq":"2","index":0,"id":"r2","code":1,"text":"too long"}'
      echo '{"k":"bye","from":"tokenize","n_ok":"2","n_error":"1"}'; } | frames -e | frames deal x y
    frames x | grep -q '"n_ok":"1","n_error":"1"'
    frames y | grep -q '"n_ok":"1","n_error":"0"'
}

@test "deal and merge through fifos opened in any order give every frame back" {
    mkfifo p0 p1 p2 q0 q1 q2
    blocks 0 29 | frames -e > all
    for i in 2 0 1; do
        cat p$i > q$i 3>&- &
    done
    timeout 20 frames merge q1 q2 q0 > merged 3>&- &
    timeout 20 frames deal p0 p1 p2 < all
    wait $!
    frames merged > merged.json
    [ "$(head -1 merged.json)" = "$(frames all | head -1 | sed 's/"from":"prefill"/"from":"frames"/; s/"from":"tokenize"/"from":"frames"/')" ]
    diff <(frames all | sed '1d;$d' | sort) <(sed '1d;$d' merged.json | sort)
    [ "$(tail -1 merged.json)" = '{"k":"bye","from":"frames","n_ok":"30","n_error":"0"}' ]
}

@test "a consumer that waits does not delay the other" {
    mkfifo slow fast
    requests 0 19999 | frames -e > all
    timeout 20 frames deal slow fast < all 3>&- &
    timeout 10 cat fast > fast.frames
    frames fast.frames | tail -1 | grep -q '"n_ok":"10000"'
    timeout 10 cat slow > slow.frames
    wait $!
    frames slow.frames | tail -1 | grep -q '"n_ok":"10000"'
}

@test "merge refuses streams that do not match, duplicate requests, and truncated input" {
    requests 0 3 | frames -e > a
    requests 3 5 | frames -e > b
    run bash -c 'frames merge a b > ab'
    [ "$status" -eq 2 ]
    [[ "$output" == *"request 3, 0 is a duplicate: it came before from another input"* ]]
    requests 4 5 | sed 's/49152/7/' | frames -e > other
    run bash -c 'frames merge a other > ab'
    [ "$status" -eq 2 ]
    [[ "$output" == *"cannot be merged: different vocabularies"* ]]
    requests 4 5 | frames -e | head -c 150 > cut
    run bash -c 'frames merge a cut > ab'
    [ "$status" -eq 2 ]
    [[ "$output" == *"frames: cut: truncated frame at byte"*"tokenize failed or was killed"* ]]
    run bash -c 'frames merge a /dev/null > ab'
    [ "$status" -eq 2 ]
    [[ "$output" == *"/dev/null: ended without hello"* ]]
}

@test "a closed consumer and a full disk are named" {
    requests 0 20000 | frames -e > a
    run bash -c 'frames merge a | true; exit ${PIPESTATUS[0]}'
    [ "$status" -eq 111 ]
    [[ "$output" == *"stdout: the next stage has ended"* ]]
    run bash -c 'frames deal /dev/full < a'
    [ "$status" -eq 111 ]
    [[ "$output" == *"/dev/full: the disk is full"* ]]
}
