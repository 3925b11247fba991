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

/* ---- Errors -------------------------------------------------------------------------- */

/* What a function returns. Numbers are never given another meaning. */
typedef enum pny_status {
	/* Done. */
	PNY_OK = 0,
	/*
	 * An argument cannot be used: a null pointer, a size that is wrong, a range that
	 * wraps around.
	 */
	PNY_ERR_INVALID = 1,
	/* Calls of some function that changes mappings escape the hooks. */
	PNY_ERR_HOOKS_INCOMPLETE = 2,
	/* A library or a device is not there, or the library is too old. */
	PNY_ERR_ABSENT = 3,
	/* Somebody else has what was asked for, or what was to be destroyed is in use. */
	PNY_ERR_BUSY = 4,
	/* The environment, a library or the system refuses. */
	PNY_ERR_REFUSED = 5,
	/* No thread, no memory, or no place for another one is to be had. */
	PNY_ERR_RESOURCES = 6,
	/* Something has to be done first: see the function. */
	PNY_ERR_NOT_READY = 7,
	/* A defect of pinyard; what was asked for may be half done. */
	PNY_ERR_INTERNAL = 8,
	/* The handle or the lease is none, or was given back before. */
	PNY_ERR_STALE = 9,
	/* A page of the range is not mapped. */
	PNY_ERR_UNMAPPED = 10,
	/* The pages cannot be written, and the registration needs that. */
	PNY_ERR_READ_ONLY = 11,
	/* A limit is used up: the budget, the number of regions, RLIMIT_MEMLOCK. */
	PNY_ERR_LIMIT = 12,
	/*
	 * Given by no function: what keeps changing while it is being registered is
	 * registered for its caller alone.
	 */
	PNY_ERR_UNSTABLE = 13,
	/* The object belongs to the process that this one was forked from. */
	PNY_ERR_FORKED = 14,
	/* The backend failed for a reason of its own. */
	PNY_ERR_BACKEND = 15,
	/* There is none. */
	PNY_ERR_NOT_FOUND = 16,
} pny_status;

/*
 * What a status means, in general. A static text, never null, also for a number that
 * is no status. Any thread; not for signal handlers.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
const char *pny_strerror(int status);

/*
 * Why the calling thread's last call failed: the function, the call that failed with
 * its errno, and what can be done about it; "" where that call succeeded. Never null;
 * valid until the thread's next call of a function that returns a status.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
const char *pny_last_error(void);

/* ---- Beginning and end --------------------------------------------------------------- */

/*
 * The library's version, such as "0.1.0". A static text.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
const char *pny_version(void);

/*
 * Installs the hooks before anything else runs. Not needed: what needs the hooks installs
 * them. For programs and libraries that want a pair of calls: each pny_init has its
 * pny_finalize, any number of times, before or after MPI_Init and MPI_Finalize.
 *
 * PNY_ERR_HOOKS_INCOMPLETE: as pny_hooks_install; pny_finalize is called all the same.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
pny_status pny_init(void);

/*
 * Ends what a pny_init began. The last one makes sure that all was given back. It destroys
 * nothing itself: what there is may be another library's, and in use on another thread. The
 * hooks stay, as libraries that were loaded later may have built on them. pny_init begins
 * anew.
 *
 * PNY_ERR_NOT_READY: there was no pny_init.
 * PNY_ERR_BUSY: streams, pools or registries of this process are left, whoever made them; the
 * text names them. Nothing has changed: with these destroyed, pny_finalize may be called
 * again.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
pny_status pny_finalize(void);

/* ---- Hooks --------------------------------------------------------------------------- */

/*
 * Tells that `length` bytes at `address` are about to be unmapped, replaced or emptied,
 * in a way that no hook sees: a raw system call, an allocator of one's own. Call it
 * before the change. The address is compared, never read. A length of 0 does nothing; a
 * range that wraps around invalidates everything.
 *
 * Cannot fail, never blocks, allocates nothing, keeps errno. Any thread, signal handlers,
 * and from inside malloc, munmap and the like.
 *
 * MT-Safe; AS-Safe; a forked child may call it.
 */
void pny_notify_unmapped(const void *address, size_t length);

/*
 * Installs hooks on munmap, mmap, mremap, madvise, brk, sbrk, shmdt, process_madvise,
 * mprotect and syscall, for the rest of the process, and tests each of them by use. A
 * further call does so again where something has changed. Best called before other
 * threads run.
 *
 * PNY_ERR_HOOKS_INCOMPLETE: the hooks that could be installed are; the others are named
 * in pny_last_error().
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
pny_status pny_hooks_install(void);

/*
 * Looks whether the hooks are still in place, and repairs what another library has
 * patched over; a few loads while nothing has changed. For after MPI_Init, and after any
 * other call that loads a library which patches libc.
 *
 * PNY_ERR_HOOKS_INCOMPLETE: calls escape. PNY_ERR_NOT_READY: never installed.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
pny_status pny_hooks_verify(void);

/*
 * Which function is hooked how, who owns its entry, and whether its calls are seen, a
 * line each: cut to `capacity` bytes as snprintf(3) does, with the whole length in
 * `*length` where that is not null.
 *
 * PNY_ERR_NOT_READY  never installed
 * PNY_ERR_INVALID    `text` is null with a capacity
 *
 * Requires: `text` is writable for `capacity` bytes, or null with a capacity of 0; `length` is
 * writable or null.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
pny_status pny_hooks_report(char *text, size_t capacity, size_t *length);

/* ---- Backends: who registers --------------------------------------------------------- */

