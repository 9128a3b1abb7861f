#!/usr/bin/env bats
# /metrics of stream --http with real services and the fake engine, which takes configured times. Counts and times are
# compared with those of a measuring client (metrics_client.py) and of the engine; the format is checked by promtool and a
# real Prometheus if they are installed.

bats_require_minimum_version 1.5.0

setup_file() {
    export BATS_NO_PARALLELIZE_WITHIN_FILE=true
    cd "$BATS_FILE_TMPDIR" || return 1
    mkdir -m 700 up
    export RUN=$PWD/up SOCKET=$PWD/http.sock
    : > pids
    # A prompt takes at least 5 ms, and so does each token after the first.
    timeout -k 1 90 phasepipe up --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --engine fake:5e6,1e4,0,5e6,1,1000 \
        --kv-cache-memory-bytes 2M --http "unix:$SOCKET" --ollama off --served-model-name smol --detach \
        > up.log 2>&1 3>&-
}

teardown_file() {
    resume
    timeout -k 1 60 phasepipe down --run "$RUN" > /dev/null 2>&1 || true
    for pid in $(cat "$BATS_FILE_TMPDIR/pids"); do kill -9 "$pid" 2> /dev/null || true; done
}

setup() { cd "$BATS_FILE_TMPDIR" || return 1; }
teardown() { resume; }

resume() {
    local n
    for n in sched kvstore; do kill -CONT "$(pid_of $n)" 2> /dev/null || true; done
}

