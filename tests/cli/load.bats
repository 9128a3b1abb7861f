#!/usr/bin/env bats
# bench with a server whose delays and tokens are known (tests/tools/openai_stand_in.py): its figures are compared with that
# script and with the server's log. Names of keys are those of `vllm bench serve` (vllm/benchmarks/serve.py, 0.32).

load stand_in

# The times of the script are lower bounds; load on the machine makes them longer.
times_of_the_script() {
    load -n 20 --request-rate 40 --random-input-len 30 --random-output-len 10 --metric-percentiles 50,100 --save r \
        --percentile-metrics ttft,tpot,itl,e2el
    # 80 ms, then eight gaps of 10 ms and one of 100: the total cannot be shorter, and few are longer
    holds '.completed == 20 and .failed == 0' &&
        holds '.median_ttft_ms >= 80 and .median_ttft_ms < 120' &&
        holds '.median_e2el_ms >= 260 and .median_e2el_ms < 320' &&
        holds '.median_tpot_ms > 18 and .median_tpot_ms < 25' &&
        holds '.median_itl_ms > 7 and .median_itl_ms < 14' &&
        holds '.p100_itl_ms > 90 and .p100_itl_ms < 250' &&
        holds '.duration > 0.7 and .duration < 1.5' # 20 requests at 40 a second take half a second, and the last one its time
}

@test "the figures are those of the server's script" {
    serve --ttft 0.08 --itl 0.01 --slow-every 5
    # a measurement disturbed by other load does not count
    times_of_the_script || times_of_the_script || times_of_the_script || times_of_the_script
    holds '.total_input_tokens == 600 and .total_output_tokens == 200'
    holds '.p50_itl_ms == .median_itl_ms'
    holds '(.request_throughput * .duration * 1000 | round) == 20000'
    holds '(.output_throughput * .duration * 1000 | round) == 200000'
    holds '(.total_token_throughput * .duration * 1000 | round) == 800000'
}

@test "figures of each request: what the mean and the percentiles are made of" {
    serve --ttft 0.02 --itl 0.005
    load -n 9 --max-concurrency 3 --random-input-len 5 --random-output-len 6 --save r --save-detailed
    holds '[.ttfts, .itls, .latencies, .input_lens, .output_lens, .start_times, .queue_times, .errors, .generated_texts | length] == [9,9,9,9,9,9,9,9,9]'
    holds '.itls | all(length == 5)'
    holds '((.ttfts | add / length) * 1000 - .mean_ttft_ms) | fabs < 0.000001'
    holds '((.itls | flatten | add / length) * 1000 - .mean_itl_ms) | fabs < 0.000001'
    holds '((.ttfts | sort | .[4]) * 1000 - .median_ttft_ms) | fabs < 0.000001'
    # numpy: 99 % of 8 is 7.92
    holds '((.ttfts | sort | .[7] + 0.92 * (.[8] - .[7])) * 1000 - .p99_ttft_ms) | fabs < 0.000001'
    holds '[range(9) as $i | (.ttfts[$i] + (.itls[$i] | add) - .latencies[$i]) | fabs] | max < 0.000001'
    holds '.generated_texts | all(. == ([range(6)] | map(" \"\(.)\"\\ é\n") | add))'
    holds '.errors | all(. == "")'
    holds '.output_lens | all(. == 6)'
}

@test "the keys of a result are those of vllm bench serve, and client" {
    serve
    load -n 4 --request-rate 100 --random-input-len 5 --random-output-len 3 --metric-percentiles 99,99.9 --save r \
        --label x --metadata machine=small
    jq -r keys[] r | grep -v '^client$' > got
    printf '%s\n' backend burstiness completed date duration endpoint_type failed label latencies machine max_concurrency \
        max_concurrent_requests max_output_tokens_per_s model_id num_prompts output_throughput queue_times request_goodput \
        request_rate request_throughput rtfx tokenizer_id total_input_tokens total_output_tokens total_token_throughput \
        {mean,median,std,p99,p99.9}_{ttft,tpot,itl,e2el}_ms | sort | diff - <(sort got)
    holds '.request_rate == 100 and .burstiness == 1 and .max_concurrency == null and .request_goodput == null'
    holds '.backend == "openai" and .model_id == "org/stand-in" and .label == "x" and .machine == "small"'
    load -n 4 --max-concurrency 2 --random-input-len 5 --random-output-len 3 --save r --save-detailed
    holds '.request_rate == "inf" and .max_concurrency == 2'
    holds 'has("input_lens") and has("output_lens") and has("start_times") and has("ttfts") and has("itls") and has("generated_texts") and has("errors")'
    load -n 4 --save-result --result-dir d --random-input-len 5 --random-output-len 3 --max-concurrency 2
    ls d | grep -qx 'openai-infqps-concurrency2-stand-in-[0-9]*-[0-9]*.json'
}

