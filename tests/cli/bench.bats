#!/usr/bin/env bats
# The tools of `make bench`: counts and bytes are those of the shapes, computed by hand here; speed is not judged.

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    export XDG_CACHE_HOME=$PWD/cache PATH=$PHASEPIPE_TOP/scripts:$PATH LLAMA_DIR=$PWD/none
    tools=$PHASEPIPE_BUILD/tests/tools bench=$PHASEPIPE_TOP/scripts/bench/run
}

setup_file() {
    make -s -C "$PHASEPIPE_TOP" B="$PHASEPIPE_BUILD" tools
}

# 3 layers, hidden 256, ffn 512, 4 heads on 2 KV heads of 64, vocabulary 512
small() {
    make-random-model --type "$1" --hidden 256 --layers 3 --ffn 512 --heads 4 --kv-heads 2 --vocab 512 "$2"
}

@test "make-random-model: every type runs through the pipe, numbers stay finite, the same arguments give the same bytes" {
    for t in F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q4_K Q6_K; do
        small $t $t.gguf
        tokenize -m $t.gguf --jsonl <<< '{"prompt":[1,2,3,4,5,6,7,8],"max_tokens":4,"logprobs":2,"ignore_eos":true}' |
            prefill -m $t.gguf | decode -m $t.gguf > out
        frames < out > text
        [ "$(jq -s '[.[].lp[]?] | length' text)" -eq 4 ]
        jq -se '[.[].lp[]?[1]] | all(. > -20 and . <= 0)' text
    done
    small Q4_K again.gguf
    cmp Q4_K.gguf again.gguf
}

@test "make-random-model: bytes of a file are those of its blocks; columns that no block divides are refused" {
    small Q8_0 a.gguf
    small Q4_0 b.gguf
    # weights 131072 (embedding) + 3 · (65536 + 32768 + 32768 + 65536 + 3 · 131072); blocks of 32: 34 and 18 bytes
    n=$((131072 + 3 * (2 * 65536 + 2 * 32768 + 3 * 131072)))
    [ $(($(stat -c %s a.gguf) - $(stat -c %s b.gguf))) -eq $((n / 32 * 16)) ]
    run make-random-model --type Q4_K --hidden 288 c.gguf
    [ "$status" -eq 1 ]
    [[ $output == *"288 columns are no multiple of 256"* ]]
    [ ! -e c.gguf ]
}

@test "bench_engine --lines: jobs of any size one after the other, with the multiply-adds and bytes of the shape" {
    small Q8_0 m.gguf
    printf '%s\n' 'pp 40' 'tg 5 depth 33 batch 3 threads 2' 'pp 100 kv f16 rows 32' 'tg 2 depth 64' |
        "$tools/bench_engine" -m m.gguf --lines --reps 1 > out
    jq -s 'map(.test)' -c out | grep -qx '\["prefill","decode","prefill","decode"\]'
    keys=$((65536 + 2 * 32768)) rest=$((65536 + 3 * 131072))
    layer=$((keys + rest))
    # a prompt: the last layer after its keys, and the head, compute one row; 820 = 1 + 2 + … + 40
    jq -se --argjson n $((40 * (2 * layer + keys) + rest + 131072)) '.[0].linear_macs == $n' out
    jq -se '.[0].attn_macs == (820 * 2 + 40) * 2 * 4 * 64' out
    jq -se --argjson l $((3 * layer)) '.[1] | .linear_macs == 15 * ($l + 131072) and .tokens == 15 and .threads == 2' out
    # a token: 3 layers · 2 heads · (K and V of 64 bytes and a scale of 4); two steps precede the timed ones
    jq -se '.[1].kv_bytes == 3 * (33 + 2 + 3) * 3 * 2 * 2 * 68' out
    jq -se '.[2] | .key_bytes == 3 * 2 * 2 * 128 and .attn_macs == (5050 * 2 + 100) * 2 * 4 * 64' out
    # packed Q8_0 has as many bytes as in the file: 34 for 32
    jq -se --argjson n $((3 * layer + 131072)) '.[1].weight_bytes == $n / 32 * 34' out
    for bad in 'pp' 'pp 0' 'tg 4 deep 3' 'pp 4 tg 4' 'pp 8 kv int4' 'depth 4'; do
        run "$tools/bench_engine" -m m.gguf --lines <<< "$bad"
        [ "$status" -eq 100 ]
    done
}

