/*
 * The alphabet of the generator: what a step of a random program does. A program is a table of steps;
 * each of its threads takes its own in their order. `generator.c` draws programs, and prints those that
 * fail as C programs which include this file.
 *
 * Memory is in slots. A step locks its slot, so that what the device must see is known: the byte that
 * was written last. Whatever else the threads do runs at the same time.
 */
#ifndef GENERATOR_ALPHABET_H
#define GENERATOR_ALPHABET_H
#include "calls.h"
#include <malloc.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define PAGE 4096UL
#define HUGE_PAGE (2UL << 20)
#define SLOTS 6
#define THREADS 4

/* A way, and what of the slot's pages: all, the last, the second half. */
#define PARTS 3
#define WAYS (HOWS * PARTS)
#define HOW(variant) ((enum how)((variant) / PARTS))
#define PART(variant) ((variant) % PARTS)

/*
 * X(name, the number of its variants, what they are): operations.h and others.h have what each does. A
 * variant is a number that its function knows, or a way, or a way and a part.
 */
enum variants_are { NUMBERS, IN_A_WAY, IN_A_WAY_A_PART };
#define ALPHABET(X)                                                                                    \
	X(map_private, 16, NUMBERS) X(map_shared, 6, NUMBERS) X(map_file, 6, NUMBERS)                       \
	X(map_huge, 2, NUMBERS) X(attach, 3, NUMBERS) X(map_object, 1, NUMBERS) X(allocate, 3, NUMBERS)      \
	X(drop, 1, NUMBERS) X(send, 16, NUMBERS) X(hold, 2, NUMBERS) X(release, 1, NUMBERS) X(forget_all, 2, NUMBERS) \
	X(dontneed, WAYS, IN_A_WAY_A_PART) X(advise, 11, NUMBERS) X(map_over, WAYS, IN_A_WAY_A_PART)         \
	X(unmap, WAYS, IN_A_WAY_A_PART) X(move_away, WAYS, IN_A_WAY_A_PART)                                 \
	X(move_over, WAYS, IN_A_WAY_A_PART) X(grow, HOWS, IN_A_WAY) X(shrink, WAYS, IN_A_WAY_A_PART)         \
	X(leave_empty, HOWS, IN_A_WAY) X(attach_over, 3, NUMBERS) X(odd_huge_move, 2, NUMBERS)              \
	X(protect, 2, NUMBERS) X(truncate_file, 9, NUMBERS) X(other_file, 3, NUMBERS)                       \
	X(load, OBJECTS, NUMBERS) X(unload, OBJECTS, NUMBERS) X(reallocate, 3, NUMBERS)                     \
	X(child, 5, NUMBERS) X(by_handler, 3, NUMBERS) X(by_thread, 3, NUMBERS) X(send_stack, 3, NUMBERS)   \
	X(cancel, 2, NUMBERS) X(another_registry, 2, NUMBERS)

enum operation {
#define X(name, variants, are) OP_##name,
	ALPHABET(X)
#undef X
	OPERATIONS
};
struct letter {
	const char *name;
	unsigned variants;
	enum variants_are are;
};
static const struct letter letters[OPERATIONS] = {
#define X(name, variants, are) {#name, variants, are},
	ALPHABET(X)
#undef X
};

struct step {
	unsigned thread;
	enum operation operation;
	unsigned slot;
	unsigned variant;
};

/* How a program is run. */
struct manner {
	unsigned ordered; /* one step at a time, in the table's order */
	unsigned rounds;  /* how often each thread takes its steps, at most */
	unsigned trust;   /* shared memory is trusted */
	unsigned busy;    /* threads allocate and load while the registry is made */
	unsigned limits;  /* 1: three registrations at most; 2: they grow to blocks of 64 KiB */
};

enum kind { NOTHING, PRIVATE, SHARED, OF_FILE, HUGE, ATTACHED, IN_OBJECT, ALLOCATED };
static const char *const kinds[] = {"nothing", "private memory", "shared memory", "a private file mapping",
				    "huge pages", "a SysV segment", "an object's memory", "malloc's memory"};
struct slot {
	pthread_mutex_t lock;
	enum kind kind;
	unsigned char *at;
	size_t length;
	/* More than one mapping may be there: the kernel may refuse to move them at once. */
	int seams;
	int file;
	/* What malloc or dlopen returned. */
	void *owner;
	struct pny_lease held;
};
static struct slot slots[SLOTS];
static pthread_t threads[THREADS];
static atomic_uint last_byte;
static const struct step *program;
static size_t program_length;
static struct manner manner;

#define RW (PROT_READ | PROT_WRITE)
#define ANONYMOUS (MAP_PRIVATE | MAP_ANONYMOUS)

static unsigned char next_byte(void)
{
	return (unsigned char)(atomic_fetch_add(&last_byte, 1) % 250 + 1);
}

static size_t page_of(const struct slot *slot)
{
	return slot->kind == HUGE ? HUGE_PAGE : PAGE;
}

/* ---- The judge --------------------------------------------------------------------------------- */
/* Whether there is a registration. There is none where the kernel or the registry may refuse. */
static int registered(unsigned char *at, size_t length, pny_access access, enum kind kind, struct pny_lease *got)
{
	pny_status status = lease(at, length, access, got);
	if (status == PNY_OK)
		return 1;
	if (is_plain() || status == PNY_ERR_LIMIT)
		return 0;
	/* io_uring refuses pages of files before Linux 6.0. */
	if (status == PNY_ERR_BACKEND && kind != PRIVATE && kind != ALLOCATED)
		return 0;
	fprintf(stderr, "REFUSED: pny_get(%zu bytes of %s): %s\n", length, kinds[kind], pny_last_error());
	_exit(REFUSED);
}

