/*
 * pinyard: registered memory that no allocator can hang.
 *
 * Every function but pny_notify_unmapped, pny_strerror and pny_last_error
 * returns PNY_OK or another status; pny_last_error() then has the exact cause.
 * Sizes are in bytes. Nothing is handed over: memory that a caller passes stays
 * the caller's, text that is returned stays pinyard's.
 *
 * Threads: every function may be called from any thread at any time.
 * Signals: only pny_notify_unmapped may be called in a signal handler, or from
 * inside malloc, munmap and the like.
 *
 * Linux on x86-64 with glibc.
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

typedef enum pny_status {
	/* Done. */
	PNY_OK = 0,
	/* An argument cannot be used: a null pointer, a size that is too small. */
	PNY_ERR_INVALID = 1,
	/* Calls of some function that changes mappings escape the hooks. */
	PNY_ERR_HOOKS_INCOMPLETE = 2,
	/* A library is not there, or is too old. */
	PNY_ERR_ABSENT = 3,
	/* Somebody else has what was asked for: see pny_libfabric_import_monitor. */
	PNY_ERR_BUSY = 4,
	/* The environment or a library refuses. */
	PNY_ERR_REFUSED = 5,
	/* No thread, or no place for another subscriber, is to be had. */
	PNY_ERR_RESOURCES = 6,
	/* Something has to be done first: see the function. */
	PNY_ERR_NOT_READY = 7,
	/* A defect of pinyard; what was asked for may be half done. */
	PNY_ERR_INTERNAL = 8
} pny_status;

/* What a status means, in general. A static text, never null. */
const char *pny_strerror(int status);

/*
 * Why the calling thread's last call failed: the call that failed, its errno
 * and what can be done about it; "" where that call succeeded. Never null;
 * valid until the thread's next call of a pny_ function that returns a status.
 */
const char *pny_last_error(void);

/*
 * Tells that `length` bytes at `address` are about to be unmapped, replaced or
 * emptied, in a way that no hook sees: a raw system call, an allocator of one's
 * own. Call it before the change. The address is compared, never read. A length
 * of 0 does nothing; a range that wraps around invalidates everything.
 *
 * Cannot fail, never blocks, allocates nothing, keeps errno.
 */
void pny_notify_unmapped(const void *address, size_t length);

/*
 * Installs hooks on munmap, mmap, mremap, madvise, brk, sbrk, shmdt,
 * process_madvise, mprotect and syscall, for the rest of the process, and tests
 * each of them by use. A further call does so again where something has changed. Best
 * called before other threads run.
 *
 * PNY_ERR_HOOKS_INCOMPLETE: the hooks that could be installed are; the others
 * are named in pny_last_error().
 */
pny_status pny_hooks_install(void);

/*
 * Looks whether the hooks are still in place, and repairs what another library
 * has patched over; a few loads while nothing has changed. For after MPI_Init,
 * and after any other call that loads a library which patches libc.
 *
 * PNY_ERR_HOOKS_INCOMPLETE: calls escape. PNY_ERR_NOT_READY: never installed.
 */
pny_status pny_hooks_verify(void);

/*
 * Installs the hooks and puts pinyard's memory monitor under libfabric's
 * registration caches, for the rest of the process. Call it before MPI_Init and
 * before the first fi_domain: Open MPI then leaves out its own monitor, whose
 * notifications hang when an allocator releases pages from inside malloc. Once
 * it has succeeded, a further call does nothing. Starts a thread.
 *
 * On failure nothing is imported:
 * PNY_ERR_ABSENT            no libfabric.so.1, or older than 1.14
 * PNY_ERR_REFUSED           FI_MR_CACHE_MONITOR is set, or libfabric refused
 * PNY_ERR_HOOKS_INCOMPLETE  as pny_hooks_install
 * PNY_ERR_BUSY              another monitor or a cache was there first
 * PNY_ERR_RESOURCES         no thread or no subscriber's place
 */
pny_status pny_libfabric_import_monitor(void);

/* What the monitor has done since the import. */
typedef struct pny_libfabric_monitor_counts {
	/* In: sizeof(struct pny_libfabric_monitor_counts). */
	size_t size;
	/* Lookups that found an entry and asked whether it is still good. */
	uint64_t valid_calls;
	/* Those that were told no. */
	uint64_t stale_answers;
	/* Entries that libfabric was allowed to cache. */
	uint64_t subscriptions;
	/* Entries that it was told not to cache. */
	uint64_t refusals;
	/* Changes of mappings drained from the hooks. */
	uint64_t events;
	/* Stale ranges taken out of libfabric's caches in the background. */
	uint64_t deliveries;
	/* Ranges known at the moment. */
	uint64_t keys;
} pny_libfabric_monitor_counts;

/*
 * Fills `*counts`, whose `size` the caller has set.
 *
 * PNY_ERR_INVALID: null, or `size` is not a size of this structure.
 * PNY_ERR_NOT_READY: no monitor was imported. `*counts` is untouched then.
 */
pny_status pny_libfabric_monitor_stats(pny_libfabric_monitor_counts *counts);

#ifdef __cplusplus
}
#endif

#endif
