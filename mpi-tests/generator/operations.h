/* What each letter of the alphabet does. The slot is locked; a call that this kernel refuses does nothing. */
#ifndef GENERATOR_OPERATIONS_H
#define GENERATOR_OPERATIONS_H
#include "alphabet.h"

/* ---- Memory comes and goes --------------------------------------------------------------------- */
static void *new_mapping(size_t length, int flags, int file, int far)
{
	return mmap(far ? apart() : NULL, length, RW, flags | (far ? MAP_FIXED_NOREPLACE : 0), file, 0);
}

static void op_map_private(struct slot *slot, unsigned variant)
{
	static const size_t pages[] = {1, 2, 3, 16, 17, 64, 256, 4};
	size_t length = pages[variant % 8] * PAGE;
	drop(slot);
	place(slot, PRIVATE, new_mapping(length, ANONYMOUS, -1, variant >= 8), length);
}

static int file_of(int memory, size_t length)
{
	char path[] = "/tmp/pinyard-generator-XXXXXX";
	int fd = memory ? memfd_create("generator", MFD_CLOEXEC) : mkostemp(path, O_CLOEXEC);
	if (!memory && fd >= 0)
		unlink(path);
	if (fd < 0 || ftruncate(fd, (off_t)length))
		impossible("a file");
	return fd;
}

/* Of a memory file, of a file, of neither. */
static void op_map_shared(struct slot *slot, unsigned variant)
{
	size_t length = 8 * PAGE;
	drop(slot);
	if (variant % 3 < 2)
		slot->file = file_of(variant % 3 == 0, length);
	place(slot, SHARED, new_mapping(length, MAP_SHARED | (slot->file < 0 ? MAP_ANONYMOUS : 0), slot->file, variant >= 3), length);
}

static void op_map_file(struct slot *slot, unsigned variant)
{
	size_t length = (variant % 3 == 2 ? 64 : 4) * PAGE;
	drop(slot);
	slot->file = file_of(variant % 3 != 1, length);
	place(slot, OF_FILE, new_mapping(length, MAP_PRIVATE, slot->file, variant >= 3), length);
}

static void op_map_huge(struct slot *slot, unsigned variant)
{
	drop(slot);
	place(slot, HUGE, new_mapping(2 * HUGE_PAGE, ANONYMOUS | MAP_HUGETLB, -1, variant != 0), 2 * HUGE_PAGE);
}

static int segment_of(size_t length)
{
	int segment = shmget(IPC_PRIVATE, length, 0600);
	if (segment < 0)
		impossible("shmget");
	return segment;
}

static void op_attach(struct slot *slot, unsigned variant)
{
	size_t length = (1 + 3 * variant) * PAGE;
	int segment = segment_of(length);
	drop(slot);
	place(slot, ATTACHED, shmat(segment, variant == 2 ? apart() : NULL, 0), length);
	shmctl(segment, IPC_RMID, NULL);
}

static void op_attach_over(struct slot *slot, unsigned variant)
{
	if (!is_changeable(slot) || slot->kind == HUGE)
		return;
	int segment = segment_of(slot->length);
	void *at = slot->at;
	void *attached = variant == 0 ? shmat(segment, at, SHM_REMAP)
		       : variant == 1 ? (void *)syscall(SYS_shmat, segment, at, SHM_REMAP)
				      : (void *)in_object(SYS_shmat, segment, (long)at, SHM_REMAP, 0, 0);
	shmctl(segment, IPC_RMID, NULL);
	if (attached != at)
		return;
	forget(slot);
	place(slot, ATTACHED, at, slot->length);
}

static void op_map_object(struct slot *slot, unsigned variant)
{
	char path[4096];
	(void)variant;
	drop(slot);
	snprintf(path, sizeof path, "%s/memory-%d.so", objects_folder, (int)(slot - slots));
	slot->owner = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!slot->owner)
		impossible(path);
	place(slot, IN_OBJECT, dlsym(slot->owner, "object_bytes"), 16 * PAGE);
}

static void op_allocate(struct slot *slot, unsigned variant)
{
	static const size_t pages[] = {50, 512, 10};
	drop(slot);
	slot->owner = aligned_alloc(PAGE, pages[variant] * PAGE);
	place(slot, ALLOCATED, slot->owner, pages[variant] * PAGE);
}

static void op_reallocate(struct slot *slot, unsigned variant)
{
	size_t length = slot->length;
	if (variant == 2)
		malloc_trim(0);
	if (slot->kind != ALLOCATED || variant == 2 || length > 1024 * PAGE)
		return;
	if (variant == 0) {
		length += 64 * PAGE;
		slot->owner = realloc(slot->owner, length + PAGE);
	} else {
		free(slot->owner);
		slot->owner = malloc(length + PAGE);
	}
	place(slot, ALLOCATED, (void *)(((uintptr_t)slot->owner + PAGE - 1) & -PAGE), length);
}

