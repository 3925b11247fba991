#!/usr/bin/env bash
# ThreadSanitizer over the tests that set threads against each other. The
# standard library stays uninstrumented (it is not rebuilt). Hooks stay off:
# the sanitizer's runtime unmaps memory where instrumented code cannot run, so the
# tests announce their changes themselves.
set -euo pipefail
cd "$(dirname "$0")/../.."
export RUSTC_BOOTSTRAP=1 # sanitizers are unstable flags of the stable compiler
export RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer ${RUSTFLAGS:-}"
export PINYARD_TEST_NOTIFY=1
export TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1 suppressions=$PWD/xtask/ci/tsan.supp ${TSAN_OPTIONS:-}"
target=${CARGO_TARGET_DIR:-target}/tsan
host=$(rustc -vV | sed -n 's/^host: //p')
cargo test --release --target "$host" --target-dir "$target" -p pinyard-registry --test threads "$@"
cargo test --release --target "$host" --target-dir "$target" -p pinyard --lib "$@" -- capi::leases capi::handles
cargo test --release --target "$host" --target-dir "$target" -p pinyard-allocator --test threads "$@"
PINYARD_TEST_ROUNDS=2000 cargo test --release --target "$host" --target-dir "$target" -p pinyard-allocator --test device_threads "$@"