gaps() { jq -c '[.requests[].at] | [range(1; length) as $i | .[$i] - .[$i - 1]] | sort' seen; }

# arrives EXPRESSION OPTION …: checks the gaps between requests as the server sees them, in one of four tries, since other load
# may disturb one
arrives() {
    local try
    for try in 1 2 3 4; do
        serve
        load --random-input-len 5 --random-output-len 1 --save r "${@:2}" > table
        seen
        [ "$(gaps | jq "$1")" != true ] || return 0
    done
    echo "not: $1"
    gaps
    return 1
}

@test "arrivals: even, at random, in bursts, rising, as the server sees them" {
    arrives '.[10] > 0.017 and .[10] < 0.023' -n 21 --request-rate 50 --burstiness inf
    # half of the gaps of a Poisson process are below ln 2 of the mean; of a gamma process of shape 0.1 below 1 % of it
    arrives '.[49] > 0.004 and .[49] < 0.01' -n 100 --request-rate 100
    arrives '.[49] < 0.003' -n 100 --request-rate 100 --burstiness 0.1
    # 20 a second at first, 200 at the end
    arrives '.[-1] > 0.04 and .[-1] < 0.06 and .[0] < 0.008' -n 41 --ramp-up-strategy exponential --ramp-up-start-rps 20 \
        --ramp-up-end-rps 200 --burstiness inf
    holds '.ramp_up_strategy == "exponential" and .ramp_up_start_rps == 20 and .rps_change_events[0].rps == 20'
    holds '.rps_change_events | last.rps == 200'
}

three_at_once() {
    serve --ttft 0.1
    load -n 9 --max-concurrency 3 --request-rate 1000 --random-input-len 5 --random-output-len 1 --save r \
        --percentile-metrics ttft,client_queue_time,e2el,e2el_including_client_queue
    seen
    # three at once do not wait, three wait for 0.1 s, three for 0.2 s
    holds '.median_ttft_ms >= 100 and .median_ttft_ms < 200' &&
        holds '.median_client_queue_time_ms > 85 and .median_client_queue_time_ms < 200' &&
        holds '.client.send_lag_p99_ms < 20'
}

@test "concurrency is capped, and waiting for a slot is reported separately" {
    three_at_once || three_at_once || three_at_once || three_at_once
    [ "$(jq .at_once seen)" -eq 3 ]
    [ "$(jq .connections seen)" -le 5 ] # they are used again
    holds '.client.peak_in_flight == 3'
    holds '(.mean_e2el_including_client_queue_ms - .mean_e2el_ms - .mean_client_queue_time_ms) | fabs < 0.001'
}

half_a_second() {
    load --duration 0.5 --max-concurrency 2 --random-input-len 5 --random-output-len 1 --save r
    holds '.duration > 0.45 and .duration < 0.7 and .completed > 20 and .completed <= 52 and .num_prompts == .completed'
}

@test "a run of a given duration" {
    serve --ttft 0.02
    half_a_second || half_a_second || half_a_second || half_a_second
    load --duration 0.5 --request-rate 40 --random-input-len 5 --random-output-len 1 --save r
    holds '.num_prompts == 20 and .completed == 20 and .duration > 0.49'
}

@test "a rate or a ramp of a given duration sends all requests within it" {
    serve
    for seed in 1 2 3; do # the gaps of some seeds add up to more than the time, of others to less
        load --duration 0.5 --request-rate 50 --seed $seed --random-input-len 5 --random-output-len 1 --save r
        holds '.num_prompts == 25 and .completed == 25 and .duration > 0.49 and .duration < 1.5'
        load --duration 0.8 --ramp-up-strategy linear --ramp-up-start-rps 5 --ramp-up-end-rps 50 --seed $seed \
            --random-input-len 5 --random-output-len 1 --save r
        # 0.8 · 45 / ln 10 = 15.6
        holds '.num_prompts == 16 and .completed == 16 and .duration > 0.79 and .duration < 1.8'
        holds '[.rps_change_events[].rps] == [range(5; 51)]'
    done
    # a list with a prefix for each request is not longer than the rate allows
    load --duration 0.5 --request-rate 8 --dataset-name prefix --prefix-repetition-prefix-len 5 --prefix-repetition-suffix-len 5 \
        --prefix-repetition-output-len 1 --save r
    holds '.num_prompts == 4 and .completed == 4'
    # with -n, the requests within the duration, including one at its end
    load -n 40 --duration 0.5 --request-rate 40 --burstiness inf --random-input-len 5 --random-output-len 1 --save r
    holds '.num_prompts == 20 and .completed == 20'
}

