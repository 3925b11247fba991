#!/bin/bash
# `pinyard stress` on this machine: clean runs, each fault with the ending that it must
# have, and what the checks must notice.
#
#   mpi-tests/stress.sh [openmpi] [mpich]     both unless named; QUICK=1: of the second what differs
#
# The ranks' program is built per MPI, each in a target folder of its own. The fault of a
# cut link, and the backend verbs, are tried in mpi-tests/cluster.
set -u
cd "$(dirname "$0")/.." || exit 2
[ $# -gt 0 ] || set -- openmpi mpich
target=${CARGO_TARGET_DIR:-$PWD/target}
temporary=$(mktemp -d) || exit 2
trap 'rm -rf "$temporary"' EXIT
said=$temporary/said
. xtask/ci/checks.sh

under=()
bounded() { limited 100 "${under[@]}" "$@"; }
build() { limited 900 xtask/ci/build.sh "$1" || cannot "build $1"; }

# ends STATUS PATTERN ARGUMENTS...: `pinyard stress` ends with STATUS and says PATTERN.
ends() {
    local expected=$1 pattern=$2 status
    shift 2
    bounded "$pinyard" stress "${with[@]}" "$@" >"$temporary/out" 2>&1
    status=$?
    cat "$temporary/out"
    [ $status -eq "$expected" ] || { echo "status $status, not $expected"; return 1; }
    grep -Eq "$pattern" "$temporary/out" || { echo "does not say $pattern"; return 1; }
}

# The same in one of three runs: a busy machine stops a rank for a second by itself.
ends_once() {
    ends "$@" || ends "$@" || ends "$@"
}

# document EXPRESSION: Python, over the JSON document d, that must be true.
document() {
    python3 -c "import json, sys; d = json.load(open('$temporary/run.json')); print(d['verdict']); sys.exit(not ($1))"
}

# The page's own commands, for ten seconds, with what is built here; QUICK=1 has no second build of
# the ranks' program, which differs from the first in its features.
of_page() {
    local block
    block=$(xtask/ci/block.sh docs/src/stress.md stress '60=10' 'stress.html=run.html' 'stress.json=run.json') || return
    TREE=$PWD PER_MPI=$target/$mpi PINYARD=$pinyard FOLDER=$temporary limited 400 bash -euo pipefail -c '
        cargo() {
            case "$*" in
                *pinyard-mpi-tests*) [ -n "${QUICK:-}" ] || (cd "$TREE" && command cargo "$@" --target-dir "$PER_MPI") ;;
                *) (cd "$TREE" && command cargo "$@") ;;
            esac
        }
        pinyard() { "$PINYARD" "$@" --backend io_uring --max-bytes 1M; }
        cd "$FOLDER"
        '"$block" > "$temporary/out" 2>&1
    local status=$?
    cat "$temporary/out"
    return $status
}

clean() {
    local sum='sum(r["counts"][k] for r in d["ranks"])'
    of_page && grep -q '^Clean' "$temporary/out" &&
        document 'd["schema"] == "pinyard-stress/1" and len(d["ranks"]) == 4 and d["verdict"]["exit"] == 0' &&
        document 'all(set(r["operations"]) == {"bcast", "allreduce", "sendrecv", "put", "get"} for r in d["ranks"])' &&
        document "all($sum > 0 for k in ('steps', 'messages', 'device_checks', 'hits', 'misses', 'invalidations', 'same_address', 'forks'))" &&
        document "all($sum == 0 for k in ('corrupt', 'stale', 'refused'))" &&
        document 'len(d["series"]) >= 10 and all(r["backend"] == "io_uring" and r["stalls"] is not None for r in d["ranks"])' &&
        [ "$(grep -c '<svg' "$temporary/run.html")" -eq 6 ] && ! grep -Eq '(src|href)=' "$temporary/run.html"
}

