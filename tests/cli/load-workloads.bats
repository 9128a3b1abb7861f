#!/usr/bin/env bats
# The requests of bench as the server receives them: prompts, traces, lists, fields.

load stand_in

@test "prompts: exact lengths, the same for a seed, shared where they should be" {
    serve
    for seed in 1 1 2; do
        load -n 5 --seed $seed --max-concurrency 1 --random-input-len 40 --random-output-len 2 --random-range-ratio 0.5 --random-prefix-len 10 > table
    done
    seen
    # (new lists: jq 1.6 considers slices of one list equal)
    jq -se '.[0].requests | map(.prompt) | [.[0:5][]] == [.[5:10][]] and [.[0:5][]] != [.[10:15][]]' seen
    jq -se '.[0].requests | all(.n_prompt >= 30 and .n_prompt <= 70 and .max_tokens >= 1 and .max_tokens <= 3)' seen
    jq -se '.[0].requests[0:5] | (map(.prompt[0:10]) | unique | length) == 1 and (map(.prompt[10:14]) | unique | length) == 5' seen
    # these ids are those that the server's /tokenize returned for words
    jq -se '.[0].requests | all(.prompt | all(. >= 1000 and . < 6000))' seen
    jq -se '.[0].requests | all(.stream and .stream_options.include_usage and .ignore_eos and .model == "org/stand-in")' seen

    serve --no-tokenize
    rc=0
    load -n 5 2> err || rc=$?
    [ "$rc" -eq 1 ] && grep -q -e '--vocab' err
    load -n 5 --vocab 100 --random-input-len 300 --random-output-len 1 > table
    load -n 5 --prompt-kind text --random-input-len 30 --random-output-len 1 > table 2> err
    grep -q estimates err
    seen
    jq -se '.[0].requests[0:5] | all((.prompt | max) < 100 and (.prompt | unique | length) > 80)' seen
    jq -se '.[0].requests[5:] | all(.prompt | type == "string" and (split(" ") | length) == 30)' seen
}

@test "prefixes: each equally often, in another order each round" {
    serve
    load -n 40 --dataset-name prefix --prefix-repetition-num-prefixes 8 --prefix-repetition-prefix-len 12 \
        --prefix-repetition-suffix-len 4 --prefix-repetition-output-len 2 > table
    seen
    jq -se '.[0].requests | map(.prompt[0:12]) | group_by(.) | length == 8 and all(length == 5)' seen
    jq -se '.[0].requests | (map(.prompt[12:]) | unique | length) == 40 and all(.n_prompt == 16)' seen
}

@test "traces: lengths, times and shared blocks, scaled" {
    printf '%s\n' '# of a cluster' '{"timestamp": 0, "input_length": 1100, "output_length": 40, "hash_ids": [7, 8, 9]}' \
        '{"timestamp": 2000, "input_length": 1024, "output_length": 20, "hash_ids": [7, 8]}' \
        '{"timestamp": 4000, "input_length": 600, "output_length": 10, "hash_ids": [5, 8]}' \
        '{"timestamp": 4000, "input_length": 60000, "output_length": 10}' > m
    serve
    load --dataset-name trace --dataset-path m --time-scale 0.1 --length-scale 0.25 --save r 2> err
    grep -q 'skipped 1 requests that take more than 4096 tokens' err # the model's window, as the server reports
    seen
    jq -se '.[0].requests | map([.n_prompt, .max_tokens]) == [[275, 10], [256, 5], [150, 2]]' seen
    jq -se '.[0].requests | map(.prompt) | .[0][0:256] == .[1] and .[2][0:128] != .[0][0:128] and .[2][128:150] == .[0][128:150]' seen
    jq -se '.[0].requests | map(.at) | (.[1] - .[0] - 0.2 | fabs) < 0.02 and (.[2] - .[0] - 0.4 | fabs) < 0.02' seen
    holds '.num_prompts == 3 and .completed == 3'
    # -n selects the first that fit, not the first lines
    serve
    { cat m; sed '/60000/d' m; } > twice
    load --dataset-name trace --dataset-path twice --time-scale 0.01 --length-scale 0.25 -n 5 --save r 2> err
    holds '.num_prompts == 5 and .completed == 5'
    grep -q 'skipped 1 requests that take more' err
    load --dataset-name trace --dataset-path m --time-scale 0.01 --length-scale 0.25 -n 5 --save r 2> err
    holds '.num_prompts == 3 and .completed == 3'
    seen
    printf '%s\n' TIMESTAMP,ContextTokens,GeneratedTokens '2023-11-16 18:17:03.9799600,48,10' '2023-11-16 18:17:04.0319600,31,8' > a
    serve
    load --dataset-name trace --dataset-path - < a > table
    seen
    jq -se '.[0].requests | map([.n_prompt, .max_tokens]) == [[48, 10], [31, 8]]' seen
    printf '%s\n' '{"timestamp": 0, "input_length": 10, "output_length": 1}' what > bad
    serve
    run load --dataset-name trace --dataset-path bad
    [ "$status" -eq 1 ]
    [[ $output == *"bad: line 2: "* ]]
    printf '%s\n' '{"timestamp": 0, "input_length": 10, "output_length": 1}' '{"input_length": 10, "output_length": 1}' > bad
    run load --dataset-name trace --dataset-path bad
    [ "$status" -eq 1 ]
    [[ $output == *"bad: line 2: timestamp is missing"* ]]
    printf '%s\n' '2023-11-16 18:17:03,48,10' '2023-11-16 99:99:99,31,8' > bad
    run load --dataset-name trace --dataset-path bad
    [ "$status" -eq 1 ]
    [[ $output == *"bad: line 2: TIMESTAMP: 2023-11-16 99:99:99 is not a time of day"* ]]
}

