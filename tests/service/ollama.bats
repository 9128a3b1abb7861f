#!/usr/bin/env bats
# The Ollama API of stream --ollama with curl and jq, real services and the real model. Fields, types and errors are those
# of Ollama's docs/api.md; counts are compared with the OpenAI API of the same server.

bats_require_minimum_version 1.5.0

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    cd "$BATS_FILE_TMPDIR" || return 1
    mkdir -m 700 up
    export RUN=$PWD/up
    : > pids
    timeout -k 1 60 phasepipe up --run "$RUN" --kv-cache-memory-bytes 192M --http off --detach > up.log 2>&1 3>&-
    serve first --served-model-name smol --served-model-name hub/smol:135m
    U=$(ollama_of first)
    export U
}

teardown_file() {
    timeout -k 1 30 phasepipe down --run "$RUN" > /dev/null 2>&1 || true
    for pid in $(cat "$BATS_FILE_TMPDIR/pids"); do
        kill "$pid" 2> /dev/null || continue
        sleep 0.1
        kill -9 "$pid" 2> /dev/null || true
    done
}

setup() { cd "$BATS_FILE_TMPDIR" || return 1; }

teardown() {
    for n in sched prefill; do kill -CONT "$(pid_of $n)" 2> /dev/null || true; done
}

# serve NAME [OPTION ...]: a server of both APIs, ready when this returns
serve() {
    mkfifo "$1.ready"
    stream --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --http 127.0.0.1:0 --ollama 127.0.0.1:0 "${@:2}" --ready-fd 4 \
        4> "$1.ready" > "$1.log" 2>&1 3>&- &
    echo $! | tee -a pids > "$1.pid"
    timeout 20 cat "$1.ready" > "$1.addresses"
    [ "$(sed 's,=http://127.0.0.1:[1-9][0-9]*$,,' "$1.addresses")" = "$(printf 'ready\nHTTP\nOLLAMA')" ]
}
ollama_of() { sed -n 's/^OLLAMA=//p' "$1.addresses"; }

pid_of() { phasepipe ps --run "$RUN" --json | jq -r --arg n "$1" '[.[] | select(.program == $n or .name == $n) | .pid][0]'; }

# ask PATH BODY: prints the response; fails if curl does
ask() { curl -sS --max-time 20 "$U$1" -d "$2"; }
# status PATH BODY: "CODE BODY"
status() { curl -sS --max-time 20 -o body -w '%{http_code} ' "${@:3}" "$U$1" -d "$2" && cat body; }
# is FILTER [FILE]: succeeds if jq's result is true
is() { jq -es "$1" "${2:-got}" > /dev/null || { echo "not so: $1"; head -c 3000 "${2:-got}"; return 1; }; }

opt='"options":{"temperature":0,"num_predict":12}'
# durations of the last object: integers, and the parts within the total
metrics='last | [.total_duration, .load_duration, .prompt_eval_duration, .eval_duration] as $t |
    (all($t[]; type == "number" and . == floor and . >= 0)) and $t[0] >= ($t[1:] | add) and $t[0] > 0 and
    all(.prompt_eval_count, .prompt_eval_cached_count, .eval_count; type == "number")'

@test "the root reports that Ollama is running, and the version is reported" {
    [ "$(curl -sS "$U/")" = "Ollama is running" ]
    [ "$(curl -sSI -o /dev/null -w '%{http_code}' "$U/")" = 200 ]
    curl -sS "$U/api/version" > got
    is '.[0].version | test("^[0-9]+[.][0-9]+[.][0-9]+$")'
}