/* Who registers memory. */
typedef uint32_t pny_backend;

/* Functions of the caller's own: `ops` and `user` of the configuration. */
#define PNY_BACKEND_OPS 0
/* mlock(2): the pages stay resident; keys are 0. */
#define PNY_BACKEND_MLOCK 1
/*
 * Fixed buffers of an io_uring of its own, at most 1,024 at a time; the lkey is the
 * buffer's index.
 */
#define PNY_BACKEND_IO_URING 2
/*
 * libibverbs: `object` is a `struct ibv_pd *` that stays the caller's, or null for the
 * device called `device`, or the first that works.
 */
#define PNY_BACKEND_VERBS 3
/* UCX: `object` is a `ucp_context_h` that stays the caller's, or null for one of its own. */
#define PNY_BACKEND_UCX 4
/*
 * libfabric: `object` is a `struct fid_domain *` that stays the caller's, or null for a
 * domain of the provider called `device`, or the first that works.
 */
#define PNY_BACKEND_LIBFABRIC 5

/* What a registration allows. Local read is always allowed. */
typedef uint32_t pny_access;

/* Local read only: send from here. */
#define PNY_LOCAL_READ 0
/* The device may write into the pages for this process (receive). */
#define PNY_LOCAL_WRITE 1
/* A peer may write through the rkey. */
#define PNY_REMOTE_WRITE 2
/* A peer may read through the rkey. */
#define PNY_REMOTE_READ 4
/* A peer may run atomics through the rkey. */
#define PNY_REMOTE_ATOMIC 8

/* Flags of a registry's configuration. */
typedef uint32_t pny_flags;

/*
 * Lets a change of memory that several processes share go unseen: the program vouches
 * that no other process, and no system call past libc, truncates the file or drops
 * pages of it. Without this such registrations are not kept.
 */
#define PNY_TRUST_SHARED_MEMORY 1
/* Verbs: registers without pinning; the device follows every change of the mapping. */
#define PNY_ON_DEMAND 2
/* Verbs: lets the device write out of order. */
#define PNY_RELAXED_ORDERING 4
/*
 * Installs no hooks: the program calls pny_notify_unmapped or pny_invalidate before
 * every change of a mapping that was registered.
 */
#define PNY_NOTIFY_ONLY 8

/* What a device needs to use a registration. */
typedef struct pny_key {
	/*
	 * Local key: verbs' lkey, io_uring's buffer index, libfabric's descriptor, UCX's
	 * memory handle.
	 */
	uint64_t lkey;
	/*
	 * Remote key: what a peer must name. UCX's is longer than a word: this is then the
	 * address of what ucp_rkey_pack made, and `handle` its length in bytes.
	 */
	uint64_t rkey;
	/* The backend's own handle, such as a `struct ibv_mr *`. */
	uint64_t handle;
} pny_key;

/*
 * Functions that register, of a transport that brings its own. Both may be called from
 * any thread, several at a time, with no lock of pinyard's held; they may block,
 * allocate, and change mappings, but not call pinyard for the range that they were
 * called for, nor destroy registries, pools or streams (PNY_ERR_BUSY), and they return: they do
 * not throw, and leave neither by longjmp nor by pthread_exit. Copied by pny_registry_create.
 */
typedef struct pny_backend_ops {
	/* sizeof(pny_backend_ops). */
	size_t size;
	/* A short name for messages; null: "ops". */
	const char *name;
	/*
	 * Pins `length` bytes at `address`, both multiples of 4096, for `access`, and fills
	 * `*key`. Returns 0, or an errno, and then nothing is pinned. ENOMEM, EAGAIN
	 * and ENOSPC make pinyard give back what is only cached, and try once more.
	 */
	int (*register_memory)(void *user,
			       void *address,
			       size_t length,
			       pny_access access,
			       struct pny_key *key);
	/*
	 * Takes one registration back. The pages may be unmapped by now, or others may be
	 * mapped at the same addresses. Returns 0 or an errno.
	 */
	int (*deregister_memory)(void *user,
				 const struct pny_key *key,
				 void *address,
				 size_t length);
	/*
	 * Called once by the destruction of a registry, when nothing is registered any more
	 * and no function of this structure is called any more; or null. Not called where
	 * pny_registry_create failed, nor in a forked child.
	 */
	void (*release)(void *user);
	/* Longest single registration in bytes; 0: no limit. */
	size_t max_region_bytes;
	/* Registrations at a time; 0: no limit. */
	size_t max_regions;
	/* Not 0: pages count against RLIMIT_MEMLOCK, which the default budget then heeds. */
	uint32_t locks_memory;
	/* 0. */
	uint32_t reserved;
} pny_backend_ops;

/* ---- The registration cache ---------------------------------------------------------- */

/*
 * Handle of a registration cache. Any thread may use it; whoever destroys it makes sure
 * that no other thread is inside a call with it.
 */
