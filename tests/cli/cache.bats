#!/usr/bin/env bats
# phasepipe cache: what is listed, and what is pruned: by age, by bytes, never what a process maps. Models are copies of the
# default one under other names, in a cache of their own.

ROOT="$BATS_TEST_DIRNAME/../.."

setup() {
    PATH="${PHASEPIPE_BIN:-$ROOT/${B:-build}/bin}:$PATH"
    cd "$BATS_TEST_TMPDIR"
    MODEL=${PHASEPIPE_TEST_MODEL:-$("$ROOT/scripts/get-model")}
    export XDG_CACHE_HOME=$PWD/cache
    packed=$XDG_CACHE_HOME/phasepipe/packed
}

teardown() { [ ! -e pid ] || kill "$(cat pid)" || true; }

# pack NAME DAYS: packs a model of this name, used last so many days ago
pack() {
    [ -e "$1.gguf" ] || cp "$MODEL" "$1.gguf"
    touch before
    sleep 0.05
    tokenize -m "$1.gguf" --raw -n 1 -p hi | prefill -m "$1.gguf" > /dev/null
    touch -d "$2 days ago" "$(find "$packed" -name '*.lock' -newer before)"
}

models() { phasepipe cache | awk 'NR > 1 && !/packed model/ { n = split($NF, part, "/"); print part[n] }' | xargs; }

@test "packed models are listed with size, last use and path, the last used first" {
    [ "$(phasepipe cache)" = "0 packed models, 0.0 MiB in $packed" ]
    pack a 2
    pack b 1
    phasepipe cache > out
    [ "$(wc -l < out)" = 4 ]
    size=$(stat -c %s "$packed"/*.pack | head -1 | awk '{ printf "%.1f", $1 / 1048576 }')
    grep -qx " *$size MiB  $(date -d '1 day ago' +%Y-%m-%d) [0-9:]*  no      $PWD/b.gguf" out
    [ "$(models)" = "b.gguf a.gguf" ]
    [ "$(tail -1 out | awk '{ print $1, $2, $3 }')" = "2 packed models," ]
}

@test "pruning removes by age, then the least recently used until the rest fits" {
    pack a 40
    pack b 3
    pack c 1
    [ "$(models)" = "b.gguf c.gguf" ] || [ "$(models)" = "c.gguf b.gguf" ] # packing c has removed a: 30 days
    phasepipe cache --prune > out
    grep -q '^removed 0 packed models, 0.0 MiB; kept 2, ' out
    phasepipe cache --prune --max-bytes 150M > out
    grep -q '^removed 1 packed model, .* MiB; kept 1, ' out
    [ "$(models)" = c.gguf ]
    phasepipe cache --prune --max-age 0
    [ "$(models)" = "" ]
    [ -z "$(ls "$packed")" ] # no locks and no other files are left
    pack a 0
    [ "$(models)" = a.gguf ]
}

@test "what a process maps is never removed" {
    pack a 40 # the last to be packed: nothing prunes it
    mkfifo in
    prefill -m a.gguf < in > /dev/null &
    echo $! > pid
    exec 9> in
    for ((i = 0; i < 100; i++)); do phasepipe cache | grep -q '  yes  ' && break || sleep 0.1; done
    phasepipe cache --prune --max-bytes 0 --max-age 0 > out
    grep -q '^removed 0 packed models, 0.0 MiB; kept 1, ' out
    [ "$(models)" = a.gguf ]
    exec 9>&-
    wait "$(cat pid)" || true
    rm pid
    phasepipe cache --prune --max-bytes 0
    [ "$(models)" = "" ]
}

@test "bounds need --prune, and a directory that others can write is refused" {
    run -100 phasepipe cache --max-age 3
    [[ $output == *"--max-bytes and --max-age are for --prune"* ]]
    run -100 phasepipe cache --prune --max-age -1
    pack a 0
    chmod 777 "$packed"
    run -111 phasepipe cache --prune --max-bytes 0
    [[ $output == *"can be written by others (mode 0777)"*chmod* ]]
    chmod 700 "$packed"
    [ "$(models)" = a.gguf ]
}
