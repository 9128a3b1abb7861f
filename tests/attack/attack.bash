# Helpers of the attack tests: services as `phasepipe up` starts them, and the bound of a process's memory.

# up NAME [OPTION ...]: services in the runtime directory NAME with HTTP at the socket NAME.s, ready when this returns
up() {
    mkdir -p -m 700 "$1"
    timeout -k 1 60 phasepipe up --run "$PWD/$1" -m "$PHASEPIPE_TEST_MODEL" --http "unix:$PWD/$1.s" --ollama off \
        --served-model-name smol "${@:2}" --detach > "$1.log" 2>&1 3>&-
}

down() { timeout -k 1 60 phasepipe down --run "$PWD/$1" > /dev/null 2>&1 || true; }

# pid_of NAME SERVICE: the process id of a service of the runtime directory NAME
pid_of() {
    phasepipe ps --run "$PWD/$1" --json | jq -r --arg s "$2" '.[] | select(.name == $s).pid'
}

# within WHAT PID MIB: the peak of resident memory of a process stays below its bound. `make check-attack` prints the table.
within() {
    local peak
    peak=$(awk '/^VmHWM:/ { print int($2 / 1024) }' "/proc/$2/status")
    [ -z "${PHASEPIPE_PEAKS-}" ] || printf '%s\tpeak %s MiB\tbound %s MiB\n' "$1" "$peak" "$3" >> "$PHASEPIPE_PEAKS"
    echo "$1: peak $peak MiB, bound $3 MiB"
    [ "$peak" -le "$3" ]
}
