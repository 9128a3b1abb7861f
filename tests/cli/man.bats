#!/usr/bin/env bats
# The manual: every page renders without a warning, its options are those of the program, and its examples print what they
# show. Examples are extracted from the rendered page (and from README.md): "$ " begins a command, "> " continues it, the
# lines after it are its output, and "..." matches any output.

ROOT="$BATS_TEST_DIRNAME/../.."

setup() {
    PATH="${PHASEPIPE_BIN:-$ROOT/${B:-build}/bin}:$PATH"
    cd "$BATS_TEST_TMPDIR"
    mkdir bin
    PATH="$PWD/bin:$PATH"
    # The far end of a byte stream, without another host.
    printf '#!/bin/sh\nshift\nexec sh -c "$*"\n' > bin/ssh
    chmod +x bin/ssh
}

# Services of an example that failed before their end.
teardown() {
    [ ! -e services/state.json ] || timeout 60 phasepipe down --run services --timeout 5 || true
}

# options_of_page PAGE: "-m, --model MODEL", a line each
options_of_page() {
    awk '/^\.Sh/ { on = $2 == "OPTIONS" }
         on && /^\.It Fl/ {
             line = ""
             for (i = 2; i <= NF; i++)
                 if ($i == "Fl") line = line (line ? " " : "") "-" $(++i)
                 else if ($i == ",") line = line ","
                 else if ($i == "Ar") line = line " " $(++i)
             print line
         }' "$1" | sort
}

# options_of_help PROGRAM [ARGUMENT]: the same lines
options_of_help() {
    "$@" --help | awk '/^ +-/ { sub(/^ +/, ""); sub(/  .*/, ""); print }' | sort
}

# examples_of_page PAGE: the displays of its EXAMPLES
examples_of_page() {
    mandoc -T utf8 -O width=250 "$1" | col -bx | awk '
        /^[^ ]/ { on = /^EXAMPLES/ }
        !on { next }
        substr($0, 1, 11) == "           " { while (blank) { print ""; blank-- } print substr($0, 12); inside = 1; next }
        /^$/ { blank += inside; next }
        { blank = inside = 0 }'
}

# examples_of_text FILE: its fenced blocks of kind console
examples_of_text() {
    awk '/^```/ { on = $0 == "```console"; next } on' "$1"
}

# run_examples: runs the examples on stdin, in one shell; reports those with other output
run_examples() {
    rm -rf run && mkdir run
    awk '/^\$ / { n++; file = sprintf("run/%03d", n); typing = 1; print substr($0, 3) > (file ".cmd"); next }
         typing && /^> / { print substr($0, 3) > (file ".cmd"); next }
         n { typing = 0; print > (file ".want") }' -
    [ -e run/001.cmd ]
    for cmd in run/*.cmd; do
        n=${cmd%.cmd}
        printf '{\n%s\n} > %s.got 2> %s.err\necho $? > %s.status\n' "$(cat "$cmd")" "$n" "$n" "$n"
    done > script
    timeout 300 bash -o pipefail script < /dev/null
    bad=0
    for cmd in run/*.cmd; do
        n=${cmd%.cmd}
        touch "$n.want"
        [ "$(cat "$n.status")" = 0 ] || { cat "$cmd" "$n.err"; echo "exit $(cat "$n.status")"; bad=1; }
        want=$(cat "$n.want") got=$(cat "$n.got") # without the empty lines at the end, which a page cannot show
        [ "$want" = ... ] || diff <(echo "$want") <(echo "$got") || { cat "$cmd" "$n.err"; bad=1; }
    done
    [ "$bad" -eq 0 ]
}

@test "every page renders without a warning" {
    for page in "$ROOT"/docs/man/*.[17]; do
        run mandoc -T lint -W warning "$page"
        echo "$output"
        [ "$status" -eq 0 ] && [ -z "$output" ]
    done
}

@test "every program has a page, and every page of a program has the sections" {
    for prog in $(cd "$ROOT/cmd" && ls | sed 's/\.c$//'); do
        [ -e "$ROOT/docs/man/$prog.1" ] || { echo "$prog has no page"; false; }
        for section in NAME SYNOPSIS DESCRIPTION OPTIONS 'INPUT AND OUTPUT' SIGNALS ENVIRONMENT FILES 'EXIT STATUS' \
            EXAMPLES 'SEE ALSO'; do
            grep -qx "\.Sh $section" "$ROOT/docs/man/$prog.1" || { echo "$prog.1 has no $section"; false; }
        done
    done
}

@test "the options of a page are those of its program" {
    for prog in $(cd "$ROOT/cmd" && ls | sed 's/\.c$//'); do
        cmd=$prog
        [ "$prog" = phasepipe ] && cmd="phasepipe chat"
        options_of_help $cmd > help
        [ -s help ]
        options_of_page "$ROOT/docs/man/$prog.1" > page
        diff help page || { echo "$prog: < --help, > page"; false; }
    done
}

@test "the commands of phasepipe have pages too, with the sections and their options" {
    for command in up down ps top ctl cache tls-init unit-cores; do
        page=$ROOT/docs/man/phasepipe-$command.1
        for section in NAME SYNOPSIS DESCRIPTION OPTIONS 'INPUT AND OUTPUT' SIGNALS ENVIRONMENT FILES 'EXIT STATUS' \
            EXAMPLES 'SEE ALSO'; do
            grep -qx "\.Sh $section" "$page" || { echo "phasepipe-$command.1 has no $section"; false; }
        done
        options_of_help phasepipe $command > help
        [ -s help ]
        options_of_page "$page" > page
        diff help page || { echo "phasepipe $command: < --help, > page"; false; }
    done
}

@test "phasepipe(7): the variables of the environment are those that the programs read" {
    grep -oh 'getenv("[A-Z_]*")' -r "$ROOT/cmd" "$ROOT/lib" "$ROOT/kernels" | sed 's/.*"\(.*\)".*/\1/' | grep PHASEPIPE |
        sort -u > read
    for name in $(cat read); do
        grep -q "^\.It Ev.*$name" "$ROOT/docs/man/phasepipe.7" || { echo "$name is not in phasepipe(7)"; false; }
    done
}

