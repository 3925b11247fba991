#!/usr/bin/env bash
# Does everything compile where there is no network, as in a distribution's build? With the crates
# in cargo's cache and the sources, and nothing else, in a network namespace that has no way out.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
. xtask/ci/checks.sh
said=$(mktemp)
trap 'rm -f "$said" "$said.late"' EXIT
# A new target folder, so that every build script runs.
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/offline
rm -rf "$target"
without=(unshare --user --map-root-user --net)
"${without[@]}" true 2> /dev/null || { skip "offline: network namespaces are refused (unshare(2))" && counts && exit; }
mapfile -t chosen < <(xtask/ci/build.sh selected)
cut_off() { ! "${without[@]}" bash -c 'exec 3<> /dev/tcp/127.0.0.1/9 || ip route get 192.0.2.1'; }
check "nothing is reached from there" cut_off
check "the crates of Cargo.lock" cargo fetch --quiet --locked
check "libraries, programs and tests" "${without[@]}" cargo build --quiet --offline --locked --target-dir "$target" "${chosen[@]}" --all-targets
check "libraries that are linked with MPI" "${without[@]}" env MPICC="${MPICC:-/usr/bin/mpicc.openmpi}" \
    cargo build --quiet --offline --locked --target-dir "$target" -p pinyard-mpi -p pinyard-mpi-c --lib
rm -rf "$target"
counts