@test "generate streams NDJSON with counts in the last line only" {
    curl -sSN --max-time 20 -D head "$U/api/generate" -d '{"model":"smol","prompt":"Name a colour.",'"$opt}" > got
    grep -qi '^content-type: application/x-ndjson' head
    [ "$(wc -l < got)" -ge 4 ]
    is '(length >= 4) and all(.[]; .model == "smol" and (.created_at | test("^20..-..-..T..:..:..[.][0-9]{9}Z$")))'
    is 'all(.[:-1][]; .done == false and (has("total_duration") or has("context") | not)) and last.done'
    is 'last | .response == "" and (.done_reason | IN("stop", "length")) and .prompt_eval_duration > 0 and
        .eval_duration > 0 and .load_duration > 0'
    is "$metrics"
    is 'last | (.context | length) == .prompt_eval_count + .eval_count'
    jq -rsj 'map(.response) | join("")' got > text
    ask /api/generate '{"model":"smol","prompt":"Name a colour.","stream":false,'"$opt}" > got
    [ "$(jq -j .response got)" = "$(cat text)" ]
    is 'length == 1'
    is "$metrics"
}

@test "an answer of one token has non-zero durations" {
    ask /api/generate '{"model":"smol","prompt":"Name a colour.","stream":false,"options":{"num_predict":1}}' > got
    is 'length == 1'
    is "$metrics"
    is 'last | .eval_count == 1 and .eval_duration > 0 and .prompt_eval_duration > 0 and .load_duration > 0'
}

@test "chat gives the text and counts of the OpenAI API" {
    m='"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"What is the capital of France?"}]'
    curl -sS --max-time 20 --json '{"model":"smol","temperature":0,"max_tokens":12,'"$m}" "$U/v1/chat/completions" > openai
    ask /api/chat '{"model":"smol:latest","stream":false,'"$m,$opt}" > got
    [ "$(jq -r '.choices[0] | .message.content, .finish_reason' openai)" = \
        "$(jq -r '.message.content, .done_reason' got)" ]
    [ "$(jq -c '.usage | [.prompt_tokens, .completion_tokens]' openai)" = \
        "$(jq -c '[.prompt_eval_count, .eval_count]' got)" ]
    is '.[0] | .model == "smol:latest" and .message.role == "assistant" and (has("context") | not)'
    is "$metrics"
    ask /api/chat '{"model":"SMOL",'"$m,$opt}" > stream
    [ "$(jq -rsj 'map(.message.content) | join("")' stream)" = "$(jq -j .message.content got)" ]
    is 'all(.[]; .message.role == "assistant")' stream
}

@test "a repeated prompt has equal counts, and its duration matches the client's" {
    local long
    long=$(seq -s' ' 300)
    for i in 1 2; do
        ask /api/generate '{"model":"smol","prompt":"'"$long"'","stream":false,"options":{"num_predict":1}}' > "again$i"
    done
    cat again1 again2 > got
    is '.[0].prompt_eval_count == .[1].prompt_eval_count and .[0].prompt_eval_count > 600 and
        .[0].prompt_eval_cached_count < 64 and .[1].prompt_eval_cached_count > 500'
    is "$metrics" again1
    is "$metrics" again2
    curl -sS -o got -w '%{time_total}' "$U/api/generate" \
        -d '{"model":"smol","prompt":"Tell a long story.","stream":false,"options":{"num_predict":60}}' > wall
    is "$(cat wall) as \$wall | .[0].total_duration / 1e9 | . <= \$wall and . > \$wall * 0.95 - 0.05"
    # the time outside the parts is small
    is '.[0] | .load_duration + .prompt_eval_duration + .eval_duration > 0.7 * .total_duration'
}

