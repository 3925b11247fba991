#!/usr/bin/env bash
# Format and lints of the whole workspace, MPI programs included, and of the scripts; is the C
# header the one that its source makes, and are the subjects of commits short?
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo fmt --all --check
xtask/ci/shellcheck.sh
xtask/ci/subjects.sh
xtask/ci/header.sh
export MPICC=${MPICC:-/usr/bin/mpicc.openmpi}
cargo clippy --quiet --workspace --all-targets --all-features -- -D warnings
[ -n "${QUICK:-}" ] || RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps -p pinyard -p pinyard-hooks -p pinyard-worker -p pinyard-libfabric -p pinyard-registry -p pinyard-driver -p pinyard-allocator -p pinyard-mpi