typedef struct pny_registry_object *pny_registry;

/*
 * How a registry is made. What is 0 or null has its default; begin with zeros and set
 * `size`.
 */
typedef struct pny_registry_config {
	/* sizeof(pny_registry_config). */
	size_t size;
	/* Who registers; default PNY_BACKEND_OPS, which needs `ops`. */
	pny_backend backend;
	/* PNY_TRUST_SHARED_MEMORY, PNY_ON_DEMAND, PNY_RELAXED_ORDERING, PNY_NOTIFY_ONLY. */
	pny_flags flags;
	/* A device's or a provider's name; see the backend. */
	const char *device;
	/*
	 * An object of the backend's library that the caller has made; see the backend. It
	 * outlives the registry.
	 */
	void *object;
	/* For PNY_BACKEND_OPS. */
	const pny_backend_ops *ops;
	/* Handed to the functions of `ops`. */
	void *user;
	/*
	 * Bytes pinned at most, those being registered or retired included. When they are
	 * used up, regions that are not in use go; when all are in use, pny_get fails.
	 * Default: a budget that all registries of the process share, half of the memory of
	 * the machine or the cgroup, and RLIMIT_MEMLOCK for backends that lock pages.
	 */
	size_t budget;
	/* Regions at most, likewise. Default 65,536. */
	size_t max_regions;
	/*
	 * Grows registrations to aligned blocks of so many bytes, rounded up to a power of two
	 * and to a page, within their mapping, so that many small buffers share a region.
	 * Default: not at all.
	 */
	size_t coarsen;
	/* Verbs: the port, from 1, that must be active. Default: any. */
	uint32_t port;
	/* 0. */
	uint32_t reserved;
	/* Another registry, whose budget this one shares; `budget` is 0 then. */
	pny_registry share_budget_of;
} pny_registry_config;

/*
 * Makes a registration cache and stores its handle in `*registry`. Installs the hooks if
 * they are not there yet, and starts a thread. `config` and what it points to may go
 * afterwards, but for `object` and `user`.
 *
 * PNY_ERR_INVALID           the configuration contradicts itself
 * PNY_ERR_ABSENT            the backend's library or device is not there
 * PNY_ERR_REFUSED           it refuses; or PINYARD_HOOKS or a limit of the system does
 * PNY_ERR_HOOKS_INCOMPLETE  changes of mappings would go unseen
 * PNY_ERR_RESOURCES         as many registries as there can be, or no thread can be started
 *
 * Requires: `config` is readable for its size; `registry` is writable.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
pny_status pny_registry_create(const struct pny_registry_config *config,
			       pny_registry *registry);

/*
 * Deregisters everything and destroys the registry. When this returns PNY_OK, the device
 * has no registration of it left, and `release` of its `ops` has been called. In a forked
 * child, whose parent made it, only the handle goes.
 *
 * PNY_ERR_INVALID  null
 * PNY_ERR_STALE    not a registry, or one that was destroyed
 * PNY_ERR_BUSY     leases are held, or pools register their slabs with it; the text says how
 *                  many. Or the caller is a function that pinyard has called. Nothing has
 *                  changed.
 *
 * Requires: no other thread is inside a call with this handle.
 *
 * MT-Safe but for its object; AS-Unsafe; in a forked child as said above.
 */
pny_status pny_registry_destroy(pny_registry registry);

/*
 * Takes out every registration that shares a page with the range. Leases keep theirs; the
 * rest is deregistered before this returns. Takes the registry's lock. Any thread.
 *
 * PNY_ERR_INVALID  null, or the range wraps around the address space
 * PNY_ERR_STALE    not a registry, or one that was destroyed
 * PNY_ERR_FORKED   the registry is the parent process's
 *
 * Requires: nobody destroys the registry meanwhile. The memory is not accessed.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_invalidate(pny_registry registry, const void *address, size_t length);

/*
 * Takes out every registration. Leases keep theirs; the rest is deregistered before this
 * returns. Takes the registry's lock. Any thread.
 *
 * Errors: as pny_invalidate.
 *
 * Requires: nobody destroys the registry meanwhile.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_flush(pny_registry registry);

/* ---- Leases -------------------------------------------------------------------------- */

/*
 * A registration that is held. Filled by pny_get; read it, do not write it. A copy is the
 * same lease.
 */
typedef struct pny_lease {
	/* What pny_put takes; 0: nothing is held. */
	uint64_t ticket;
	/* What the device needs. */
	pny_key key;
	/*
	 * Address of the registration's first byte, a multiple of 4096, at or below the
	 * buffer's.
	 */
	uint64_t base;
	/* Bytes registered from there, a multiple of 4096. */
	uint64_t length;
} pny_lease;

