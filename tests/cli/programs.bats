#!/usr/bin/env bats
# Behaviour common to all programs: help, version, misuse, exit codes, the man page.

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    programs=(tokenize prefill decode stream frames kvstore sched sched-fcfs sched-colocate sched-exec simulate bench)
}

@test "help goes to stdout and is a success" {
    for p in "${programs[@]}" phasepipe; do
        "$p" --help > out 2> err
        [ ! -s err ]
        grep -q "^usage: $p " out
    done
}

@test "the version names the frames too" {
    for p in "${programs[@]}" phasepipe; do
        run "$p" --version
        [ "$status" -eq 0 ]
        [[ $output =~ phasepipe.*[0-9]+\.[0-9]+\.[0-9]+,\ frames\ [0-9]+ ]]
    done
}

@test "a wrong option is misuse: 100, one text on stderr that names it, nothing on stdout" {
    for p in "${programs[@]}"; do
        rc=0
        "$p" --no-such-option > out 2> err < /dev/null || rc=$?
        [ "$rc" -eq 100 ]
        [ ! -s out ]
        grep -q -- "^$p: .*--no-such-option" err
    done
}

@test "every option is in its man page" {
    for p in "${programs[@]}"; do
        page=$PHASEPIPE_TOP/docs/man/$p.1
        [ -f "$page" ] || skip "no page for $p"
        mandoc -T ascii "$page" | sed 's/.\x08//g' > page
        "$p" --complete > words
        [ -s words ]
        while read -r word; do
            grep -q -e "^ *\(-., \)\?$word\b" -e "[^-a-z]$word\b" page || { echo "$p: $word is not in its page"; false; }
        done < words
    done
}

@test "frames never go to a terminal" {
    command -v script || skip "no script(1)"
    run script -qec "tokenize -p hi" /dev/null
    [ "$status" -eq 100 ]
    [[ $output == *"not for a terminal"* ]]
}

@test "a full disk is a system failure" {
    [ -w /dev/full ] || skip "no /dev/full"
    run bash -c 'tokenize -p hi > /dev/full'
    [ "$status" -eq 111 ]
    [[ $output == *"disk is full"* ]]
    run bash -c 'tokenize --ids -p hi > /dev/full'
    [ "$status" -eq 111 ]
    run bash -c 'stream --help > /dev/full'
    [ "$status" -eq 111 ]
}

@test "a closed standard stream is not replaced by another file" {
    # As descriptor 0, 1 or 2 a model would be read as a prompt, and an error text be written into the packed file.
    export XDG_CACHE_HOME=$PWD/cache
    tokenize -m "$PHASEPIPE_TEST_MODEL" -n 2 -p hi > tok
    for p in "tokenize -m $PHASEPIPE_TEST_MODEL" "prefill -m $PHASEPIPE_TEST_MODEL" "decode -m $PHASEPIPE_TEST_MODEL" stream frames; do
        rc=0
        $p <&- > out 2> err || rc=$?
        [ "$rc" -eq 111 ]
        grep -q 'stdin.*Bad file descriptor' err
    done
    rc=0
    prefill -m "$PHASEPIPE_TEST_MODEL" < tok >&- 2> err || rc=$?
    [ "$rc" -eq 111 ]
    grep -q 'stdout.*Bad file descriptor' err
    rm -r cache
    prefill -v -m "$PHASEPIPE_TEST_MODEL" < tok 2>&- | decode -m "$PHASEPIPE_TEST_MODEL" | stream > a
    ! grep -ral '^prefill: ' cache
    prefill -m "$PHASEPIPE_TEST_MODEL" < tok | decode -m "$PHASEPIPE_TEST_MODEL" | stream | cmp - a
}

@test "an error text contains no control characters of what it quotes" {
    printf '\033[31m\302\233x' | tokenize -m "$PHASEPIPE_TEST_MODEL" -d 2> err || true
    grep -qF "'?[31m?x'" err
    tokenize "$(printf 'no\nsuch')" -m "$PHASEPIPE_TEST_MODEL" 2> err > /dev/null || true
    [ "$(wc -l < err)" -eq 1 ]
}

@test "without a model in the cache the error states how to get one" {
    for p in tokenize prefill decode; do
        rc=0
        XDG_CACHE_HOME=$PWD/empty "$p" < /dev/null > out 2> err || rc=$?
        [ "$rc" -eq 1 ]
        grep -q "get-model" err
    done
}

