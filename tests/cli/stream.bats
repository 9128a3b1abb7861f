#!/usr/bin/env bats
# stream: order, formats, statistics and errors, from frames written by hand.

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
}

hello='{"k":"hello","version":7,"from":"decode"}'
bye='{"k":"bye","from":"decode","n_ok":"1","n_error":"0"}'
out() { jq -cn --arg s "$1" --argjson i "$2" --arg t "$3" '{k:"out",seq:$s,index:$i,id:("r"+$s),ids:[1],text:$t}'; }
end() { # SEQ INDEX [more fields]
    jq -cn --arg s "$1" --argjson i "$2" --argjson more "${3:-null}" '{k:"end",seq:$s,index:$i,id:("r"+$s),reason:"stop",
        prompt_tokens:3,completion_tokens:2,cached_tokens:1} + $more'
}
send() { printf '%s\n' "$@" | frames -e; }

@test "one answer is its text and a line feed" {
    send "$hello" "$(out 0 0 'Hel')" "$(out 0 0 'lo')" "$(end 0 0)" "$bye" | stream > got
    printf 'Hello\n' | cmp - got
    send "$hello" "$(out 0 0 $'a\n')" "$(end 0 0)" "$bye" | stream > got
    printf 'a\n' | cmp - got
}

@test "text is shown as it arrives" {
    mkfifo in
    stream < in > got 3>&- &
    exec 4> in
    send "$hello" "$(out 0 0 'first ')" >&4
    for _ in $(seq 100); do [ -s got ] && break; sleep 0.05; done
    [ "$(cat got)" = "first " ]
    send "$(out 0 0 'second')" "$(end 0 0)" "$bye" >&4
    exec 4>&-
    wait $!
    [ "$(cat got)" = "first second" ]
}

@test "several answers come in the order of the input, a blank line between them" {
    send "$hello" "$(out 1 0 B)" "$(end 1 0)" "$(out 2 0 C)" "$(out 0 0 A)" "$(end 2 0)" "$(out 0 0 A)" "$(end 0 0)" "$bye" > s
    stream < s > got
    printf 'AA\n\nB\n\nC\n' | cmp - got
    [ "$(stream --jsonl < s | jq -r .text | paste -sd' ')" = "AA B C" ]
    [ "$(stream --jsonl --unordered < s | jq -r .text | paste -sd' ')" = "B C AA" ]
}

@test "choices of a request are in order too" {
    n='{"choices":2}'
    send "$hello" "$(out 1 0 X)" "$(end 1 0)" "$(out 0 1 B)" "$(end 0 1 "$n")" "$(out 0 0 A)" "$(end 0 0 "$n")" "$bye" > s
    [ "$(stream --jsonl < s | jq -c '[.id,.index,.text]' | paste -sd' ')" = '["r0",0,"A"] ["r0",1,"B"] ["r1",0,"X"]' ]
}

@test "two streams in a row are independent" {
    send "$hello" "$(out 0 0 A)" "$(end 0 0)" "$bye" > a
    send "$hello" "$(out 0 0 B)" "$(end 0 0)" "$bye" > b
    [ "$(cat a b | stream --jsonl | jq -r .text | paste -sd' ')" = "A B" ]
}

@test "a JSON line has the documented fields" {
    spans='{"born_ns":"1000","first_ns":"11000","last_ns":"31000","load_ns":"77","stop_text":"X","spans":[
        {"stage":"tokenize","host":"h","pid":1,"queued_ns":"1000","start_ns":"1000","end_ns":"2000","tokens":"3","bytes":"12"},
        {"stage":"prefill","host":"h","pid":2,"queued_ns":"2500","start_ns":"3000","end_ns":"10000","tokens":"3","bytes":"99"},
        {"stage":"decode","host":"h","pid":3,"queued_ns":"2600","start_ns":"11200","end_ns":"31000","tokens":"2","bytes":"0"}],
        "request":{"my_field":[1],"text":"never"}}'
    send "$hello" "$(out 0 0 hi)" "$(end 0 0 "$spans")" "$bye" | stream --jsonl > got
    [ "$(wc -l < got)" = 1 ]
    jq -cS . got > a
    jq -cS . > b <<'J'
{"id":"r0","index":0,"text":"hi","token_ids":[1],"finish_reason":"stop","stop_reason":"X","logprobs":null,"error":null,
 "usage":{"prompt_tokens":3,"completion_tokens":2,"cached_tokens":1},
 "timings":{"total_duration":30000,"load_duration":77,"prompt_eval_count":3,"prompt_eval_duration":7000,"eval_count":2,
  "eval_duration":20000,"ttft_ns":10000,"queue_ns":700,"transfer_ns":1000},"my_field":[1]}
J
    diff a b
}

@test "clocks of two hosts are never compared" {
    spans='{"born_ns":"999999999","first_ns":"11000","last_ns":"31000","spans":[
        {"stage":"tokenize","host":"a","pid":1,"queued_ns":"999999999","start_ns":"999999999","end_ns":"1000000999","tokens":"3","bytes":"12"},
        {"stage":"prefill","host":"b","pid":2,"queued_ns":"5000000","start_ns":"5000000","end_ns":"5007000","tokens":"3","bytes":"99"},
        {"stage":"decode","host":"c","pid":3,"queued_ns":"2600","start_ns":"11000","end_ns":"31000","tokens":"2","bytes":"0"}]}'
    [ "$(send "$hello" "$(end 0 0 "$spans")" "$bye" | stream --jsonl | jq -c '.timings|[.ttft_ns,.total_duration,.transfer_ns,.queue_ns]')" = \
        "[8000,28000,0,0]" ]
}

