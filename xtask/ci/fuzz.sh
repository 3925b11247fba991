#!/usr/bin/env bash
# Runs the fuzz targets from their committed corpora, an archive each: `xtask/ci/fuzz.sh [seconds]`, 60 without,
# divided among them. With QUICK=1 a number of inputs, not a time. TARGETS=capi takes only that one. A finding is kept under
# target/fuzz; more arguments go to libFuzzer, such as the file of a finding, or
# -merge=1. With `--keep` as the first argument the inputs that reach something new are
# minimised into the corpus.
set -euo pipefail
cd "$(dirname "$0")/../.."
keep=no
if [ "${1:-}" = --keep ]; then keep=yes && shift; fi
seconds=${1:-60}
[ $# -gt 0 ] && shift
read -ra targets <<< "${TARGETS:-registry capi pools mpi}"
seconds=$((seconds / ${#targets[@]}))
host=$(rustc -vV | sed -n 's/^host: //p')
target=${CARGO_TARGET_DIR:-target}/fuzz
# Coverage: counters in every edge, and the operands of compares. The C interfaces also
# under AddressSanitizer, in a folder of its own; where the hooks are at work that one cannot
# be, as its runtime maps and unmaps memory of its own.
export MPICC=${MPICC:-/usr/bin/mpicc.openmpi} OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export RUSTC_BOOTSTRAP=1 # sanitizers are unstable flags of the stable compiler
# Threads begin and end between inputs, and what the loader keeps for them looks leaked:
# leaks are valgrind's (mpi-tests/c).
export ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}"
flags="--cfg fuzzing -Ccodegen-units=1 -Cdebug-assertions -Cpasses=sancov-module \
 -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
 -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares ${RUSTFLAGS:-}"
folder_of() { [ "$1" = registry ] && echo "$target" || echo "$target/address"; }
for name in "${targets[@]}"; do
    sanitizer=-Zsanitizer=address features=()
    [ "$name" = registry ] && sanitizer=
    [ "$name" = mpi ] && features=(--features mpi)
    RUSTFLAGS="$flags $sanitizer" cargo build --quiet --release --target "$host" \
        --target-dir "$(folder_of "$name")" -p pinyard-fuzz "${features[@]}" --bin "$name"
done
mkdir -p "$target/findings"
said=$target/said
. xtask/ci/checks.sh
options=(-max_len=512 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 "-artifact_prefix=$target/findings/")
# New inputs of each target where QUICK is set: about ten seconds.
declare -A runs=([registry]=4000 [capi]=2000 [pools]=800 [mpi]=2000)
length() { # target, folders with inputs, which count as well
    if ! quick; then echo "-max_total_time=$seconds" && return; fi
    echo "-runs=$((runs[$1] + $(find "${@:2}" -type f | wc -l)))"
}

fuzz() { # target, arguments of libFuzzer...
    local name=$1 archive=mpi-tests/fuzz/corpus/$1.tar.xz corpus=$target/corpus-$1 found=$target/found-$1 log=$target/log-$1
    local first last count program code=0 began=$SECONDS
    shift
    program=$(folder_of "$name")/$host/release/$name
    rm -rf "$corpus" && mkdir -p "$found" "$corpus" && tar -x -C "$corpus" -f "$archive" || return
    "$program" "${options[@]}" "$(length "$name" "$found" "$corpus")" "$@" "$found" "$corpus" > "$log" 2>&1 || code=$?
    first=$(grep -m1 -oE 'cov: [0-9]+ ft: [0-9]+' "$log" || true)
    last=$(grep -oE 'cov: [0-9]+ ft: [0-9]+' "$log" | tail -1 || true)
    count=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    if [ "$keep" = yes ] && [ "$code" -eq 0 ]; then
        rm -rf "$target/minimal" && mkdir "$target/minimal"
        "$program" "${options[@]}" -set_cover_merge=1 "$target/minimal" "$corpus" "$found" >> "$log" 2>&1
        tar -c -C "$target/minimal" --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=go=rX,u+rw,a-s . | xz -9 > "$archive"
        rm -rf "$corpus" && mv "$target/minimal" "$corpus"
    fi
    noted="${count:-no} executions in $((SECONDS - began)) s, from $first to $last, corpus of $(find "$corpus" -type f | wc -l)"
    echo "$noted"
    if [ "$code" -ne 0 ] || [ "${count:-0}" -eq 0 ]; then
        grep -m1 -A3 panicked "$log"
        tail -12 "$log"
        return 1
    fi
}

for name in "${targets[@]}"; do check "fuzz $name" fuzz "$name" "$@"; done
counts
