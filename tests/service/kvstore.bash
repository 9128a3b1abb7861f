# For tests that start a kvstore themselves.

# start [OPTION ...]: a kvstore with the options $kv and these, ready when this returns; $store_pid
start() {
    rm -f ready
    mkfifo ready
    kvstore "${kv[@]}" "$@" 4> ready --ready-fd 4 2>> store.err 3>&- &
    store_pid=$!
    echo $store_pid >> pids
    [ "$(cat ready)" = ready ]
}
