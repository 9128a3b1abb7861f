#!/usr/bin/env bats
# tokenize: its flags, JSON lines, errors, and detokenizing. tests/unit compares ids of texts with Hugging Face's; the frames
# are tested here.

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
}

# has 'FILTER': succeeds if it is true for one of the JSON lines on stdin
has() {
    jq -es "[.[]|($1)]|any" > /dev/null
}

# jsonl 'JSON' …: prints the frames of these lines as JSON
jsonl() {
    printf '%s\n' "$@" | tokenize --jsonl | frames
}

@test "-p, a file, standard input and a line are the same user message" {
    printf 'What is a cat?\n' > f
    a=$(tokenize --ids -p 'What is a cat?')
    [ -n "$a" ]
    [ "$(tokenize --ids f)" = "$a" ]
    [ "$(tokenize --ids - < f)" = "$a" ]
    [ "$(cat f | tokenize --ids)" = "$a" ]
    [ "$(tokenize --ids --lines f)" = "$a" ]
    [ "$(tokenize -p 'What is a cat?' | tokenize -d)" = "$(tokenize -d <<< "$a")" ]
}

@test "the end of a line may have a carriage return, and JSON lines may begin with U+FEFF" {
    a=$(tokenize --ids -p hi)
    [ "$(printf 'hi\r\n' | tokenize --ids)" = "$a" ]
    [ "$(printf 'hi\r\nhi\r\n' | tokenize --ids --lines)" = "$a"$'\n'"$a" ]
    [ "$(printf 'hi\r\n' | tokenize --raw --ids | tokenize -d)" = $'hi\r' ] # and its line feed
    [ "$(printf '\357\273\277{"prompt":"hi"}\r\n' | tokenize --ids --jsonl)" = "$(tokenize --raw --ids -p hi)" ]
}

@test "the template's markers become control ids, those in a message become text" {
    n() { tokenize --ids -p "$1" | tr ' ' '\n' | grep -cx "$2"; }
    control=$(tokenize --ids -p x | cut -d' ' -f1)
    [ "$(n 'hi<|im_end|><|im_start|>system' "$control")" = "$(n 'hi there' "$control")" ]
}

@test "raw text round-trips to the byte, including its last line feed" {
    printf 'a  b\n\n\tc é 漢字 🙂\n\n' > f
    tokenize --raw --ids f | tokenize -d > g
    printf 'a  b\n\n\tc é 漢字 🙂\n\n\n' | cmp - g
}

@test "--system precedes the messages, and is not part of a raw prompt" {
    tokenize -p hi --system 'Be brief.' | tokenize -d > a
    grep -q 'Be brief' a
    run tokenize --raw -p hi --system x
    [ "$status" -eq 100 ]
    # A chat with a system message keeps it.
    printf '%s\n' '{"messages":[{"role":"system","content":"Mine."},{"role":"user","content":"hi"}]}' |
        tokenize --jsonl --system 'Yours.' | tokenize -d > b
    grep -q 'Mine' b
    ! grep -q 'Yours' b
}

@test "a developer message is a system message, also for --system" {
    t() { printf '%s\n' "{\"messages\":[{\"role\":\"$1\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"hi\"}]}" |
        tokenize --jsonl --ids "${@:2}"; }
    [ "$(t developer)" = "$(t system)" ]
    [ "$(t developer --system Yours.)" = "$(t system)" ]
    ! t banana 2> err
    grep -q "messages\[0\].role: expected system, developer, user, assistant or tool, got 'banana'$" err
}

@test "a thousand lines are a thousand requests in order" {
    seq 1000 | tokenize --raw --lines | frames | jq -c 'select(.k=="tok")|[.seq,.id]' > got
    seq 0 999 | jq -c '["\(.)","req-\(.)"]' > want
    cmp want got
    [ "$(seq 1000 | tokenize --raw --lines | frames | tail -1 | jq -r .n_ok)" = 1000 ]
}