/*
 * A registration that covers `length` bytes at `address` and allows `access`, from the
 * cache or newly made, held until pny_put. The memory is neither read nor written.
 *
 * While it is held the device may use the pages that are mapped now. Unmapping them
 * meanwhile does not end the registration: its holder still has it, but nobody else
 * finds it. Where other threads change the mapping again and again while it is being
 * registered, the registration is for this caller alone and ends with pny_put; of pages
 * that changed meanwhile the device may have the old ones.
 *
 * A hit takes no lock and tens of nanoseconds; a miss takes as long as the backend.
 * `*lease` is overwritten, so it must not hold another one. Any thread; not for signal
 * handlers.
 *
 * PNY_ERR_INVALID    null, an empty or wrapping range, unknown access flags
 * PNY_ERR_STALE      not a registry
 * PNY_ERR_UNMAPPED   nothing is mapped at a page of the range
 * PNY_ERR_READ_ONLY  the access writes, and the mapping is read-only
 * PNY_ERR_LIMIT      a limit is used up by what is held; the text says by whom
 * PNY_ERR_FORKED     the registry is the parent process's
 * PNY_ERR_RESOURCES  four million leases are held
 * PNY_ERR_BACKEND    the backend failed
 * On an error `*lease` is all 0.
 *
 * Requires: `lease` is writable. Nobody destroys the registry meanwhile.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_get(pny_registry registry,
		   const void *address,
		   size_t length,
		   pny_access access,
		   struct pny_lease *lease);

/*
 * Gives a lease back and sets its `ticket` to 0. The registration stays in the cache.
 * Takes no lock and never calls the backend. Any thread; not for signal handlers.
 *
 * PNY_ERR_INVALID  `lease` is null
 * PNY_ERR_STALE    it was given back before, here or in a copy of the structure
 *
 * Requires: `lease` is readable and writable.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
pny_status pny_put(struct pny_lease *lease);

/*
 * The key of a cached registration that covers the range, without holding it. The caller
 * keeps the buffer mapped while it uses the key, and a limit of the registry may
 * deregister it at any time: for registries whose budget is not exceeded. Cheaper than
 * pny_get: nothing is written but `*key`.
 *
 * PNY_ERR_INVALID    null, or the range or the access is none
 * PNY_ERR_STALE      not a registry, or one that was destroyed
 * PNY_ERR_NOT_FOUND  there is none, or changes wait to be applied, or the registry is the
 *                    parent process's; pny_get says which
 *
 * Requires: `key` is writable.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
pny_status pny_lookup(pny_registry registry,
		      const void *address,
		      size_t length,
		      pny_access access,
		      pny_key *key);

/* ---- Pools --------------------------------------------------------------------------- */

/*
 * Handle of a pool. Any thread may use it; whoever destroys it makes sure that no other
 * thread is inside a call with it.
 */
typedef struct pny_pool_object *pny_pool;

/* What a pool's memory is. */
typedef uint32_t pny_memory;

/* Host memory on huge pages, registered with `registry`. */
#define PNY_MEMORY_HOST 0
/* The same, and pinned for the device: copies to and from it are asynchronous. */
#define PNY_MEMORY_PINNED 1
/* Device memory, in the order of streams. */
#define PNY_MEMORY_DEVICE 2

/* Who drives the device of a pool of pinned or device memory. */
typedef uint32_t pny_driver;

/* The CUDA driver, libcuda.so.1, opened by pny_pool_create; the primary context. */
#define PNY_DRIVER_CUDA 0
/*
 * A device that is simulated, for tests on machines without one. Its memory is the
 * host's.
 */
#define PNY_DRIVER_SIMULATED 1

/* How a pool is made. What is 0 or null has its default; begin with zeros and set `size`. */
typedef struct pny_pool_config {
	/* sizeof(pny_pool_config). */
	size_t size;
	/* PNY_MEMORY_HOST, PNY_MEMORY_PINNED or PNY_MEMORY_DEVICE. */
	pny_memory memory;
	/* PNY_DRIVER_CUDA or PNY_DRIVER_SIMULATED; not for PNY_MEMORY_HOST. */
	pny_driver driver;
	/* The device's number, from 0. */
	uint32_t device;
	/* What slabs are registered for; default PNY_LOCAL_WRITE. */
	pny_access access;
	/*
	 * Registers each slab, once. Must be set for host and pinned memory; null for device
	 * memory that nobody registers, whose keys are 0. It is not destroyed before the pool.
	 */
	pny_registry registry;
	/*
	 * Bytes of a slab, the unit of registration, rounded up to 2 MiB; a device pool's at
	 * most. A larger block gets a slab of its own length. Default 64 MiB, of device memory
	 * 256 MiB.
	 */
	size_t slab_bytes;
	/*
	 * Bytes of all slabs at most. Default: no limit but the registry's budget, or what the
	 * device has.
	 */
	size_t limit;
	/*
	 * How long an allocation that would fail waits for blocks that streams or fences still
	 * use, in nanoseconds; of a device pool pny_pool_trim too. Default 10 s.
	 */
	uint64_t patience_ns;
	/* Bytes of a simulated device. Default 1 GiB. */
	size_t simulated_bytes;
} pny_pool_config;

