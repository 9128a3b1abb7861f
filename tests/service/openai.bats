#!/usr/bin/env bats
# The OpenAI API of stream --http with the real services and the real model. Each check is a function of openai_client.py.

bats_require_minimum_version 1.5.0

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    cd "$BATS_FILE_TMPDIR" || return 1
    mkdir -m 700 up
    export RUN=$PWD/up SOCKET=$PWD/s
    timeout -k 1 60 phasepipe up --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --kv-cache-memory-bytes 192M --http "unix:$SOCKET" \
        --ollama off --served-model-name smol --served-model-name alias --detach > up.log 2>&1 3>&-
}

teardown_file() { timeout -k 1 60 phasepipe down --run "$RUN" > /dev/null 2>&1 || true; }

check() { timeout 120 python3 "$PHASEPIPE_TOP/tests/service/openai_client.py" "$SOCKET" "$1"; }

@test "objects, names, usage and ids are those of vLLM" { check shapes; }
@test "streams: whole events, the role first, the reason with the last token, usage, the end mark" { check streams; }
@test "n, several prompts and token ids" { check choices; }
@test "log-probabilities are those of the pipeline, with a cold and a warm store" { check logprobs; }
@test "each field has its effect" { check fields; }
@test "invalid requests are refused with status, type and parameter" { check errors; }
@test "any value of any field is accepted or refused, and the next request works" { check odd_values; }
@test "tokenize and detokenize, and text that looks like a marker" { check tokens; }
@test "a stop text across tokens is held back, streamed and not" { check stops; }
@test "every route of openapi.json exists" { check routes; }
@test "answers do not depend on concurrent requests" { check beside; }

@test "an unknown field is logged once" {
    [ "$(grep -c "who_knows" "$RUN/log/stream.log")" -eq 1 ]
}

@test "with a model without chat template a chat is refused at messages, and a text is completed" {
    "$PHASEPIPE_TOP/scripts/make-random-model" --type F16 --layers 1 --hidden 64 --heads 1 --kv-heads 1 --ffn 64 --vocab 512 \
        "$BATS_TEST_TMPDIR/bare.gguf"
    cd "$BATS_TEST_TMPDIR"
    mkdir -m 700 up
    timeout -k 1 60 phasepipe up --run "$PWD/up" -m bare.gguf --kv-cache-memory-bytes 64M --http "unix:$PWD/s" --ollama off \
        --detach > up.log 2>&1 3>&-
    SOCKET=$PWD/s check no_template || failed=1
    timeout -k 1 60 phasepipe down --run "$PWD/up" > /dev/null 2>&1
    [ -z "$failed" ]
}
