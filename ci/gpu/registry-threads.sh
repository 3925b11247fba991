#!/usr/bin/env bash
# Measures the cache with as many threads as there are cores, and what the hooks add,
# with what ci/gpu/carry.sh has collected: the rows as JSON, the machine, and how busy
# it was, under $OUT. Needs no Rust, no UCX and no GPU. With arguments, which go to the
# program, the cache alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:?where to: OUT=folder ci/gpu/registry-threads.sh}
mkdir -p "$out"
if [ ! -x carried/versus-ucx ]; then
    echo "registry-threads: no carried/versus-ucx: run ci/gpu/carry.sh where Rust is" >&2
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
carried/versus-ucx --json "$@" > "$out/registry-threads.json" 2> "$out/registry-threads.log"
if [ $# -eq 0 ]; then
    carried/hook-cost --raw "$out/hooks.json" > "$out/hooks.md"
fi
uptime >> "$out/machine.txt"
if command -v python3 > /dev/null; then
    python3 ci/bench_table.py "$out/registry-threads.json" | tee "$out/registry-threads.md"
else
    cat "$out/registry-threads.json"
fi
