#!/usr/bin/env bash
# The concurrency models: the real inbox, cache and magazines under loom.
# Three preemptions a run find every bug that `cargo xtask guards` plants.
set -euo pipefail
cd "$(dirname "$0")/../.."
export LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-3}
export RUSTFLAGS="--cfg loom ${RUSTFLAGS:-}"
target=${CARGO_TARGET_DIR:-target}/loom
cargo test --release --target-dir "$target" -p pinyard-hooks --test loom_inbox --test loom_holder
cargo test --release --target-dir "$target" -p pinyard-registry --lib models
cargo test --release --target-dir "$target" -p pinyard-allocator --lib models