@test "no request is sent after the duration, and waiting for the last uses no CPU" {
    serve --ttft 0.2 --itl 0.2
    load --duration 0.5 --request-rate 40 --max-concurrency 1 --random-input-len 5 --random-output-len 6 --save r
    seen
    holds '.num_prompts == 1 and .completed == 1 and .duration > 1.1'
    holds '.client.cpu_s < 0.1' # some tenths if it looks again and again
    [ "$(jq '.requests | length' seen)" -eq 1 ]
}

@test "the rates of a ramp are those of all requests of a list" {
    serve
    printf '{"prompt": "a b c", "output_tokens": 1}\n%.0s' {1..11} > l
    load --dataset-name jsonl --dataset-path l --ramp-up-strategy linear --ramp-up-start-rps 10 --ramp-up-end-rps 60 --save r
    holds '.num_prompts == 11 and [.rps_change_events[].rps] == [range(10; 61)]'
}
@test "a server without counts, events in bursts, events in pieces" {
    serve --no-usage --burst 3 --itl 0.01
    load -n 3 --random-input-len 12 --random-output-len 9 --save r --save-detailed
    holds '.total_input_tokens == 36 and .total_output_tokens == 27'
    # three events of one read have one time stamp
    holds '.itls | all([.[0], .[1], .[3], .[4], .[6], .[7]] == [0, 0, 0, 0, 0, 0] and .[2] > 0.015 and .[5] > 0.015)'
    seen
    serve --split
    load -n 3 --random-input-len 12 --random-output-len 9 --save r --save-detailed > table
    holds '.total_output_tokens == 27 and (.itls | all(length == 8))'
}

@test "failures are counted by kind, listed, and excluded from the figures" {
    check() { # FAULT KIND [ARGUMENT ...]: in a folder of its own
        local fault=$1 kind=$2
        shift 2
        mkdir "$fault"
        cd "$fault"
        serve --fault "$fault:3"
        rc=0
        load -n 6 --max-concurrency 1 --random-input-len 5 --random-output-len 6 --save r --save-detailed "$@" > table 2> err || rc=$?
        [ "$rc" -eq 1 ]
        grep -q '2 of 6 requests failed' err
        grep -q "failed: $kind 2" table
        holds ".completed == 4 and .failed == 2 and .client.errors == {\"$kind\": 2} and .total_output_tokens == 24"
        holds '[.errors[] | length > 0] == [false, false, true, false, false, true] and .output_lens == [6, 6, 0, 6, 6, 0]'
    }
    checks=
    beside() { # the same, while others go on
        (
            trap '[ -z "$server" ] || kill "$server"' EXIT
            check "$@"
        ) &
        checks="$checks $!"
    }
    beside status status
    beside event 'error event'
    beside garbage 'error event'
    beside cut incomplete
    beside no-done incomplete
    beside empty 'no token'
    beside cut-early incomplete
    for one in $checks; do wait "$one"; done
    grep -q '503.*try again later' status/table
    grep -q 'the engine has died' event/table
    check hang timeout --request-timeout-sec 0.4 # alone: it has a limit of time
    kill "$server"
    serve --fault reset
    run load -n 2 --random-input-len 5
    [ "$status" -eq 1 ]
    [[ $output == *"failed: other 2"* ]]
    seen
    run load -m x --vocab 10 -n 2 --random-input-len 5
    [ "$status" -eq 1 ]
    [[ $output == *"failed: no connection 2"* ]]
    run load -n 2
    [ "$status" -eq 1 ]
    [[ $output == *"/v1/models"* ]]
}

@test "a server that closes connections gets new ones" {
    serve --ttft 0.02 --once
    # sixteen connections are open when the last request is sent, and none of them is used for it
    { echo TIMESTAMP,ContextTokens,GeneratedTokens; printf '2024-01-01 00:00:00,5,3\n%.0s' {1..16}; echo '2024-01-01 00:00:01,5,3'; } > trace
    load --dataset-name trace --dataset-path trace --save r
    holds '.completed == 17 and .failed == 0'
    seen
    jq -e '(.requests | length) == 17' seen
}

