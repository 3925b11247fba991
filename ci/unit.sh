#!/usr/bin/env bash
# The tests of all crates that need no MPI: each in a process of its own (cargo-nextest), so that
# none sees what another unmaps; those that count by themselves; and the documentation's examples.
# With QUICK=1 without the examples, which are compiled one by one.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
ci/build.sh debug || exit 2
mapfile -t chosen < <(ci/build.sh selected)
own=(threads device_threads two_copies table large_tls)
status=0
# shellcheck disable=SC2046
cargo nextest run "${chosen[@]}" -E "not ($(printf 'binary(=%s) | ' "${own[@]}" | sed 's/ | $//'))" || status=1
RUST_TEST_NOCAPTURE=1 cargo test "${chosen[@]}" "${own[@]/#/--test=}" --no-fail-fast || status=1
[ -n "${QUICK:-}" ] || cargo test "${chosen[@]}" --doc --no-fail-fast || status=1
exit $status
