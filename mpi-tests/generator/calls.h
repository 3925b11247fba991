/*
 * The ways in which a generated program makes a system call: through libc, by its number, by an object
 * that is loaded at that moment, by an io_uring.
 */
#ifndef GENERATOR_CALLS_H
#define GENERATOR_CALLS_H
#include "device.h"
#include <dlfcn.h>
#include <sched.h>

enum how {
	LIBC,        /* libc's function */
	NUMBER,      /* syscall(2) */
	OBJECT,      /* an instruction of an object that `load` has loaded */
	RING_FD,     /* a ring of the program's own (MADV_DONTNEED alone) */
	RING_CLOSED, /* the same, whose descriptor was closed: a thread of the kernel's submits */
	WIDE,        /* syscall(2) with bits above the 32nd in the number, which the kernel ignores */
	TWO,         /* a wrapper of two arguments in an object (munmap alone) */
	RING_HIDDEN, /* a ring that has neither a descriptor nor a mapping */
	HOWS,
	QUIETLY = WIDE /* what is mapped where nothing is: a hook that sees it helps nobody */
};

/* As object.c is compiled: six arguments; two of them at -O0; two at -O2; with a constructor. */
#define OBJECTS 4
static const char *objects_folder = ".";

typedef long (*six_arguments)(long, long, long, long, long, long, long);
typedef long (*two_arguments)(void *, size_t);
static struct {
	pthread_mutex_t lock;
	void *handle;
	six_arguments six;
	two_arguments two;
} objects[OBJECTS];

static void load_object(unsigned which)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/object-%u.so", objects_folder, which);
	pthread_mutex_lock(&objects[which].lock);
	if (!objects[which].handle) {
		void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (!handle) {
			fprintf(stderr, "not possible here: %s\n", dlerror());
			_exit(NOT_POSSIBLE);
		}
		objects[which].six = (six_arguments)dlsym(handle, "object_six");
		objects[which].two = (two_arguments)dlsym(handle, "object_two");
		objects[which].handle = handle;
	}
	pthread_mutex_unlock(&objects[which].lock);
}

static void unload_object(unsigned which)
{
	pthread_mutex_lock(&objects[which].lock);
	if (objects[which].handle)
		dlclose(objects[which].handle);
	objects[which].handle = NULL;
	objects[which].six = NULL;
	objects[which].two = NULL;
	pthread_mutex_unlock(&objects[which].lock);
}

/* -1 and errno, as libc has them. */
static long answered(long answer)
{
	if (answer > -4096 && answer < 0) {
		errno = (int)-answer;
		return -1;
	}
	return answer;
}

/* Where no such object is loaded, libc's syscall(2). */
static long in_object(long number, long a, long b, long c, long d, long e)
{
	pthread_mutex_lock(&objects[0].lock);
	long answer = objects[0].six ? answered(objects[0].six(number, a, b, c, d, e, 0)) : syscall(number, a, b, c, d, e, 0);
	pthread_mutex_unlock(&objects[0].lock);
	return answer;
}

static long call(enum how how, long number, long a, long b, long c, long d, long e)
{
	switch (how) {
	case LIBC:
	case NUMBER: return syscall(number, a, b, c, d, e, 0);
	case WIDE: return syscall(number | 1L << 32, a, b, c, d, e, 0);
	default: return in_object(number, a, b, c, d, e);
	}
}

static int unmap_by(enum how how, void *at, size_t length)
{
	if (how == LIBC)
		return munmap(at, length);
	for (unsigned which = 1; how == TWO && which <= 2; which++) {
		pthread_mutex_lock(&objects[which].lock);
		two_arguments two = objects[which].two;
		long answer = two ? answered(two(at, length)) : 0;
		pthread_mutex_unlock(&objects[which].lock);
		if (two)
			return (int)answer;
	}
	return (int)call(how, SYS_munmap, (long)at, (long)length, 0, 0, 0);
}

/* ---- Rings of the program's own -------------------------------------------------------------- */
#ifndef IORING_SETUP_NO_MMAP /* Linux 6.5 */
#define IORING_SETUP_NO_MMAP (1U << 14)
#define IORING_SETUP_REGISTERED_FD_ONLY (1U << 15)
#endif
#ifndef IORING_ENTER_REGISTERED_RING /* Linux 5.18 */
#define IORING_ENTER_REGISTERED_RING (1U << 4)
#endif