static void op_drop(struct slot *slot, unsigned variant)
{
	(void)variant;
	drop(slot);
}

/* ---- Registrations ----------------------------------------------------------------------------- */
static void op_send(struct slot *slot, unsigned variant)
{
	if (slot->kind == NOTHING)
		op_map_private(slot, 3);
	if (slot->kind == NOTHING)
		return;
	size_t first = variant & 1 ? part_of(slot, 2) : 0;
	judge(slot->at + first, slot->length - first, page_of(slot), slot->kind, variant);
}

static void op_hold(struct slot *slot, unsigned variant)
{
	size_t first = variant ? part_of(slot, 2) : 0;
	give_back(&slot->held);
	if (slot->kind != NOTHING)
		registered(slot->at + first, slot->length - first, PNY_LOCAL_READ, slot->kind, &slot->held);
}

static void op_release(struct slot *slot, unsigned variant)
{
	(void)variant;
	give_back(&slot->held);
}

static void op_forget_all(struct slot *slot, unsigned variant)
{
	if (is_plain() || slot->kind == NOTHING)
		return;
	if ((variant ? pny_flush(registry) : pny_invalidate(registry, slot->at, slot->length)) != PNY_OK)
		broken(pny_last_error());
}

static void op_another_registry(struct slot *slot, unsigned variant)
{
	pny_registry_config config = {.size = sizeof config, .backend = PNY_BACKEND_IO_URING};
	pny_registry other;
	struct pny_lease got;
	if (is_plain() || (variant == 1 && pny_hooks_install() == PNY_OK))
		return;
	if (variant == 1 || pny_registry_create(&config, &other) != PNY_OK)
		broken(pny_last_error());
	if (slot->kind == PRIVATE && pny_get(other, slot->at, slot->length, PNY_LOCAL_WRITE, &got) == PNY_OK)
		pny_put(&got);
	if (pny_registry_destroy(other) != PNY_OK)
		broken(pny_last_error());
}

/* ---- Pages are dropped, replaced, moved -------------------------------------------------------- */
static void op_dontneed(struct slot *slot, unsigned variant)
{
	enum how how = HOW(variant);
	if (slot->kind == NOTHING || slot->kind == IN_OBJECT)
		return;
	size_t first = part_of(slot, PART(variant)), length = slot->length - first;
	unsigned char *at = slot->at + first;
	if (how == LIBC)
		madvise(at, length, MADV_DONTNEED);
	else if (how == RING_FD || how == RING_CLOSED || how == RING_HIDDEN)
		advise_by_ring(how, at, length);
	else
		call(how, SYS_madvise, (long)at, (long)length, MADV_DONTNEED, 0, 0);
}

static void op_advise(struct slot *slot, unsigned variant)
{
	enum { COLD = 20, PAGEOUT = 21, DONTNEED_LOCKED = 24, COLLAPSE = 25, GUARD_INSTALL = 102, GUARD_REMOVE = 103 };
	static const int advice[] = {MADV_FREE, DONTNEED_LOCKED, COLLAPSE, COLD, PAGEOUT, 0, 0, 0, GUARD_INSTALL, MADV_MERGEABLE, MADV_HUGEPAGE};
	struct iovec range = {slot->at, slot->length};
	if (!is_changeable(slot))
		return;
	if (variant < 5 || variant > 7) {
		madvise(slot->at, slot->length, advice[variant]);
		if (variant == 8 && madvise(slot->at, slot->length, GUARD_REMOVE) && errno != EINVAL)
			impossible("MADV_GUARD_REMOVE");
		return;
	}
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (variant == 5)
		process_madvise(self, &range, 1, MADV_DONTNEED, 0);
	else
		call(variant == 6 ? NUMBER : OBJECT, SYS_process_madvise, self, (long)&range, 1, MADV_DONTNEED, 0);
	close(self);
}

static void op_map_over(struct slot *slot, unsigned variant)
{
	if (!is_changeable(slot))
		return;
	size_t first = part_of(slot, PART(variant)), length = slot->length - first;
	unsigned char *at = slot->at + first;
	int flags = ANONYMOUS | MAP_FIXED;
	if (slot->kind == HUGE && first)
		return;
	void *mapped = HOW(variant) == LIBC ? mmap(at, length, RW, flags, -1, 0)
					    : (void *)call(HOW(variant), SYS_mmap, (long)at, (long)length, RW, flags, -1);
	if (mapped != at)
		broken("mmap with MAP_FIXED");
	slot->seams |= first != 0;
	if (first)
		return;
	forget(slot);
	place(slot, PRIVATE, at, length);
}

/* At addresses that the kernel gives, somebody else may be the next; apart, this slot is. */
static void op_unmap(struct slot *slot, unsigned variant)
{
	if (!is_changeable(slot))
		return;
	size_t first = part_of(slot, PART(variant));
	if (unmap_by(HOW(variant), slot->at + first, slot->length - first))
		broken("munmap");
	if (!first && !is_apart(slot->at))
		forget(slot);
	else
		map_again(slot, first);
}

