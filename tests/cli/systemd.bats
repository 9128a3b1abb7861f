#!/usr/bin/env bats
# The units of examples/systemd: systemd accepts them without a warning, they are sandboxed, and their flags are those of the
# programs.

bats_require_minimum_version 1.5.0

setup() {
    cd "$BATS_TEST_TMPDIR"
    bin=$(dirname "$(command -v phasepipe)")
    mkdir units
    for unit in "$PHASEPIPE_TOP"/examples/systemd/*.{service,socket,target}; do
        sed "s|/usr/libexec/phasepipe/|$bin/|" "$unit" > "units/$(basename "$unit")"
    done
}

@test "every service has a unit, which systemd-analyze verify accepts" {
    for p in kvstore sched tokenize stream prefill@ decode@; do [ -e "units/phasepipe-$p.service" ]; done
    for unit in units/*; do
        SYSTEMD_UNIT_PATH=$PWD/units: systemd-analyze verify --man=no "$unit" > out 2>&1 || { cat out; false; }
        [ ! -s out ] || { cat out; false; }
    done
}

# wanted: makes the target want all units, as if they were enabled
wanted() {
    mkdir -p units/phasepipe.target.wants units/sockets.target.wants
    for unit in units/*.service; do
        name=$(basename "$unit")
        ln -s "../$name" "units/phasepipe.target.wants/${name/@/@0}"
    done
    for unit in units/*.socket; do ln -s "../$(basename "$unit")" units/sockets.target.wants/; done
}

ordered() { SYSTEMD_UNIT_PATH=$PWD/units: systemd-analyze verify --man=no units/phasepipe.target units/*.socket 2>&1; }

@test "units are stopped in the order of down: stream first, since it needs the others, then the workers" {
    wanted
    ordered > out || { cat out; false; }
    [ ! -s out ] || { cat out; false; }
    # The stop order is the start order reversed. To show that a starts after b, the test adds the contrary: systemd finds a cycle.
    for pair in {kvstore,sched,tokenize,prefill@0,decode@0}:stream {kvstore,sched,tokenize}:{prefill@0,decode@0}; do
        claim=units/phasepipe-${pair%:*}.service.d
        mkdir "$claim"
        printf '[Unit]\nAfter=phasepipe-%s.service\n' "${pair#*:}" > "$claim/claim.conf"
        ordered > out || true # it breaks the cycle, and continues or not
        grep -q 'Found ordering cycle' out || { echo "${pair#*:} does not begin after ${pair%:*}"; false; }
        rm -r "$claim"
    done
    # The time to drain is shorter than the stop timeout.
    drain=$(sed -n 's/^ExecStart=.*--drain-seconds \([0-9]*\).*/\1/p' units/phasepipe-stream.service)
    [ "$drain" -lt "$(sed -n 's/^TimeoutStopSec=//p' units/phasepipe-stream.service)" ]
}

@test "unit-cores gives each worker unit its own processors, which the unit passes on" {
    mkdir -p "units/phasepipe-decode@7.service.d"
    echo '[Service]' > "units/phasepipe-decode@7.service.d/cores.conf" # of a larger pool before
    taskset -c 0,1 phasepipe unit-cores --dir units > out
    [ "$(cat units/phasepipe-prefill@0.service.d/cores.conf)" = '# Written by phasepipe unit-cores.
[Service]
Environment="CORES=--cpus 0 --cores-file /run/phasepipe/cores"' ]
    grep -qx 'Environment="CORES=--cpus 1 --cores-file /run/phasepipe/cores"' "units/phasepipe-decode@0.service.d/cores.conf"
    [ ! -e "units/phasepipe-decode@7.service.d" ]
    grep -q '^ExecStart=.*/decode .* \$CORES$' units/phasepipe-decode@.service
    for unit in units/phasepipe-{prefill,decode}@0.service; do
        SYSTEMD_UNIT_PATH=$PWD/units: systemd-analyze verify --man=no "$unit" > out 2>&1 || { cat out; false; }
        [ ! -s out ] || { cat out; false; }
    done
    run -1 taskset -c 0 phasepipe unit-cores --dir units
    run -100 phasepipe unit-cores -P 0 -D 0 --dir units
    run -111 phasepipe unit-cores --dir no/such/directory
}

@test "each unit has a low exposure by systemd-analyze security" {
    for unit in units/*.service; do
        systemd-analyze security --offline=yes --no-pager --threshold=15 "$unit" > out 2>&1 || { tail -n 40 out; false; }
    done
}

@test "each unit notifies, has a watchdog, and neither a refused model nor crashes cause an endless restart loop" {
    for unit in units/*.service; do
        grep -qx 'Type=notify' "$unit"
        grep -qx 'RestartPreventExitStatus=1 2 100' "$unit"
        grep -qx 'StartLimitIntervalSec=300' "$unit"
        grep -qx 'WatchdogSec=10' "$unit"
    done
    grep -q '^FileDescriptorStoreMax=' units/phasepipe-kvstore.service
}

@test "the flags of the units are those of the programs" {
    for unit in units/*.service; do
        read -r -a words < <(sed -n 's/^ExecStart=//p' "$unit")
        "${words[0]}" --complete > known
        for word in "${words[@]:1}"; do
            [[ $word != --* ]] || grep -qx -e "$word" known || { echo "$unit: $word"; false; }
        done
    done
}