/*
 * Makes a pool and stores its handle in `*pool`. It has no slab yet: see pny_pool_warmup.
 * `config` may go afterwards. A device pool starts a thread, and heeds the environment's
 * PINYARD_POOL_ settings; a host or pinned pool those that begin with PINYARD_HOST_POOL_.
 *
 * PNY_ERR_INVALID    the configuration contradicts itself
 * PNY_ERR_STALE      `registry` is none
 * PNY_ERR_ABSENT     there is no CUDA driver, or no such device
 * PNY_ERR_REFUSED    a setting of the environment cannot be read
 * PNY_ERR_BACKEND    the driver refuses
 * PNY_ERR_RESOURCES  as many pools as there can be, or no thread
 *
 * Requires: `config` is readable for its size; `pool` is writable.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
pny_status pny_pool_create(const struct pny_pool_config *config, pny_pool *pool);

/*
 * Deregisters and gives back every slab, and destroys the pool. Waits for streams as
 * pny_pool_trim does. In a forked child, whose parent made it, only the handle goes.
 *
 * PNY_ERR_INVALID  null
 * PNY_ERR_STALE    not a pool
 * PNY_ERR_BUSY     blocks are in use, or wait for streams or fences, or there are handles of
 *                  streams; the text says how many. Or the caller is a function that
 *                  pinyard has called. The pool stays.
 *
 * Requires: no other thread is inside a call with this handle.
 *
 * MT-Safe but for its object; AS-Unsafe; in a forked child as said above.
 */
pny_status pny_pool_destroy(pny_pool pool);

/*
 * Deregisters and gives back the slabs that hold no block in use, and stores their bytes
 * in `*released` where that is not null. Asks the fences of deferred blocks; a device pool
 * waits for streams that hold free memory, up to its patience.
 *
 * PNY_ERR_INVALID  `pool` is null
 * PNY_ERR_STALE    not a pool, or one that was destroyed
 * PNY_ERR_FORKED   the pool is the parent process's
 *
 * Requires: `released` is writable or null. Nobody destroys the pool meanwhile.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_pool_trim(pny_pool pool, size_t *released);

/* Counters of a pool, exact while no other thread is inside it. */
typedef struct pny_pool_counts {
	/* sizeof(pny_pool_counts). */
	size_t size;
	/* Slabs now. */
	uint64_t slabs;
	/* Slabs made since the start, each registered once. */
	uint64_t slabs_made;
	/* Bytes of all slabs. */
	uint64_t reserved_bytes;
	/* Most bytes of slabs that there ever were. */
	uint64_t peak_reserved_bytes;
	/* Bytes of blocks in use, as set aside for them, those that wait included. */
	uint64_t live_bytes;
	/* Blocks in use, those that wait included. */
	uint64_t live_blocks;
	/* Of these, blocks that wait for a fence or another stream. */
	uint64_t waiting_blocks;
	/* Bytes that are in no block. */
	uint64_t free_bytes;
	/* Blocks handed out since the start. */
	uint64_t allocations;
	/* Blocks taken back since the start. */
	uint64_t frees;
} pny_pool_counts;

/*
 * Fills `*counts`, whose `size` the caller has set. Takes the pool's lock: not for hot
 * paths.
 *
 * PNY_ERR_INVALID  null, or `size` is none of this structure's
 * PNY_ERR_STALE    not a pool, or one that was destroyed
 * PNY_ERR_FORKED   the pool is the parent process's
 *
 * Requires: `counts` is writable for its size. Nobody destroys the pool meanwhile.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_pool_stats(pny_pool pool, struct pny_pool_counts *counts);

/* ---- Streams of device pools --------------------------------------------------------- */

/*
 * Handle of a stream that device memory is allocated on. Any thread may use it; whoever
 * destroys it makes sure that no other thread is inside a call with it.
 */
typedef struct pny_stream_object *pny_stream;

/*
 * The pool's handle of a stream, stored in `*made`: of the `CUstream` `native`, which
 * stays the caller's, null for the context's default stream; of the simulated driver a
 * new one, `native` being null.
 *
 * PNY_ERR_INVALID    null, the per-thread default stream (another stream in every
 *                    thread), or the pool's memory is not a device's
 * PNY_ERR_STALE      not a pool
 * PNY_ERR_FORKED     the pool is the parent process's
 * PNY_ERR_BUSY       the pool has a handle of that stream
 * PNY_ERR_BACKEND    the driver does not know the stream
 * PNY_ERR_RESOURCES  as many handles as there can be
 *
 * Requires: `native` is null or a stream of the pool's device and context that is not
 * destroyed before pny_stream_destroy; `made` is writable. Nobody destroys the pool
 * meanwhile.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_stream_create(pny_pool pool, void *native, pny_stream *made);

/*
 * Gives the handle back, before the stream itself is destroyed: everybody may have the
 * memory that was freed on it when its work so far has passed. Blocks that were allocated
 * on it stay in use. Does not wait.
 *
 * PNY_ERR_INVALID  null
 * PNY_ERR_STALE    not a stream
 * PNY_ERR_BUSY     the caller is a function that pinyard has called. Nothing has changed.
 * PNY_ERR_BACKEND  the driver refused to mark the end of the stream's work; the handle is
 *                  gone all the same
 *
 * Requires: no other thread is inside a call with this handle.
 *
 * MT-Safe but for its object; AS-Unsafe; a forked child may call it.
 */
pny_status pny_stream_destroy(pny_stream stream);

/* ---- Blocks of pools ----------------------------------------------------------------- */