@test "context continues a conversation; raw returns none and accepts markers" {
    ask /api/generate '{"model":"smol","prompt":"My name is Ada.","stream":false,'"$opt}" > first.json
    jq -c '{model: "smol", prompt: "What is my name?", stream: false, context, options: {temperature: 0,
        num_predict: 12}}' first.json > body
    ask /api/generate @body > got
    [ "$(jq .prompt_eval_count got)" -gt "$(jq '.context | length' first.json)" ]
    # the same conversation as a chat: the same prompt, so the same answer
    jq -c '{model: "smol", stream: false, options: {temperature: 0, num_predict: 12}, messages: [{role: "user",
        content: "My name is Ada."}, {role: "assistant", content: .response}, {role: "user",
        content: "What is my name?"}]}' first.json > body
    ask /api/chat @body > chat
    [ "$(jq '[.prompt_eval_count, .eval_count]' chat)" = "$(jq '[.prompt_eval_count, .eval_count]' got)" ]
    [ "$(jq -r .message.content chat)" = "$(jq -r .response got)" ]
    ask /api/generate '{"model":"smol","raw":true,"stream":false,"prompt":"The capital of France is",'"$opt}" > got
    is '.[0] | (.response | test("Paris")) and (has("context") | not)'
    ask /api/generate '{"model":"smol","raw":true,"stream":false,"prompt":"<|im_start|><|im_end|>",'"$opt}" > got
    is '.[0].prompt_eval_count == 2'
}

@test "options: seed, stop, top_k, num_predict, num_ctx" {
    gen() { ask /api/generate '{"model":"smol","prompt":"Tell a story.","stream":false,"options":{'"$1}}"; }
    [ "$(gen '"seed":5,"num_predict":16' | jq .response)" = "$(gen '"seed":5,"num_predict":16' | jq .response)" ]
    [ "$(gen '"seed":5,"num_predict":16' | jq .response)" != "$(gen '"seed":6,"num_predict":16' | jq .response)" ]
    gen '"temperature":0,"num_predict":16' > greedy
    [ "$(gen '"top_k":1,"seed":1,"num_predict":16' | jq .response)" = "$(jq .response greedy)" ]
    jq -c '{model: "smol", prompt: "Tell a story.", stream: false, options: {temperature: 0, num_predict: 16,
        stop: [.response[9:14]]}}' greedy > body
    ask /api/generate @body > got
    [ "$(jq .response got)" = "$(jq '.response[:9]' greedy)" ]
    is '.[0].done_reason == "stop"'
    is '.[0] | .eval_count == 16 and .done_reason == "length"' greedy
    # an answer ends at the requested context length, and a longer prompt is refused with both numbers
    gen '"temperature":0,"num_predict":-1,"num_ctx":50' > got
    is '.[0] | .prompt_eval_count + .eval_count == 50 and .done_reason == "length"'
    run -0 status /api/generate '{"model":"smol","prompt":"'"$(seq -s' ' 100)"'","options":{"num_ctx":128}}'
    [[ $output == 400\ *"the input length exceeds the context length: request ("*") exceeds the available context size (128 tokens)"* ]]
    run -0 status /api/chat '{"model":"smol","messages":[{"role":"user","content":"'"$(seq -s' ' 5000)"'"}]}'
    [[ $output == 400\ *"the input length exceeds the context length"*"the available context size (8192 tokens)"* ]]
}

# From docs/api.md, with another model name.
recipe='{
  "model": "smol",
  "prompt": "Why is the sky blue?",
  "stream": false,
  "options": {
    "num_keep": 5,
    "seed": 42,
    "num_predict": 100,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.0,
    "typical_p": 0.7,
    "repeat_last_n": 33,
    "temperature": 0.8,
    "repeat_penalty": 1.2,
    "presence_penalty": 1.5,
    "frequency_penalty": 1.0,
    "penalize_newline": true,
    "stop": ["\n", "user:"],
    "numa": false,
    "num_ctx": 1024,
    "num_batch": 2,
    "num_gpu": 1,
    "main_gpu": 0,
    "use_mmap": true,
    "num_thread": 8
  }
}'