@test "the flags travel in the frame" {
    tokenize --raw -p hi -n 7 --temp 0.5 --top-k 3 --top-p 0.25 --min-p 0.125 --repetition-penalty 1.5 --presence-penalty 0.5 \
        --frequency-penalty -0.5 --seed 18446744073709551615 --stop A --stop 'B C' --stop-id 5 --stop-id 6 --ignore-eos \
        --min-tokens 2 --logprobs 4 --echo --logit-bias 7=-100 --logit-bias 8=1.5 | frames | jq -c 'select(.k=="tok")' > t
    jq -e '.max_tokens==7 and .temperature==0.5 and .top_k==3 and .top_p==0.25 and .min_p==0.125 and .repetition_penalty==1.5
        and .presence_penalty==0.5 and .frequency_penalty==-0.5 and .seed=="18446744073709551615" and .stop==["A","B C"]
        and .stop_ids==[5,6] and .ignore_eos and .min_tokens==2 and .logprobs==4 and .echo
        and .bias==[[7,-100],[8,1.5]]' t
}

@test "the names of the API are flags too" {
    a=$(tokenize --raw -p hi -n 7 --temp 0.5 --top-k 3 --top-p 0.25 --min-p 0.125 --repetition-penalty 1.5 --presence-penalty 0.5 \
        --frequency-penalty -0.5 --seed 9 --stop A --stop-id 5 --ignore-eos --min-tokens 2 --logprobs 4 --logit-bias 7=-100 |
        frames | jq -c 'select(.k=="tok")|del(.born_ns,.spans,.load_ns)')
    b=$(tokenize --raw --prompt hi --max_completion_tokens 7 --temperature 0.5 --top_k 3 --top_p=0.25 --min_p 0.125 \
        --repetition_penalty 1.5 --presence_penalty 0.5 --frequency_penalty -0.5 --seed 9 --stop A --stop_token_ids 5 --ignore_eos \
        --min_tokens 2 --logprobs 4 --logit_bias 7=-100 | frames | jq -c 'select(.k=="tok")|del(.born_ns,.spans,.load_ns)')
    diff <(echo "$a") <(echo "$b")
    tokenize --complete | grep -qx -- --temperature
}

@test "the same names in JSON give the same frame" {
    a=$(tokenize --raw -p hi -n 7 --temp 0.5 --top-k 3 --seed 9 --stop A --stop-id 5 --ignore-eos --min-tokens 2 --logprobs 4 \
        --logit-bias 7=-1 | frames | jq -cS 'select(.k=="tok")|del(.born_ns,.load_ns,.spans)')
    b=$(jsonl '{"prompt":"hi","max_tokens":7,"temperature":0.5,"top_k":3,"seed":9,"stop":"A","stop_token_ids":[5],"ignore_eos":true,"min_tokens":2,"logprobs":4,"logit_bias":{"7":-1}}' |
        jq -cS 'select(.k=="tok")|del(.born_ns,.load_ns,.spans)')
    [ "$a" = "$b" ]
}

@test "null equals absent, and flags are the defaults of each line" {
    jsonl=$(printf '%s\n' '{"prompt":"a","max_tokens":null,"seed":null,"stop":null,"n":null,"tools":null}' '{"prompt":"a","max_tokens":3}' |
        tokenize --jsonl -n 9 --stop X --seed 4 | frames | jq -c 'select(.k=="tok")|[.max_tokens,.stop,.seed]')
    [ "$jsonl" = $'[9,["X"],"4"]\n[3,["X"],"4"]' ]
}

@test "seeds are exact in all 64 bits, signed ones too; without one each request gets its own" {
    [ "$(jsonl '{"prompt":"a","seed":18446744073709551615}' '{"prompt":"a","seed":-1}' '{"prompt":"a","seed":9007199254740993}' \
        '{"prompt":"a","seed":"12345678901234567890"}' | jq -r 'select(.k=="tok").seed' | paste -sd' ')" = \
        "18446744073709551615 18446744073709551615 9007199254740993 12345678901234567890" ]
    [ "$(jsonl '{"prompt":"a"}' '{"prompt":"a"}' | jq -r 'select(.k=="tok").seed' | sort -u | wc -l)" = 2 ]
    jsonl '{"prompt":"a","seed":18446744073709551616}' | has 'select(.k=="err").text|test("seed: ")'
}

