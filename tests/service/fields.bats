#!/usr/bin/env bats
# Fields of requests through the services, on the real model: the same lines as through the pipeline, with an empty store
# and with cached prompts. Log-probabilities of a prompt need its logits, which are not cached.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR"
    export PHASEPIPE_RUN=
    mkdir -m 700 up
    timeout -k 1 120 phasepipe up --run "$PWD/up" --kv-cache-memory-bytes 96M --detach > up.log 2>&1 3>&-
}

teardown() {
    timeout -k 1 30 phasepipe down --run "$PWD/up" > /dev/null 2>&1 || true
}

same='del(.timings) | if .usage then .usage |= del(.cached_tokens) else . end'
pipe() { tokenize --jsonl 2> /dev/null | prefill | decode | stream --jsonl | jq -cS "$same"; }
raw() { timeout -k 1 120 stream --run "$PWD/up" --jsonl "$@"; }
ask() { raw "$@" | jq -cS "$same"; }

# Prompts of 540 tokens, the first 480 of them shared: two chunks, and 15 common blocks. Requests as of lm-eval: lists of
# ids, one token, echo and one log-probability.
prompts() {
    local i ids
    for i in 1 2 3; do
        ids=$(jq -cn --argjson i $i '[range(480)|(. * 37 + 11) % 40000 + 100] + [range(60)|(. * 91 + $i * 7919) % 40000 + 100]')
        echo "{\"id\":\"eval$i\",\"prompt\":$ids,\"max_tokens\":1,\"logprobs\":1,\"echo\":true}"
        echo "{\"id\":\"none$i\",\"prompt\":$ids,\"max_tokens\":0,\"logprobs\":2,\"echo\":true}"
        echo "{\"id\":\"apart$i\",\"prompt\":$ids,\"max_tokens\":8,\"prompt_logprobs\":3,\"temperature\":0.9,\"seed\":$i,\"logprobs\":0}"
        echo "{\"id\":\"plain$i\",\"prompt\":$ids,\"max_tokens\":4,\"logprobs\":0}"
    done
}

@test "log-probabilities of a prompt are the same with an empty store and with a cached prompt" {
    prompts > in
    pipe < in > want
    [ "$(jq -s 'map(select(.id | startswith("eval")) | .logprobs.token_logprobs | length) | unique | @json' want)" = '"[541]"' ]
    grep eval1 in | ask > cold
    diff <(grep eval1 want) cold
    # the prompt is cached now: a request without its logits uses it, one with logits computes it again
    grep -E 'plain1|eval1|none1|apart1' in > warm.in
    raw < warm.in > warm
    diff <(grep -E 'plain1|eval1|none1|apart1' want) <(jq -cS "$same" warm)
    [ "$(jq 'select(.id == "plain1") | .usage.cached_tokens' warm)" -ge 512 ]
    [ "$(jq 'select(.id != "plain1") | .usage.cached_tokens' warm | sort -u)" = 0 ]
    # all at once, the first of each over the blocks of the others
    ask < in | diff want -
    # one after another
    ask --max-running 1 < in | diff want -
}

@test "masks, stop strings and continued chats give the answers of the pipeline" {
    cat > in << 'J'
{"prompt":"The capital of France is","max_tokens":12,"bad_words":["Paris"]}
{"prompt":"The capital of France is","max_tokens":12,"allowed_token_ids":[28,30,260,284,253],"temperature":0.8,"seed":3,"n":2}
{"prompt":"A B C D E F","max_tokens":20,"stop":"J K","include_stop_str_in_output":true}
{"messages":[{"role":"user","content":"Say hi."}],"max_tokens":60,"skip_special_tokens":false,"include_stop_str_in_output":true}
{"messages":[{"role":"user","content":"Say hi."},{"role":"assistant","content":"Hi, I"}],"max_tokens":9,"add_generation_prompt":false,"continue_final_message":true}
{"prompt":" France is","prefix_token_ids":[504,3575,282],"max_tokens":9}
{"prompt":"The capital of France is","truncate_prompt_tokens":2,"max_tokens":9}
{"prompt":"The capital of France is","max_tokens":9,"stop_token_ids":[7042],"min_tokens":3}
{"prompt":"a","max_tokens":8192,"strict_window":true}
{"prompt":"a","allowed_token_ids":[49152]}
J
    pipe < in | sed 's/line [0-9]*: //' > want
    [ "$(wc -l < want)" = 11 ]
    ask < in | sed 's/line [0-9]*: //' | diff want -
    ask < in | sed 's/line [0-9]*: //' | diff want -
}
