/*
 * A user of UCX's hooks, as its registration cache is one: a handler that must hear of
 * every change. Then somebody patches over munmap and madvise in libc, and UCX's hooks
 * are gone.
 *
 *   untouched     nobody patches
 *   memhooks      libfabric's memhooks patch (FI_MR_CACHE_MONITOR=memhooks, the stand-in
 *                 device): heard right after?
 *   inline        a patch whose hook makes system calls of its own: heard half a second
 *                 later?
 *   number        heard of syscall(SYS_munmap), which UCX has no hook for?
 *   files         heard of ftruncate and a hole that is punched, by which shared memory loses pages?
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <ucm/api/ucm.h>

#define PAGE 4096ul
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
			_exit(1); \
		} \
	} while (0)

/* volatile: libc declares its functions as such that call nothing of ours. */
static char *volatile watched;
static volatile int heard;

static void on_event(ucm_event_type_t type, ucm_event_t *event, void *argument)
{
	char *start = event->vm_unmapped.address;

	(void) argument;
	if (type == UCM_EVENT_VM_UNMAPPED && start <= watched && watched < start + event->vm_unmapped.size)
		heard++;
}

static long raw(long number, long a, long b, long c)
{
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return result;
}

static int their_munmap(void *at, size_t length) { return (int) raw(SYS_munmap, (long) at, (long) length, 0); }
static int their_madvise(void *at, size_t length, int advice)
{
	return (int) raw(SYS_madvise, (long) at, (long) length, advice);
}

static unsigned char *entry_of(const char *name)
{
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);

	CHECK(libc);
	return dlsym(libc, name);
}

static void patch(const char *name, void *target)
{
	unsigned char *entry = entry_of(name), code[13] = { 0x49, 0xbb };
	unsigned char *page = (unsigned char *) ((uintptr_t) entry & ~(PAGE - 1));

	memcpy(code + 2, &target, 8);
	memcpy(code + 10, "\x41\xff\xe3", 3);
	CHECK(mprotect(page, 2 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
	memcpy(entry, code, sizeof(code));
	CHECK(mprotect(page, 2 * PAGE, PROT_READ | PROT_EXEC) == 0);
}

/* A domain with a cache: libfabric starts its monitor. */
static void start_libfabric(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;

	hints->fabric_attr->prov_name = strdup("verbs");
	hints->ep_attr->type = FI_EP_DGRAM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->mode = ~0ull;
	CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == 0);
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL) == 0);
	CHECK(fi_domain(fabric, info, &domain, NULL) == 0);
}

static char *map(void)
{
	char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(page != MAP_FAILED);
	return page;
}

/* Of three changes of a file that is mapped. */
static int hears_of_files(void)
{
	char path[64];
	int all = 0, file = memfd_create("shared", 0);

	CHECK(file >= 0 && ftruncate(file, PAGE) == 0);
	watched = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(watched != MAP_FAILED);
	heard = 0;
	CHECK(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE) == 0);
	all += heard > 0;
	heard = 0;
	CHECK(ftruncate(file, 0) == 0);
	all += heard > 0;
	heard = 0;
	snprintf(path, sizeof path, "/proc/self/fd/%d", file);
	CHECK(truncate(path, PAGE) == 0);
	return all + (heard > 0);
}

/* Of `changes` changes in a row, how many were heard of. */
static int hears(int changes)
{
	int all = 0;

	for (int change = 0; change < changes; change++) {
		watched = map();
		heard = 0;
		CHECK(madvise(watched, PAGE, MADV_DONTNEED) == 0);
		all += heard > 0;
		heard = 0;
		CHECK(munmap(watched, PAGE) == 0);
		all += heard > 0;
	}
	return all;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(ucm_set_event_handler(UCM_EVENT_VM_UNMAPPED, 1000, on_event, NULL) == UCS_OK);
	if (strcmp(mode, "memhooks") == 0) {
		CHECK(hears(10) == 20);
		start_libfabric();
		printf("heard %d of 20\n", hears(10));
	} else if (strcmp(mode, "inline") == 0) {
		CHECK(hears(10) == 20);
		patch("munmap", their_munmap);
		patch("madvise", their_madvise);
		usleep(500 * 1000);
		printf("heard %d of 20\n", hears(10));
	} else if (strcmp(mode, "untouched") == 0) {
		printf("heard %d of 20\n", hears(10));
		usleep(300 * 1000);
		printf("heard %d of 20\n", hears(10));
	} else if (strcmp(mode, "number") == 0) {
		watched = map();
		CHECK(syscall(SYS_munmap, watched, PAGE) == 0);
		printf("heard %d\n", heard > 0);
	} else if (strcmp(mode, "files") == 0) {
		printf("heard %d of 3\n", hears_of_files());
	} else {
		fprintf(stderr, "unknown mode '%s'\n", mode);
		return 2;
	}
	printf("completed\n");
	return 0;
}
