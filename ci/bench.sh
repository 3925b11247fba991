#!/usr/bin/env bash
# Measures the cache beside UCX, and what hooks add, and writes the tables, the raw rows,
# the machine's description and the plots to docs/benchmarks, or to $BENCH_OUT. Run it on
# a machine that is otherwise idle. Arguments go to the command: `ci/bench.sh --threads 4`.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
out=${BENCH_OUT:-docs/benchmarks}
cargo build --quiet --release -p pinyard-benches
cargo build --quiet --release -p pinyard --features cli --bin pinyard
mkdir -p "$out"
"$target/release/pinyard" bench cache hooks --save "$out/cache.json" --plot "$out" "$@"
python3 ci/bench_table.py "$out/cache.json" > "$out/cache.md"
