#!/usr/bin/env bash
# Do the lines of Cargo.toml that the README and the book show make their programs compile, and run, from
# a folder of their own? With the crates that the workspace has, and without a network.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
. xtask/ci/checks.sh
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
said=$work/said
export MPICC=${MPICC:-/usr/bin/mpicc.openmpi}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")/depend
ln -s "$PWD" "$work/pinyard"

program() { # name, lines of Cargo.toml, program, cargo's command
    local folder=$work/$1
    mkdir -p "$folder/src" && cp Cargo.lock "$folder/" || return
    printf '[package]\nname = "%s"\nedition = "2024"\n\n[workspace]\n\n%s\n' "$1" "${2:?no block}" > "$folder/Cargo.toml"
    printf '%s\n' "${3:?no block}" > "$folder/src/main.rs"
    (cd "$folder" && cargo "$4" --quiet --offline --target-dir "$target")
}
check "the README's program" program readme "$(xtask/ci/block.sh README.md dependencies)" "$(xtask/ci/block.sh README.md program)" run
check "start.md's program" program start "$(xtask/ci/block.sh docs/src/start.md dependencies)" "$(xtask/ci/block.sh docs/src/start.md program)" run
check "rust.md's crates" program rust "$(xtask/ci/block.sh docs/src/rust.md dependencies)" 'use {pinyard as _, pinyard_driver as _};
fn main() {}' build
# rsmpi without its default features, whose crates the workspace does not have.
bare='"0.8.2"={ version = "0.8.2", default-features = false }'
check "gpu-mpi.md's program" program gpu_mpi "$(xtask/ci/block.sh docs/src/gpu-mpi.md dependencies "$bare")" "$(xtask/ci/block.sh docs/src/gpu-mpi.md program)" build
check "the README's program of GPU buffers" program readme_gpu "$(xtask/ci/block.sh README.md gpu-dependencies "$bare")" "$(xtask/ci/block.sh README.md gpu-program)" build
rm -rf "$target"
counts