@test "lists of requests, for completions and for chat" {
    printf '%s\n' '{"prompt": "one two three", "output_tokens": 4}' '{"prompt": [5, 6], "max_tokens": 2}' > l
    printf '%s\n' '{"messages": [{"role": "user", "content": "a b c d"}]}' > c
    serve
    load --dataset-name jsonl --dataset-path l -n 3 --max-concurrency 1 --save r
    load --dataset-name jsonl --dataset-path c --endpoint /v1/chat/completions --output-len 3 --save c-r
    seen
    holds '.total_input_tokens == 8 and .total_output_tokens == 10'
    jq -se '.[0].requests | map(.prompt) == ["one two three", [5, 6], "one two three", null]' seen
    jq -se '.[0].requests[3] | .messages == [{"role": "user", "content": "a b c d"}] and .max_completion_tokens == 3 and (has("ignore_eos") | not)' seen
    serve
    run load --dataset-name jsonl --dataset-path l --endpoint /v1/chat/completions
    [ "$status" -eq 1 ]
    [[ $output == *"line 1: a prompt: this endpoint requires messages"* ]]
}

@test "requests of a list that do not fit are omitted" {
    fifteen='a b c d e f g h i j k l m n o' # 29 bytes
    printf '%s\n' '{"prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], "max_tokens": 1}' \
        '{"prompt": [1, 2, 3, 4, 5, 6, 7, 8], "max_tokens": 2}' '{"prompt": [1, 2, 3, 4, 5, 6, 7, 8]}' \
        "{\"prompt\": \"$fifteen\", \"max_tokens\": 2}" '{"prompt": "a b", "max_tokens": 8}' '{"prompt": "a b", "max_tokens": 9}' > l
    serve --window 10
    load --dataset-name jsonl --dataset-path l --output-len 3 --save r 2> err
    grep -q 'skipped 4 requests that take more than 10 tokens' err
    seen
    holds '.num_prompts == 2'
    jq -se '.[0].requests | map(.prompt) == [[1, 2, 3, 4, 5, 6, 7, 8], "a b"]' seen
    serve
    # a length in --extra-body has precedence
    load --dataset-name jsonl --dataset-path l --max-model-len 10 --extra-body '{"max_tokens": 1}' --save r 2> err
    holds '.num_prompts == 4'
    run load --dataset-name jsonl --dataset-path l --max-model-len 1
    [ "$status" -eq 1 ]
    [[ $output == *"l: no requests"* ]]
    seen
    # for messages the server counts the template too; a text with few bytes is not sent to /tokenize
    printf '{"messages": [{"role": "user", "content": "%s"}], "max_tokens": 2}\n' 'a b c d e' 'a b c d e f' > c
    serve --window 10
    load --dataset-name jsonl --dataset-path c --endpoint /v1/chat/completions --save r 2> err
    grep -q 'skipped 1 requests that take more than 10 tokens' err
    seen
    jq -se '.[0].requests | map(.messages[0].content) == ["a b c d e"]' seen
    [ "$(jq .tokenized seen)" -eq 2 ]
    serve --window 41
    load --dataset-name jsonl --dataset-path l --output-len 3 --save r
    seen
    holds '.num_prompts == 6'
    [ "$(jq .tokenized seen)" -eq 0 ] # 31 bytes with quotes, 8 for marks, 2
    serve --window 10 --no-tokenize
    load --dataset-name jsonl --dataset-path l --output-len 3 --save r 2> err
    holds '.num_prompts == 4'
    grep -q 'does not report the token count of 3 requests' err
    seen
}

