#!/usr/bin/env bats
# Fields that change the choice of tokens or their text, on the real model. The expected behaviour is that of vLLM's
# documentation; tests/pipe/determinism tests that results do not depend on how they are computed.

load pipe

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
}

# ask 'JSON' …: prints the answers of prefill | decode, and checks that decode alone gives the same
ask() {
    printf '%s\n' "$@" | tokenize --jsonl > tok
    pipe < tok > got
    decode < tok | stream --jsonl | answers | diff got - >&2 || return 1
    cat got
}

# of FILTER 'JSON': prints the result of the filter on the answer
of() {
    ask "$2" | jq -r "$1"
}

france='"prompt":"The capital of France is","max_tokens":12'

@test "allowed_token_ids: nothing else is chosen, greedy or not" {
    ids=$(for d in 0 1 2 3 4 5 6 7 8 9; do tokenize --raw --ids -p $d; done | paste -sd,)
    [[ "$(of .text "{$france,\"allowed_token_ids\":[$ids]}")" =~ ^[0-9]{12}$ ]]
    [[ "$(of .text "{$france,\"allowed_token_ids\":[$ids],\"temperature\":2,\"seed\":3,\"top_p\":0.9}")" =~ ^[0-9]{12}$ ]]
    # the end is not allowed, so it does not end
    [ "$(of .finish_reason "{\"messages\":[{\"role\":\"user\",\"content\":\"Say hi.\"}],\"max_tokens\":40,\"allowed_token_ids\":[$ids]}")" = length ]
    all=$(seq -s, 0 49151)
    [ "$(of .token_ids "{$france,\"allowed_token_ids\":[$all]}")" = "$(of .token_ids "{$france}")" ]
    # the last allowed id is banned by another field: an error of this request, not a token
    ask "{$france,\"allowed_token_ids\":[260],\"bad_words\":[\"the\"]}" "{$france,\"logit_bias\":{\"260\":1}}" > out
    [ "$(jq -s '.[0].error.code' out)" != null ]
    [ "$(jq -s '.[1].error' out)" = null ]
}

@test "bad_words: a string of one or several tokens does not occur" {
    plain=$(of .text "{$france}")
    [[ "$plain" == *Paris* ]]
    other=$(of .text "{$france,\"bad_words\":[\"Paris\"]}")
    [[ "$other" != *Paris* ]]
    [ -n "$other" ]
    two=$(of .text "{\"prompt\":\"Monday, Tuesday, Wednesday, Thursday,\",\"max_tokens\":6}")
    [[ "$two" == " Friday, and Saturday"* ]]
    # of two words only the second is masked, and only after the first
    two=$(of .text "{\"prompt\":\"Monday, Tuesday, Wednesday, Thursday,\",\"max_tokens\":6,\"bad_words\":[\"and Saturday\"]}")
    [[ "$two" == " Friday, and"* ]]
    [[ "$two" != *"and Saturday"* ]]
}

@test "skip_special_tokens and include_stop_str_in_output determine the text" {
    hi='"messages":[{"role":"user","content":"Say hi."}],"max_tokens":60'
    plain=$(of .text "{$hi}")
    [ "$(of .finish_reason "{$hi}")" = stop ]
    [ "$(of .text "{$hi,\"skip_special_tokens\":false}")" = "$plain" ]
    [ "$(of .text "{$hi,\"skip_special_tokens\":false,\"include_stop_str_in_output\":true}")" = "$plain<|im_end|>" ]
    [ "$(of .text "{$hi,\"include_stop_str_in_output\":true}")" = "$plain" ]
    long=$(of .text "{$hi,\"ignore_eos\":true,\"skip_special_tokens\":false}")
    [[ "$long" == "$plain<|im_end|>"* ]]
    [ "$(of .text "{\"prompt\":[1,4093,198],\"max_tokens\":0,\"echo\":true,\"skip_special_tokens\":false}")" = '<|im_start|>user' ]
    abc='"prompt":"A B C D E F","max_tokens":20'
    [ "$(of .text "{$abc,\"stop\":\"I K\"}")" = ' G H ' ]
    [ "$(of .text "{$abc,\"stop\":\"I K\",\"include_stop_str_in_output\":true}")" = ' G H I K' ]
    k=$(tokenize --raw --ids -p ' K')
    [ "$(of '[.text,.stop_reason]|@json' "{$abc,\"stop_token_ids\":[$k]}")" = "[\" G H I\",$k]" ]
    [ "$(of .text "{$abc,\"stop_token_ids\":[$k],\"include_stop_str_in_output\":true}")" = ' G H I K' ]
}

@test "min_tokens: neither the end nor a stop id is chosen before" {
    abc='"prompt":"A B C D E F","max_tokens":6'
    g=$(tokenize --raw --ids -p ' G')
    [ "$(of .text "{$abc,\"stop_token_ids\":[$g]}")" = '' ]
    ids=$(of '.token_ids|length,index('"$g"')' "{$abc,\"stop_token_ids\":[$g],\"min_tokens\":3}" | paste -sd' ')
    [[ "$ids" =~ ^[3-6]\ (null|3|4|5)$ ]]
}

@test "prompt_logprobs are those of echo, without the text" {
    p='"prompt":"Once upon a time there was a village near the sea"'
    t='"max_tokens":3'
    ask "{$p,$t,\"prompt_logprobs\":2}" "{$p,$t,\"echo\":true,\"logprobs\":2}" \
        "{$p,$t,\"prompt_logprobs\":2,\"logprobs\":2}" "{$p,\"max_tokens\":0,\"prompt_logprobs\":2}" "{$p,$t}" > out
    jq -se '.[0].usage.prompt_tokens as $n
        | .[0].prompt_logprobs as $a | .[1].logprobs as $b
        | $a.token_logprobs == $b.token_logprobs[:$n] and $a.top_logprobs == $b.top_logprobs[:$n]
        and $a.tokens == $b.tokens[:$n] and ($a.token_logprobs | length) == $n and $a.token_logprobs[0] == null
        and .[0].logprobs == null and (.[1] | has("prompt_logprobs") | not)
        and .[2].prompt_logprobs == $a and .[2].logprobs.token_logprobs == $b.token_logprobs[$n:]
        and .[3].prompt_logprobs == $a and .[3].text == ""
        and .[0].text == .[4].text and .[0].token_ids == .[4].token_ids' out
}

@test "prefix ids, a truncated prompt and a continued message equal the resulting ids" {
    ids() { tokenize --jsonl --ids <<< "$1" | tr ' ' ,; }
    # same 'JSON' IDS: checks that the answer is that of these ids
    same() { [ "$(of .text "{$1,\"max_tokens\":10}")" = "$(of .text "{\"prompt\":[$2],\"max_tokens\":10}")" ]; }
    x=$(ids '{"prompt":"The capital of"}')
    y=$(ids '{"prompt":" France is"}')
    same '"prompt":" France is","prefix_token_ids":['"$x]" "$x,$y"
    same '"prompt":['"$x,$y"'],"truncate_prompt_tokens":2' "$y"
    m='"messages":[{"role":"user","content":"What is the capital of France?"},{"role":"assistant","content":"It is the city of"}]'
    go='"add_generation_prompt":false,"continue_final_message":true'
    same "$m,$go" "$(ids "{$m,$go}")"
    [[ "$(of .text "{$m,$go,\"max_tokens\":10}")" == " Paris"* ]]
    [ "$(of .finish_reason '{"prompt":"a","max_tokens":8192,"strict_window":true}')" = error ]
}

@test "a tiny temperature, a top_p of 0 and a seed of any sign are accepted" {
    plain=$(of .token_ids "{$france}")
    for t in 1e-9 1e-4 9e-4; do
        [ "$(of .token_ids "{$france,\"temperature\":$t,\"seed\":-9223372036854775808}")" = "$plain" ]
    done
    [ "$(of .token_ids "{$france,\"temperature\":10000,\"top_p\":0,\"seed\":-1}")" = "$plain" ]
    # eight of each at once, half of them with a ban: each equals its answer alone
    for i in 1 2 3 4; do
        echo "{$france}" "{$france,\"temperature\":1,\"seed\":$i}" \
            "{$france,\"logit_bias\":{\"7042\":-100}}" "{$france,\"temperature\":1e-5,\"seed\":$i,\"bad_words\":[\"Paris\"]}"
    done | sed 's/} {/}\n{/g' > lines
    [ "$(wc -l < lines)" = 16 ]
    while read -r line; do ask "$line" | jq -c .token_ids; done < lines > alone
    tokenize --jsonl lines | decode | stream --jsonl | jq -c .token_ids | diff alone -
}

@test "typical_p: 1 is off, nearly 0 keeps the token nearest the entropy, greedy is unaffected" {
    hot="$france,\"temperature\":1.5"
    plain=$(of .token_ids "{$france}")
    [ "$(of .token_ids "{$france,\"typical_p\":0.1}")" = "$plain" ]
    [ "$(of .token_ids "{$hot,\"seed\":4,\"typical_p\":1.0}")" = "$(of .token_ids "{$hot,\"seed\":4}")" ]
    one=$(of .token_ids "{$hot,\"seed\":4,\"typical_p\":1e-9}")
    [ "$one" = "$(of .token_ids "{$hot,\"seed\":5,\"typical_p\":1e-9}")" ]
    [ "$one" != "$plain" ]
    # with only the best token left there is no other choice
    [ "$(of .token_ids "{$hot,\"seed\":5,\"typical_p\":0.5,\"top_k\":1}")" = "$plain" ]
}

@test "repeat_last_n limits the tokens that penalties consider" {
    rain='"prompt":"A gentle rain, a gentle rain, a gentle rain,","max_tokens":24'
    plain=$(of .token_ids "{$rain}")
    rep="$rain,\"repetition_penalty\":1.5"
    all=$(of .token_ids "{$rep}")
    [ "$all" != "$plain" ]
    [ "$(of .token_ids "{$rep,\"repeat_last_n\":-1}")" = "$all" ]
    [ "$(of .token_ids "{$rep,\"repeat_last_n\":1000}")" = "$all" ]
    [ "$(of .token_ids "{$rep,\"repeat_last_n\":0}")" = "$plain" ]
    [ "$(of .token_ids "{$rep,\"repeat_last_n\":2}")" != "$all" ]
    # with a number, uses in the prompt count: its words do not occur again
    pres="$rain,\"presence_penalty\":2,\"frequency_penalty\":2"
    [[ "$(of .text "{$pres}")" == *"gentle rain"* ]]
    [[ "$(of .text "{$pres,\"repeat_last_n\":1000}")" != *gentle* ]]
}