@test "stream(1): the paths that need no key are those of the routes" {
    sed -nE 's/^ *\{"[A-Z]+", "([^"]+)", true, .*/\1/p' "$ROOT"/lib/api/*.c | sort -u > routes
    [ -s routes ]
    awk '/^\.It Fl -api-key-file/ { on = 1; next } on && /^\.It/ { exit } on && /^\.Pa/' "$ROOT/docs/man/stream.1" |
        tr ' ' '\n' | grep '^/' | sort -u > page
    diff routes page
}

@test "NEWS is of the newest version and its frames" {
    grep -m 1 '^[0-9]' "$ROOT/NEWS" > head
    grep -qF "$(stream --version | sed -E 's/.*\) ([0-9.]+), (frames [0-9]+)/\1 (\2,/')" head || { cat head; false; }
}

@test "the examples of tokenize(1)" { examples_of_page "$ROOT/docs/man/tokenize.1" | run_examples; }
@test "the examples of prefill(1)" { examples_of_page "$ROOT/docs/man/prefill.1" | run_examples; }
@test "the examples of decode(1)" { examples_of_page "$ROOT/docs/man/decode.1" | run_examples; }
@test "the examples of stream(1)" { examples_of_page "$ROOT/docs/man/stream.1" | run_examples; }
@test "the examples of kvstore(1)" { examples_of_page "$ROOT/docs/man/kvstore.1" | run_examples; }
@test "the examples of frames(1)" { examples_of_page "$ROOT/docs/man/frames.1" | run_examples; }
@test "the examples of sched(1)" { examples_of_page "$ROOT/docs/man/sched.1" | run_examples; }
@test "the examples of sched-fcfs(1)" { examples_of_page "$ROOT/docs/man/sched-fcfs.1" | run_examples; }
@test "the examples of sched-colocate(1)" { examples_of_page "$ROOT/docs/man/sched-colocate.1" | run_examples; }
@test "the examples of sched-exec(1)" { examples_of_page "$ROOT/docs/man/sched-exec.1" | run_examples; }
@test "the examples of simulate(1)" { examples_of_page "$ROOT/docs/man/simulate.1" | run_examples; }
@test "the examples of bench(1)" { examples_of_page "$ROOT/docs/man/bench.1" | run_examples; }
@test "the examples of phasepipe(1)" { examples_of_page "$ROOT/docs/man/phasepipe.1" | run_examples; }
@test "the examples of phasepipe-up(1)" { examples_of_page "$ROOT/docs/man/phasepipe-up.1" | run_examples; }
@test "the examples of phasepipe-down(1)" { examples_of_page "$ROOT/docs/man/phasepipe-down.1" | run_examples; }
@test "the examples of phasepipe-ps(1)" { examples_of_page "$ROOT/docs/man/phasepipe-ps.1" | run_examples; }
@test "the examples of phasepipe-top(1)" { examples_of_page "$ROOT/docs/man/phasepipe-top.1" | run_examples; }
@test "the examples of phasepipe-ctl(1)" { examples_of_page "$ROOT/docs/man/phasepipe-ctl.1" | run_examples; }
@test "the examples of phasepipe-cache(1)" { examples_of_page "$ROOT/docs/man/phasepipe-cache.1" | run_examples; }
@test "the examples of phasepipe-metrics(7)" { examples_of_page "$ROOT/docs/man/phasepipe-metrics.7" | run_examples; }
@test "the pipelines of phasepipe(7)" { examples_of_page "$ROOT/docs/man/phasepipe.7" | run_examples; }
@test "the pipelines of README.md" { examples_of_text "$ROOT/README.md" | run_examples; }

@test "the scripts of examples/" {
    PATH="$ROOT/examples:$PATH"
    set -o pipefail
    run record-and-replay.sh
    [ "$status" -eq 0 ]
    [ "$(uniq <<< "$output" | head -1)" = "1. Red: This is the most obvious colour, but it's also the" ]
    printf '{"prompt":"One, two, three,","max_tokens":6}\n%.0s' 1 2 3 4 5 | fan-out.sh -n 3 | jq -r .text > got
    printf ' four, five, six,\n%.0s' 1 2 3 4 5 | diff - got
    tokenize -p 'Name a river.' | limit-tokens.sh 5 | tokenize -d | grep -q 'Name a river.'
    tokenize -p 'Name a river.' | limit-tokens.sh 5 | decode | stream > got
    [ "$(cat got)" = "The river that I mentioned" ]
    run phase-times.sh
    [ "$status" -eq 0 ]
    [[ "$output" == *"prefill: profile: attention"*"decode: profile: attention"*"eval rate:"* ]]
    for example in $(cd "$ROOT/examples" && ls); do
        grep -q "$example" "$ROOT"/tests/cli/*.bats "$ROOT"/tests/service/*.bats || { echo "$example is not run"; false; }
    done
}
