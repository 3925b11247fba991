#!/usr/bin/env bash
# AddressSanitizer over the tests of the pools: nothing is used after it was freed, and nothing is read
# or written beyond what it was given. The standard library stays uninstrumented (it is not rebuilt).
# Leaks are counted by the tests themselves, and by valgrind in mpi-tests/c.
set -euo pipefail
cd "$(dirname "$0")/../.."
export RUSTC_BOOTSTRAP=1 # sanitizers are unstable flags of the stable compiler
export RUSTFLAGS="-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer ${RUSTFLAGS:-}"
export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}"
target=${CARGO_TARGET_DIR:-target}/asan
host=$(rustc -vV | sed -n 's/^host: //p')
# Of those that count by themselves, the threads' are ThreadSanitizer's (xtask/ci/tsan.sh).
cargo nextest run --target "$host" --target-dir "$target" -p pinyard-allocator -p pinyard-trace -p pinyard-driver "$@"
