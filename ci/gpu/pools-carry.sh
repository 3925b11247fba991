#!/usr/bin/env bash
# Collects the device pools' tests and benchmark in carried/pools/, which git
# ignores, for a machine with a GPU and without Rust: see ci/gpu/pools.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
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
cargo build --quiet --release -p pinyard --features cli --bin pinyard
for program in pinyard pinyard-bench; do
    cp "${CARGO_TARGET_DIR:-target}/release/$program" "$out/" && strip --strip-debug "$out/$program"
done
cp ci/gpu/pools.sh ci/gpu/torch_shim.cpp "$out/"
git describe --always --dirty > "$out/commit"
du -sk "$out"