@test "logits --perplexity: the sum that raw logits give" {
    small BF16 m.gguf
    seq 3 5 260 > ids
    "$tools/logits" -m m.gguf --perplexity 20 < ids > got
    for w in 0 1; do
        sed -n "$((20 * w + 1)),$((20 * w + 20))p" ids | "$tools/logits" -m m.gguf > raw$w
    done
    python3 - << 'P'
import json, math, struct
ids = [int(x) for x in open("ids")]
nll = []
for w in range(2):
    x = struct.unpack("<%df" % (20 * 512), open(f"raw{w}", "rb").read())
    for i in range(19):
        row = x[512 * i:512 * i + 512]
        nll.append(math.log(sum(map(math.exp, row))) - row[ids[20 * w + i + 1]])
got = json.load(open("got"))
assert got["n"] == len(nll), got
assert abs(got["nll"] - sum(nll) / len(nll)) < 1e-6, (got, sum(nll) / len(nll))
P
    run "$tools/logits" -m m.gguf --perplexity 200 < ids
    [ "$status" -eq 100 ]
}

@test "probe: one line for each line; a line that it cannot parse is reported" {
    printf 'read 2 1\nint8 1\nf32 2\nbf16 1\n' | "$tools/probe" -l -s 0.01 > out
    [ "$(jq -r .what out | tr '\n' ' ')" = "read int8 f32 bf16 " ]
    jq -se '.[0:3] | all(.median > 0 and .best >= .median)' out
    for bad in 'read 2' 'int8' 'int8 1 2' 'read 0 1' 'int8 0' 'x 1'; do
        run "$tools/probe" -l <<< "$bad"
        [ "$status" -eq 100 ]
    done
}

@test "bench_serve: intervals between all tokens of the streams after the first eight, and the times of the prompt" {
    small Q4_0 m.gguf
    run=$(mktemp -d /tmp/bench.XXXXXX)
    phasepipe up -m m.gguf --run "$run" --kv-cache-memory-bytes 64M --detach 3>&- 4>&- 2> up.err
    set -- --sched "ipc://$run/sched.sock" --tokenize "ipc://$run/tokenize.sock"
    printf '%s\n' 'streams 2 depth 10 quiet 20 prompt 300 tokens 3 vocab 300' 'prompt 40 tokens 4 vocab 300' |
        timeout 60 "$tools/bench_serve" "$@" > out
    run_bad() { run timeout 60 "$tools/bench_serve" "${@:2}" <<< "$1"; }
    for bad in 'streams 2 size 3' 'depth 4' 'streams'; do
        run_bad "$bad" "$@"
        [ "$status" -eq 100 ]
    done
    phasepipe down --run "$run"
    rm -r "$run"
    jq -se '.[0] | (.quiet | length) >= 40 and (.during | length) >= 2 and .ttft_ms > 0 and .tpot_ms > 0 and .cached == 0' out
    jq -se '.[1] | .quiet == [] and .during == [] and .ttft_ms > 0 and .tpot_ms > 0' out
}

@test "scripts/bench: without peers only our side is measured, and the output names what is missing" {
    small Q4_0 m.gguf
    rm "$tools/probe" # built again before it is used
    B=$PHASEPIPE_BUILD "$bench" -m m.gguf --rounds 1 --threads 1 --only attention,start,memory --json out.json > text
    grep -q 'llama-bench.*not found' text
    grep -q 'vLLM is not installed' text
    jq -e '[.figures[] | select(.name) | .value] | length == 3 and all(. > 0)' out.json
    jq -e '.machine.int8_gmacs[0] > 0' out.json
    run "$bench" --only nothing
    [ "$status" -eq 2 ]
}

# bats test_tags=long
@test "scripts/bench: the sections requests and edge run without peers" {
    B=$PHASEPIPE_BUILD timeout 240 "$bench" -m "$PHASEPIPE_TEST_MODEL" --rounds 1 --only requests,edge --json out.json > text 3>&-
    grep -q 'llama-server not found' text
    jq -e '[.figures[] | select(.name) | .value] | length == 2 and .[0] > 1' out.json
}

@test "scripts/bench: an event's delay counts from the first event of its step, and first tokens are not counted" {
    PYTHONPATH=$PHASEPIPE_TOP/scripts python3 - << 'P'
from bench import over_http
assert over_http.SSE["step_ms"] == 100
# steps at 1.0, 1.1 and 1.2 s; the second answer begins a step later, and is 7, then 20 ms later than the first one
got = over_http.delays_ms({"start_times": [0.5, 0.6], "ttfts": [0.45, 0.48], "itls": [[0.05, 0.1, 0.1], [0.027, 0.113]]})
want = [0, 0, 7, 0, 20]
assert len(got) == len(want) and all(abs(a - b) < 1e-6 for a, b in zip(got, want)), got
P
}
