#!/bin/bash
# The demo under real MPIs: two ranks under Open MPI and under MPICH, and every
# way in which it must refuse.
#
#   mpi-tests/run.sh [openmpi] [mpich]     both unless named; QUICK=1: of the second what differs
#
# Programs are built per MPI, each in a target folder of its own.
set -u
cd "$(dirname "$0")/.." || exit 2
[ $# -gt 0 ] || set -- openmpi mpich
target=${CARGO_TARGET_DIR:-$PWD/target}
temporary=$(mktemp -d) || exit 2
trap 'rm -rf "$temporary"' EXIT
said=$temporary/said
. xtask/ci/checks.sh

bounded() { limited 100 "$@"; }
build() { xtask/ci/build.sh "$1" || cannot "build $1"; }

# What makes RLIMIT_MEMLOCK bind, for root as well.
memlock=(prlimit)
[ "$(id -u)" -ne 0 ] || memlock=(setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock prlimit)

clean_demo() { # MPI-NAME COMMAND...
    local mpi=$1
    shift
    bounded "$@" --quick --json >"$temporary/stdout" 2>"$temporary/stderr" || { cat "$temporary/stderr"; sed -n '/"verdict"/,$p' "$temporary/stdout"; return 1; }
    "$programs/check-demo" "$mpi" 400 <"$temporary/stdout"
}

# What the README shows of it, with fewer rounds.
as_shown() {
    bounded "$@" --quick > "$temporary/stdout" 2> "$temporary/stderr" || { cat "$temporary/stderr"; return 1; }
    cat "$temporary/stderr" "$temporary/stdout" > "$temporary/printed"
    xtask/ci/block.sh README.md demo > "$temporary/shown" || return
    xtask/ci/shown.py "$temporary/printed" "$temporary/shown" || { cat "$temporary/printed"; return 1; }
}

# refuses PATTERN COMMAND...: exit status 2, one line with the cause, a JSON document.
refuses() {
    local pattern=$1 status
    shift
    bounded "$@" --json >"$temporary/stdout" 2>"$temporary/stderr"
    status=$?
    cat "$temporary/stderr" "$temporary/stdout"
    [ $status -eq 2 ] || { echo "status $status"; return 1; }
    [ "$(grep -c 'pinyard demo cannot run: ' "$temporary/stderr")" -eq 1 ] || return 1
    grep -Eq "pinyard demo cannot run: .*$pattern" "$temporary/stderr" || return 1
    grep -q '"refused"' "$temporary/stdout"
}

# The hang is the releasing's: without it the naive cache goes through its rounds.
naive_without_purge() { # MPIRUN OPTIONS...
    local folder=$temporary/naive
    rm -rf "$folder" && mkdir "$folder" || return 1
    bounded "$@" -n 2 "$programs/rounds-naive" --no-purge --rounds 200 --report "$folder" || return 1
    grep -q '"is": "completed"' "$folder/rank-0.json" && grep -q '"rounds": 200,' "$folder/rank-1.json"
}

# The processes whose command line has the programs' folder: mpirun and the ranks.
of_the_demo() { grep -lsz "^$programs/rounds-" /proc/[0-9]*/cmdline; }
started() { [ -n "$(of_the_demo)" ]; }

# A signal ends the demo, its mpirun and its ranks, and leaves no files.
interrupted() { # SIGNAL ARGUMENTS...
    local signal=$1 status left
    shift
    TMPDIR=$temporary/interrupted limited 100 \
        "$pinyard" demo "$@" >"$temporary/stdout" 2>"$temporary/stderr" &
    local runner=$!
    for _ in $(seq 100); do
        started && break
        sleep 0.1
    done
    started || echo "no rank was started"
    kill "-$signal" $runner # limited hands it on
    wait $runner
    status=$?
    cat "$temporary/stderr"
    [ $status -eq 130 ] || { echo "status $status"; return 1; }
    sleep 0.5
    left=$(of_the_demo)
    [ -z "$left" ] || { echo "left: $left"; return 1; }
    [ -z "$(ls -A "$temporary/interrupted")" ] || { echo "files are left"; return 1; }
}

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # for this script's own mpirun
mkdir "$temporary/interrupted"
build release
pinyard=$target/release/pinyard

more='' # `rest`, for what a second MPI does like the first
for mpi in "$@"; do
    case $mpi in
    openmpi) name="Open MPI" other=mpirun.mpich options="--oversubscribe" ;;
    mpich) name=MPICH other=mpirun.openmpi options="" ;;
    *) echo "no such MPI: $mpi" && exit 2 ;;
    esac
    echo "building the programs for $name"
    export MPICC=/usr/bin/mpicc.$mpi
    build "$mpi"
    [ -n "$more" ] || rest check "the programs' own tests" \
        limited 600 cargo test --quiet --release --target-dir "$target/$mpi" -p pinyard-mpi-tests \
        --features "$(xtask/ci/build.sh features "$mpi")" --lib
    programs=$target/$mpi/release
    with=(--mpirun "mpirun.$mpi" --programs "$programs")

    check "$name: the demo is clean" clean_demo "$name" "$pinyard" demo "${with[@]}"
    [ "$mpi" != openmpi ] || check "$name: the demo prints what the README shows" as_shown "$pinyard" demo "${with[@]}"
    $more check "$name: the demo is clean within 8 MiB of RLIMIT_MEMLOCK, Debian's default" \
        clean_demo "$name" "${memlock[@]}" --memlock=8388608 "$pinyard" demo "${with[@]}"
    $more check "$name: refuses where RLIMIT_MEMLOCK is too small" refuses 'budget of 65536 bytes.*RLIMIT_MEMLOCK is 65536.*raise .ulimit -l' \
        "${memlock[@]}" --memlock=65536 "$pinyard" demo "${with[@]}"
    # shellcheck disable=SC2086 # words on purpose
    $more check "$name: the naive cache completes where no page is released" \
        naive_without_purge "mpirun.$mpi" $options
    $more check "$name: refuses where io_uring_setup is forbidden" refuses 'io_uring_setup.*Operation not permitted.*; ' \
        "$programs/without-io-uring" "$pinyard" demo --quick "${with[@]}"
    $more check "$name: refuses where io_uring is not there" refuses 'io_uring_setup.*Function not implemented.*; ' \
        "$programs/without-io-uring" --enosys "$pinyard" demo --quick "${with[@]}"
    if command -v "$other" >/dev/null; then
        check "$name: refuses another MPI's mpirun" refuses "$name.*; build" \
            "$pinyard" demo --quick --mpirun "$other" --programs "$programs"
    fi
    check "$name: SIGINT ends everything" interrupted INT "${with[@]}"
    $more check "$name: SIGTERM ends everything" interrupted TERM "${with[@]}"
    more=rest
done

check "refuses without mpirun" refuses 'no mpirun.none in PATH; install' \
    "$pinyard" demo --mpirun mpirun.none --programs "$programs"
check "refuses another command in mpirun's place" refuses 'neither.*; name' \
    "$pinyard" demo --mpirun /bin/true --programs "$programs"
check "refuses without programs" refuses 'rounds-purging is not in /nowhere; build' \
    "$pinyard" demo --programs /nowhere

counts