@test "the recipe \"Generate request (With options)\" works unchanged" {
    run -0 status /api/generate "$recipe"
    [[ $output == 200\ * ]]
    cp body whole
    is '.[0] | .done and .eval_count > 4 and .eval_count <= 100 and (.response | length > 10 and (test("\n") | not))' whole
    # the same again, and different without either of the two
    ask /api/generate "$recipe" > got
    [ "$(jq .response got)" = "$(jq .response whole)" ]
    for without in typical_p repeat_last_n; do
        jq -c "del(.options.$without)" <<< "$recipe" > less.json
        ask /api/generate @less.json > got
        [ "$(jq .context got)" != "$(jq .context whole)" ]
    done
    # the default is 64; -1 is the context, and the conversation is shorter
    last() { jq -c ".options.repeat_last_n = $1" <<< "$recipe" > last.json && ask /api/generate @last.json | jq -c .response; }
    [ "$(last 64)" = "$(jq -c .response got)" ]
    [ "$(last -1)" = "$(last 1024)" ]
    [ "$(last 0)" = "$(jq -c '.options |= del(.repeat_penalty, .presence_penalty, .frequency_penalty)' <<< "$recipe" > none.json &&
        ask /api/generate @none.json | jq -c .response)" ]
}

@test "logprobs: each token with its bytes, the best first" {
    ask /api/chat '{"model":"smol","messages":[{"role":"user","content":"Hi"}],"logprobs":true,"top_logprobs":3,
        "stream":false,'"$opt}" > got
    is '.[0] as $a | ($a.logprobs | map(.token) | join("")) == $a.message.content'
    is '.[0].logprobs | all(.[]; .logprob <= 0 and (.token | utf8bytelength) == (.bytes | length) and
        (.top_logprobs | length) == 3 and .top_logprobs[0].logprob >= .top_logprobs[1].logprob)'
    ask /api/generate '{"model":"smol","prompt":"Hi","logprobs":true,'"$opt}" > got
    is 'map(select(.done | not)) | all(.[]; .logprobs | length >= 1)'
    is '[.[].logprobs // [] | length] | add == 12 or add == 11'
}

@test "an empty prompt loads the model, keep_alive 0 unloads it" {
    ask /api/generate '{"model":"smol"}' > got
    is '.[0] | .done and .done_reason == "load" and .response == "" and .eval_count == 0'
    is "$metrics"
    ask /api/generate '{"model":"smol","keep_alive":0}' > got
    is '.[0].done_reason == "unload"'
    ask /api/chat '{"model":"smol","messages":[]}' > got
    is '.[0] | .done_reason == "load" and .message == {"role":"assistant","content":""}'
}

@test "tags, ps and show report the model" {
    curl -sS "$U/api/tags" > got
    is '.[0].models | map(.name) == ["smol:latest", "hub/smol:135m"]'
    is '.[0].models[0] | .model == .name and .size > 5e7 and (.digest | test("^[0-9a-f]{64}$")) and
        (.modified_at | fromdateiso8601? // (.[:19] + "Z" | fromdateiso8601)) > 1e9'
    is '.[0].models[0].details == {"parent_model":"","format":"gguf","family":"llama","families":["llama"],
        "parameter_size":"134.52M","quantization_level":"Q4_1"}'
    curl -sS "$U/api/ps" > got
    is '.[0].models[0] | .name == "smol:latest" and .size_vram == 0 and .context_length == 8192 and .expires_at > "2100"'
    ask /api/show '{"model":"smol"}' > got
    is '.[0] | .capabilities == ["completion"] and .model_info["llama.context_length"] == 8192 and
        .model_info["tokenizer.ggml.tokens"] == null and (.parameters | test("num_ctx +8192")) and
        (.template | test("im_start")) and (.modelfile | test("FROM ")) and .details.format == "gguf"'
    ask /api/show '{"name":"hub/smol:135m","verbose":true}' > got
    is '.[0].model_info["tokenizer.ggml.tokens"] | length == 49152'
    ask /api/pull '{"model":"smol","stream":false}' > got
    is '.[0] == {"status":"success"}'
    ask /api/pull '{"model":"smol"}' > got
    is 'last == {"status":"success"}'
}

@test "the Ollama address also serves the OpenAI API" {
    curl -sS "$U/v1/models" > got
    is '.[0].data[0].id == "smol"'
}

