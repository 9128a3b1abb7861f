#!/usr/bin/env bats
# A context of 262,144 tokens, filled to its end: sizes, tables and bookkeeping at full length. The weights are random, so
# runs are compared with each other: the answer must not depend on the chunks.
#
# A model of one layer needs attention only for requested rows, so it runs the full length in a second, in chunks of 64 rows
# a thread and more. With two layers all rows attend to all before them: 65,536 tokens here, the full length if
# PHASEPIPE_LONG is set (make check-long; half a minute a run on two cores).

load pipe

N=262144

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    for layers in 1 2; do
        "$PHASEPIPE_TOP/scripts/make-random-model" --type Q8_0 --hidden 64 --layers $layers --ffn 64 --heads 1 --kv-heads 1 \
            --head-dim 32 --vocab 512 --context $N layers$layers.gguf
    done
    prompt $((N - 64)) | tokenize -m layers1.gguf --jsonl > full.tok
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
}

teardown() {
    [ ! -e run/up.sock ] || timeout 60 phasepipe down --run run || true
}

# prompt TOKENS [MORE FIELDS]: a request of so many ids that requests more tokens than fit after them
prompt() {
    python3 -c 'import json, random, sys
r = random.Random(3)
q = {"id": "long", "prompt": [r.randrange(500) for _ in range(int(sys.argv[1]))], "max_tokens": 1 << 20, "ignore_eos": True,
     "temperature": 1, "seed": 5, "logprobs": 1}
print(json.dumps(q | json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}")))' "$@"
}

# through LAYERS CHUNK [THREADS]: tok frames on stdin, the answer on stdout
through() {
    prefill -m "layers$1.gguf" --max-num-batched-tokens "$2" --threads "${3:-2}" | decode -m "layers$1.gguf" |
        stream -m "layers$1.gguf" --jsonl | answers
}

# The answer fills the context length.
ends_at() {
    jq -e --argjson n "$2" '.finish_reason == "length" and .usage.prompt_tokens + .usage.completion_tokens == $n and
        (.token_ids | length) == .usage.completion_tokens and (.logprobs.token_logprobs | all(. <= 0))' "$1"
}

@test "262,080 tokens and an answer of 64 fill the context length, in chunks of many sizes" {
    through 1 512 < full.tok > want
    ends_at want $N
    [ "$(jq .usage.completion_tokens want)" = 64 ]
    for chunk in 500 8192 65536; do
        through 1 $chunk < full.tok | diff want -
    done
    through 1 512 1 < full.tok | diff want -
    decode -m layers1.gguf < full.tok | stream -m layers1.gguf --jsonl | answers | diff want -
}

@test "a prompt whose log-probabilities exceed a frame fails alone, and at once" {
    { prompt 200000 '{"logprobs":64,"echo":true,"max_tokens":1}'; prompt 200000 '{"prompt_logprobs":64,"max_tokens":0}'
      prompt 56000 '{"prompt_logprobs":64,"max_tokens":1}'; prompt 3 '{"max_tokens":1}'; } |
        tokenize -m layers1.gguf --jsonl > four.tok
    for first in prefill decode; do
        if [ $first = prefill ]; then prefill -m layers1.gguf < four.tok | decode -m layers1.gguf; else decode -m layers1.gguf < four.tok; fi |
            stream -m layers1.gguf --jsonl > got 2> err || true
        jq -e -s '.[0].error.message | test("^logprobs: 200000 tokens of the prompt with 64 best tokens each may take 1[0-9]{8} bytes, the limit is 33488896: request fewer$")' got
        jq -e -s '(.[1].error.message | test("^prompt_logprobs: 200000 tokens")) and (.[2:] | all(.error == null and (.token_ids | length == 1)))' got
        jq -e -s '.[2].prompt_logprobs | (.token_logprobs | length == 56000) and (.top_logprobs[1:] | all(length >= 64))' got
    done
}

@test "long frames round-trip through JSON to the byte; recorded KV gives the same answer" {
    frames full.tok | frames -e | cmp - full.tok
    through 1 512 < full.tok > want
    prefill -m layers1.gguf < full.tok > full.kv
    frames full.kv | jq -s '[.[] | select(.k == "blk")] | length' | grep -qx $((N / 32 - 2))
    decode -m layers1.gguf < full.kv | stream -m layers1.gguf --jsonl | answers | diff want -
}

@test "penalties, stops and echo work over the whole context length" {
    prompt $((N - 300)) '{"repetition_penalty":1.2,"presence_penalty":0.3,"frequency_penalty":0.1,"top_k":40,"stop":["zzzzzz"]}' |
        tokenize -m layers1.gguf --jsonl > p.tok
    through 1 512 < p.tok > want
    ends_at want $N
    through 1 5000 < p.tok | diff want -
}

@test "262,080 tokens are transferred between services; the second time they are cached" {
    mkdir -p run
    timeout 120 phasepipe up -m "$PWD/layers1.gguf" --run "$PWD/run" --kv-cache-memory-bytes 128M --detach 3>&-
    through 1 512 < full.tok | jq -cS 'del(.usage.cached_tokens)' > want
    prompt $((N - 64)) > full.jsonl
    for cached in 0 $((N - 64 - 32)); do
        timeout 120 stream --run run -m layers1.gguf --jsonl < full.jsonl | answers > got
        jq -e --argjson n $cached '.usage.cached_tokens == $n' got
        jq -cS 'del(.usage.cached_tokens)' got | diff want -
    done
    phasepipe ps --run run > ps
    [ "$(grep -c ' ready  *0$' ps)" = 5 ] # none has been started again
    timeout 60 phasepipe down --run run
}

@test "room for one token, none, and less than none" {
    for n in $((N - 1)) $N $((N + 1)); do
        prompt "$n" | tokenize -m layers1.gguf --jsonl 2> err$n > one.tok || true
        prefill -m layers1.gguf < one.tok | decode -m layers1.gguf | stream -m layers1.gguf --jsonl > got$n 2>> err$n || true
    done
    ends_at got$((N - 1)) $N
    for n in $N $((N + 1)); do
        cat got$n err$n | grep -q "$N"
        ! jq -e '.finish_reason == "length"' got$n
    done
}

@test "65,472 tokens with full attention, in chunks of other sizes" {
    prompt $((65536 - 64)) '{"max_tokens":64}' | tokenize -m layers2.gguf --jsonl > part.tok
    through 2 512 < part.tok > want
    ends_at want 65536
    for chunk in 700 16384; do
        through 2 $chunk < part.tok | diff want -
    done
}

# bats test_tags=long
@test "262,080 tokens with full attention, in chunks of other sizes" {
    prompt $((N - 64)) | tokenize -m layers2.gguf --jsonl > full2.tok
    through 2 512 < full2.tok > want
    ends_at want $N
    for chunk in 4096 1000; do
        through 2 $chunk < full2.tok | diff want -
    done
}
