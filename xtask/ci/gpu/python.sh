#!/usr/bin/env bash
# PyTorch, CuPy and RMM on pinyard's pool, on a machine with a GPU and without Rust: the
# examples, and the training with either allocator in turns, three times each. Wants
# what xtask/ci/gpu/python-carry.sh collects in carried/; results under $OUT.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit
out=${OUT:?where to: OUT=folder xtask/ci/gpu/python.sh}
library=$PWD/carried/libpinyard.so
mkdir -p "$out"
# Where the machine has no RMM of its own.
python3 -c 'import rmm' 2> /dev/null || export PYTHONPATH=$PWD/carried/rmm${PYTHONPATH:+:$PYTHONPATH}
{
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    python3 -c 'import sys, torch; print("python", sys.version.split()[0], "torch", torch.__version__)'
    python3 -c 'import cupy; print("cupy", cupy.__version__)'
    python3 -c 'import rmm; print("rmm", rmm.__version__)'
    uname -r
} > "$out/machine.txt" 2>&1
status=0
for example in page torch_mempool cupy_pool rmm_callback; do
    program=(timeout 100 python3 "examples/python/$example.py")
    [ $example != page ] || program=(mpi-tests/python/page.sh)
    "${program[@]}" "$library" > "$out/$example.txt" 2>&1
    ended=$?
    case $ended in 0) ;; 77) echo "skipped: its library is not installed" >> "$out/$example.txt" ;; *) status=1 ;; esac
    echo "status $ended" >> "$out/$example.txt"
    sed "s/^/$example: /" "$out/$example.txt"
done
# Between ranks; on one GPU both have it.
xtask/ci/gpu/python-mpi.sh > "$out/mpi4py_bcast.txt" 2>&1
ended=$?
case $ended in 0) ;; 77) echo "skipped: a library is not installed" >> "$out/mpi4py_bcast.txt" ;; *) status=1 ;; esac
echo "status $ended" >> "$out/mpi4py_bcast.txt"
sed "s/^/mpi4py_bcast: /" "$out/mpi4py_bcast.txt"
for _ in 1 2 3; do
    for allocator in torch pinyard; do
        timeout 100 python3 examples/python/torch_train.py "$allocator" --library "$library" --steps "${STEPS:-200}" --json \
            2> "$out/train-$allocator.err" | tee -a "$out/train.jsonl" || status=1
    done
done
python3 - "$out/train.jsonl" << 'EOF' || status=1
import json, statistics, sys

runs = [json.loads(line) for line in open(sys.argv[1])]
of = lambda name, key: [run[key] for run in runs if run["allocator"] == name]
losses = {run["losses"] for run in runs}
print(f"losses of {len(runs)} runs: {'the same, bit for bit' if len(losses) == 1 else losses}")
for key in ("seconds", "peak_reserved_bytes", "allocations"):
    ours, theirs = statistics.median(of("pinyard", key)), statistics.median(of("torch", key))
    print(f"{key}: pinyard {ours}, PyTorch {theirs}, ratio {ours / theirs:.3f}")
sys.exit(len(losses) != 1 or len(runs) != 6)
EOF
exit $status