static void *remap_by(enum how how, void *at, size_t old, size_t new, int flags, void *target)
{
	return how == LIBC ? mremap(at, old, new, flags, target)
			   : (void *)call(how, SYS_mremap, (long)at, (long)old, (long)new, flags, (long)target);
}

/* A kernel that moves several mappings at once may leave off half-way: such slots stay. */
static int is_one_mapping(const struct slot *slot)
{
	return is_changeable(slot) && !slot->seams;
}

static void op_move_away(struct slot *slot, unsigned variant)
{
	if (!is_one_mapping(slot))
		return;
	size_t first = part_of(slot, PART(variant)), length = slot->length - first;
	unsigned char *target = apart();
	enum kind kind = slot->kind;
	size_t page = page_of(slot);
	if (remap_by(HOW(variant), slot->at + first, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, target) != target) {
		if (slot->kind != HUGE && slot->kind != ATTACHED)
			broken("mremap of the same size");
		return;
	}
	map_again(slot, first);
	judge(target, length, page, kind, 0);
	munmap(target, length);
}

static void op_move_over(struct slot *slot, unsigned variant)
{
	if (!is_changeable(slot) || slot->kind == HUGE)
		return;
	size_t first = part_of(slot, PART(variant)), length = slot->length - first;
	unsigned char *at = slot->at + first, *source = new_mapping(length, ANONYMOUS, -1, 1);
	if (source == MAP_FAILED)
		return;
	memset(source, next_byte(), length);
	if (remap_by(HOW(variant), source, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at)
		broken("mremap over the slot");
	slot->seams |= first != 0;
	if (first)
		return;
	forget(slot);
	place(slot, PRIVATE, at, length);
}

static void op_grow(struct slot *slot, unsigned variant)
{
	size_t longer = slot->length + 4 * PAGE;
	int is_libcs = variant == LIBC || variant == NUMBER;
	if (slot->kind != PRIVATE || !is_one_mapping(slot) || longer > 512 * PAGE)
		return;
	void *moved = remap_by(variant, slot->at, slot->length, longer, MREMAP_MAYMOVE | (is_libcs ? 0 : MREMAP_FIXED),
			       is_libcs ? NULL : apart());
	if (moved == MAP_FAILED)
		return; /* the end of another mapping, or of a part that is watched, is in between */
	slot->at = moved;
	slot->length = longer;
}

static void op_shrink(struct slot *slot, unsigned variant)
{
	size_t first = part_of(slot, PART(variant) ? PART(variant) : 2);
	if (!is_changeable(slot) || !first)
		return;
	if (remap_by(HOW(variant), slot->at, slot->length, first, 0, NULL) == slot->at)
		map_again(slot, first);
}

static void op_leave_empty(struct slot *slot, unsigned variant)
{
	enum { DONTUNMAP = 4 };
	void *target = apart();
	if (slot->kind != PRIVATE || !is_one_mapping(slot))
		return;
	void *moved = remap_by(variant, slot->at, slot->length, slot->length, MREMAP_MAYMOVE | MREMAP_FIXED | DONTUNMAP, target);
	if (moved == target)
		munmap(target, slot->length);
	else
		broken("mremap with MREMAP_DONTUNMAP");
}

/* By a length that is no huge page's: the kernel moves the whole huge page. */
static void op_odd_huge_move(struct slot *slot, unsigned variant)
{
	unsigned char *huge = new_mapping(HUGE_PAGE, ANONYMOUS | MAP_HUGETLB, -1, 1);
	unsigned char *target = variant ? apart() : new_mapping(HUGE_PAGE, ANONYMOUS, -1, 1);
	unsigned char *inside = (variant ? huge : target) + HUGE_PAGE / 2;
	(void)slot;
	if (huge == MAP_FAILED || target == MAP_FAILED || !has_huge_pages(huge, HUGE_PAGE))
		return;
	judge(inside, PAGE, PAGE, PRIVATE, 0);
	if (mremap(huge, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target) {
		if (variant)
			call(QUIETLY, SYS_mmap, (long)huge, HUGE_PAGE, RW, ANONYMOUS | MAP_FIXED_NOREPLACE, -1);
		judge(inside, PAGE, PAGE, PRIVATE, 0);
	}
	munmap(huge, HUGE_PAGE);
	munmap(target, HUGE_PAGE);
}

static void op_protect(struct slot *slot, unsigned variant)
{
	if (!is_changeable(slot))
		return;
	size_t first = variant ? part_of(slot, 2) : 0;
	if (mprotect(slot->at + first, slot->length - first, PROT_NONE) || mprotect(slot->at + first, slot->length - first, RW))
		broken("mprotect");
	slot->seams |= first != 0;
}

#include "others.h"
#endif
