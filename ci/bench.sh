#!/usr/bin/env bash
# Measures the cache beside UCX, and what hooks add, and writes the tables, the raw rows and the machine's
# description to docs/benchmarks, or to $BENCH_OUT. Run it on a machine that is
# otherwise idle. Arguments go to the program: `ci/bench.sh --only hit --turns 1000`.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
out=${BENCH_OUT:-docs/benchmarks}
cargo build --quiet --release -p pinyard-benches
mkdir -p "$out"
"$target/release/versus-ucx" --json "$@" > "$out/cache.json"
python3 ci/bench_table.py "$out/cache.json" > "$out/cache.md"
"$target/release/hook-cost" --raw "$out/hooks.json" > "$out/hooks.md"
cat "$out/cache.md" "$out/hooks.md"
