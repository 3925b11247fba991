#!/usr/bin/env bash
# Random programs that change mappings in every way that there is, and send: what the device sees must
# be what is in memory. A program that fails is shortened and printed as a C program. First without
# hooks: there the generator must find what is wrong, and the C program that it prints must show it.
#
#   mpi-tests/generator/run.sh [MINUTES] [ARGUMENT OF generator...]
#
# Ten minutes; with QUICK=1, one. A seed from a log: mpi-tests/generator/run.sh 1 --programs 1 --seed SEED
#
# $GENERATOR_FOLDER   where the programs that fail are kept; target/generator/failures unless set
set -u
cd "$(dirname "$0")/../.." || exit 2
target=$(mkdir -p "${CARGO_TARGET_DIR:-target}" && cd "${CARGO_TARGET_DIR:-target}" && pwd) || exit 2
build=$target/generator
failures=${GENERATOR_FOLDER:-$build/failures}
mkdir -p "$failures" || exit 2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
said=$work/said
. xtask/ci/checks.sh

minutes=10
! quick || minutes=1
case ${1:-} in
    [0-9]*) minutes=$1 && shift ;;
esac

xtask/ci/build.sh release || cannot "build libpinyard"
mpi-tests/generator/build.sh "$build" "$target/release" || cannot "build the generator"

# Prints a program that fails, which is compiled and fails as well: of one whose threads race, it says in how many
# of 20 times.
control() {
    local program=$work/control commands
    mkdir -p "$program"
    says 1 '^seed [0-9]+: STALE' -- limited 300 env PINYARD_HOOKS=notify "$build/generator" --objects "$build" \
        --seconds 120 --seed 1 --shrink 20 --out "$program" || return
    mv "$program"/seed-*.c "$program/seed-1.c"
    commands=$(xtask/ci/block.sh docs/src/generator.md failure "target/generator/failures=$program" "target/generator=$build" \
        "target/release=$target/release") || return
    for _ in {1..20}; do
        says 10 '^STALE' -- limited 60 env PINYARD_HOOKS=notify bash -euo pipefail -c "$commands" && return
    done
    return 1
}
programs() {
    says 0 '[0-9]+ programs, .*' -- limited $((minutes * 60 + 600)) "$build/generator" --objects "$build" \
        --seconds $((minutes * 60)) --out "$failures" "$@"
}
# Where there is no io_uring, that is said and nothing is tried.
possible() { "$build/generator" --objects "$build" --programs 1 --seed 1; }

with_clang() { CC=clang mpi-tests/generator/build.sh "$work/clang" "$target/release"; }

check "the generator, by clang" with_clang
check "one program" possible
if [ $skipped -eq 0 ]; then
    check "without hooks, a program that fails" control
    check "programs of $minutes minutes" programs "$@"
fi
counts
