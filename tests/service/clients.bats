#!/usr/bin/env bats
# Clients that people have, with the real services and the real model: what `make check-clients` runs in seconds. The packages
# openai and ollama are in a venv of the cache folder; scripts/check sees to it.

setup() {
    bats_require_minimum_version 1.5.0
    unset PHASEPIPE_RUN PHASEPIPE_RUN_DIR
    export PHASEPIPE_BIN=$PHASEPIPE_BUILD/bin
    local home=${XDG_CACHE_HOME:-$HOME/.cache}/phasepipe/clients/quick
    [ -e "$home/installed" ] || skip "scripts/check-clients --install --quick has not been run"
    clients=("$PHASEPIPE_TOP/scripts/check-clients" --no-install -m "$PHASEPIPE_TEST_MODEL" --only)
}

@test "the package openai" {
    timeout 300 "${clients[@]}" openai
}

@test "the package openai, asynchronous" {
    timeout 300 "${clients[@]}" openai-async
}

@test "the package ollama" {
    timeout 300 "${clients[@]}" ollama
}

@test "curl, as people type it" {
    timeout 300 "${clients[@]}" curl
}