/* In some of the pages the device sees the byte, or writes another that memory then has. */
static void compare(uint64_t key, unsigned char *at, size_t length, size_t page, enum kind kind, unsigned char byte, int receive)
{
	size_t pages = length / page, stride = (pages + 3) / 4;
	for (size_t number = 0; number < pages; number += stride) {
		volatile unsigned char *here = at + number * page;
		unsigned char wanted = receive ? (unsigned char)(byte ^ 0xff) : byte;
		int seen = ask_device(key, at + number * page, receive ? wanted : -1);
		if (seen >= 0 && receive)
			seen = *here;
		if (seen == wanted)
			continue;
		fprintf(stderr, "STALE: page %zu of %zu of %s at %p: %s has %d, %s %d\n", number, pages, kinds[kind], (void *)at,
			receive ? "the device wrote, memory" : "memory", receive ? seen : byte,
			receive ? "not" : "the device sees", receive ? wanted : seen);
		_exit(STALE);
	}
}

static unsigned char fill(unsigned char *at, size_t length, size_t page)
{
	size_t stride = (length / page + 3) / 4 * page;
	unsigned char byte = next_byte();
	for (size_t next = 0; next < length; next += stride)
		((volatile unsigned char *)at)[next] = byte;
	return byte;
}

enum { AFTER = 2, RECEIVE = 4, LOOKUP = 8 };

/*
 * Memory is filled before or after the registration is asked for. A lookup may find one as well, which
 * nobody holds: where no other thread runs it stays.
 */
static void judge(unsigned char *at, size_t length, size_t page, enum kind kind, unsigned how)
{
	struct pny_lease got = {0};
	struct pny_key key;
	pny_access access = how & RECEIVE ? PNY_LOCAL_WRITE : PNY_LOCAL_READ;
	unsigned char byte = fill(at, length, page);
	if (how & LOOKUP && manner.ordered && !is_plain() && !manner.limits && pny_lookup(registry, at, length, access, &key) == PNY_OK)
		compare(key.lkey, at, length, page, kind, byte, how & RECEIVE);
	if (!registered(at, length, access, kind, &got))
		return;
	byte = how & (AFTER | LOOKUP) ? fill(at, length, page) : byte;
	compare(got.key.lkey, at, length, page, kind, byte, how & RECEIVE);
	give_back(&got);
}

/* The program's own call failed although it is legal, and would succeed without the library. */
__attribute__((noreturn)) static void broken(const char *what)
{
	fprintf(stderr, "BROKEN: %s: %s\n", what, strerror(errno));
	_exit(BROKEN);
}

/* ---- Memory of slots --------------------------------------------------------------------------- */
/* Addresses far from those that the kernel gives: nobody else maps anything there. */
static void *apart(void)
{
	static _Atomic uintptr_t next = 0x210000000000;
	return (void *)atomic_fetch_add(&next, 1UL << 26);
}

static int is_apart(const void *at)
{
	return (uintptr_t)at >= 0x210000000000 && (uintptr_t)at < 0x300000000000;
}

static int is_changeable(const struct slot *slot)
{
	return slot->kind != NOTHING && slot->kind != IN_OBJECT && slot->kind != ALLOCATED;
}

static void forget(struct slot *slot)
{
	if (slot->file >= 0)
		close(slot->file);
	slot->file = -1;
	slot->kind = NOTHING;
}

static void drop(struct slot *slot)
{
	if (slot->kind == ATTACHED)
		shmdt(slot->at);
	else if (slot->kind == IN_OBJECT)
		dlclose(slot->owner);
	else if (slot->kind == ALLOCATED)
		free(slot->owner);
	else if (slot->kind != NOTHING)
		munmap(slot->at, slot->length);
	forget(slot);
}

/* Whether huge pages are there: where there are too few, touching one is a SIGBUS. */
static int has_huge_pages(void *at, size_t length)
{
	enum { POPULATE_WRITE = 23 }; /* Linux 5.14 */
	return madvise(at, length, POPULATE_WRITE) == 0 || errno == EINVAL;
}

static void place(struct slot *slot, enum kind kind, void *at, size_t length)
{
	if (at == MAP_FAILED) {
		forget(slot);
		return;
	}
	if (kind == HUGE && !has_huge_pages(at, length)) {
		munmap(at, length);
		return;
	}
	slot->kind = kind;
	slot->at = at;
	slot->length = length;
	slot->seams = 0;
	memset(at, next_byte(), length);
}

/* The end of the slot that a step changes. */
static size_t part_of(const struct slot *slot, unsigned part)
{
	size_t page = page_of(slot), pages = slot->length / page;
	return part == 1 ? (pages - 1) * page : part == 2 ? pages / 2 * page : 0;
}

/*
 * Private pages where the slot has none any more from `first` on. Apart they are mapped in the way
 * that tells least; elsewhere another thread may have got the addresses, and the slot ends there.
 */
static void map_again(struct slot *slot, size_t first)
{
	unsigned char *at = slot->at + first;
	size_t length = slot->length - first;
	int flags = ANONYMOUS | MAP_FIXED_NOREPLACE;
	if (slot->kind == HUGE && first) {
		slot->length = first;
		return;
	}
	void *mapped = is_apart(at) ? (void *)call(QUIETLY, SYS_mmap, (long)at, (long)length, RW, flags, -1)
				    : mmap(at, length, RW, flags, -1, 0);
	if (mapped == at && first) {
		slot->seams = 1;
	} else if (mapped == at) {
		forget(slot);
		place(slot, PRIVATE, at, length);
	} else {
		if (mapped != MAP_FAILED)
			munmap(mapped, length);
		slot->length = first;
		if (!first)
			forget(slot);
	}
}

#include "operations.h"

#include "program.h"
#endif
