#!/usr/bin/env bats
# The scrape configuration of examples/, checked by Prometheus' own tool.

ROOT="$BATS_TEST_DIRNAME/../.."

@test "examples/prometheus.yml is valid, and scrapes the address of phasepipe up" {
    grep -q '"127.0.0.1:8000"' "$ROOT/examples/prometheus.yml"
    phasepipe up --help | grep -q -- '--http ADDR .*(127.0.0.1:8000)'
    command -v promtool > /dev/null || skip "no promtool: apt-get install prometheus"
    run promtool check config --lint=all --lint-fatal "$ROOT/examples/prometheus.yml"
    echo "$output"
    [ "$status" -eq 0 ]
}
