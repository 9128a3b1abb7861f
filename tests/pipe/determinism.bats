#!/usr/bin/env bats
# The determinism promise: the same request gives the same ids and log-probabilities, bit for bit, for any batch, chunk size,
# number of threads and instruction set, in one process or two. Log-probabilities are printed with nine digits, which
# distinguish all float32.

load pipe

setup_file() {
    cd "$BATS_FILE_TMPDIR" || return 1
    requests | sed 's/"18446744073709551615"/18446744073709551615/' > requests.jsonl
    tokenize --jsonl requests.jsonl > all.tok
    prefill < all.tok | decode | stream --jsonl | jq -cS 'del(.timings)' > want
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
}

setup() {
    cd "$BATS_FILE_TMPDIR" || return 1
}

same() {
    diff want "$1"
}

@test "the reference: seven answers with ids and log-probabilities" {
    [ "$(wc -l < want)" = 7 ]
    jq -se 'all(.[]; (.token_ids | length) > 0 and (.logprobs.token_logprobs | length) >= (.token_ids | length))' want
    jq -se 'all(.[] | select(.id == "masks"); .prompt_logprobs.token_logprobs | length == 26 and .[25] < 0)' want
    [ "$(jq -r 'select(.id=="stops") | .finish_reason' want)" = stop ]
}

@test "chunks of 1, 7, 32 and 500 rows give the same answers" {
    for n in 1 7 32 500; do
        pipe --max-num-batched-tokens $n < all.tok > got
        same got
    done
}

@test "one and two threads give the same answers" {
    for n in 1 2; do
        prefill --threads $n < all.tok | decode --threads $n | stream --jsonl | answers > got
        same got
    done
}

@test "decode alone, in chunks, gives the same answers" {
    for n in 64 65 512; do
        decode --max-num-batched-tokens $n < all.tok | stream --jsonl | answers > got
        same got
    done
}

@test "requests alone and in a batch of nine give the same answers" {
    while read -r line; do
        printf '%s\n' "$line" | tokenize --jsonl | pipe
    done < requests.jsonl > got
    same got
    { cat requests.jsonl; for i in 1 2 3 4; do jq -cn --arg p "$(seq -s ' ' $((i * 40)))" '{prompt:$p,max_tokens:40}'; done; } |
        tokenize --jsonl | prefill | decode --max-num-seqs 9 | stream --jsonl | answers | head -7 > got
    same got
}

@test "interleaved answers are the same" {
    decode --max-num-seqs 2 < all.tok | stream --jsonl | answers > got
    same got
}

# It takes 50 ms a row; tests/kernels compares it with each table by bits.
@test "plain C gives the same short answers" {
    grep -E '"id":"(sampled|penalties|stops)"' requests.jsonl | sed 's/"max_tokens":24/"max_tokens":6/' |
        tokenize --jsonl > short.tok
    prefill < short.tok | decode | stream --jsonl | answers > short.want
    [ "$(jq -s 'map(.usage.completion_tokens) | add' short.want)" -ge 15 ]
    PHASEPIPE_ISA=c prefill < short.tok | PHASEPIPE_ISA=c decode | stream --jsonl | answers | diff short.want -
}

# bats test_tags=long
@test "plain C gives the same whole answers" {
    PHASEPIPE_ISA=c prefill < all.tok | PHASEPIPE_ISA=c decode | stream --jsonl | answers > got
    same got
}

@test "AVX2 and AVX-512 give the same answers" {
    for isa in avx2 avx512 avx512-fma avx512-dot; do
        PHASEPIPE_ISA=$isa prefill < all.tok > isa.kv 2> isa.err || { cat isa.err; grep -q 'lacks' isa.err && continue; return 1; }
        PHASEPIPE_ISA=$isa decode < isa.kv | stream --jsonl | answers > got
        same got
    done
}

# delayed SEED ...
delayed() {
    for seed; do
        PHASEPIPE_TEST_DELAY=$seed prefill --max-num-batched-tokens 40 --threads 2 < all.tok |
            PHASEPIPE_TEST_DELAY=$((seed + 100)) decode --threads 3 | stream --jsonl | answers > got
        same got
    done
}

@test "random delays at the ends of stages change no answer" { delayed 1 2; }

# bats test_tags=long
@test "random delays of more seeds change no answer" { delayed 3 4 5 6 7 8 9 10; }

@test "cores that are lent and taken back during steps change no answer" {
    cores=$(taskset -cp $$ | sed 's/.*: //')
    first=${cores%%[,-]*} last=${cores##*[,-]}
    [ "$first" != "$last" ] || skip "one processor"
    for how in lease lease fixed; do
        for n in 40 512; do
            prefill --cpus "$first" --cores $how --cores-file cores --max-num-batched-tokens $n < all.tok |
                decode --cpus "$last" --cores $how --cores-file cores | stream --jsonl | answers > got
            same got
        done
    done
    # six processes of each kind, which share two processors
    for i in 1 2 3 4 5; do
        { sleep 0.0$i; prefill --cpus "$first" --cores-file cores --max-num-batched-tokens 64 < all.tok |
            decode --cpus "$last" --cores-file cores | stream --jsonl | answers > got.$i; } 3>&- &
    done
    wait
    for i in 1 2 3 4 5; do same got.$i; done
}

@test "f16 and bf16 KV are deterministic too" {
    for kv in f16 bf16; do
        decode --kv-cache-dtype $kv < all.tok | stream --jsonl | answers > want.$kv
        for n in 7 500; do
            pipe --kv-cache-dtype $kv --max-num-batched-tokens $n < all.tok > got
            diff want.$kv got
        done
        for isa in avx2 avx512-fma avx512-dot; do
            PHASEPIPE_ISA=$isa decode --kv-cache-dtype $kv < all.tok > isa.out 2> isa.err || { grep -q 'lacks' isa.err && continue; return 1; }
            stream --jsonl < isa.out | answers > got
            diff want.$kv got
        done
    done
}

@test "a long context, split over partitions, gives the same answer" {
    jq -cn --arg p "$(seq -s ' ' 400)" '{prompt:$p,max_tokens:16,logprobs:1}' | tokenize --jsonl > long.tok
    prefill --threads 1 < long.tok | decode --threads 1 | stream --jsonl | answers > long.want
    [ "$(jq .usage.prompt_tokens long.want)" -gt 1000 ]
    prefill --threads 2 --max-num-batched-tokens 300 < long.tok | decode --threads 4 | stream --jsonl | answers | diff long.want -
    decode --threads 2 --max-num-batched-tokens 77 < long.tok | stream --jsonl | answers | diff long.want -
}

# again N: runs the pipeline N times; each run gives the expected answers
again() {
    for i in $(seq "$1"); do
        prefill < all.tok | decode | stream --jsonl | answers > got
        same got
    done
}

@test "a second run gives the same answers" { again 2; }

# bats test_tags=long
@test "sixteen runs give the same answers" { again 16; }
