#!/usr/bin/env bash
# One visit to a GPU: the driver's tests, the conformance suite on the real driver, and
# the benchmark beside PyTorch (both settings of its allocator) and cuMemAllocAsync.
# Takes what ci/gpu/pools-carry.sh collected; results under $OUT. Arguments go to the
# benchmark.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ -x "$here/conformance" ] || here=$here/../../carried-pools
out=${OUT:?where to: OUT=folder ci/gpu/pools.sh}
mkdir -p "$out"
if [ ! -x "$here/conformance" ]; then
    echo "pools: nothing in carried-pools: run ci/gpu/pools-carry.sh where Rust is" >&2
    exit 1
fi
{ nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; lscpu | grep 'Model name'; nproc; uname -r; } \
    > "$out/machine.txt" 2>&1
export RUST_TEST_THREADS=1 RUST_BACKTRACE=0
status=0
timeout 60 "$here/driver" --nocapture > "$out/driver.log" 2>&1 || status=1
tail -4 "$out/driver.log"
if [ -z "${BENCH_ONLY:-}" ]; then
    PINYARD_TEST_DRIVER=cuda timeout 240 "$here/conformance" > "$out/conformance.log" 2>&1 || status=1
    grep -E 'FAILED|panicked|^test result' -A3 "$out/conformance.log" | head -60
fi

shim=
torch=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2> /dev/null)
if [ -n "$torch" ]; then
    cuda=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
    if g++ -O2 -std=c++17 -shared -fPIC -I"$torch/include" -I"$cuda/include" "$here/torch_shim.cpp" -o /tmp/torch_shim.so \
        -L"$torch/lib" -lc10_cuda -lc10 -Wl,-rpath,"$torch/lib" > "$out/shim.log" 2>&1; then
        shim=/tmp/torch_shim.so
        # What the libraries of PyTorch's wheel depend on lies beside it.
        LD_LIBRARY_PATH=$(find "$torch/.." -name 'libcudart.so*' -printf '%h\n' | sort -u | paste -sd:)
        export LD_LIBRARY_PATH
    else
        echo "pools: the shim was not built: see shim.log" && tail -3 "$out/shim.log"
    fi
fi
timeout 200 "$here/bench" $shim "$@" > "$out/bench.jsonl" 2> "$out/bench.log" || { status=1; tail -5 "$out/bench.log"; }
if [ -n "$shim" ]; then
    PYTORCH_ALLOC_CONF=expandable_segments:True timeout 200 "$here/bench" $shim "$@" > "$out/bench-expandable.jsonl" 2> "$out/bench-expandable.log" || status=1
fi
grep -h '^{' "$out"/bench*.jsonl
exit $status