pid_of() { phasepipe ps --run "$RUN" --json | jq -r --arg n "$1" '[.[] | select(.program == $n or .name == $n) | .pid][0]'; }
client() { timeout 120 python3 "$PHASEPIPE_TOP/tests/service/metrics_client.py" "$SOCKET" "$@"; }
scrape() { curl -sS --max-time 5 --unix-socket "$SOCKET" http://localhost/metrics > page; }

# value NAME [LABEL=VALUE …]: prints the value of the series with these labels in the file `page`; nothing if there is none
value() {
    awk -v name="$1" -v labels="${*:2}" '
        BEGIN { n = split(labels, want, " ") }
        /^#/ { next }
        {
            split($1, part, "{")
            if (part[1] != name) next
            for (i = 1; i <= n; i++) {
                eq = index(want[i], "=")
                if (!index($1, substr(want[i], 1, eq) "\"" substr(want[i], eq + 1) "\"")) next
            }
            print $NF
            exit
        }' page
}

# so EXPRESSION: succeeds if the numeric expression is true
so() {
    awk "BEGIN { exit !($1) }" || {
        echo "not so: $1"
        return 1
    }
}

# until_true SECONDS COMMAND …
until_true() {
    local end=$(($(date +%s%N) + $1 * 1000000000))
    shift
    until "$@"; do
        [ "$(date +%s%N)" -lt "$end" ] || {
            echo "never: $*"
            return 1
        }
        sleep 0.05
    done
}
shows() { scrape && [ "$(value "${@:1:$#-1}")" = "${*: -1}" ]; }

@test "before the first request promtool accepts the page, and all counters are 0" {
    until_true 5 shows phasepipe:sched_up 1
    until_true 5 shows phasepipe:store_up 1
    [ "$(value vllm:generation_tokens_total)" = 0 ]
    [ "$(value vllm:kv_cache_usage_perc)" = 0 ]
    [ "$(value vllm:request_success_total finished_reason=length model_name=smol engine=0)" = 0 ]
    command -v promtool > /dev/null || skip "no promtool: apt-get install prometheus"
    run promtool check metrics < page
    # The linter complains about vLLM's names only.
    echo "$output" | grep -v "should not contain ':'" |
        grep -vx 'vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix' > lint || true
    cat lint
    [ ! -s lint ]
}

@test "every series of vLLM's board exists" {
    scrape
    grep -v '^#' "$PHASEPIPE_TOP/tests/golden/vllm-board.txt" > board
    [ "$(wc -l < board)" = 21 ]
    while read -r name labels; do
        grep "^$name{" page > rows || { echo "$name is missing"; false; }
        for label in $labels; do grep -q "[{,]$label=\"" rows || { echo "$name has no $label"; false; }; done
    done < board
}

@test "counts and times match the client's" {
    client load 6 42 > seen
    scrape
    for k in requests choices prompt_tokens completion_tokens cached_tokens max_tokens longest ttft_s e2e_s; do
        eval "$k=$(jq ".$k" seen)"
    done
    [ "$requests" = 42 ]
    [ "$(value vllm:request_params_n_count)" = "$requests" ]
    [ "$(value vllm:request_params_n_sum)" = "$choices" ]
    [ "$(value vllm:request_max_num_generation_tokens_sum)" = "$longest" ]
    [ "$(value phasepipe:http_requests_total route=/v1/completions code=200)" = "$requests" ]
    for h in time_to_first_token_seconds e2e_request_latency_seconds request_queue_time_seconds \
        request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds request_prompt_tokens \
        request_generation_tokens request_params_max_tokens request_time_per_output_token_seconds; do
        [ "$(value vllm:${h}_count)" = "$choices" ] || { echo "$h"; false; }
    done
    [ "$(value vllm:request_success_total finished_reason=length)" = "$choices" ]
    [ "$(value vllm:generation_tokens_total)" = "$completion_tokens" ]
    [ "$(value vllm:request_generation_tokens_sum)" = "$completion_tokens" ]
    [ "$(value vllm:request_params_max_tokens_sum)" = "$max_tokens" ]
    [ "$(value vllm:prompt_tokens_total)" = "$prompt_tokens" ]
    [ "$(value vllm:request_prompt_tokens_sum)" = "$prompt_tokens" ]
    local hits=$(value vllm:prefix_cache_hits_total) gaps=$(value vllm:inter_token_latency_seconds_count)
    so "$hits >= $cached_tokens && $cached_tokens > 0 && $hits <= $prompt_tokens"
    so "$(value vllm:prompt_tokens_by_source_total source=local_compute) + $hits == $prompt_tokens"
    so "$gaps <= $completion_tokens - $choices && $gaps > 0"
    # The server's times lie within the client's, and cannot be shorter than the engine's.
    local ttft=$(value vllm:time_to_first_token_seconds_sum) gap=$(value vllm:inter_token_latency_seconds_sum)
    local e2e=$(value vllm:e2e_request_latency_seconds_sum) step=0.005
    so "$ttft <= $ttft_s && $ttft + $gap <= $e2e_s && $e2e <= $e2e_s + 0.01 * $choices"
    so "$ttft >= $step * $choices && $gap >= 0.9 * $step * ($completion_tokens - $choices)"
    local queue=$(value vllm:request_queue_time_seconds_sum) prefill=$(value vllm:request_prefill_time_seconds_sum)
    local decode=$(value vllm:request_decode_time_seconds_sum) both=$(value vllm:request_inference_time_seconds_sum)
    so "$queue + $prefill <= $ttft && $prefill >= $step * $choices"
    so "$both - $prefill - $decode < 1e-6 && $prefill + $decode - $both < 1e-6"
    so "$decode >= $step * ($completion_tokens - $choices)"
    so "$queue + $both <= $e2e_s + 0.01 * $choices"
    so "$(value phasepipe:handover_seconds_count) <= $choices"
}

@test "counts of scheduler and store agree, and the pool is empty at the end" {
    local choices=$(jq .choices seen)
    until_true 10 shows phasepipe:sched_ended_total reason=length "$choices"
    [ "$(value phasepipe:sched_submitted_total)" = "$choices" ]
    until_true 10 shows vllm:num_requests_running 0
    until_true 10 shows vllm:kv_cache_usage_perc 0
    so "$(value phasepipe:store_hit_blocks_total) > 0 && $(value phasepipe:store_blocks state=cached) > 0"
    local all=0 s
    for s in free cached leased credited quarantined; do all=$((all + $(value phasepipe:store_blocks state=$s))); done
    [ "$all" = "$(value phasepipe:worker_blocks role=prefill)" ]
    so "$(value phasepipe:store_tier_bytes tier=memory) >= $(value phasepipe:store_tier_used_bytes tier=memory)"
    # Steps computed the uncached part of the prompts, and all tokens of each answer but the last.
    local computed=$(value vllm:prompt_tokens_by_source_total source=local_compute) answered=$(value vllm:generation_tokens_total)
    until_true 10 shows vllm:iteration_tokens_total_sum $((computed + answered - choices))
    so "$(value vllm:iteration_tokens_total_sum) >= $(value vllm:iteration_tokens_total_count)"
    so "$(value vllm:iteration_tokens_total_bucket le=1.0) > 0"
    [ "$(value phasepipe:worker_sequences worker=decode-0 role=decode)" = 64 ]
    grep -q '^vllm:cache_config_info{.*cache_dtype="int8"' page
}

@test "under load the pool usage is above 0 and at most 1" {
    timeout 60 python3 "$PHASEPIPE_TOP/tests/service/metrics_client.py" "$SOCKET" load 8 100000 \
        > /dev/null 2>&1 3>&- &
    local load=$!
    echo $load >> pids
    client sample 2 vllm:kv_cache_usage_perc > use
    client sample 2 vllm:num_requests_running > running
    kill $load
    wait $load || true
    cat use running
    jq -e '.least >= 0 and .greatest > 0 and .greatest <= 1 and .n > 20' use
    jq -e '.least >= 0 and .greatest > 0' running
    until_true 10 shows vllm:kv_cache_usage_perc 0
}

@test "invented paths and models create no series" {
    scrape
    local before=$(wc -l < page)
    client get /x 300
    client models 300
    scrape
    [ "$(wc -l < page)" = "$before" ]
    [ "$(value phasepipe:http_requests_total route=other code=404)" = 300 ]
    [ "$(value phasepipe:http_requests_total route=/v1/completions code=404)" = 300 ]
}

@test "a disconnect counts as one client gone and one abort" {
    scrape
    local rows='phasepipe:http_requests_total route=/v1/completions code=gone' ended=phasepipe:sched_ended_total
    local gone=$(value phasepipe:client_gone_total) row=$(value $rows) cancelled=$(value $ended reason=cancelled)
    local abort=$(value vllm:request_success_total finished_reason=abort)
    run curl -sN --max-time 0.5 --unix-socket "$SOCKET" http://localhost/v1/completions \
        -H 'Content-Type: application/json' -d '{"prompt":"a","max_tokens":1000,"ignore_eos":true,"stream":true}'
    [ "$status" = 28 ]
    until_true 2 shows phasepipe:client_gone_total $((gone + 1))
    until_true 2 shows vllm:request_success_total finished_reason=abort $((abort + 1))
    until_true 2 shows $rows $((row + 1))
    until_true 5 shows $ended reason=cancelled $((cancelled + 1))
}

@test "after a disconnect the cached part of its prompt counts as cached" {
    local body='{"prompt":['$(seq -s, 700 1100)'],"ignore_eos":true' cached
    for _ in 1 2; do
        cached=$(curl -sS --max-time 20 --unix-socket "$SOCKET" http://localhost/v1/completions --json "$body,\"max_tokens\":2}" |
            jq .usage.prompt_tokens_details.cached_tokens)
    done
    [ "$cached" -ge 384 ]
    scrape
    local hits=$(value vllm:prefix_cache_hits_total) prompts=$(value vllm:prompt_tokens_total)
    local computed=$(value vllm:prompt_tokens_by_source_total source=local_compute)
    run curl -sN --max-time 0.5 --unix-socket "$SOCKET" http://localhost/v1/completions --json "$body,\"max_tokens\":1000,\"stream\":true}"
    [ "$status" = 28 ]
    until_true 5 shows vllm:prompt_tokens_total $((prompts + 401))
    until_true 1 shows vllm:prefix_cache_hits_total $((hits + cached))
    until_true 1 shows vllm:prompt_tokens_by_source_total source=local_compute $((computed + 401 - cached))
}

@test "stopped services do not delay the page, and are shown as down" {
    kill -STOP "$(pid_of sched)" "$(pid_of kvstore)"
    local i t
    for i in 1 2 3 4 5 6 7; do
        sleep 1
        t=$(curl -sS --max-time 5 -o page -w '%{time_total}' --unix-socket "$SOCKET" http://localhost/metrics)
        so "$t < 0.5"
    done
    [ "$(value phasepipe:sched_up)" = 0 ]
    [ "$(value phasepipe:store_up)" = 0 ]
    [ -z "$(value phasepipe:sched_running)" ]
    so "$(value phasepipe:sched_submitted_total) > 0 && $(value phasepipe:store_hit_blocks_total) > 0"
    resume
    until_true 15 shows phasepipe:sched_up 1
    until_true 15 shows phasepipe:store_up 1
}

@test "counters continue when scheduler and store are restarted" {
    scrape
    local submitted=$(value phasepipe:sched_submitted_total) hits=$(value phasepipe:store_hit_blocks_total)
    local length=$(value phasepipe:sched_ended_total reason=length)
    kill -9 "$(pid_of sched)" "$(pid_of kvstore)"
    until_true 30 shows phasepipe:sched_up 1
    until_true 30 shows phasepipe:store_up 1
    until_true 30 shows phasepipe:sched_workers 2
    client load 2 6 > more
    local choices=$(jq .choices more)
    until_true 10 shows phasepipe:sched_submitted_total $((submitted + choices))
    until_true 10 shows phasepipe:sched_ended_total reason=length $((length + choices)) # the worker reports it after the client has it
    so "$(value phasepipe:store_hit_blocks_total) >= $hits"
}

@test "phasepipe-metrics(7) lists every family with type and labels" {
    scrape
    # NAME TYPE LABEL … of the page, without the label of buckets
    awk '/^# TYPE/ { name = $3; type[name] = $4; next }
        /^#/ { next }
        {
            s = $0
            sub(/^[^{ ]*/, "", s)
            sub(/ [^ ]*$/, "", s)
            n = gsub(/="([^"\\]|\\.)*"/, " ", s)
            gsub(/[{},]/, " ", s)
            if (length(s) > length(labels[name])) labels[name] = s
        }
        END {
            for (name in type) {
                n = split(labels[name], l, " ")
                line = name " " type[name]
                for (i = 1; i <= n; i++)
                    if (l[i] != "le" && l[i] != "engine" && l[i] != "model_name") line = line " " l[i]
                print line
            }
        }' page | sort > there
    [ "$(wc -l < there)" -gt 80 ]
    # The families by API key are compared in tenants.bats.
    awk '/^\.Ss/ { skip = /By API key/ } skip { next }
        /^\.It Ic/ { line = $3; for (i = 4; i <= NF; i++) if ($i != "," && $i != ";" && $i != "Pq") line = line " " $i
        print line }' "$PHASEPIPE_TOP/docs/man/phasepipe-metrics.7" | sort > documented
    diff documented there
}

@test "Prometheus scrapes the page and evaluates the board's queries" {
    command -v prometheus > /dev/null || skip "no prometheus: apt-get install prometheus"
    local port http
    read -r port http < <(python3 -c 'import socket
s = [socket.socket() for _ in "12"]
for x in s: x.bind(("127.0.0.1", 0))
print(*[x.getsockname()[1] for x in s])')
    mkfifo second.ready
    stream --run "$RUN" -m "$PHASEPIPE_TEST_MODEL" --http "127.0.0.1:$http" --http "unix:$PWD/second.sock" \
        --kv "unix:$RUN/kv.sock" --served-model-name second --ready-fd 4 4> second.ready 2> second.log 3>&- &
    echo $! >> pids
    [ "$(timeout 20 cat second.ready)" = "$(printf 'ready\nHTTP=http://127.0.0.1:%s\nHTTP=unix:%s' "$http" "$PWD/second.sock")" ]
    sed -e "s/127.0.0.1:8000/127.0.0.1:$http/" -e 's/: 5s/: 1s/' "$PHASEPIPE_TOP/examples/prometheus.yml" > p.yml
    prometheus --config.file=p.yml --storage.tsdb.path="$PWD/tsdb" --web.listen-address="127.0.0.1:$port" \
        --log.level=warn > prometheus.log 2>&1 3>&- &
    local prometheus=$!
    echo $prometheus >> pids
    ask() { curl -sS --max-time 5 -G "http://127.0.0.1:$port/api/v1/query" --data-urlencode "query=$1" > answer; }
    above() { ask "$1" && jq -e --argjson n "$2" '.data.result[0].value[1] | tonumber > $n' answer > /dev/null; }
    until_true 20 above 'up{job="phasepipe"}' 0
    SOCKET=$PWD/second.sock client load 4 40 > /dev/null
    until_true 20 above 'vllm:generation_tokens_total{model_name="second"}' 10
    until_true 20 above 'sum(increase(vllm:request_success_total{model_name="second"}[30s]))' 10
    until_true 5 above \
        'histogram_quantile(0.99, sum by(le) (rate(vllm:e2e_request_latency_seconds_bucket{model_name="second"}[30s])))' 0.001
    until_true 5 above 'rate(vllm:request_decode_time_seconds_sum{model_name="second"}[30s])' 0
    ask 'count by (__name__) ({__name__=~".+", model_name="second"})'
    while read -r name _; do
        jq -e --arg n "$name" 'any(.data.result[]; .metric.__name__ == $n)' answer > /dev/null || { echo "$name"; false; }
    done < <(grep -v '^#' "$PHASEPIPE_TOP/tests/golden/vllm-board.txt")
    kill "$prometheus"
    wait "$prometheus" || true
}
