#!/usr/bin/env bash
# Measures hits beside UCX and writes the table, the raw rows and the machine's
# description to docs/benchmarks. Run it on a machine that is otherwise idle.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
out=docs/benchmarks
cargo build --quiet --release -p pinyard-benches
"$target/release/versus-ucx" --json "$@" > "$out/hit.json"
python3 ci/bench_table.py "$out/hit.json" > "$out/hit.md"
cat "$out/hit.md"