@test "warm-up requests of a list have the same lengths and other words" {
    printf '%s\n' '{"prompt": "one two three four five six seven eight nine ten", "output_tokens": 2}' \
        '{"prompt": [1, 2, 3, 4, 5, 6, 7], "output_tokens": 3}' > l
    serve
    load --dataset-name jsonl --dataset-path l --warmup 3 --max-concurrency 1 --save r
    holds '.completed == 2'
    seen
    jq -se '.[0].requests | map([.n_prompt, .max_tokens]) == [[10, 2], [7, 3], [10, 2], [10, 2], [7, 3]]' seen
    jq -se '.[0].requests[0:3] | all(.prompt | type == "string" and (split(" ")[0] != "one"))' seen
    jq -se '.[0].requests | map(.prompt) | .[0] != .[2] and .[4] == [1, 2, 3, 4, 5, 6, 7]' seen
    printf '%s\n' '{"messages": [{"role": "user", "content": "one two three four five six seven eight nine ten"}]}' > c
    serve
    load --dataset-name jsonl --dataset-path c --endpoint /v1/chat/completions --warmup 1 --save r
    seen
    jq -se '.[0].requests | map(.n_prompt) == [10, 10] and (map(.messages[0].content | split(" ")[0]) | unique | length) == 2' seen
    # without a count, one token for four bytes
    serve --no-tokenize
    load --dataset-name jsonl --dataset-path l --warmup 2 --max-concurrency 1 --save r 2> err
    grep -q estimates err
    seen
    jq -se '.[0].requests[0:2] | map(.n_prompt) == [12, 7]' seen
}

@test "chat, and fields, headers and a key of every request" {
    serve
    OPENAI_API_KEY=secret load -n 2 --backend openai-chat --random-input-len 12 --random-output-len 3 --temperature 0 \
        --extra-body '{"top_k": 3, "ignore_eos": null}' --header X-Who=me --save r
    seen
    holds '.total_input_tokens == 24 and .total_output_tokens == 6 and .backend == "openai-chat"'
    jq -se '.[0].requests | all(.headers.authorization == "Bearer secret" and .headers["x-who"] == "me")' seen
    jq -se '.[0].requests | all(.temperature == 0 and .top_k == 3 and (has("ignore_eos") | not))' seen
    jq -se '.[0].requests | all(.messages[0].role == "user")' seen
    ! grep -q secret r
}

@test "fields given for every request replace or remove those that bench sets" {
    serve
    load -n 1 --random-input-len 5 --random-output-len 9 --temperature 1 --save r \
        --extra-body '{"max_tokens": 3, "temperature": 0.5, "model": "other", "ignore_eos": false, "stream_options": {"include_usage": true, "x": 1}}'
    holds '.failed == 0 and .total_output_tokens == 3'
    load -n 1 --random-input-len 5 --random-output-len 9 --temperature 1 --save r \
        --extra-body '{"max_tokens": null, "temperature": null, "model": null, "ignore_eos": null, "stream_options": null}'
    holds '.failed == 0 and .total_output_tokens == 16' # what the server takes
    load -n 1 --backend openai-chat --random-input-len 5 --random-output-len 9 --extra-body '{"max_completion_tokens": 2, "max_tokens": 4}' --save r
    holds '.failed == 0 and .total_output_tokens == 2'
    seen
    jq -se '.[0].requests[0] | .max_tokens == 3 and .temperature == 0.5 and .model == "other" and .ignore_eos == false and .stream_options.x == 1' seen
    jq -se '.[0].requests[1] | keys - ["at", "headers", "n_prompt"] == ["prompt", "stream"]' seen
    jq -se '.[0].requests[2] | .max_completion_tokens == 2 and .max_tokens == 4' seen
}
