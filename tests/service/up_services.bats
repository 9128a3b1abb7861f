#!/usr/bin/env bats
# The real services under phasepipe up: answers equal those of the pipeline while services are killed and the policy is
# replaced, and nothing is left at the end. The expected lines come from tokenize | decode | stream.

setup_file() {
    cd "$BATS_FILE_TMPDIR"
    for i in 1 2 3 4 5 6 7 8; do
        printf '{"id":"%d","prompt":"Chapter %d. The old man and the %d rivers of","max_tokens":48,"ignore_eos":true}\n' \
            $i $i $((i * 37))
    done > lines
    tokenize -m "$PHASEPIPE_TEST_MODEL" --jsonl < lines | decode -m "$PHASEPIPE_TEST_MODEL" | stream --jsonl |
        jq -c '[.id, .token_ids, .finish_reason]' > want
    [ "$(wc -l < want)" -eq 8 ]
}

setup() {
    cd "$BATS_TEST_TMPDIR"
    bats_require_minimum_version 1.5.0
    unset PHASEPIPE_RUN
    run=$PWD/run
}

teardown() {
    [ ! -e "$BATS_TEST_TMPDIR/run/state.json" ] || timeout 60 phasepipe down --run "$BATS_TEST_TMPDIR/run" --timeout 5 || true
    kill -9 $(cat "$BATS_TEST_TMPDIR/pids" 2> /dev/null) 2> /dev/null || true
}

up() {
    phasepipe up --run "$run" --detach -m "$PHASEPIPE_TEST_MODEL" --kv-cache-memory-bytes 64M "$@" 2> up.err 3>&- ||
        { cat up.err; false; }
}

pid_of() { phasepipe ps --run "$run" --json | jq ".[] | select(.name == \"$1\").pid"; }

until_true() {
    local end=$((SECONDS + $1 + 1))
    while ! "${@:2}" > /dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "not within $1 s: ${*:2}"; tail -n 30 "$run"/log/*.log; return 1; }
        sleep 0.05
    done
}

# load: the lines of the file, answered by the services, in the background; `loaded` waits and compares
load() {
    timeout 120 stream --run "$run" --jsonl < "$BATS_FILE_TMPDIR/lines" > got 2> got.err 3>&- &
    echo $! >> pids
    load_pid=$!
}

loaded() {
    wait $load_pid || { cat got.err; tail -n 30 "$run"/log/*.log; return 1; }
    jq -c '[.id, .token_ids, .finish_reason]' got | diff "$BATS_FILE_TMPDIR/want" -
}

# running: some requests are being answered
running() { [ "$(phasepipe ctl sched --json --run "$run" | jq .running)" -gt 0 ]; }

# adds_up: submitted requests have ended, run or wait; slots are free, cached, leased, quarantined or reserved
adds_up() {
    phasepipe ctl sched --json --run "$run" | jq -e '.submitted == ([.ended[]] | add) + .running + .waiting'
    phasepipe ctl kv --json --run "$run" | jq -e '.total == .free + .cached + .leased + .quarantined + .credited'
}

nothing_left() {
    [ -z "$(find "$run" -type s 2> /dev/null)" ]
    [ ! -e "$run/lock" ] && [ ! -e "$run/state.json" ]
    ! grep -lsaz "^PHASEPIPE_RUN=$run\$" /proc/[0-9]*/environ || { echo "a process is left"; false; }
}

@test "up, a request, ctl, top, down" {
    up
    grep -q "ready in .* s: stream --run $run -p" up.err
    load
    loaded
    adds_up
    [ "$(phasepipe ctl sched --json --run "$run" | jq '[.submitted, .ended.length, (.workers | length)] == [8, 8, 2]')" = true ]
    [ "$(phasepipe ctl kv --json --run "$run" | jq '.leased == 0 and .cached > 0')" = true ]
    phasepipe ctl sched --run "$run" | grep -q '^decode-0  *decode  *alive '
    phasepipe top --run "$run" -n 2 -d 0.1 > top
    [ "$(grep -c '^phasepipe ' top)" -eq 2 ]
    grep -q '^prefill-0  *prefill  *alive ' top
    grep -q '^KV  *\[[#.]*\] ' top
    grep -q 'TTFT  *p50 .*ms .*ITL p50 .*ms ' top
    no_escape=$(tr -d '\033' < top | cmp - top && echo yes)
    [ "$no_escape" = yes ]
    phasepipe down --run "$run"
    nothing_left
}

@test "ctl drains a worker, changes a role and a setting; unknown names are refused with a reason" {
    up -D 2
    phasepipe ctl drain decode-0 --run "$run"
    [ "$(phasepipe ctl sched --json --run "$run" | jq -c '[.workers[] | select(.draining).name]')" = '["decode-0"]' ]
    load
    loaded
    [ "$(phasepipe ctl sched --json --run "$run" | jq '.workers[] | select(.name == "decode-0").batch')" = 0 ]
    phasepipe ctl undrain decode-0 --run "$run"
    [ "$(phasepipe ctl sched --json --run "$run" | jq -c '[.workers[] | select(.draining).name]')" = '[]' ]
    phasepipe ctl role decode-1 both --run "$run"
    [ "$(phasepipe ctl sched --json --run "$run" | jq -r '.workers[] | select(.name == "decode-1").role')" = both ]
    phasepipe ctl set local_tokens=100000 --run "$run"
    run -1 phasepipe ctl set no_such_knob=1 --run "$run"
    [[ $output == *no_such_knob* ]]
    run -1 phasepipe ctl drain decode-7 --run "$run"
    [[ $output == *decode-7* ]]
    phasepipe down --run "$run"
}