@test "goodput" {
    serve --ttft 0.05 --itl 0.01
    load -n 4 --max-concurrency 1 --random-input-len 5 --random-output-len 4 --save r --goodput ttft:5000 tpot:5000
    holds '(.request_goodput - .request_throughput) | fabs < 0.000001'
    load -n 4 --max-concurrency 1 --random-input-len 5 --random-output-len 4 --save r --goodput ttft:40 --goodput e2el:5000
    holds '.request_goodput == 0'
    load -n 4 --max-concurrency 1 --random-input-len 5 --random-output-len 4 --save r --goodput 'tpot:5,e2el:5000'
    holds '.request_goodput == 0'
}

@test "a run is compared with a saved one" {
    serve --ttft 0.03 --itl 0.005
    load -n 4 --max-concurrency 1 --random-input-len 5 --random-output-len 8 --save was > table
    # compared with itself nothing is worse by so much, under any load of the machine
    load -n 4 --max-concurrency 1 --random-input-len 5 --random-output-len 8 --compare was --fail-above 500 > table
    grep -Eq '^mean_ttft_ms +[0-9.]+ +[0-9.]+ +[0-9.]+$' table
    seen
    serve --ttft 0.6 --itl 0.005
    load -n 2 --max-concurrency 1 --random-input-len 5 --random-output-len 8 --compare was > table
    run load -n 2 --max-concurrency 1 --random-input-len 5 --random-output-len 8 --compare was --fail-above 500
    [ "$status" -eq 1 ]
    grep -Eq '^mean_ttft_ms .*  worse$' <<< "$output"
    ! grep -Eq '^median_itl_ms .*  worse$' <<< "$output"
    grep -q 'more than 500 % worse' <<< "$output"
    # ratios as jq has them
    load -n 2 --max-concurrency 1 --random-input-len 5 --random-output-len 8 --compare was --save r > table
    want=$(jq -s '.[1].p99_ttft_ms / .[0].p99_ttft_ms' was r)
    awk -v want="$want" '/^p99_ttft_ms/ { d = $4 - want; exit !(d < 0.001 && d > -0.001) }' table
    run load -n 1 --random-input-len 5 --random-output-len 1 --compare port
    [ "$status" -eq 1 ]
}

@test "a rate that fell to 0 is worse, and so is a latency that rose from 0" {
    serve --ttft 0.05
    load -n 3 --max-concurrency 1 --random-input-len 5 --random-output-len 2 --save was --goodput ttft:5000 > table
    run load -n 3 --max-concurrency 1 --random-input-len 5 --random-output-len 2 --compare was --fail-above 1e6 --goodput ttft:1
    [ "$status" -eq 1 ]
    grep -Eq '^request_goodput .* 0\.000 +0\.000  worse$' <<< "$output"
    [ "$(grep -c 'worse$' <<< "$output")" -eq 1 ]
    jq '.median_ttft_ms = 0 | .mean_ttft_ms = 1e-9' was > from-nothing
    run load -n 3 --max-concurrency 1 --random-input-len 5 --random-output-len 2 --compare from-nothing --fail-above 1e6
    [ "$status" -eq 1 ]
    grep -Eq '^median_ttft_ms +0\.000 +[0-9.]+ +-  worse$' <<< "$output"
    # nothing got worse, also if the value was 0 before
    jq '.request_goodput = 0' was > none-good
    load -n 3 --max-concurrency 1 --random-input-len 5 --random-output-len 2 --compare none-good --fail-above 1e6 --goodput ttft:1
}

@test "a run is compared with the previous result in the file, and then saved there" {
    serve --ttft 0.05
    load -n 2 --max-concurrency 1 --random-input-len 5 --random-output-len 2 --save r > table
    jq '.median_ttft_ms = 12345' r > x
    load -n 2 --max-concurrency 1 --random-input-len 5 --random-output-len 2 --save x --compare x > table
    grep -Eq '^median_ttft_ms +12345\.000 +[0-9]{2,3}\.[0-9]+ ' table
    [ "$(jq '.median_ttft_ms < 1000' x)" = true ]
}

@test "the files to compare with and to save to are checked before the run" {
    serve
    load -n 1 --random-input-len 5 --random-output-len 1 --save good > table
    echo '{}' > none
    echo 'no json' > bad
    echo '{"request_goodput": 5, "p50_ttft_ms": 3, "failed": 0}' > others # figures that this run will not have
    mkdir d
    while read -r want words flags; do
        # shellcheck disable=SC2086 # words
        run load -n 1 --random-input-len 5 --random-output-len 1 $flags
        echo "$flags: $output"
        [ "$status" -eq "$want" ]
        grep -q "${words//_/ }" <<< "$output"
    done << 'END'
1 no_figure_to_compare --compare none
1 no_figure_to_compare --compare none --fail-above 5
1 no_figure_to_compare --compare others --fail-above 5
1 bad: --compare bad
1 No_such_file --compare nowhere
111 No_such_file --save /nonexistent/x
111 Is_a_directory --save d
111 Not_a_directory --save bad/x
111 No_such_file --save-result --result-dir nowhere/there
111 No_such_file --save-result --result-filename nowhere/x
END
    load -n 1 --random-input-len 5 --random-output-len 1 --save new --compare good > table
    [ "$(jq .completed new)" -eq 1 ]
    seen
    [ "$(jq '.requests | length' seen)" -eq 2 ]
}

