#!/usr/bin/env bash
# Measures the cache with as many threads as there are cores, and what the hooks add,
# with what xtask/ci/gpu/carry.sh has collected: the saved run, its table and plots, the machine,
# and how busy it was, under $OUT. Needs no Rust, no UCX and no GPU. Arguments go to
# `pinyard bench`, in the place of the names of both groups.
set -euo pipefail
cd "$(dirname "$0")/../../.."
out=${OUT:?where to: OUT=folder xtask/ci/gpu/registry-threads.sh}
mkdir -p "$out"
if [ ! -x carried/pinyard-bench ]; then
    echo "registry-threads: no carried/pinyard-bench: run xtask/ci/gpu/carry.sh where Rust is" >&2
    exit 1
fi
{
    lscpu || cat /proc/cpuinfo
    uname -a
    nproc
    uptime
    ldd --version | sed -n 1p
} > "$out/machine.txt" 2>&1
export LD_LIBRARY_PATH=$PWD/carried/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[ $# -gt 0 ] || set -- cache hooks
carried/pinyard bench "$@" --save "$out/cache.json" --plot "$out/plots"
uptime >> "$out/machine.txt"
if command -v python3 > /dev/null; then
    python3 xtask/ci/bench_table.py "$out/cache.json" > "$out/cache.md"
fi
