#!/usr/bin/env bash
# The tests of all crates that need no MPI: each in a process of its own (cargo-nextest), so that
# none sees what another unmaps; those that count by themselves; and the documentation's examples.
# With QUICK=1 without the examples, which are compiled one by one.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
xtask/ci/build.sh debug || exit 2
mapfile -t chosen < <(xtask/ci/build.sh selected)
mapfile -t own < <(grep -oE 'binary\(=[a-z_]+' .config/nextest.toml | cut -d = -f 2)
status=0
cargo nextest run "${chosen[@]}" || status=1
RUST_TEST_NOCAPTURE=1 cargo test "${chosen[@]}" "${own[@]/#/--test=}" --no-fail-fast || status=1
[ -n "${QUICK:-}" ] || cargo test "${chosen[@]}" --doc --no-fail-fast || status=1
exit $status