@test "an interrupt shows the results so far" {
    serve --ttft 0.01 --itl 0.3
    bench --port "$port" -n 100 --request-rate 20 --random-input-len 5 --random-output-len 4 --save r > table 3>&- &
    pid=$!
    sleep 2
    kill -INT $pid
    wait $pid
    grep -q 'interrupted' table
    holds '.client.interrupted and .completed > 5 and .completed < 40 and .failed == 0 and .num_prompts == 100'
}

@test "bench waits for a server that is loading, and warms it up with other prompts" {
    serve --loading 1
    run load -n 1 --ready-check-timeout-sec 0.2 --random-input-len 5
    [ "$status" -eq 1 ]
    [[ $output == *"not ready"* ]]
    load -n 2 --ready-check-timeout-sec 30 --random-input-len 5 --random-output-len 2 --warmup 3 --save r 2> err > table
    seen
    [ ! -s err ] # no progress where there is no terminal
    holds '.completed == 2'
    jq -se '.[0].requests | map(.prompt) | length == 5 and (unique | length) == 5' seen
}

@test "a thousand streams at once, with little CPU" {
    serve --ttft 1 --itl 0.5
    (
        ulimit -Sn 256 # it raises what it may
        load -n 1000 --random-input-len 8 --random-output-len 6 --save r
    )
    holds '.completed == 1000 and .failed == 0 and .total_output_tokens == 6000 and .client.peak_in_flight == 1000'
    holds '.client.events == 6000 and .client.cpu_us_per_event > 0'
    seen
    [ "$(jq .at_once seen)" -eq 1000 ]
}

@test "misuse" {
    while read -r flags; do
        # shellcheck disable=SC2086 # words
        run bench $flags
        echo "$flags: $output"
        [ "$status" -eq 100 ]
    done << 'END'
--request-rate fast
--request-rate 0
--burstiness 0
--max-concurrency 0
--ramp-up-strategy linear
--ramp-up-start-rps 1
--ramp-up-strategy linear --ramp-up-start-rps 5 --ramp-up-end-rps 2
--ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 2 --request-rate 3
--duration 5
--dataset-name trace
--dataset-path x
--dataset-name trace --dataset-path x --request-rate 3
--dataset-name sharegpt
--endpoint v1/completions
--base-url ftp://x
--backend openai-chat --endpoint /v1/completions
--endpoint /v1/chat/completions --prompt-kind ids
--random-range-ratio 1
--random-range-ratio {"input":2}
--extra-body [1]
--extra-body {"prompt":"x"}
--extra-body {"messages":null} --endpoint /v1/chat/completions
--header X
--metadata X
--goodput itl:5
--goodput ttft
--goodput ttft:fast
--percentile-metrics speed
--metric-percentiles 101
--fail-above 5
stray
--goodput ttft:5 stray
END
}

@test "a flag without effect is refused by name" {
    while read -r flags; do
        # shellcheck disable=SC2086 # words
        run bench $flags
        echo "$flags: $output"
        [ "$status" -eq 100 ]
        [[ ${lines[0]} == "bench: ${flags%% *}"* ]]
    done << 'END'
--random-range-ratio {"inptu":0.5}
--random-range-ratio {"input":"half"}
--burstiness 2
--time-scale 0.1
--length-scale 0.1
--max-model-len 5
--result-filename x
--result-dir x --save y
--save-detailed
--vocab 10 --prompt-kind text
--vocab 10 --dataset-name jsonl --dataset-path x
--prompt-kind text --dataset-name jsonl --dataset-path x
--prefix-repetition-num-prefixes 4
--prefix-repetition-prefix-len 4
--prefix-repetition-suffix-len 4
--prefix-repetition-output-len 4
--input-len 5 --dataset-name prefix
--random-input-len 5 --dataset-name prefix
--random-prefix-len 5 --dataset-name prefix
--random-range-ratio 0.5 --dataset-name prefix
--random-output-len 5 --dataset-name prefix
--output-len 5 --dataset-name trace --dataset-path x
END
}
