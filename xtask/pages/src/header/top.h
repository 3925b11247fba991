/*
 * pinyard: registered memory that no allocator can hang.
 *
 * A registration cache for transports and for programs that register memory of their
 * own, the hooks that keep it honest, and pools of memory that is registered once. Five
 * minutes with it: docs/src/c.md.
 *
 * Errors: a function that returns pny_status returns PNY_OK or says why not, and
 * pny_last_error() has the exact cause. Handles and leases that are null, were given
 * back, or never were any are refused with a status. Other pointers are used as they
 * are: what follows "Requires:" is the caller's.
 *
 * Ownership: memory that a caller passes stays the caller's, text that is returned
 * stays pinyard's. What a function makes is given back by the function it names.
 *
 * Units: sizes and lengths are in bytes, times in nanoseconds.
 *
 * The last line of each function's comment says who may call it, in the words of
 * attributes(7).
 *
 * Threads: every function may be called from any thread at any time, but for the
 * destruction of an object that another thread is using.
 *
 * Signals: only pny_notify_unmapped may be called in a signal handler, or from inside
 * malloc, munmap and the like.
 *
 * fork: a child may call everything. Registrations are the parent's: in the child
 * pny_get and what allocates or frees says PNY_ERR_FORKED, and the child makes registries
 * and pools of its own.
 *
 * Structures that begin with `size` may grow: begin with zeros and set `size` to the
 * structure's sizeof, which is its version. A member that is 0 has its default.
 *
 * Linux with glibc, on x86-64; on aarch64 run under emulation only so far.
 *
 * Made of src/capi by xtask/ci/header.sh.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef PINYARD_H
#define PINYARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