@test "log-probabilities are spelled by the vocabulary" {
    ids=$(tokenize --raw --ids -p ' the')
    [[ $ids =~ ^[0-9]+$ ]]
    send "$hello" '{"k":"out","seq":"0","index":0,"id":"r0","ids":[5],"text":"","prompt":true,"lp":[[5,null,[],0]]}' \
        '{"k":"out","seq":"0","index":0,"id":"r0","ids":['"$ids"',2],"text":" the","lp":[['"$ids"',-0.5,[['"$ids"',-0.5],[2,-1.5]],1],[2,-2,[],7]]}' \
        "$(end 0 0)" "$bye" | stream --jsonl | jq -c '.logprobs' > got
    [ "$(jq -c '.tokens[1:],.token_logprobs' got | paste -sd' ')" = '[" the","<|im_end|>"] [null,-0.5,-2.0]' ] ||
        [ "$(jq -c '.tokens[1:],.token_logprobs' got | paste -sd' ')" = '[" the","<|im_end|>"] [null,-0.5,-2]' ]
    [ "$(jq -c '.top_logprobs' got)" = '[null,{" the":-0.5,"<|im_end|>":-1.5},{}]' ]
    [ "$(jq -c '.text_offset|length' got)" = 3 ]
}

@test "log-probabilities of a prompt without echo are a separate field" {
    ids=$(tokenize --raw --ids -p ' the')
    send "$hello" '{"k":"out","seq":"0","index":0,"id":"r0","ids":[5,'"$ids"'],"prompt":true,"silent":true,"lp":[[5,null,[],0],['"$ids"',-0.25,[],3]]}' \
        '{"k":"out","seq":"0","index":0,"id":"r0","ids":['"$ids"'],"text":" the"}' "$(end 0 0)" "$bye" > s
    stream --jsonl < s | jq -e '.text==" the" and .logprobs==null and (.token_ids|length)==1
        and .prompt_logprobs.token_logprobs==[null,-0.25] and .prompt_logprobs.tokens[1]==" the"'
    [ "$(stream < s)" = " the" ]
    [ "$(tokenize -d < s)" = " the" ]
}

@test "a failed request is named on stderr, is a line with --jsonl, and makes the status 1" {
    e='{"k":"err","seq":"0","index":0,"id":"bad one","code":1,"text":"line 1: temperature: too hot"}'
    rc=0
    send "$hello" "$e" "$(out 1 0 B)" "$(end 1 0)" "$bye" > s
    stream < s > got 2> err || rc=$?
    [ "$rc" -eq 1 ]
    printf 'B\n' | cmp - got
    grep -q 'bad one: line 1: temperature: too hot' err
    rc=0
    stream --jsonl < s > got 2> err || rc=$?
    [ "$rc" -eq 1 ]
    [ "$(jq -c '[.id,.finish_reason,.error.message,.error.code]' got | head -1)" = '["bad one","error","line 1: temperature: too hot",1]' ]
    [ "$(jq -r .text got | tail -1)" = B ]
}

@test "an end without bye is an error that names the stage before, after the answers so far" {
    rc=0
    send "$hello" "$(out 0 0 'half')" | stream > got 2> err || rc=$?
    [ "$rc" -eq 2 ]
    [ "$(cat got)" = half ]
    grep -q decode err
    rc=0
    send "$hello" "$(out 0 0 'half')" "$bye" | stream > got 2> err || rc=$?
    [ "$rc" -eq 2 ]
    grep -q 'r0' err
    rc=0
    stream < /dev/null > got 2> err || rc=$?
    [ "$rc" -eq 2 ]
}

@test "frames other than answers are refused" {
    rc=0
    tokenize -p hi | stream > got 2> err || rc=$?
    [ "$rc" -eq 2 ]
    grep -q 'tok' err
}

@test "--stats prints counts, durations and rates on stderr" {
    spans='{"born_ns":"0","first_ns":"2000000000","last_ns":"4000000000","completion_tokens":5,"prompt_tokens":100,"cached_tokens":0,"spans":[
        {"stage":"prefill","host":"h","pid":2,"queued_ns":"0","start_ns":"1000000000","end_ns":"2000000000","tokens":"3","bytes":"99"}]}'
    send "$hello" "$(out 0 0 A)" "$(end 0 0 "$spans")" "$bye" | stream --stats > got 2> err
    [ "$(cat got)" = A ]
    grep -Eq '^prompt eval rate: +100.00 tokens/s' err
    grep -Eq '^eval rate: +2.00 tokens/s' err
    grep -Eq '^time per token after: +500.000 ms' err
    send "$hello" "$(end 0 0 "$spans")" "$(end 1 0 "$spans")" "$bye" | stream --stats 2> err
    grep -Eq '^answers: +2' err
    grep -Eq '^rate within an answer: +2.00' err
}

@test "a closed pipe and a full disk are system failures" {
    { echo "$hello"; yes "$(out 0 0 'some text that fills a pipe, some text that fills a pipe')" | head -3000; end 0 0; echo "$bye"; } |
        frames -e > s
    run bash -c 'set -o pipefail; stream < s | head -c 1 > /dev/null'
    [ "$status" -eq 111 ]
    [ ! -w /dev/full ] || { run bash -c 'stream < s > /dev/full'; [ "$status" -eq 111 ]; }
}