@test "each service is killed under load and restarted; the answers are those of the pipeline" {
    up
    for name in decode-0 prefill-0 kvstore sched tokenize; do
        load
        until_true 10 running
        pid=$(pid_of $name)
        kill -9 "$pid"
        loaded || { echo "after $name was killed"; false; }
        back() { [ "$(pid_of $name)" != "$pid" ] && phasepipe ps --run "$run" | grep -q "^$name .* ready "; }
        until_true 20 back
        grep -q "$name ended with signal 9 (Killed); it is started again" "$run/log/up.log"
    done
    adds_up
    phasepipe down --run "$run"
    nothing_left
}

@test "the policy is replaced under load without losing a request" {
    up
    load
    until_true 10 running
    for policy in sched-fcfs sched-colocate sched; do
        phasepipe ctl sched-swap $policy --run "$run"
        sleep 0.2
    done
    loaded
    [ "$(phasepipe ctl sched --json --run "$run" | jq -r .policy)" = kv ]
    adds_up
    load
    until_true 10 running
    for service in kvstore prefill decode; do phasepipe ctl restart $service --run "$run"; done
    loaded
    phasepipe down --run "$run"
    nothing_left
}

@test "down under load: running requests complete" {
    up
    load
    until_true 10 running
    phasepipe down --run "$run"
    wait $load_pid || true
    # Each line was answered completely, or refused because of the shutdown.
    jq -c 'select(.error | not) | [.id, .token_ids, .finish_reason]' got > done
    [ "$(wc -l < done)" -ge 1 ]
    no_new=$(grep -vxF -f "$BATS_FILE_TMPDIR/want" done || true)
    [ -z "$no_new" ]
    nothing_left
}

@test "an invalid model ends up with its own error" {
    head -c 1000 "$PHASEPIPE_TEST_MODEL" > short.gguf
    rc=0
    timeout 60 phasepipe up --run "$run" --detach -m short.gguf 2> err 3>&- || rc=$?
    [ "$rc" -eq 1 ]
    grep -q "^phasepipe up: short.gguf: " err
    nothing_left
    # A model that lacks a tensor: the service that loads it refuses it, and is not restarted.
    python3 "$PHASEPIPE_TOP/scripts/make-random-model" --type F16 --hidden 64 --layers 1 --ffn 64 --heads 1 --kv-heads 1 \
        --head-dim 64 --vocab 512 small.gguf
    sed 's/attn_q.weight/attn_x.weight/' small.gguf > lacks.gguf
    rc=0
    timeout 60 phasepipe up --run "$run" --detach -m lacks.gguf 2> err 3>&- || rc=$?
    [ "$rc" -eq 1 ]
    grep -q "^phasepipe up: .* cannot start: exit status 1: .*lacks.gguf.*attn_q.weight" err
    run ! grep "started again" "$run/log/up.log"
    nothing_left
}

@test "clients that connect while the server is replaced are served by the next" {
    up --engine fake:1000,1000,0,1000,0,1000 --http "unix:$PWD/http" --ollama off
    code() { curl -s -o /dev/null -w '%{http_code}' --max-time 20 --unix-socket http http://localhost/ping; }
    [ "$(code)" = 200 ]
    kill -9 "$(pid_of stream)"
    [ "$(code)" = 200 ]
    phasepipe down --run "$run"
    [ ! -e http ]
    nothing_left
}

@test "top restores the terminal" {
    up --engine fake:1000,1000,0,1000,0,1000
    cat > terminal.py << 'P'
import os, pty, select, sys, time
pid, fd = pty.fork()
if pid == 0:
    os.execvp("phasepipe", ["phasepipe", "top", "--run", sys.argv[1], "-d", "0.1"])
out, begin, asked = b"", time.time(), False
while True:
    try:
        if select.select([fd], [], [], 0.1)[0]:
            data = os.read(fd, 65536)
            if not data:
                break
            out += data
    except OSError:
        break
    if not asked and (out.count(b"\x1b[H") > 3 or time.time() - begin > 15):
        asked = True
        os.write(fd, b"q")
    if time.time() - begin > 20:
        os.kill(pid, 9)
_, status = os.waitpid(pid, 0)
assert status == 0, status
assert out.startswith(b"\x1b[?1049h\x1b[?25l"), out[:40]
assert out.endswith(b"\x1b[?25h\x1b[?1049l"), out[-40:]
assert out.count(b"\x1b[H") > 3
assert b"decode-0" in out
P
    python3 terminal.py "$run"
    phasepipe down --run "$run"
}