plan() { python3 -c "import json; d = json.load(open('$temporary/run.json')); print(*{r['plan'] for r in d['ranks']}, *{r['executed'] for r in d['ranks']})"; }
# Seed and steps make the run, whatever the time.
reproducible() {
    local first second other run=(-n 3 --time 30 --steps 40 --max-bytes 64K --json "$temporary/run.json")
    ends 0 '^Clean' "${run[@]}" --seed 5 && first=$(plan) || return 1
    ends 0 '^Clean' "${run[@]}" --seed 5 && second=$(plan) || return 1
    ends 0 '^Clean' "${run[@]}" --seed 6 && other=$(plan) || return 1
    echo "$first / $second / $other"
    [ "$first" = "$second" ] && [ "$first" != "$other" ] && [ "$(wc -w <<< "$first")" -eq 2 ]
}

# By hand, as under Slurm: rank 0 judges and writes.
by_hand() { # COMMAND...
    rm -rf "$temporary/tmp" && mkdir "$temporary/tmp"
    TMPDIR=$temporary/tmp bounded "$@" --time 2 --max-bytes 256K --json "$temporary/run.json" --report "$temporary/run.html" >"$temporary/out" 2>&1
    local status=$?
    cat "$temporary/out"
    [ $status -eq 0 ] && grep -q '^Clean' "$temporary/out" && document 'd["verdict"]["exit"] == 0 and d["launcher"] is None' &&
        [ -z "$(find "$temporary/tmp" -name 'pinyard-stress-*')" ]
}

on_mlock() {
    local with=()
    ends 0 'only the messages were checked' -n 2 --time 2 --backend mlock
}

killed() {
    rm -rf "$temporary/folder"
    ends 0 'rank 2 was killed at 2\.[0-9] s, as asked' -n 4 --time 5 --max-bytes 256K --fault kill-rank --fault-rank 2 --fault-after 2 \
        --folder "$temporary/folder" --report "$temporary/run.html" && ! grep -q 'outlived' "$temporary/out" &&
        bounded "$pinyard" stress --merge "$temporary/folder" --json "$temporary/run.json" &&
        document 'd["ranks"][2]["injected"] and d["ranks"][2]["samples"] and d["ranks"][2]["outcome"]["is"] == "lost_in"'
}

# RLIMIT_MEMLOCK of io_uring counts for all processes of a user together.
memlock() {
    ends 0 'RLIMIT_MEMLOCK allows 262144 bytes' -n 2 --time 5 --max-bytes 64K --fault memlock --fault-after 2 --json "$temporary/run.json" &&
        document 'all(r["outcome"]["is"] == "completed" and r["counts"]["refused"] > 0 for r in d["ranks"])' &&
        document 'all(s["steps"] > 0 for s in d["series"][-4:-1])'
}

# What was refused before does not hide what is refused after.
memlock_short_before() {
    # Root would raise the limit again.
    [ "$(id -u)" -ne 0 ] || local under=(setpriv --bounding-set=-sys_resource)
    (ulimit -l 4096 && memlock) &&
        document 'any(x["after_fault"] for r in d["ranks"] for x in r["refusals"]) and not all(x["after_fault"] for r in d["ranks"] for x in r["refusals"])'
}

flood() {
    ends 0 '^Clean' -n 2 --time 5 --max-bytes 64K --fault flood --fault-after 2 --json "$temporary/run.json" &&
        document 'all(r["counts"]["flood_events"] > 1000 and r["counts"]["stale"] == 0 for r in d["ranks"])' &&
        document 'sum(s["steps"] for s in d["series"] if s["at"] > 3) > 0'
}