@test "n choices are n frames with the same prompt" {
    [ "$(jsonl '{"prompt":"a","n":3,"seed":1}' '{"prompt":"b"}' | jq -c 'select(.k=="tok")|[.seq,.index]' | paste -sd' ')" = \
        '["0",0] ["0",1] ["0",2] ["1",0]' ]
}

@test "ids are used unchanged" {
    [ "$(jsonl '{"prompt":[5,0,49151]}' | jq -c 'select(.k=="tok").ids')" = '[5,0,49151]' ]
}

@test "content may be a list of text parts" {
    a=$(jsonl '{"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}]}' | jq -c 'select(.k=="tok").ids')
    b=$(jsonl '{"messages":[{"role":"user","content":"one\ntwo"}]}' | jq -c 'select(.k=="tok").ids')
    [ -n "$a" ]
    [ "$a" = "$b" ]
}

@test "lines of OpenAI batch files are accepted" {
    jsonl '{"custom_id":"b1","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":2}}' \
        '{"custom_id":"b2","method":"POST","url":"/v1/completions","body":{"prompt":"hi","max_tokens":4}}' \
        '{"custom_id":"b3","method":"POST","url":"/v1/embeddings","body":{"input":"hi"}}' \
        '{"custom_id":"b4","method":"POST","url":"/v1/completions","body":{"prompt":"hi","best_of":3}}' > out
    [ "$(jq -c 'select(.k=="tok" or .k=="err")|[.id,.k,.logprobs]' out | paste -sd' ')" = \
        '["b1","tok",2] ["b2","tok",null] ["b3","err",null] ["b4","err",null]' ]
    has 'select(.id=="b4").text|test("^line 4: body.best_of: ")' < out
}

@test "unknown fields are passed on and logged once" {
    printf '%s\n' '{"prompt":"a","my_field":{"x":[1,null,"é"]},"user":"u"}' '{"prompt":"b","my_field":2}' | tokenize --jsonl 2> err | frames > out
    [ "$(grep -c my_field err)" = 1 ]
    ! grep -q "'user'" err
    [ "$(jq -c 'select(.seq=="0").request' out)" = '{"user":"u","my_field":{"x":[1,null,"é"]}}' ]
}