# expect CODE TEXT PATH BODY [CURL OPTION ...]: the response is an object with the field error only
expect() {
    run -0 status "$3" "$4" "${@:5}"
    [[ $output == "$1 "* && $output == *"$2"* ]] || { echo "$3 $4: $output"; return 1; }
    jq -e 'keys == ["error"] and (.error | type == "string")' body > /dev/null
}

@test "errors are a status and {\"error\"}, streamed or not" {
    local g=/api/generate c=/api/chat
    expect 404 "model 'no' not found" $g '{"model":"no","prompt":"x"}'
    expect 404 "model 'no' not found" $c '{"model":"no","messages":[]}'
    expect 404 "model 'no' not found" /api/show '{"model":"no"}'
    expect 404 "model 'no' not found" /api/delete '{"model":"no"}' -X DELETE
    expect 404 "model 'no' not found" /api/pull '{"model":"no"}'
    expect 400 "model is required" $c '{"messages":[]}'
    expect 400 "missing request body" $g ''
    expect 400 "not JSON" $g '{"model":"smol","prompt":'
    expect 400 "not a JSON object" $g '[]'
    expect 400 "model: expected a string" $g '{"model":5}'
    expect 400 "prompt: expected a string" $g '{"model":"smol","prompt":["a"]}'
    expect 400 "options.temperature" $c '{"model":"smol","messages":[{"role":"user","content":"x"}],"options":{"temperature":"hot"}}'
    expect 400 "role" $c '{"model":"smol","messages":[{"role":"nar\nrator","content":"x"}]}'
    expect 400 "format" $g '{"model":"smol","prompt":"x","format":"json"}'
    expect 400 "tools" $c '{"model":"smol","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]}'
    expect 400 "thinking" $g '{"model":"smol","prompt":"x","think":true,"stream":false}'
    expect 400 "raw mode" $g '{"model":"smol","prompt":"x","raw":true,"system":"s"}'
    expect 501 "embeddings" /api/embed '{"model":"smol","input":"x"}'
    expect 501 "" /api/create '{"model":"x","from":"smol"}'
    expect 501 "" /api/copy '{"source":"smol","destination":"x"}'
    expect 501 "" /api/push '{"model":"smol"}'
    expect 404 "" /api/nothing '{}'
    expect 405 "" /api/tags '{}'
    [ "$(curl -sSI -o /dev/null -w '%{http_code}' "$U/api/blobs/sha256:00")" = 404 ]
}

@test "a full queue is 503 with Retry-After" {
    serve full --max-waiting 1 --served-model-name smol
    local V
    V=$(ollama_of full)
    kill -STOP "$(pid_of prefill)" "$(pid_of decode)"
    curl -sS --max-time 20 "$V/api/generate" \
        -d '{"model":"smol","prompt":"x","stream":false,"options":{"num_predict":1}}' > waits 2>&1 3>&- &
    local pid=$!
    sleep 0.3
    run -0 curl -sS --max-time 10 -D head -o got -w '%{http_code}' "$V/api/chat" \
        -d '{"model":"smol","messages":[{"role":"user","content":"x"}]}'
    kill -CONT "$(pid_of prefill)" "$(pid_of decode)"
    [ "$output" = 503 ]
    grep -qi '^retry-after: [1-9]' head
    is '.[0].error | type == "string"'
    wait $pid
    is '.[0].done' waits
}

@test "a failure during a stream is a line with error, and the end" {
    rm -f got
    serve ends --drain-seconds 1 --served-model-name smol
    curl -sSN --max-time 20 "$(ollama_of ends)/api/generate" \
        -d '{"model":"smol","raw":true,"prompt":"1, 2, 3,","options":{"num_predict":6000,"temperature":0}}' > got 3>&- &
    local pid=$!
    for ((i = 0; i < 100; i++)); do [ -s got ] && break || sleep 0.05; done
    kill -TERM "$(cat ends.pid)"
    wait $pid # a whole answer: the end mark of its chunks is there
    is '(length > 3) and (last | keys == ["error"]) and all(.[:-1][]; .done == false)'
}
