#!/usr/bin/env bash
# One visit to a GPU, of at most $BUDGET seconds (480 unless given): the driver's tests,
# the conformance suite on the real driver, the benchmark beside PyTorch (both settings of
# its allocator) and cuMemAllocAsync, and for what is left of the time, at most
# $RANDOM_MOST seconds (600), random use with checked contents. Takes what
# ci/gpu/pools-carry.sh collected; results under $OUT. Arguments go to `pinyard bench`:
# `pools.streams` for these rows alone. BENCH_ONLY=1 leaves the rest out.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ -x "$here/pinyard-bench" ] || here=$here/../../carried/pools
out=${OUT:?where to: OUT=folder ci/gpu/pools.sh}
budget=${BUDGET:-480}
mkdir -p "$out"
if [ ! -x "$here/pinyard-bench" ]; then
    echo "pools: nothing in carried/pools: run ci/gpu/pools-carry.sh where Rust is" >&2
    exit 1
fi
{
    echo "pinyard $(cat "$here/commit")"
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    lscpu | grep 'Model name'
    nproc
    uname -r
} > "$out/machine.txt" 2>&1
export RUST_TEST_THREADS=1 RUST_BACKTRACE=0
status=0
# step SECONDS NAME COMMAND...: at most so long, and not beyond the budget.
step() {
    local most=$1 name=$2 left=$((budget - SECONDS)) began=$SECONDS code=0
    shift 2
    [ "$left" -lt "$most" ] && most=$left
    if [ "$most" -lt 5 ]; then
        echo "pools: no time left for $name" | tee -a "$out/machine.txt"
        status=1
        return
    fi
    # A benchmark that is interrupted keeps what it has measured.
    timeout -s INT -k 5 "$most" "$@" || code=$?
    [ "$code" -eq 0 ] || status=1
    echo "pools: $name: status $code after $((SECONDS - began)) s" | tee -a "$out/machine.txt"
}
if [ -z "${BENCH_ONLY:-}" ]; then
    step 60 driver "$here/driver" --nocapture > "$out/driver.log" 2>&1
    PINYARD_TEST_DRIVER=cuda step 180 conformance "$here/conformance" > "$out/conformance.log" 2>&1
    grep -hE 'FAILED|panicked|^test result' -A3 "$out/driver.log" "$out/conformance.log" | head -60
fi

shim=
torch=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2> /dev/null)
if [ -n "$torch" ]; then
    cuda=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
    if g++ -O2 -std=c++17 -shared -fPIC -I"$torch/include" -I"$cuda/include" "$here/torch_shim.cpp" -o /tmp/torch_shim.so \
        -L"$torch/lib" -lc10_cuda -lc10 -Wl,-rpath,"$torch/lib" > "$out/bench.log" 2>&1; then
        shim=/tmp/torch_shim.so
        # What the libraries of PyTorch's wheel depend on lies beside it.
        LD_LIBRARY_PATH=$(find "$torch/.." -name 'libcudart.so*' -printf '%h\n' | sort -u | paste -sd:)
        export LD_LIBRARY_PATH
    else
        echo "pools: the shim was not built: see bench.log" && tail -3 "$out/bench.log"
    fi
fi
[ $# -gt 0 ] || set -- 'pools.[!h]*'
export PINYARD_BENCH_TORCH=$shim
[ -n "$shim" ] || unset PINYARD_BENCH_TORCH
step 260 benchmark "$here/pinyard" bench "$@" --save "$out/pools.json" --plot "$out/plots" 2>> "$out/bench.log"
if [ -n "$shim" ]; then
    PYTORCH_ALLOC_CONF=expandable_segments:True \
        step 150 'benchmark, expandable segments' "$here/pinyard" bench "$@" --save "$out/pools-expandable.json" 2>> "$out/bench.log"
fi

# It ends by itself: what is left, less what starting and ending six pools takes.
seconds=$((budget - SECONDS - 20))
[ "$seconds" -gt "${RANDOM_MOST:-600}" ] && seconds=${RANDOM_MOST:-600}
if [ -z "${BENCH_ONLY:-}" ] && [ "$seconds" -ge 6 ]; then
    PINYARD_TEST_DRIVER=cuda PINYARD_TEST_SECONDS=$seconds step 600 "random use for $seconds s" "$here/random" --nocapture > "$out/random.log" 2>&1
    tail -20 "$out/random.log"
fi
grep ^pools: "$out/machine.txt"
exit $status
