#!/usr/bin/env bash
# The hooks on aarch64: cross-compiled, and run under qemu's user emulation with
# Debian's cross libc. Left out is what the emulator has not: seccomp, vfork, and
# threads in a forked child.
set -euo pipefail
cd "$(dirname "$0")/../.."
. xtask/ci/checks.sh
host=aarch64-unknown-linux-gnu
if ! rustup target list --installed 2> /dev/null | grep -qx $host; then
    rustup target add $host > /dev/null 2>&1 || { skip "aarch64: rustup cannot add $host" && counts && exit; }
fi
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# -B: guest addresses are not the emulator's own, so a write to /proc/self/mem
# cannot go past it to code that it has translated already.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="timeout -s KILL 200 qemu-aarch64 -L /usr/aarch64-linux-gnu -B 0x10000000000"
export PINYARD_TEST_IN_PROCESS=1 PINYARD_FLIPS=${PINYARD_FLIPS:-300}
hooks() { cargo test --target $host -p pinyard-hooks "$@"; }
hooks --lib
hooks --test every_function_is_seen
hooks --test others_keep_their_pages
hooks --test the_hook_itself -- --skip makes_no_other_system_call
# The registry's search for such instructions, in this architecture's code.
cargo test --target $host -p pinyard-registry --lib -- trust::instructions trust::raw_callers
hooks --test flips -- --test-threads 1 threads_survive what_is_taken_out
