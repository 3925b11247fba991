#!/usr/bin/env bash
# Measures what needs no GPU and no MPI beside its peers, and writes the table and the saved
# run to docs/benchmarks, or to $BENCH_OUT, and the pictures to docs/src/benchmarks, or
# to $BENCH_PLOTS. Run it on a machine that is otherwise idle. Arguments go to the command:
# `xtask/ci/bench.sh --threads 4`.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
out=${BENCH_OUT:-docs/benchmarks}
cargo build --quiet --release -p pinyard-benches
cargo build --quiet --release -p pinyard-cli
mkdir -p "$out"
"$target/release/pinyard" bench cache hooks backends pools.host instructions \
    --save "$out/bench.json" --plot "${BENCH_PLOTS:-docs/src/benchmarks}" "$@"
python3 xtask/ci/bench_table.py "$out/bench.json" > "$out/bench.md"