/*
 * A block of `bytes`, stored in `*block`: registered already, its contents unspecified.
 * Of a device pool it is for work on `stream`, and may be what that stream's earlier work
 * still uses; elsewhere `stream` is null. Usually no system call and none of the driver;
 * what needs a new slab waits for its registration.
 *
 * PNY_ERR_INVALID    0 bytes, or more than there are addresses; null; a stream that is
 *                    another pool's, or set for host memory
 * PNY_ERR_STALE      not a pool, or not a stream
 * PNY_ERR_LIMIT      the pool's limit, or the registry's, is used up
 * PNY_ERR_RESOURCES  no memory is to be had
 * PNY_ERR_BACKEND    the slab could not be registered, or the driver failed
 * PNY_ERR_FORKED     the pool is the parent process's
 * On an error `*block` is null.
 *
 * Requires: `block` is writable. Nobody destroys the pool or the stream meanwhile.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_pool_alloc(pny_pool pool, size_t bytes, pny_stream stream, void **block);

/*
 * The same, at a multiple of `align`: a power of two, up to 2 MiB.
 *
 * Errors: as pny_pool_alloc; PNY_ERR_INVALID also of another `align`.
 *
 * Requires: as pny_pool_alloc.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_pool_alloc_aligned(pny_pool pool,
				  size_t bytes,
				  size_t align,
				  pny_stream stream,
				  void **block);

/*
 * A block of each of `count` sizes, or none; side by side where there is room, of a device pool
 * those above 32 KiB, of another those beyond an eighth of a slab or 32 MiB. A `count` of 0
 * does nothing.
 *
 * Errors: as pny_pool_alloc. On an error every one of `blocks` is null.
 *
 * Requires: `sizes` is readable and `blocks` is writable for `count` elements. Otherwise as
 * pny_pool_alloc.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_pool_alloc_batch(pny_pool pool,
				const size_t *sizes,
				size_t count,
				pny_stream stream,
				void **blocks);

/*
 * Makes slabs, and registers them, until `count` blocks of `bytes` each can be had without
 * another one, on `stream` where the pool is a device's; null elsewhere. What it needed is
 * free afterwards, for other sizes too.
 *
 * Errors: as pny_pool_alloc. Nothing is left in use.
 *
 * Requires: nobody destroys the pool or the stream meanwhile.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_pool_warmup(pny_pool pool, size_t bytes, size_t count, pny_stream stream);

/*
 * Frees the block that begins there. Any thread; calls neither a driver nor the registry,
 * and waits for nobody. Of a device pool its memory serves the stream that it was
 * allocated on at once, and others when that stream has come as far as it was.
 *
 * PNY_ERR_INVALID  null, or an address within a block
 * PNY_ERR_STALE    not a pool; no block of this pool that is in use: freed before, or
 *                  another's
 * PNY_ERR_FORKED   the pool is the parent process's
 * Nothing has changed then.
 *
 * Requires: nobody destroys the pool meanwhile, and nobody uses the memory any more.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_pool_free(pny_pool pool, void *block);

/*
 * Frees the block, whose memory is reused only after `stream`, of this device pool or
 * another one, has done what it has been given so far: for the source of a copy.
 *
 * Errors: as pny_pool_free; PNY_ERR_STALE also if `stream` is none; PNY_ERR_BACKEND: the
 * driver refused to mark the place, as while the stream is captured. On an error the block
 * stays in use.
 *
 * Requires: as pny_pool_free, but for the stream's work. Nobody destroys the stream meanwhile.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_pool_free_after(pny_pool pool, void *block, pny_stream stream);

/*
 * Frees the block, whose memory is reused only after `passed` has answered something else
 * than 0: an MPI request, a queue's counter. It is asked with `user` by whichever thread
 * uses the pool, and by pinyard's own (of a device pool at any time, of another once it was
 * destroyed), one at a time and with no lock held, and not again once it has passed; it
 * does not wait, and calls nothing of pinyard's. An allocation that would fail asks it
 * again and again, for the pool's patience.
 *
 * Errors: as pny_pool_free; the block stays in use then.
 *
 * Requires: as pny_pool_free. `passed` and `user` are good until it has passed, or the process
 * ends.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_pool_defer_until(pny_pool pool,
				void *block,
				int (*passed)(void *user),
				void *user);

/*
 * Work of `stream`, another stream of the pool than the block was allocated on, uses the
 * block: once freed it is not reused before that stream has done what it had been given
 * when the block was freed, or soon after. For device memory.
 *
 * Errors: as pny_pool_free; PNY_ERR_INVALID also: the pool's memory is not a device's, or
 * the stream is another pool's; PNY_ERR_STALE also if `stream` is none.
 *
 * Requires: nobody destroys the pool or the stream, or frees the block, meanwhile.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_pool_record_use(pny_pool pool, void *block, pny_stream stream);

/* Where a block lies, and with which key a device reaches it. */
typedef struct pny_block_place {
	/* sizeof(pny_block_place). */
	size_t size;
	/* The key of the slab's registration; 0 of a device pool without a registry. */
	pny_key key;
	/* Address of the slab's first byte, which the key counts from. */
	uint64_t slab_base;
	/* Bytes of the slab. */
	uint64_t slab_length;
	/* Address of the block's first byte. */
	uint64_t block_base;
	/* Bytes of the block, as asked for. */
	uint64_t block_length;
	/* Where the address lies in the slab, in bytes. */
	uint64_t offset;
} pny_block_place;

