#!/usr/bin/env bash
# Runs the fuzz target from its committed corpus: `ci/fuzz.sh [seconds]`, 60 without.
# A finding is kept under target/fuzz; more arguments go to libFuzzer, such as the
# file of a finding, or -merge=1. With `--keep` as the first argument the inputs
# that reach something new are minimised into the corpus.
set -euo pipefail
cd "$(dirname "$0")/.."
keep=no
if [ "${1:-}" = --keep ]; then keep=yes && shift; fi
seconds=${1:-60}
[ $# -gt 0 ] && shift
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}/fuzz
corpus=fuzz/corpus/registry
# Coverage without a sanitizer: counters in every edge, and the operands of compares.
export RUSTFLAGS="--cfg fuzzing -Ccodegen-units=1 -Cdebug-assertions -Cpasses=sancov-module \
 -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
 -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares ${RUSTFLAGS:-}"
cargo build --quiet --release --target "$host" --target-dir "$target" -p pinyard-fuzz
program=$target/$host/release/registry
mkdir -p "$target/found" "$target/findings"
log=$target/log
options=(-max_len=512 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 "-artifact_prefix=$target/findings/")
status=0
"$program" "${options[@]}" -max_total_time="$seconds" "$@" "$target/found" "$corpus" > "$log" 2>&1 || status=$?
first=$(grep -m1 -oE 'cov: [0-9]+ ft: [0-9]+' "$log" || true)
last=$(grep -oE 'cov: [0-9]+ ft: [0-9]+' "$log" | tail -1 || true)
count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
if [ "$keep" = yes ] && [ "$status" -eq 0 ]; then
    rm -rf "$target/minimal" && mkdir "$target/minimal"
    "$program" "${options[@]}" -set_cover_merge=1 "$target/minimal" "$corpus" "$target/found" >> "$log" 2>&1
    rm -rf "$corpus" && cp -r "$target/minimal" "$corpus"
fi
echo "fuzz: ${count:-no} executions in $seconds s, from $first to $last, corpus of $(ls "$corpus" | wc -l)"
if [ "$status" -ne 0 ] || [ "${count:-0}" -eq 0 ]; then
    grep -m1 -A3 panicked "$log" || true
    tail -12 "$log"
    echo "0 passed, 1 failed"
    exit 1
fi
echo "1 passed, 0 failed"
