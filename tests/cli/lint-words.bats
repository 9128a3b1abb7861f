#!/usr/bin/env bats
# scripts/lint-words on small trees of its own; the tree of the project is checked by make lint.

setup() {
    cd "$BATS_TEST_TMPDIR" || return 1
    lint=$PHASEPIPE_TOP/scripts/lint-words
    mkdir -p tree/lib/a tree/docs tree/scripts
    printf '%s\n' '# a list' 'anew -> again' '(is|are) no more -> no longer exists' > list
}

@test "a forbidden word in a comment, a string, a script and a document fails, with file, line, word and replacement" {
    printf '%s\n' '/* The request' ' * is tried anew. */' 'static const char *t = "begin\nAnew";' > tree/lib/a/a.c
    printf '%s\n' '#!/usr/bin/env python3' '"""Begins anew."""' > tree/scripts/tool
    printf '%s\n' '#!/bin/sh' 'echo anew' > tree/scripts/sh
    echo 'It begins anew.' > tree/docs/x.md
    run "$lint" --list list tree
    [ "$status" -eq 1 ]
    cat > want << 'E'
docs/x.md:1: "anew": write again
lib/a/a.c:2: "anew": write again
lib/a/a.c:3: "Anew": write again
scripts/sh:2: "anew": write again
scripts/tool:2: "anew": write again
E
    diff want <(echo "$output")
}

@test "a phrase is found across the lines of a comment" {
    printf '%s\n' '/*' ' * The worker is no' ' * more.' ' */' > tree/lib/a/a.c
    printf '%s\n' '#!/bin/sh' '# They are no' '# more.' > tree/scripts/sh
    run "$lint" --list list tree
    [ "$status" -eq 1 ]
    [ "${lines[0]}" = 'lib/a/a.c:2: "is no more": write no longer exists' ]
    [ "${lines[1]}" = 'scripts/sh:2: "are no more": write no longer exists' ]
}

@test "names in code, parts of words and golden texts pass" {
    printf '%s\n' 'int anew(int anew_) { return anew_; } /* a new one, anew2, x-anew */' "char c = '\"'; int anew2;" > tree/lib/a/a.c
    printf '%s\n' '#!/usr/bin/env python3' 'anew = 1' > tree/scripts/tool
    mkdir -p tree/tests/golden
    echo anew > tree/tests/golden/text
    run "$lint" --list list tree
    [ "$status" -eq 0 ]
    [ -z "$output" ]
}

@test "--todo counts exempt places, and names an exemption that covers none" {
    printf '%s\n' 'anew -> again' '    lib/a/*  lib/b/*' > list
    echo '/* anew, anew */' > tree/lib/a/a.c
    run "$lint" --list list tree
    [ "$status" -eq 0 ]
    [ -z "$output" ]
    run "$lint" --todo --list list tree
    [ "$status" -eq 0 ]
    [ "${lines[0]}" = '    2 exempt: "anew" in lib/a/*' ]
    [ "${lines[1]}" = '    0 exempt: "anew" in lib/b/* (remove this exemption)' ]
    [ "${lines[2]}" = '2 places exempt, 0 forbidden' ]
}

@test "a line of the list that is no entry is an error with its place" {
    for bad in 'anew' '-> again' '    lib/*' '(anew -> again'; do
        echo "$bad" > list
        run "$lint" --list list tree
        [ "$status" -eq 1 ]
        [[ $output == "lint-words: list:1: "* ]]
    done
}