/*
 * Fills `*place`, whose `size` the caller has set, for the block that `address` lies in,
 * at its beginning or further on. What it says is good while the block is in use.
 *
 * PNY_ERR_NOT_FOUND  it lies in no block of this pool that is in use
 * PNY_ERR_INVALID    null, or a size that is none
 * PNY_ERR_STALE      not a pool
 * PNY_ERR_FORKED     the pool is the parent process's
 *
 * Requires: `place` is writable for its size. Nobody destroys the pool meanwhile. The memory is
 * not accessed.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_pool_find(pny_pool pool, const void *address, struct pny_block_place *place);

/* ---- Allocators of other libraries --------------------------------------------------- */

/*
 * Device memory for work on `stream`, in the shape of the first function of PyTorch's
 * torch.cuda.memory.CUDAPluggableAllocator(path, "pny_torch_malloc", "pny_torch_free");
 * RMM's CallbackMemoryResource calls it from Python. One pool serves all callers of a
 * device; the first call makes it, as PINYARD_POOL_* say.
 *
 * Usually without a call of the driver but cuStreamGetId. `bytes` 0 gives null. Null with
 * the cause in pny_last_error and on stderr: the device has no memory left, or is not
 * there. PyTorch does not look whether it is null: PINYARD_POOL_LIMIT bounds the pool
 * instead of the device. Any thread; in a forked child there is no memory.
 *
 * Requires: `stream` is null (the default stream) or a stream of the device's primary context that
 * is not destroyed before pny_plug_retire is told. PyTorch never destroys one.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
void *pny_torch_malloc(size_t bytes, int device, void *stream);

/*
 * Takes back what pny_torch_malloc gave: work on the stream that it was allocated on may
 * still be using it, and other streams' if pny_torch_record_stream was told. Null is
 * nothing. What is no block is refused, on stderr, and harms nothing. `bytes` and
 * `stream` are PyTorch's and not needed. Never calls the driver; any thread.
 *
 * Requires: nobody enqueues work on the block from now on.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
void pny_torch_free(void *block, size_t bytes, int device, void *stream);

/*
 * Work on `stream` uses the block as well, from before its end: what PyTorch's
 * Tensor.record_stream tells (set_record_stream_fn). Null is nothing.
 *
 * Requires: as pny_torch_malloc.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
void pny_torch_record_stream(void *block, void *stream);

/*
 * Device memory in the shape of the first function of CuPy's
 * cupy.cuda.memory.CFunctionAllocator(param, malloc, free, owner). CuPy does not say for
 * which stream: `param` is the stream, null for the default one, and the memory is used
 * in its order. Otherwise as pny_torch_malloc.
 *
 * Requires: as pny_torch_malloc, of `param`.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
void *pny_cupy_malloc(void *param, size_t bytes, int device);

/*
 * Takes back what pny_cupy_malloc gave. As pny_torch_free.
 *
 * Requires: as pny_torch_free.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
void pny_cupy_free(void *param, void *block, int device);

/*
 * Fills `*counts`, whose `size` the caller has set, with those of the pool that serves
 * pny_torch_malloc and pny_cupy_malloc on the device.
 *
 * PNY_ERR_INVALID    there is no such device number
 * PNY_ERR_NOT_READY  nothing was allocated there yet
 * PNY_ERR_FORKED     the pool is the parent process's
 *
 * Requires: `counts` is writable for its size.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_plug_stats(int device, pny_pool_counts *counts);

/*
 * Gives what that pool only keeps back to the device, and says how many bytes in
 * `*released` unless that is null. Waits for streams as pny_pool_trim does.
 *
 * PNY_ERR_INVALID    there is no such device number
 * PNY_ERR_NOT_READY  nothing was allocated there yet
 * PNY_ERR_FORKED     the pool is the parent process's
 *
 * Requires: `released` is null or writable.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_plug_trim(int device, size_t *released);

/*
 * The stream is about to be destroyed: what the device's pool keeps for it is anybody's
 * once its work is done. A stream that was never used there is nothing.
 *
 * PNY_ERR_INVALID    there is no such device number
 * PNY_ERR_NOT_READY  nothing was allocated there yet
 * PNY_ERR_FORKED     the pool is the parent process's
 * PNY_ERR_BACKEND    the driver does not know the stream
 *
 * Requires: `stream` is null or a stream of the device's primary context; nobody allocates on it
 * any more.
 *
 * MT-Safe; AS-Unsafe; refused in a forked child.
 */
pny_status pny_plug_retire(int device, void *stream);

/* ---- Whose device memory an address is ----------------------------------------------- */

/*
 * Fills `*place`, whose `size` the caller has set, for the block of device memory that
 * `address` lies in, of whichever pool of this process: those of pny_pool_create, and those
 * that serve pny_torch_malloc and pny_cupy_malloc, whose keys are 0. For a library that is
 * given an address and nothing else, as libpinyard_mpi is of a simulated device's. What
 * it says is good while the block is in use. Looks through every pool: not for hot paths.
 *
 * PNY_ERR_NOT_FOUND  it lies in no block of a device pool of this process that is in use
 * PNY_ERR_INVALID    null, or a size that is none
 *
 * Requires: `place` is writable for its size. Nobody destroys a pool meanwhile. The memory is not
 * accessed.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
pny_status pny_device_find(const void *address, pny_block_place *place);

/* ---- Diagnosis ----------------------------------------------------------------------- */

