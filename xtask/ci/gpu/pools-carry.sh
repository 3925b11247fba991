#!/usr/bin/env bash
# Collects the device pools' tests and benchmark in carried/pools/, which git
# ignores, for a machine with a GPU and without Rust: see xtask/ci/gpu/pools.sh.
set -euo pipefail
cd "$(dirname "$0")/../../.."
out=${1:-carried/pools}
rm -rf "$out" && mkdir -p "$out"
binary() { # what cargo builds, its name there
    local path
    cargo "${@:2}" --no-run
    path=$(cargo "${@:2}" --no-run --message-format=json 2> /dev/null |
        python3 -c 'import json, sys; print([d["executable"] for d in map(json.loads, sys.stdin) if d.get("executable")][-1])')
    cp "$path" "$out/$1" && strip --strip-debug "$out/$1"
}
binary driver test --release -p pinyard-driver --test cuda
binary conformance test --release -p pinyard-allocator --test device_conformance
binary random test --release -p pinyard-allocator --test device_random
cargo build --quiet --release -p pinyard-benches --bin pinyard-bench
cargo build --quiet --release -p pinyard-cli
for program in pinyard pinyard-bench; do
    cp "${CARGO_TARGET_DIR:-target}/release/$program" "$out/" && strip --strip-debug "$out/$program"
done
cp xtask/ci/gpu/pools.sh xtask/ci/gpu/pools_table.py xtask/ci/gpu/{shim,upstream}.h xtask/ci/gpu/{torch,torch_host,rmm,cub,calls}_shim.cpp "$out/"
# RMM and its logger, with the headers of CCCL, newer than those of CUDA 13.0; and CUPTI.
wheels=${CARGO_TARGET_DIR:-target}/wheels
for wheel in librmm-cu13==26.10.0 rapids-logger==0.3.0 nvidia-cuda-cupti==13.0.85; do
    name=${wheel%%==*}
    name=${name//-/_}-${wheel##*==}
    compgen -G "$wheels/$name-*.whl" > /dev/null ||
        python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$wheels" "$wheel" || {
        echo "pools-carry: no $wheel: put its wheel in $wheels; what needs it will be left out" >&2
        continue
    }
    cp "$wheels/$name"-*.whl "$out/"
done
git describe --always --dirty > "$out/commit"
kib=$(du -sk "$out" | cut -f1)
if [ "$kib" -ge 61440 ]; then
    echo "pools-carry: $out has $kib KiB, and 61440 are too many" >&2
    exit 1
fi
echo "pools-carry: $out, $kib KiB"
