#!/usr/bin/env bats
# The units of examples/systemd: systemd takes them without a word, they are locked down, and their flags are those of
# the programs.

setup() {
    cd "$BATS_TEST_TMPDIR"
    bin=$(dirname "$(command -v phasepipe)")
    mkdir units
    for unit in "$PHASEPIPE_TOP"/examples/systemd/*.{service,socket,target}; do
        sed "s|/usr/libexec/phasepipe/|$bin/|" "$unit" > "units/$(basename "$unit")"
    done
}

@test "every service has a unit, which systemd-analyze verify takes" {
    for p in kvstore sched tokenize stream prefill@ decode@; do [ -e "units/phasepipe-$p.service" ]; done
    for unit in units/*; do
        SYSTEMD_UNIT_PATH=$PWD/units: systemd-analyze verify --man=no "$unit" > out 2>&1 || { cat out; false; }
        [ ! -s out ] || { cat out; false; }
    done
}

@test "each is exposed to little, by systemd-analyze security" {
    for unit in units/*.service; do
        systemd-analyze security --offline=yes --no-pager --threshold=15 "$unit" > out 2>&1 || { tail -n 40 out; false; }
    done
}

@test "each notifies, and a model that is refused does not loop" {
    for unit in units/*.service; do
        grep -qx 'Type=notify' "$unit"
        grep -qx 'RestartPreventExitStatus=1 2 100' "$unit"
    done
    grep -q '^FileDescriptorStoreMax=' units/phasepipe-kvstore.service
}

@test "their flags are those of the programs" {
    for unit in units/*.service; do
        read -r -a words < <(sed -n 's/^ExecStart=//p' "$unit")
        "${words[0]}" --complete > known
        for word in "${words[@]:1}"; do
            [[ $word != --* ]] || grep -qx -e "$word" known || { echo "$unit: $word"; false; }
        done
    done
}