static struct own_ring {
	pthread_mutex_t lock;
	int fd, made_before;
	unsigned char *at;
	struct io_uring_sqe *entries;
	struct io_uring_params made;
} own_rings[2] = {{.lock = PTHREAD_MUTEX_INITIALIZER}, {.lock = PTHREAD_MUTEX_INITIALIZER}};
/* What stands in place of its descriptor is a thread's own. */
static __thread struct own_ring hidden_ring = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Where io_uring_params of the header has no such member, it is reserved: the addresses of memory. */
static void give_memory(struct io_uring_params *params, unsigned char *memory)
{
	uint64_t completions = (uint64_t)(uintptr_t)memory, submissions = completions + 4096;
	memcpy((unsigned char *)&params->cq_off + sizeof params->cq_off - 8, &completions, 8);
	memcpy((unsigned char *)&params->sq_off + sizeof params->sq_off - 8, &submissions, 8);
}

/* The kernel's thread goes to sleep at once; woken it stays awake, and needs no descriptor. */
static void wake(struct own_ring *ring)
{
	_Atomic unsigned *flags = (void *)(ring->at + ring->made.sq_off.flags);
	while (!(atomic_load(flags) & IORING_SQ_NEED_WAKEUP))
		sched_yield();
	while (atomic_load(flags) & IORING_SQ_NEED_WAKEUP)
		syscall(SYS_io_uring_enter, ring->fd, 0, 0, IORING_ENTER_SQ_WAKEUP, NULL, 0);
}

static int make_ring(struct own_ring *ring, enum how how)
{
	struct io_uring_params *made = &ring->made;
	if (how == RING_HIDDEN) {
		made->flags = IORING_SETUP_NO_MMAP | IORING_SETUP_REGISTERED_FD_ONLY;
		ring->at = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		ring->entries = (void *)(ring->at + 4096);
		give_memory(made, ring->at);
		ring->fd = (int)syscall(SYS_io_uring_setup, 4, made);
		return ring->fd < 0 ? -1 : 0;
	}
	if (how == RING_CLOSED) {
		made->flags = IORING_SETUP_SQPOLL;
		made->sq_thread_idle = 600000;
	}
	ring->fd = (int)syscall(SYS_io_uring_setup, 4, made);
	if (ring->fd < 0)
		return -1;
	size_t bytes = made->cq_off.cqes + made->cq_entries * sizeof(struct io_uring_cqe);
	ring->at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQ_RING);
	ring->entries = mmap(NULL, made->sq_entries * sizeof *ring->entries, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
			     ring->fd, IORING_OFF_SQES);
	if (ring->at == MAP_FAILED || ring->entries == MAP_FAILED)
		return -1;
	if (how == RING_CLOSED) {
		wake(ring);
		close(ring->fd);
	}
	return 0;
}

static int submit(struct own_ring *ring, enum how how, void *address, size_t length)
{
	struct io_uring_params *made = &ring->made;
	_Atomic unsigned *tail = (void *)(ring->at + made->sq_off.tail);
	_Atomic unsigned *head = (void *)(ring->at + made->cq_off.head), *end = (void *)(ring->at + made->cq_off.tail);
	_Atomic unsigned *flags = (void *)(ring->at + made->sq_off.flags);
	unsigned *index = (void *)(ring->at + made->sq_off.array), at = atomic_load(tail), mask = made->sq_entries - 1;
	struct io_uring_cqe *done = (void *)(ring->at + made->cq_off.cqes);
	struct io_uring_sqe *entry = &ring->entries[at & mask];
	memset(entry, 0, sizeof *entry);
	entry->opcode = IORING_OP_MADVISE;
	entry->addr = (uint64_t)(uintptr_t)address;
	entry->len = (uint32_t)length;
	entry->fadvise_advice = MADV_DONTNEED;
	index[at & mask] = at & mask;
	atomic_store(tail, at + 1);
	unsigned how_to_enter = IORING_ENTER_GETEVENTS | (how == RING_HIDDEN ? IORING_ENTER_REGISTERED_RING : 0);
	if (how != RING_CLOSED)
		while (syscall(SYS_io_uring_enter, ring->fd, 1, 1, how_to_enter, NULL, 0) < 0 && errno == EINTR)
			;
	while (atomic_load(head) == atomic_load(end)) {
		if (how == RING_CLOSED && atomic_load(flags) & IORING_SQ_NEED_WAKEUP)
			impossible("a ring's thread");
		sched_yield();
	}
	int answer = done[atomic_load(head) & (made->cq_entries - 1)].res;
	atomic_store(head, atomic_load(head) + 1);
	return answer;
}

/* Negative where this kernel has no such ring: nothing was done then. */
static int advise_by_ring(enum how how, void *address, size_t length)
{
	struct own_ring *ring = how == RING_HIDDEN ? &hidden_ring : &own_rings[how == RING_CLOSED];
	pthread_mutex_lock(&ring->lock);
	if (!ring->made_before)
		ring->made_before = make_ring(ring, how) ? -1 : 1;
	int answer = ring->made_before < 0 ? -1 : submit(ring, how, address, length);
	pthread_mutex_unlock(&ring->lock);
	return answer;
}
#endif