/* Counters of a registry. All but the last three only grow. */
typedef struct pny_registry_counts {
	/* sizeof(pny_registry_counts). */
	size_t size;
	/* pny_get served by a region that was there. */
	uint64_t hits;
	/* pny_get that had to register, or failed to. */
	uint64_t misses;
	/* Registrations made by the backend. */
	uint64_t registrations;
	/* Registrations taken back by the backend. */
	uint64_t deregistrations;
	/* Registrations that the backend refused to take back. */
	uint64_t failed_deregistrations;
	/* Regions taken out because their mapping changed, or on request. */
	uint64_t invalidations;
	/* Regions that a larger or more permissive one replaced. */
	uint64_t merges;
	/* Regions taken out to stay within the limits. */
	uint64_t evictions;
	/* Times that every region was taken out. */
	uint64_t flushes;
	/* Changes that touched too much to be marked by a hook, and were left for later. */
	uint64_t overflows;
	/* Registrations made again because the mapping changed meanwhile. */
	uint64_t retries;
	/* Registrations that served their caller alone and were not kept. */
	uint64_t uncached;
	/* Nanoseconds that the backend took to register, all threads together. */
	uint64_t registering_ns;
	/* Half of the registrations took less than this, in nanoseconds. */
	uint64_t registering_p50_ns;
	/* 99 of 100 took less than this. */
	uint64_t registering_p99_ns;
	/* Nanoseconds that the backend took to deregister. */
	uint64_t deregistering_ns;
	/* Half of the deregistrations took less than this, in nanoseconds. */
	uint64_t deregistering_p50_ns;
	/* 99 of 100 took less than this. */
	uint64_t deregistering_p99_ns;
	/* Regions that a pny_get can find now. */
	uint64_t regions;
	/* Regions retired but still held, or not yet deregistered. */
	uint64_t graveyard;
	/* Bytes pinned now, those being registered or retired included. */
	uint64_t pinned_bytes;
} pny_registry_counts;

/*
 * Fills `*counts`, whose `size` the caller has set. Takes the registry's lock: not for hot
 * paths. All 0 in a forked child.
 *
 * PNY_ERR_INVALID  null, or `size` is none of this structure's
 * PNY_ERR_STALE    not a registry, or one that was destroyed
 *
 * Requires: `counts` is writable for its size.
 *
 * MT-Safe; AS-Unsafe; in a forked child as said above.
 */
pny_status pny_registry_stats(pny_registry registry, struct pny_registry_counts *counts);

/*
 * Says in words why the range is, or is not, served from the cache at this moment: cut to
 * `capacity` bytes as snprintf(3) does, with the whole length in `*length` where that is
 * not null. Takes the registry's lock: for diagnosis. In a forked child it says that.
 *
 * PNY_ERR_INVALID  `registry` is null, or `text` with a capacity; the range or the access
 *                  is none
 * PNY_ERR_STALE    not a registry, or one that was destroyed
 *
 * Requires: `text` is writable for `capacity` bytes, or null with a capacity of 0; `length` is
 * writable or null.
 *
 * MT-Safe; AS-Unsafe; in a forked child as said above.
 */
pny_status pny_explain(pny_registry registry,
		       const void *address,
		       size_t size,
		       pny_access access,
		       char *text,
		       size_t capacity,
		       size_t *length);

/* ---- libfabric's own caches ---------------------------------------------------------- */

/* What the monitor has done since the import. */
typedef struct pny_libfabric_monitor_counts {
	/* sizeof(pny_libfabric_monitor_counts). */
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
 * Installs the hooks and puts pinyard's memory monitor under libfabric's registration
 * caches, for the rest of the process. Call it before MPI_Init and before the first
 * fi_domain: Open MPI then leaves out its own monitor, whose notifications hang when an
 * allocator releases pages from inside malloc. Once it has succeeded, a further call does
 * nothing. Starts a thread.
 *
 * On failure nothing is imported:
 * PNY_ERR_ABSENT            no libfabric.so.1, or older than 1.14
 * PNY_ERR_REFUSED           FI_MR_CACHE_MONITOR is set, or libfabric refused
 * PNY_ERR_HOOKS_INCOMPLETE  as pny_hooks_install
 * PNY_ERR_BUSY              another monitor or a cache was there first
 * PNY_ERR_RESOURCES         no thread or no subscriber's place
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
pny_status pny_libfabric_import_monitor(void);

/*
 * Fills `*counts`, whose `size` the caller has set.
 *
 * PNY_ERR_INVALID: null, or `size` is of no version of this structure.
 * PNY_ERR_NOT_READY: no monitor was imported. `*counts` is untouched then.
 *
 * Requires: `counts` is null or writable for its size.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
pny_status pny_libfabric_monitor_stats(struct pny_libfabric_monitor_counts *counts);

#ifdef __cplusplus
}
#endif

#endif