@test "phasepipe runs any program by name, and passes its status on" {
    run phasepipe tokenize --ids --raw -p hi
    [ "$status" -eq 0 ]
    [ "$output" = "$(tokenize --ids --raw -p hi)" ]
    run phasepipe tokenize --no-such-option
    [ "$status" -eq 100 ]
    run phasepipe no-such-program
    [ "$status" -eq 100 ]
    run phasepipe ../bin/tokenize --ids -p hi
    [ "$status" -eq 100 ]
    run phasepipe
    [ "$status" -eq 100 ]
}

@test "phasepipe env makes the bare names work, from a folder with a quote and a blank too" {
    bin=$(dirname "$(command -v phasepipe)")
    mkdir "it's a folder"
    cp "$bin"/{phasepipe,tokenize} "it's a folder/"
    PATH=/usr/bin:/bin
    eval "$("it's a folder/phasepipe" env)"
    [ "$(command -v tokenize)" = "$PWD/it's a folder/tokenize" ]
}

@test "installed, the programs are found in libexec" {
    bin=$(dirname "$(command -v phasepipe)")
    mkdir -p usr/bin usr/libexec/phasepipe
    cp "$bin/phasepipe" usr/bin/
    cp "$bin/tokenize" usr/libexec/phasepipe/
    run usr/bin/phasepipe tokenize --version
    [ "$status" -eq 0 ]
    rm -r usr/libexec
    run usr/bin/phasepipe tokenize --version
    [ "$status" -eq 111 ]
}

@test "bash completes options from the programs' own tables" {
    . "$PHASEPIPE_TOP/scripts/completion.bash"
    COMP_WORDS=(tokenize --js) COMP_CWORD=1 COMPREPLY=()
    _phasepipe tokenize --js
    [ "${COMPREPLY[*]}" = --jsonl ]
    COMP_WORDS=(phasepipe chat --sy) COMP_CWORD=2 COMPREPLY=()
    _phasepipe phasepipe --sy
    [ "${COMPREPLY[*]}" = --system ]
    COMP_WORDS=(phasepipe pre) COMP_CWORD=1 COMPREPLY=()
    _phasepipe phasepipe pre
    [ "${COMPREPLY[*]}" = prefill ]
    COMP_WORDS=(kvstore --lea) COMP_CWORD=1 COMPREPLY=()
    _phasepipe kvstore --lea
    [ "${COMPREPLY[*]}" = --lease-ms ]
    COMP_WORDS=(phasepipe up --det) COMP_CWORD=2 COMPREPLY=()
    _phasepipe phasepipe --det
    [ "${COMPREPLY[*]}" = --detach ]
    COMP_WORDS=(phasepipe ctl und) COMP_CWORD=2 COMPREPLY=()
    _phasepipe phasepipe und
    [ "${COMPREPLY[*]}" = undrain ]
}

@test "phasepipe --help and the completion know every program" {
    . "$PHASEPIPE_TOP/scripts/completion.bash"
    phasepipe --help > help
    for p in $(cd "$PHASEPIPE_TOP/cmd" && ls | sed 's/\.c$//'); do
        [ "$p" != phasepipe ] || continue
        grep -q "^  $p  *[a-z]" help || { echo "$p is not in phasepipe --help"; false; }
        complete -p "$p"
        COMP_WORDS=(phasepipe "$p") COMP_CWORD=1 COMPREPLY=()
        _phasepipe phasepipe "$p"
        [[ " ${COMPREPLY[*]} " == *" $p "* ]]
    done
    for c in $(sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' help); do
        COMP_WORDS=(phasepipe "$c") COMP_CWORD=1 COMPREPLY=()
        _phasepipe phasepipe "$c"
        [[ " ${COMPREPLY[*]} " == *" $c "* ]] || { echo "$c is not completed"; false; }
    done
}

@test "workers refuse processors that are absent, by name, before they read anything" {
    local program first
    first=$(taskset -cp $$ | sed 's/.*: //; s/[,-].*//')
    for program in prefill decode; do
        run -100 bash -c "$program --cpus $first,900-963 < /dev/null 2>&1 > /dev/null | cat; exit \${PIPESTATUS[0]}"
        [[ ${lines[0]} == "$program: --cpus $first,900-963: 900-963: absent, or not allowed to this process, which may use $first"* ]] ||
            { echo "$output"; false; }
    done
}
