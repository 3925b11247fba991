#!/usr/bin/env bash
# The patcher on another processor, kernel and C library, from what ci/gpu/carry.sh
# collected: threads hammer every function while hooks go in and out, children of every
# kind of fork, and the table of changes. No GPU is used. Writes to $OUT.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:?}
{ uname -r; ldd --version | sed -n 1p; grep -m1 -oE '\bfsrm\b' /proc/cpuinfo || echo "no fsrm"; } | tee "$out/hooks.txt"
for test in flips forks; do
    timeout 200 "carried/$test" --test-threads=1 2>&1 | tee -a "$out/hooks.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
done
timeout 120 carried/pinyard doctor hooks > "$out/doctor-hooks.txt" 2> "$out/doctor-hooks.err" || failed=1
tail -5 "$out/doctor-hooks.txt"
exit "${failed:-0}"
