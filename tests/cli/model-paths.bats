#!/usr/bin/env bats
# -m with what is not a GGUF file: the error states what is needed and how to get it, in each program that takes a model.

ROOT="$BATS_TEST_DIRNAME/../.."

setup() {
    PATH="${PHASEPIPE_BIN:-$ROOT/${B:-build}/bin}:$PATH"
    cd "$BATS_TEST_TMPDIR"
}

# refused TEXT MODEL: by all programs, with status 1
refused() {
    local program
    for program in "tokenize --raw -p x" prefill decode "kvstore --listen unix:kv" "phasepipe up --run $PWD/up --http off"; do
        run bash -c "$program -m '$2' < /dev/null 2>&1 > /dev/null | cat; exit \${PIPESTATUS[0]}"
        [ "$status" = 1 ] || { echo "$program: status $status: $output"; false; }
        [[ $output == *"$1"* ]] || { echo "$program: $output"; false; }
    done
}

@test "the name of a repository" {
    refused "Qwen/Qwen2.5-0.5B: no such file: a model is given as a GGUF file, not as a repository. scripts/get-model REPOSITORY FILE.gguf" \
        Qwen/Qwen2.5-0.5B
}

@test "a file that does not exist" {
    refused "dir/m.gguf: no such file: a GGUF file is needed; scripts/get-model fetches one" dir/m.gguf
}

@test "directories: empty, with GGUF files, with a model in another format" {
    mkdir d
    refused "d: is a directory: a GGUF file is needed; scripts/get-model fetches one" d
    touch d/config.json d/model.safetensors
    refused "d: is a directory with a model in another format: convert it to a GGUF file with convert_hf_to_gguf.py" d
    touch d/b.gguf d/a.gguf
    refused "d: is a directory: name the GGUF file in it, a.gguf" d
}
