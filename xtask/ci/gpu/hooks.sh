#!/usr/bin/env bash
# The patcher on another processor, kernel and C library, from what xtask/ci/gpu/carry.sh
# collected: threads hammer every function while hooks go in and out, children of every
# kind of fork, and the table of changes. No GPU is used. Writes to $OUT.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit 2
out=${OUT:?}
said=$(mktemp) && trap 'rm -f "$said" "$said.late"' EXIT
. xtask/ci/checks.sh
{ uname -r; ldd --version | sed -n 1p; grep -m1 -oE '\bfsrm\b' /proc/cpuinfo || echo "no fsrm"; } | tee "$out/hooks.txt"
test_of() { # its output also in hooks.txt
    local status=0
    limited 200 "carried/$1" --test-threads=1 > "$said.test" 2>&1 || status=$?
    tee -a "$out/hooks.txt" < "$said.test"
    rm "$said.test"
    return $status
}
for test in flips forks; do check $test test_of $test; done
table() {
    limited 120 carried/pinyard doctor hooks > "$out/doctor-hooks.txt" 2> "$out/doctor-hooks.err"
    local status=$?
    tail -5 "$out/doctor-hooks.txt" "$out/doctor-hooks.err"
    return $status
}
check "pinyard doctor hooks" table
counts
