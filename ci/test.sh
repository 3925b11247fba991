#!/usr/bin/env bash
# Everything, one step after the other. Each step's output goes to a log; a step
# that fails shows it. Ends with what failed, for whoever sees the last lines alone,
# and the number of tests that passed and failed; a step without tests of its own
# counts as one.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
# One build of each: what would make a second one faster only fills the disk.
export CARGO_INCREMENTAL=0
export MPICC=${MPICC:-/usr/bin/mpicc.openmpi}
# Wall, user and system time, which tell a step that waits from one that needs the cores.
TIMEFORMAT='%R %U %S'
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# LD_PRELOAD separates its files by spaces and cannot quote one (ld.so(8)): below a folder with
# a space in its name, the steps work through a link without.
case $PWD in *[[:space:]]*) ln -s "$PWD" "$logs/tree" && cd "$logs/tree" || exit 2 ;; esac

# Sums a field of cargo's ("test result: ok. 3 passed; 1 failed; …") and the
# scripts' own ("3 passed, 1 failed") closing lines.
count() { grep -E '^(test result: |[0-9]+ passed, )' "$1" | grep -oE "[0-9]+ $2" | awk '{ sum += $1 } END { print sum + 0 }'; }

# What a line says of a test that failed.
failure='panicked at|FAILED|^WARNING: ThreadSanitizer|^error(\[|:)|assertion'

step() {
    local name=$1 began=$SECONDS status=0 log
    shift
    log=$logs/$name
    { time timeout -k 10 1500 "$@" > "$log" 2>&1 < /dev/null || status=$?; } 2> "$log.time"
    local ok bad none
    ok=$(count "$log" passed) bad=$(count "$log" failed) none=$(count "$log" skipped)
    # A skip that no machine needs is a test that nobody runs; so is one without its reason.
    ci/skips.sh "$name" "$log" | sed 's/^/FAILED  not in ci\/skips.txt: /' > "$log.unlisted"
    [ "$none" -le "$(grep -cE '(^| )skipped: ' "$log")" ] || echo "FAILED  $none skipped, not all with a reason" >> "$log.unlisted"
    cat "$log.unlisted" >> "$log"
    bad=$((bad + $(wc -l < "$log.unlisted")))
    [ $((ok + bad + none)) -eq 0 ] && { [ "$status" -eq 0 ] && ok=1 || bad=1; }
    [ "$status" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
    echo "$ok $bad $none" > "$log.counts"
    printf '%-14s %4d passed %3d failed  %4d s  %4s cores\n' "$name" "$ok" "$bad" $((SECONDS - began)) \
        "$(awk '{ printf "%.1f", ($2 + $3) / ($1 > 0 ? $1 : 1) }' "$log.time")"
    if [ "$status" -ne 0 ] || [ "$bad" -ne 0 ]; then
        echo "---- $name: exit $status"
        grep -nE -A4 "$failure" "$log" | head -60
        tail -n 40 "$log"
        echo "----"
        { grep -E -A2 "$failure" "$log" || tail -n 5 "$log"; } | grep -v '^--$' | cut -c1-300 | head -20 |
            sed "s/^/$name: /" > "$log.failed"
    fi
    grep -hE '(^| )skipped: ' "$log" | sort -u | head -5
    return 0
}

# Steps one after the other, beside those of the other lane: the two share no folder that
# they build in, and one of them at most pins memory.
beside() {
    "$1" > "$logs/lane" &
    "$2"
    wait
    cat "$logs/lane"
}
newcomer() { step newcomer ci/newcomer.sh; }
# What neither the network nor other work on the machine changes.
counted() {
    step lints ci/clippy.sh
    step loom ci/loom.sh
    step tsan ci/tsan.sh
    step aarch64 ci/aarch64.sh
    step instructions ci/instructions.sh
}
# One seed: a change is judged by what it changes. Others are tried for longer, by hand.
fuzzing() { step fuzz ci/fuzz.sh 180 -seed=1; }
others() {
    step book ci/docs.sh
    step book-commands ci/book-commands.sh
    step symbols ci/symbols.sh
    step report ci/report.sh
    step gpu-compile cargo test --release --target-dir "${CARGO_TARGET_DIR:-target}/openmpi" -p pinyard-mpi --features cudarc --test compile
}

step skips ci/skips.sh test
# What waits for the network and dpkg, beside what does not.
beside newcomer counted
# What a test says of a skip is shown.
step unit env RUST_TEST_NOCAPTURE=1 cargo test --workspace --exclude pinyard-mpi-tests --exclude pinyard-mpi --exclude pinyard-gpu-tests --exclude pinyard-stress --exclude pinyard-benches --exclude pinyard-fuzz --exclude pinyard-mpi-fuzz --features pinyard/cli --no-fail-fast
step guards cargo xtask guards --all
step bench benches/run.sh
beside fuzzing others
step c mpi-tests/c/run.sh
step c-mpi mpi-tests/c/mpi.sh
step python mpi-tests/python/run.sh
step install mpi-tests/install/run.sh
step incidents mpi-tests/incidents/run.sh
step preload mpi-tests/preload/run.sh
step beside mpi-tests/preload/beside.sh 3
step neighbours mpi-tests/neighbours/run.sh
step soak soak/run.sh
step mpi mpi-tests/run.sh
step gpu-mpi mpi-tests/gpu/run.sh
step stress mpi-tests/stress.sh
step slurm bash -c 'slurm/testbed/run.sh; status=$?; mpi-tests/stress-slurm.sh && exit $status'
step cluster mpi-tests/cluster/run.sh
step wheels mpi-tests/cluster/wheels.sh

echo
cat "$logs"/*.failed 2> /dev/null
cat "$logs"/*.counts | awk '{ passed += $1; failed += $2; skipped += $3 }
    END { print passed + 0 " passed, " failed + 0 " failed, " skipped + 0 " skipped"; exit failed != 0 }'