# A rank that stands still: the others' watchdogs name what they wait in.
stopped() {
    local pid='' folder=$temporary/stopped status
    rm -rf "$folder"
    bounded "$pinyard" stress "${with[@]}" -n 3 --time 20 --patience 3 --max-bytes 64K --folder "$folder" >"$temporary/out" 2>&1 &
    local runner=$!
    for _ in $(seq 150); do
        sleep 0.1
        [ "$(od -An -td8 -j16 -N8 "$folder/rank-1.progress" 2>/dev/null || echo 0)" -gt 20 ] || continue
        pid=$(od -An -td8 -N8 "$folder/rank-1.progress" | tr -d ' ')
        break
    done
    [ -n "$pid" ] || echo "rank 1 did not begin"
    [ -n "$pid" ] && kill -STOP "$pid"
    wait $runner
    status=$?
    [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null
    cat "$temporary/out"
    [ $status -eq 3 ] && grep -Eq 'rank [02] hung for 3 s in .*(MPI_|MPI_Allreduce)' "$temporary/out"
}

interrupted() {
    local folder=$temporary/interrupted status
    rm -rf "$folder"
    limited 100 \
        "$pinyard" stress "${with[@]}" -n 2 --time 20 --folder "$folder" >"$temporary/out" 2>&1 &
    local runner=$!
    sleep 3
    kill -INT $runner # limited hands it on
    wait $runner
    status=$?
    cat "$temporary/out"
    [ $status -eq 130 ] || { echo "status $status"; return 1; }
    sleep 0.5
    ! grep -lsz "^$folder$" /proc/[0-9]*/cmdline
}

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # for this script's own mpirun
build release
pinyard=$target/release/pinyard

more='' # `rest`, for what a second MPI does like the first
for mpi in "$@"; do
    case $mpi in
    openmpi) name="Open MPI" options="--oversubscribe --bind-to none --mca oob_tcp_if_include lo --mca btl_tcp_if_include lo" ;;
    mpich) name=MPICH options="-iface lo" ;;
    *) echo "no such MPI: $mpi" && exit 2 ;;
    esac
    echo "building the ranks' program for $name"
    export MPICC=/usr/bin/mpicc.$mpi
    build "$mpi"
    programs=$target/$mpi/release
    export PINYARD_MPIRUN=mpirun.$mpi PINYARD_PROGRAMS=$programs
    with=(--backend io_uring)

    [ -n "$more" ] || rest check "the program's own tests" limited 900 \
        cargo test --quiet --release --target-dir "$target/$mpi" -p pinyard-mpi-tests \
        --features "$(xtask/ci/build.sh features "$mpi")" --bin pinyard-stress
    check "$name: the page: 4 ranks are clean, and the reports whole" clean
    $more check "$name: the seed makes the run" reproducible
    $more check "$name: alone, without a launcher" ends 0 '^Clean' -n 1 --time 2
    check "$name: the program by itself" by_hand "$programs/pinyard-stress"
    # shellcheck disable=SC2086 # words on purpose
    check "$name: under mpirun by hand" by_hand "mpirun.$mpi" $options -n 2 "$programs/pinyard-stress"
    $more check "$name: on mlock, which no device sees" on_mlock
    check "$name: a rank is killed" killed
    $more check "$name: RLIMIT_MEMLOCK is lowered" memlock
    $more check "$name: RLIMIT_MEMLOCK is lowered, and was short before" memlock_short_before
    $more check "$name: a flood of events" flood
    $more check "$name: a rank stands still" stopped
    $more check "$name: a link that nobody cuts is noticed" ends_once 3 'nothing stood still' -n 2 --time 2 --max-bytes 4K --fault link
    $more check "$name: a flipped byte is noticed" ends 1 'rank 1: 1 message not as sent; first: step 9' -n 2 --time 20 --steps 24 --max-bytes 64K --corrupt 9
    $more check "$name: without hooks, stale pages are noticed" ends 1 'used other pages than the program' -n 2 --time 60 --steps 150 --max-bytes 64K --without-hooks
    check "$name: SIGINT ends everything" interrupted
    more=rest
done

with=()
check "refuses without mpirun" ends 2 'no mpirun.none in PATH; install' -n 2 --mpirun mpirun.none
check "refuses without its program" ends 2 'pinyard-stress is not in /nowhere; build' -n 2 --programs /nowhere
mkdir "$temporary/empty" "$temporary/foreign" && echo '[]' > "$temporary/foreign/run.json"
check "refuses a folder without a run" ends 2 'read .*empty/run.json: No such file' --merge "$temporary/empty"
check "refuses a folder with something else" ends 2 'read .*foreign/run.json: invalid' --merge "$temporary/foreign"
if [ -e /sys/class/infiniband ]; then
    skip "refuses verbs without a device: this machine has RDMA"
else
    check "refuses verbs without a device" ends 2 'no RDMA device' -n 1 --time 2 --backend verbs
fi

counts