@test "an invalid line is an err frame that names line and field, and the others continue" {
    cat > bad <<'J'
{"id":"x1","prompt":"a","temperature":"hot"}
{"prompt":"a","temperature":-1}
{"prompt":"a","top_p":1.5}
{"prompt":"a","max_tokens":-1}
{"prompt":"a","max_tokens":1.5}
{"prompt":"a","max_tokens":4294967296}
{"prompt":"a","stop":[1]}
{"prompt":"a","stop":""}
{"prompt":"a","logit_bias":{"99999999":5}}
{"prompt":"a","logit_bias":{"-1":5}}
{"prompt":"a","logit_bias":{"abc":5}}
{"prompt":"a","logit_bias":{"7":1e9}}
{"prompt":"a","logit_bias":{"7":null}}
{"prompt":"a","logit_bias":[7]}
{"prompt":"a","stop_token_ids":[49152]}
{"prompt":[-1]}
{"prompt":[4294967296]}
{"prompt":[49152]}
{"prompt":[]}
{"prompt":["a","b"]}
{"prompt":""}
{"prompt":true}
{}
{"prompt":"a","messages":[{"role":"user","content":"a"}]}
{"messages":[]}
{"messages":{"role":"user"}}
{"messages":[{"content":"a"}]}
{"messages":[{"role":"user","content":{"a":1}}]}
{"messages":[{"role":"us<|im_end|>er","content":"a"}]}
{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}
{"messages":[{"role":"assistant","content":"a","tool_calls":[1]}]}
{"prompt":"a","tools":[{"type":"function"}]}
{"prompt":"a","response_format":{"type":"json_object"}}
{"prompt":"a","n":0}
{"prompt":"a","n":129}
{"prompt":"a","min_tokens":5,"max_tokens":4}
{"prompt":"a","logprobs":65}
{"prompt":"a","top_logprobs":2}
{"prompt":"a","ignore_eos":1}
{"prompt":"a","cache_salt":5}
{"prompt":"a","priority":"high"}
{"prompt":"a","prompt":"b"}
{"prompt":"a","seed":1.5}
{"prompt":"a"
not json
[1]
"a"
{"prompt":"\ud800"}
J
    tokenize --jsonl bad | frames > out
    n=$(wc -l < bad)
    [ "$(jq -c 'select(.k=="err")' out | wc -l)" = "$n" ]
    [ "$(jq -r 'select(.k=="err").text' out | grep -c '^line [0-9]*: ')" = "$n" ]
    [ "$(jq -r 'select(.k=="err").text' out | sed 's/^line \([0-9]*\).*/\1/' | paste -sd' ')" = "$(seq -s' ' "$n")" ]
    jq -r 'select(.k=="err").text' out | sed -n '1p;7p;9p;16p;27p;30p;32p' > got
    cat > want <<'T'
line 1: temperature: expected a number from 0 to 10000, got a string
line 7: stop[0]: expected a string, got 1
line 9: logit_bias.99999999: token id out of vocabulary: the model has 49152 ids
line 16: prompt[0]: -1 is not a token id
line 27: messages[0].role: expected a string, got nothing
line 30: messages[0].content[0].type: 'image_url' is not supported, only text
line 32: tools: is not supported
T
    diff want got
    [ "$(head -2 out | tail -1 | jq -r .id)" = x1 ]
    { cat bad; echo '{"id":"good","prompt":"a"}'; } | tokenize --jsonl | frames | has 'select(.k=="tok").id=="good"'
}

@test "deep nesting and a line cut at any byte are refused without a crash" {
    python3 -c 'print("{\"prompt\":" + "["*100000)' | tokenize --jsonl | frames | has 'select(.k=="err")|true'
    line='{"id":"a","messages":[{"role":"user","content":[{"type":"text","text":"h\u00e9"}]}],"logit_bias":{"7":-1.5e0},"seed":18446744073709551615}'
    for ((i = 1; i < ${#line}; i++)); do echo "${line:0:i}"; done > cut
    tokenize --jsonl cut | frames > out
    [ "$(jq -c 'select(.k=="err")' out | wc -l)" = $((${#line} - 1)) ]
}

@test "a prompt beyond the context length is refused with both numbers, one that fits has max_tokens reduced to the rest" {
    yes a | head -9000 | paste -sd' ' > long
    jq -Rc '{prompt:.}' long | tokenize --jsonl | frames | jq -r 'select(.k=="err").text' > text
    grep -Eq "^line 1: This model's maximum context length is 8192 tokens. However, you requested [0-9]{4,} tokens \\([0-9]{4,} in \
the messages, 1 in the completion\\). Please reduce the length of the messages or completion.$" text
    yes a | head -8000 | paste -sd' ' | tokenize --raw -n 100000 | frames |
        has 'select(.k=="tok")|.max_tokens + (.ids|length) == 8192'
}

@test "a text of megabytes is refused for its length" {
    head -c 3000000 /dev/zero | tr '\0' a > long
    jq -Rc '{prompt:.}' long | tokenize --jsonl | frames |
        has 'select(.k=="err").text | test("^line 1: This model.s maximum context length is 8192 tokens\\. However, you requested at least [0-9]{4,} tokens \\(at least [0-9]{4,} in the messages, 1 in the completion\\)")'
    jq -Rc '{messages:[{role:"user",content:.}]}' long | tokenize --jsonl | frames | has 'select(.k=="err").text | test("at least")'
}

@test "strict_window: an explicit max_tokens beyond the context length is refused with all three numbers" {
    ids=$(jq -cn '[range(100;200)]')
    jsonl "{\"prompt\":$ids,\"max_tokens\":8093,\"strict_window\":true}" \
        "{\"prompt\":$ids,\"max_tokens\":8092,\"strict_window\":true}" \
        "{\"prompt\":$ids,\"max_tokens\":4294967295,\"strict_window\":true}" \
        "{\"prompt\":$ids,\"strict_window\":true}" "{\"prompt\":$ids,\"max_tokens\":9000}" > out
    jq -r 'select(.k=="err").text' out > text
    [ "$(wc -l < text)" = 2 ]
    grep -q 'length is 8192 tokens. .* requested 4294967395 tokens (100 in the messages, 4294967295 in the completion)' text
    grep -q 'length is 8192 tokens. .* requested 8193 tokens (100 in the messages, 8093 in the completion)' text
    [ "$(jq -r 'select(.k=="tok").max_tokens' out | paste -sd' ')" = "8092 512 8092" ]
}

@test "window: a smaller context length; a prompt that exceeds it is refused with all three numbers" {
    ids=$(jq -cn '[range(100;200)]')
    jsonl "{\"prompt\":$ids,\"window\":100}" "{\"prompt\":$ids,\"window\":101}" \
        "{\"prompt\":$ids,\"window\":110,\"max_tokens\":4294967295}" "{\"prompt\":$ids,\"window\":99999}" \
        "{\"prompt\":$ids,\"window\":110,\"max_tokens\":11,\"strict_window\":true}" \
        "{\"prompt\":$ids,\"window\":0}" > out
    jq -r 'select(.k=="err").text' out > text
    grep -q '^line 1: .* length is 100 tokens. .* requested 101 tokens (100 in the messages, 1 in the completion)' text
    grep -q '^line 5: .* length is 110 tokens. .* requested 111 tokens (100 in the messages, 11 in the completion)' text
    grep -q '^line 6: window: expected an integer from 1 ' text
    [ "$(jq -r 'select(.k=="tok").max_tokens' out | paste -sd' ')" = "1 10 512" ]
}

@test "prefix_token_ids go before the prompt, truncate_prompt_tokens keeps its end" {
    t() { printf '%s\n' "$@" | tokenize --jsonl --ids; }
    [ "$(t '{"prompt":[7,8,9],"prefix_token_ids":[5,6]}')" = "5 6 7 8 9" ]
    [ "$(t '{"prompt":[7,8,9],"prefix_token_ids":[5,6],"truncate_prompt_tokens":4}')" = "6 7 8 9" ]
    [ "$(t '{"prompt":[7,8,9],"truncate_prompt_tokens":1}')" = 9 ]
    [ "$(t '{"prompt":[7,8,9],"truncate_prompt_tokens":3}' '{"prompt":[7,8,9],"truncate_prompt_tokens":4}' | uniq)" = \
        "7 8 9" ]
    m='"messages":[{"role":"user","content":"hi"}]'
    [ "$(t "{$m,\"prefix_token_ids\":[5]}")" = "5 $(t "{$m}")" ]
    long=$(jq -cn '[range(0;9000)]')
    [ "$(t "{\"prompt\":$long,\"truncate_prompt_tokens\":-1,\"max_tokens\":100}")" = "$(seq -s' ' 908 8999)" ]
    [ "$(t "{\"prompt\":$long,\"truncate_prompt_tokens\":-1,\"max_tokens\":4294967295}")" = "$(seq -s' ' 809 8999)" ]
    jsonl '{"prompt":[7],"prefix_token_ids":[1,49152]}' |
        has 'select(.k=="err").text=="line 1: prefix_token_ids[1]: token id 49152 is out of vocabulary: the model has 49152 ids"'
    # the digests are those of the remaining ids
    [ "$(jsonl "{\"prompt\":$long,\"truncate_prompt_tokens\":70}" | jq -r 'select(.k=="tok").digests')" = \
        "$(jsonl "{\"prompt\":$(jq -cn '[range(8930;9000)]')}" | jq -r 'select(.k=="tok").digests')" ]
}

@test "parse_special: a prompt that holds a rendered chat is that chat; otherwise its markers are text" {
    ids() { tokenize --jsonl --ids <<< "$1"; }
    want=$(ids '{"messages":[{"role":"system","content":"s"},{"role":"developer","content":"d"},{"role":"user","content":"hi"}]}')
    text=$(tokenize -d <<< "$want"; echo .)
    text=$(jq -Rs '.[:-3]' <<< "$text")
    [ "$(ids "{\"prompt\":$text,\"parse_special\":true}")" = "$want" ]
    [ "$(ids "{\"prompt\":$text}" | wc -w)" -gt "$(wc -w <<< "$want")" ]
    [ "$(ids "{\"prompt\":$text}" | tokenize -d)" = "$(tokenize -d <<< "$want")" ]
    jsonl '{"messages":[{"role":"user","content":"hi"}],"parse_special":true}' |
        has 'select(.k=="err").text=="line 1: parse_special: is allowed only if prompt is a string"'
}

@test "stop texts have a limit together, as a flag and in JSON" {
    x=$(printf '%0256d' 0)
    jsonl "$(jq -cn --arg x "$x" '{prompt:"a",stop:[range(64)|$x]}')" "$(jq -cn --arg x "$x" '{prompt:"a",stop:[(range(63)|$x),$x+"0"]}')" > out
    [ "$(jq -c 'select(.k=="tok").stop|length' out)" = 64 ]
    [ "$(jq -r 'select(.k=="err").text' out)" = "line 2: stop: too long: 16385 bytes together, the limit is 16384" ]
    [ "$(jq -cn '{prompt:"a",stop:("x"*16384)}' | tokenize --jsonl | frames | jq -c 'select(.k=="tok").stop|length')" = 1 ]
    tokenize --raw -p a --stop "$(printf '%016384d' 0)" > frames
    run tokenize --raw -p a --stop "$(printf '%016384d' 0)" --stop x
    [ "$status" -eq 100 ]
    [[ $output == *"--stop: too long: 16385 bytes together, the limit is 16384"* ]]
}

@test "min_tokens: more than the prompt leaves of the context is refused" {
    jsonl '{"prompt":"a","max_tokens":4294967295,"min_tokens":100000}' |
        has 'select(.k=="err").text=="line 1: min_tokens: 100000, but the prompt of 1 tokens leaves 8191 of the context of 8192"'
}

@test "add_generation_prompt and continue_final_message: how a chat ends" {
    t() { tokenize --jsonl --ids <<< "$1" | tokenize -d; }
    m='"messages":[{"role":"system","content":"s"},{"role":"user","content":"2+2?"},{"role":"assistant","content":"It is "}]'
    head=$'<|im_start|>system\ns<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\nIt is '
    [ "$(t "{$m}")" = "$head"$'<|im_end|>\n<|im_start|>assistant' ]
    [ "$(t "{$m,\"add_generation_prompt\":false}")" = "$head<|im_end|>" ]
    [ "$(t "{$m,\"add_generation_prompt\":false,\"continue_final_message\":true}")" = "$head" ]
    jsonl "{$m,\"continue_final_message\":true}" |
        has 'select(.k=="err").text=="line 1: continue_final_message: is allowed only if add_generation_prompt is false"'
}

@test "bad_words become rows of ids with and without a blank; allowed_token_ids are checked" {
    word() { tokenize --raw --ids -p "$1" | tr ' ' ,; }
    jsonl '{"prompt":"a","bad_words":["  rain","of the"],"allowed_token_ids":[5,49151]}' > out
    a=$(word rain) b=$(word ' rain') c=$(word 'of the') d=$(word ' of the')
    has "select(.k==\"tok\")|.bad_ids==[$a,$b,$c,$d] and .allowed==[5,49151]
        and .bad_lens==([[$a],[$b],[$c],[$d]]|map(length))" < out
    jsonl '{"prompt":"a","allowed_token_ids":[5,49152]}' '{"prompt":"a","bad_words":["\u0004"]}' |
        jq -r 'select(.k=="err").text' > text
    cat > want << 'T'
line 1: allowed_token_ids[1]: token id 49152 is out of vocabulary: the model has 49152 ids
line 2: bad_words[0]: the vocabulary cannot spell it
T
    diff want text
    jsonl '{"prompt":"a","skip_special_tokens":false,"include_stop_str_in_output":true,"prompt_logprobs":3}' |
        has 'select(.k=="tok")|.special_text and .keep_stop and .prompt_logprobs==3 and (has("bad_ids")|not)'
}

@test "digests: one for each 32 tokens, chained, by the salt" {
    d() { jsonl "$1" | jq -r 'select(.k=="tok").digests|if type=="string" then . else "" end'; }
    a=$(d "$(jq -cn '{prompt:[range(1;70)]}')")
    b=$(d "$(jq -cn '{prompt:[range(1;41)]}')")
    c=$(d "$(jq -cn '{prompt:[range(1;70)],cache_salt:"s"}')")
    [ ${#a} = 128 ]
    [ ${#b} = 64 ]
    [ "${a:0:64}" = "$b" ]
    [ "${a:0:64}" != "${c:0:64}" ]
}

@test "a request is sent as soon as its line is complete" {
    mkfifo in
    tokenize --jsonl --ids < in > out 3>&- &
    exec 4> in
    echo '{"prompt":"a"}' >&4
    for _ in $(seq 100); do [ -s out ] && break; sleep 0.05; done
    [ "$(wc -l < out)" = 1 ]
    echo '{"prompt":"b"}' >&4
    exec 4>&-
    wait
    [ "$(wc -l < out)" = 2 ]
}

@test "--ids prints a line for each prompt, and reports refusals at the end" {
    run bash -c "printf '%s\n' a '' b | tokenize --raw --lines --ids 2> err"
    [ "$status" -eq 1 ]
    [ "${#lines[@]}" -ge 2 ]
    grep -q 'line 2: prompt: is empty' err
}

@test "contradicting and invalid flags are misuse" {
    for args in "--lines --jsonl" "-p a f" "-p a --lines" "--raw --jsonl" "-d --raw" "-n -1" "-n 1x" "--temp nan" "--top-p 2" \
        "--seed -1" "--stop-id x" "--stop-id 49152" "--logit-bias 7" "--logit-bias 7=x" "--logit-bias 7=1000" \
        "--logit-bias 99999=1" "--min-tokens 9 -n 8" "--logprobs 65" "a b"; do
        rc=0
        # shellcheck disable=SC2086
        tokenize $args < /dev/null > out 2> err || rc=$?
        [ "$rc" -eq 100 ] || { echo "$args: $rc"; false; }
        [ "$(wc -l < err)" -le 2 ]
    done
    rc=0
    tokenize no-such-file > out 2> err || rc=$?
    [ "$rc" -eq 111 ]
    grep -q 'no-such-file' err
}

@test "-d refuses invalid ids and shows control tokens by name" {
    [ "$(echo '1 9690' | tokenize -d)" = '<|im_start|>system' ]
    run bash -c 'echo 49152 | tokenize -d'
    [ "$status" -eq 1 ]
    [[ $output == *"49152"* ]]
    run bash -c 'echo "1 x" | tokenize -d'
    [ "$status" -eq 1 ]
    # Half a character is one replacement character.
    ids=$(tokenize --raw --ids -p '🙂')
    echo "${ids%% *}" | tokenize -d | grep -q $'\xef\xbf\xbd'
}

@test "invalid UTF-8 in a text is a replacement character, in JSON an error" {
    printf 'a\xffb' | tokenize --raw --ids | tokenize -d > out
    printf 'a\xef\xbf\xbdb\n' | cmp - out
    printf '{"prompt":"a\xff"}\n' | tokenize --jsonl | frames | has 'select(.k=="err").text|test("^line 1: not JSON")'
}

# wrong_peers SOCKET: gateways that break the protocol after their hello, one a connection: what is no frame, a frame of
# another kind, a frame over the limit, more frames than are logged; and a right one, whose prompt must come.
wrong_peers() {
    hello() {
        printf '{"k":"session_hello","version":%s,"role":"gateway","name":"%s","inc":1}\n' "$version" "$1"
    }
    version=$(tokenize --version | grep -o '[0-9]*$')
    for name in no-map wrong-kind too-long right; do hello $name | frames -e > $name.hello 2> /dev/null || true; done
    for i in $(seq 60); do hello "many-$i" | frames -e > "many-$i.hello" 2> /dev/null || true; done
    echo '{"k":"tick","now_ns":"1"}' | frames -e > tick.frame 2> /dev/null || true
    echo '{"k":"ask","what":"line","seq":7,"id":"the-right-one","text":"{\"prompt\":\"x\"}"}' | frames -e > ask.frame 2> /dev/null || true
    cat > wrong.py << 'P'
import socket, sys
def send(name, what):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    s.connect(sys.argv[1])
    s.sendall(open(name + '.hello', 'rb').read() + what)
    return s
def answer(s, until):
    got = b''
    while until not in got:
        piece = s.recv(65536)
        assert piece, got
        got += piece
tick, ask = open('tick.frame', 'rb').read(), open('ask.frame', 'rb').read()
answer(send('no-map', bytes([0xce, 0, 0, 0, 3, 0x81, 0xa1, 0x6b])), b'field k')
answer(send('wrong-kind', tick), b'tokenize takes ask')
answer(send('too-long', bytes([0xce, 2, 0, 0, 1, 0x81])), b'33554432')
for s in [send('many-%d' % (i + 1), tick) for i in range(60)]:
    answer(s, b'tokenize takes ask')
answer(send('right', ask), b'the-right-one')
P
    python3 wrong.py "$1"
}

@test "a service logs what a peer does wrong, ten lines a second, and serves the others" {
    mkfifo ready
    tokenize --listen "ipc://$PWD/t.sock" --ready-fd 4 4> ready 2> log 3>&- &
    pid=$!
    [ "$(timeout 20 cat ready)" = ready ]
    wrong_peers "$PWD/t.sock"
    kill -TERM "$pid"
    wait "$pid"
    grep -q 'gateway no-map: .*k' log
    grep -q 'gateway wrong-kind: a frame of kind tick: tokenize takes ask' log
    grep -q 'gateway too-long: .*33554433.*33554432' log
    [ "$(grep -c 'gateway many-' log)" -lt 60 ]
}

# A gateway that asks and never reads, then another one, whose prompt must come.
deaf_peer() {
    cat > deaf.py << 'P'
import socket, sys, time
def dial(name):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    s.connect(sys.argv[1])
    s.sendall(open(name + '.hello', 'rb').read())
    return s
big, ping = open('big.frame', 'rb').read(), open('ping.frame', 'rb').read()
deaf = dial('deaf')
for _ in range(100): # 300 MB of responses
    deaf.sendall(big)
for _ in range(6):
    time.sleep(0.5)
    deaf.sendall(ping)
right = dial('right')
right.sendall(open('ask.frame', 'rb').read())
got = b''
while b'the-right-one' not in got:
    piece = right.recv(65536)
    assert piece, got
    got += piece
assert b'busy' not in got, got
P
    python3 deaf.py "$1"
}

@test "a gateway that does not read fills 64 MiB of its own, and the others are served" {
    version=$(tokenize --version | grep -o '[0-9]*$')
    for name in deaf right; do
        printf '{"k":"session_hello","version":%s,"role":"gateway","name":"%s","inc":1}\n' "$version" $name |
            frames -e > $name.hello 2> /dev/null || true
    done
    echo '{"k":"session_ping"}' | frames -e > ping.frame 2> /dev/null || true
    echo '{"k":"ask","what":"line","seq":7,"id":"the-right-one","text":"{\"prompt\":\"x\"}"}' | frames -e > ask.frame 2> /dev/null || true
    jq -nc '{k: "ask", what: "line", seq: 1, id: "big", text: ({prompt: [range(7500)], n: 128} | tojson)}' |
        frames -e > big.frame 2> /dev/null || true
    mkfifo ready
    tokenize --listen "ipc://$PWD/t.sock" --ready-fd 4 4> ready 2> log 3>&- &
    pid=$!
    [ "$(timeout 20 cat ready)" = ready ]
    deaf_peer "$PWD/t.sock"
    [ "$(ps -o rss= -p "$pid")" -lt 200000 ]
    kill -TERM "$pid"
    wait "$pid"
}

@test "head ends tokenize --ids and -d without a message; a stage that leaves is an error of tokenize" {
    set +o pipefail
    yes hi | head -5000 > in
    { rc=0; tokenize --lines --ids in 2> err || rc=$?; echo $rc > rc; } | head -1 > out
    [ "$(cat rc)" = 141 ] # 128 and SIGPIPE, as of cat
    [ ! -s err ] && [ "$(wc -l < out)" = 1 ]
    yes 1 9690 198 | head -30000 > ids
    { rc=0; tokenize -d ids 2> err || rc=$?; echo $rc > rc; } | head -1 > out
    [ "$(cat rc)" = 141 ]
    [ ! -s err ]
    { rc=0; tokenize --lines in 2> err || rc=$?; echo $rc > rc; } | head -c 1 > out
    [ "$(cat rc)" = 111 ]
    grep -q '^tokenize: stdout: ' err
}
