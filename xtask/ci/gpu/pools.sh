#!/usr/bin/env bash
# One visit to a GPU, of at most $BUDGET seconds (480 unless given): the driver's tests,
# the conformance suite on the real driver, the benchmark beside PyTorch (both settings of
# its allocator), RMM, CUB and cuMemAllocAsync, and for what is left of the time, at most
# $RANDOM_MOST seconds (600), random use with checked contents. Takes what
# xtask/ci/gpu/pools-carry.sh collected; results under $OUT. Arguments go to `pinyard bench`:
# `pools.streams` for these rows alone. BENCH_ONLY=1 leaves the rest out, RANDOM_ONLY=1 the
# benchmark, and BENCH_MOST is what that may take in seconds (420).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ -x "$here/random" ] || here=$here/../../../carried/pools
out=${OUT:?where to: OUT=folder xtask/ci/gpu/pools.sh}
budget=${BUDGET:-480}
mkdir -p "$out"
if [ ! -x "$here/random" ]; then
    echo "pools: nothing in carried/pools: run xtask/ci/gpu/pools-carry.sh where Rust is" >&2
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
status=0 saves=()
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
# It ends by itself: what is left, less what starting and ending six pools takes.
random_use() {
    local seconds=$((budget - SECONDS - 20))
    [ "$seconds" -gt "${RANDOM_MOST:-600}" ] && seconds=${RANDOM_MOST:-600}
    if [ "$seconds" -lt 6 ]; then
        echo "pools: no time left for random use" | tee -a "$out/machine.txt"
        status=1
        return
    fi
    PINYARD_TEST_DRIVER=cuda PINYARD_TEST_SECONDS=$seconds step 600 "random use for $seconds s" "$here/random" --nocapture > "$out/random.log" 2>&1
    tail -20 "$out/random.log"
}
ends() {
    grep ^pools: "$out/machine.txt"
    exit $status
}
if [ -z "${BENCH_ONLY:-}" ]; then
    step 60 driver "$here/driver" --nocapture > "$out/driver.log" 2>&1
    PINYARD_TEST_DRIVER=cuda step 180 conformance "$here/conformance" > "$out/conformance.log" 2>&1
    grep -hE 'FAILED|panicked|^test result' -A3 "$out/driver.log" "$out/conformance.log" | head -60
fi
if [ -n "${RANDOM_ONLY:-}" ]; then
    random_use
    ends
fi

cuda=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
: > "$out/bench.log"
# shim NAME VARIABLE FLAGS...: compiles NAME_shim.cpp and names it to the benchmarks. One
# that cannot be compiled leaves its allocators out.
shim() {
    local name=$1 variable=$2
    shift 2
    unset "$variable"
    if g++ -O2 -std=c++17 -shared -fPIC "$here/${name}_shim.cpp" -o "$built/${name}_shim.so" -I"$here" "$@" > "$built/log" 2>&1; then
        export "$variable=$built/${name}_shim.so"
    else
        echo "pools: ${name}_shim.cpp was not compiled, its allocators are left out: see bench.log" | tee -a "$out/machine.txt"
        grep -m 3 -E 'error|cannot find' "$built/log"
        cat "$built/log" >> "$out/bench.log"
    fi
}
unset PINYARD_BENCH_TORCH PINYARD_BENCH_TORCH_HOST PINYARD_BENCH_RMM PINYARD_BENCH_CUB PINYARD_BENCH_CALLS
torch=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2> /dev/null)
if [ -n "$torch" ]; then
    version=$(python3 -c 'import importlib.metadata as m; print(m.version("torch"))')
    flags=(-DPYTORCH_VERSION="\"$version\"" "-isystem$torch/include" "-isystem$cuda/include" "-L$torch/lib" "-Wl,-rpath,$torch/lib")
    shim torch PINYARD_BENCH_TORCH "${flags[@]}" -lc10_cuda -lc10
    # Nothing here calls libtorch_cuda, which has the allocator and announces it.
    shim torch_host PINYARD_BENCH_TORCH_HOST "${flags[@]}" -Wl,--no-as-needed -ltorch_cuda -ltorch_cpu -lc10_cuda -lc10
    # What the libraries of PyTorch's wheel depend on lies beside it.
    LD_LIBRARY_PATH=$(find "$torch/.." -name 'libcudart.so*' -printf '%h\n' | sort -u | paste -sd:)
    export LD_LIBRARY_PATH
fi
wheels=$built/wheels
for wheel in "$here"/*.whl; do
    [ ! -e "$wheel" ] || python3 -m zipfile -e "$wheel" "$wheels"
done
rmm=$wheels/librmm logger=$wheels/rapids_logger cupti=$wheels/nvidia/cu13
# RMM brings the headers of CCCL, which go before those of CUDA.
runtime=("-isystem$rmm/include/rapids" "-isystem$cuda/include/cccl" "-isystem$cuda/include" "-L$cuda/lib64" -lcudart_static -ldl -lrt -lpthread)
shim rmm PINYARD_BENCH_RMM "-isystem$rmm/include" "-isystem$logger/include" "-L$rmm/lib64" -lrmm \
    "-L$logger/lib64" -lrapids_logger "-Wl,-rpath,$rmm/lib64:$logger/lib64" "${runtime[@]}"
shim cub PINYARD_BENCH_CUB "${runtime[@]}"
shim calls PINYARD_BENCH_CALLS "-isystem$cupti/include" "-isystem$cuda/include" "$cupti/lib/libcupti.so.13" "-Wl,-rpath,$cupti/lib"
# RMM's library finds its logger by this.
export LD_LIBRARY_PATH=$logger/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[ $# -gt 0 ] || set -- 'pools.[!h]*'
step "${BENCH_MOST:-420}" benchmark "$here/pinyard" bench "$@" --save "$out/pools.json" --plot "$out/plots" 2>> "$out/bench.log"
if [ -n "${PINYARD_BENCH_TORCH:-}" ]; then
    PYTORCH_ALLOC_CONF=expandable_segments:True \
        step 150 'benchmark, expandable segments' env -u PINYARD_BENCH_RMM -u PINYARD_BENCH_CUB "$here/pinyard" bench "$@" --save "$out/pools-expandable.json" 2>> "$out/bench.log"
fi

for saved in "$out"/pools.json "$out"/pools-expandable.json; do
    [ -s "$saved" ] || continue
    saves+=("$saved")
done
if [ "${#saves[@]}" -gt 0 ]; then
    python3 "$here/pools_table.py" "${saves[@]}" > "$out/table.md" || status=1
fi

[ -n "${BENCH_ONLY:-}" ] || random_use
ends
