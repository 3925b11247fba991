#!/usr/bin/env bash
# Miri over what asks little of the kernel: uses of memory that Rust's rules forbid, which no sanitizer
# sees. The hooks' filter, events and inbox, the registry's arithmetic and its reader of code, and whole pools
# on a source of the heap (`BookedSource` in allocator/tests/common).
#
# What Miri lacks, the code answers for itself (`cfg!(miri)`): no system call but mmap, no signals, no fork.
# Time is Miri's own: a test that sleeps does not wait.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
. xtask/ci/checks.sh
said=$(mktemp)
trap 'rm -f "$said" "$said.late"' EXIT
toolchain=${MIRI_TOOLCHAIN:-nightly}
cargo "+$toolchain" miri --version > "$said" 2>&1 ||
    rustup toolchain install "$toolchain" --profile minimal --component miri,rust-src > "$said" 2>&1 ||
    { skip "miri: rustup cannot install $toolchain with miri" && counts && exit; }
# A newer compiler's lints are none of this step's.
export RUSTFLAGS="-Awarnings ${RUSTFLAGS:-}"
# Mappings stay (hooks/src/sys.rs): nothing is said of what is never given back.
settings="-Zmiri-isolation-error=hide -Zmiri-ignore-leaks -Zmiri-env-set=PROPTEST_CASES=4 ${MIRIFLAGS:-}"

# miri FLAGS PACKAGE TARGET... -- FILTER...: its tests.
miri() {
    local flags=$1 status=0
    shift
    MIRIFLAGS="$settings $flags" limited 1500 cargo "+$toolchain" miri test --quiet --locked \
        --target-dir "${CARGO_TARGET_DIR:-target}/miri" -p "$@" --test-threads=1 || status=$?
    noted=$(grep -oE '[1-9][0-9]* passed' "$said" | paste -sd ' ')
    # A filter that chooses nothing checks nothing.
    [ -n "$noted" ] && return $status
}
check "hooks" miri "" pinyard-hooks --lib -- effect::tests event::tests filter::tests inbox::tests::what
check "registry" miri "" pinyard-registry --lib -- range::tests times::tests eviction::tests shards::tests trust::instructions::tests
# Of arrays as large as the hooks' tables, Miri's model of aliasing makes gigabytes; and where two
# threads want a lock, it stops at parking_lot's call of futex(2): none is interrupted.
check "pools on the heap" miri "-Zmiri-disable-stacked-borrows -Zmiri-preemption-rate=0" \
    pinyard-allocator --test pool --test lifetime --
counts
