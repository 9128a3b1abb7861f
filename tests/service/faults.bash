# Helpers of the fault tests: the services as real processes, a load, and what must be true afterwards. RUN is the
# runtime directory; every process that `start` starts is in $pid_NAME and in the file `pids`.

# A model of random weights, small enough that a load takes seconds and large enough that faults hit it in the middle;
# and one that differs from it in nothing but its weights.
make_models() {
    local shape=(--type Q8_0 --hidden 512 --ffn 1536 --layers 8 --heads 8 --kv-heads 2 --head-dim 32 --vocab 1024
        --context 8192)
    "$PHASEPIPE_TOP/scripts/make-random-model" "${shape[@]}" "$1/a.gguf"
    "$PHASEPIPE_TOP/scripts/make-random-model" "${shape[@]}" --seed 2 "$1/b.gguf"
}

# The load, as lines of JSON: long and short prompts, some with a common beginning, greedy and sampled, several choices.
load() {
    local i common
    common=$(seq -s' ' 1 "${1:-300}")
    for i in 1 2 3 4 5 6; do
        jq -cn --arg p "$common and so on, $i" --argjson i "$i" \
            '{id: "long\($i)", prompt: $p, max_tokens: (200 + 60 * $i), ignore_eos: true, logprobs: 1}'
        jq -cn --argjson i "$i" \
            '{id: "short\($i)", prompt: "\($i) rains", max_tokens: 600, ignore_eos: true, temperature: 1, seed: $i}'
    done
    jq -cn --arg p "$common, twice" \
        '{id: "two", prompt: $p, n: 2, max_tokens: 500, ignore_eos: true, temperature: 0.8, top_p: 0.9, seed: 5}'
}

# What two runs must have in common: all but times and what was found in a cache.
answers() {
    jq -cS 'del(.timings, .usage.cached_tokens)'
}

# undisturbed MODEL FILE N: the answers of the pipeline to the requests in the file; fails if they are not N
undisturbed() {
    tokenize -m "$1" --jsonl < "$2" | prefill -m "$1" --kv-cache-memory-bytes 256M |
        decode -m "$1" --kv-cache-memory-bytes 256M | stream -m "$1" --jsonl | answers > undisturbed.out
    cat undisturbed.out
    [ "$(wc -l < undisturbed.out)" -eq "$3" ]
}

# start NAME PROGRAM [OPTION ...]: a service, ready when this returns
start() {
    local name=$1
    shift
    rm -f "$name.ready"
    mkfifo "$name.ready"
    "$@" --ready-fd 4 4> "$name.ready" 2>> "$name.err" 3>&- &
    eval "pid_$name=$!"
    echo $! >> pids
    alive[$name]=$!
    read -r -t 60 line < "$name.ready" && [ "$line" = ready ] || {
        cat "$name.err"
        return 1
    }
}

start_kvstore() {
    start kvstore kvstore --listen "unix:$RUN/kv.sock" "${kv[@]}"
}
start_sched() {
    start sched "${policy:-sched}" --listen "ipc://$RUN/sched.sock" --kv "unix:$RUN/kv.sock" "${sched_opts[@]}"
}
start_tokenize() {
    start tokenize tokenize -m "$model" --listen "ipc://$RUN/tokenize.sock"
}
# worker NAME prefill|decode [OPTION ...]
worker() {
    start "$1" "$2" --run "$RUN" --name "$1" "${engine[@]}" "${@:3}"
}

# All services: a prefill and a decode worker, or P and D of them.
services() {
    local i
    start_kvstore
    start_sched
    start_tokenize
    for ((i = 0; i < ${P:-1}; i++)); do worker "p$i" prefill; done
    for ((i = 0; i < ${D:-1}; i++)); do worker "d$i" decode; done
}

# gateway NAME: the answers to the lines on stdin go to NAME.out; in the background
gateway() {
    stream --sched "ipc://$RUN/sched.sock" --tokenize "ipc://$RUN/tokenize.sock" --jsonl -m "$model" \
        <&0 > "$1.out" 2> "$1.err" 3>&- &
    eval "pid_$1=$!"
    echo $! >> pids
}

# Waits for a background process at most $2 seconds; its status.
finish() {
    local end=$((SECONDS + ${2:-90})) var="pid_$1"
    while kill -0 "${!var}" 2> /dev/null; do
        [ $SECONDS -lt $end ] || {
            echo "$1 has not ended"
            sched_stat || true
            kv_stat || true
            tail -n 5 ./*.err
            return 1
        }
        sleep 0.02
    done
    wait "${!var}"
}

sched_stat() {
    phasepipe ctl --run "$RUN" --json sched
}
kv_stat() {
    phasepipe ctl --run "$RUN" --json kv
}

# until_true SECONDS COMMAND ...: until it succeeds
until_true() {
    local end=$(($(date +%s%N) + $1 * 1000000000))
    shift
    until "$@" > until.out 2>&1; do
        [ "$(date +%s%N)" -lt $end ] || {
            echo "never true: $*"
            cat until.out
            return 1
        }
        sleep 0.02
    done
}

sched_says() {
    sched_stat | tee stat.json | jq -e "$1" || {
        cat stat.json
        return 1
    }
}
kv_says() {
    kv_stat | tee kv.json | jq -e "$1" || {
        cat kv.json
        return 1
    }
}

# Nothing has died but what was killed.
all_alive() {
    local name
    for name in "${!alive[@]}"; do
        kill -0 "${alive[$name]}" 2> /dev/null || {
            echo "$name has died"
            tail -n 40 "$name.err"
            return 1
        }
    done
}

# The accounts: what was submitted has ended, by one reason each; nobody holds a block.
accounts() {
    all_alive
    until_true "${1:-20}" sched_says '.running == 0 and .waiting == 0 and .submitted == ([.ended[]] | add)'
    until_true "${1:-20}" kv_says '.leased == 0 and .seqs == 0 and .waiting == 0 and .quarantined == 0'
}

# A worker of this name has something of this kind to do.
busy() {
    sched_says "any(.workers[]; .name == \"$1\" and .$2 > 0)"
}

# kill_service NAME [SIGNAL]
kill_service() {
    local var="pid_$1"
    case ${2:-KILL} in KILL | TERM) unset "alive[$1]" ;; esac
    kill "-${2:-KILL}" "${!var}"
    [ "${2:-KILL}" != KILL ] || wait "${!var}" 2> /dev/null || true
}

# The answers of gateway $1 are those of an undisturbed run.
right() {
    answers < "$1.out" > "$1.got"
    diff "$BATS_FILE_TMPDIR/${2:-want}" "$1.got" > "$1.diff" || {
        head -c 2000 "$1.diff"
        cat "$1.err"
        return 1
    }
}

# Ends what a test has started, by their numbers.
end_all() {
    local pid
    for pid in $(cat pids 2> /dev/null); do
        kill -CONT "$pid" 2> /dev/null || true
        kill -9 "$pid" 2> /dev/null || true
    done
    wait 2> /dev/null || true
}
