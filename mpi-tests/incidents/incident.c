#define _GNU_SOURCE
#include "incident.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include "pinyard.h"
#include "watchdog.h"

#define PAGE 4096
#define ROUNDS 200
/* Ranks wait for each other by spinning: dear where cores are shared. */
#define ROUNDS_PER_EXCHANGE 4
/* The message size of Open MPI #13149. */
#define LENGTH 258048
#define FRAMES 64

void incident_fail(const char *file, int line, const char *condition, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "%s:%d: %s does not hold: ", file, line, condition);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	_exit(1);
}

/* ---- The allocator -------------------------------------------------------- */

/* glibc's own, under the names that it exports for allocators like this one. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

static char *scratch;
static atomic_bool releasing;
static atomic_long releases;

/*
 * What mimalloc and jemalloc do now and then, done every time: give a page back
 * to the system from inside an allocator function. Not inlined, to be seen in a
 * stack.
 */
__attribute__((noinline)) void release_pages(void);
void release_pages(void)
{
	if (!atomic_load(&releasing))
		return;
	atomic_fetch_add(&releases, 1);
	if (madvise(scratch, PAGE, MADV_DONTNEED))
		abort();
}

void *malloc(size_t size)
{
	release_pages();
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	release_pages();
	return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
	release_pages();
	return __libc_realloc(memory, size);
}

void free(void *memory)
{
	release_pages();
	__libc_free(memory);
}

/* ---- The watchdog --------------------------------------------------------- */

static void on_hang(void)
{
	static const char before[] = "watchdog: hang; stack of the main thread:\n";
	static const char after[] = "watchdog: end of stack\n";
	void *frames[FRAMES];
	int count;

	atomic_store(&releasing, false);
	count = backtrace(frames, FRAMES);
	if (write(STDERR_FILENO, before, sizeof(before) - 1) < 0)
		_exit(1);
	backtrace_symbols_fd(frames, count, STDERR_FILENO);
	if (write(STDERR_FILENO, after, sizeof(after) - 1) < 0)
		_exit(1);
	_exit(EXIT_HANG);
}

/* A timer of the main thread's own. */
static void watch(void)
{
	void *frame[1];

	/* The first backtrace loads libgcc: not in the handler. */
	backtrace(frame, 1);
	watchdog_start(CLOCK_THREAD_CPUTIME_ID, on_hang);
	watchdog_feed();
}

/* ---- pinyard -------------------------------------------------------------- */

/* Opened at run time: the other modes run without a byte of it. */
static struct {
	__typeof__(&pny_libfabric_import_monitor) import_monitor;
	__typeof__(&pny_libfabric_monitor_stats) monitor_stats;
	__typeof__(&pny_hooks_verify) hooks_verify;
	__typeof__(&pny_strerror) strerror;
	__typeof__(&pny_last_error) last_error;
} pinyard;

#define CHECK_PNY(call) \
	do { \
		pny_status status_ = (call); \
		CHECK(status_ == PNY_OK, "%s: %s", pinyard.strerror(status_), pinyard.last_error()); \
	} while (0)

static void import_pinyard(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	CHECK(library, "%s", dlerror());
#define FIND(name) \
	do { \
		*(void **) &pinyard.name = dlsym(library, "pny_" #name); \
		CHECK(pinyard.name, "%s", dlerror()); \
	} while (0)
	*(void **) &pinyard.import_monitor = dlsym(library, "pny_libfabric_import_monitor");
	*(void **) &pinyard.monitor_stats = dlsym(library, "pny_libfabric_monitor_stats");
	CHECK(pinyard.import_monitor && pinyard.monitor_stats, "%s", dlerror());
	FIND(hooks_verify);
	FIND(strerror);
	FIND(last_error);
#undef FIND
	CHECK_PNY(pinyard.import_monitor());
}

static pny_libfabric_monitor_counts monitor_counts(void)
{
	pny_libfabric_monitor_counts counts = { .size = sizeof(counts) };

	CHECK_PNY(pinyard.monitor_stats(&counts));
	return counts;
}

/* ---- The workload --------------------------------------------------------- */

enum mode incident_begin(int argc, char **argv)
{
	enum mode mode;

	if (argc == 2 && strcmp(argv[1], "naive") == 0) {
		mode = MODE_NAIVE;
	} else if (argc == 2 && strcmp(argv[1], "control") == 0) {
		mode = MODE_CONTROL;
	} else if (argc == 3 && strcmp(argv[1], "pinyard") == 0) {
		mode = MODE_PINYARD;
	} else {
		fprintf(stderr, "usage: %s naive | control | pinyard LIBPINYARD.SO\n", argv[0]);
		exit(2);
	}
	scratch = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(scratch != MAP_FAILED, "mmap(a page)");
	watch();
	atomic_store(&releasing, mode != MODE_CONTROL);
	if (mode == MODE_PINYARD)
		import_pinyard(argv[2]);
	return mode;
}

struct fid_domain *incident_open_domain(void)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;

	CHECK(hints, "fi_allocinfo");
	hints->fabric_attr->prov_name = strdup("verbs");
	hints->ep_attr->type = FI_EP_DGRAM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->mode = ~0ull;
	CHECK_FI(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	CHECK_FI(fi_fabric(info->fabric_attr, &fabric, NULL));
	CHECK_FI(fi_domain(fabric, info, &domain, NULL));
	fi_freeinfo(hints);
	return domain;
}

static long device_registrations(void)
{
	static long (*count)(void);

	if (!count)
		*(void **) &count = dlsym(RTLD_DEFAULT, "fakeverbs_registrations");
	CHECK(count, "the stand-in device is not preloaded (LD_PRELOAD)");
	return count();
}

/* Registers and closes: the registration stays in the cache. */
static void use(struct fid_domain *domain, char *buffer)
{
	struct fid_mr *region;

	watchdog_feed();
	CHECK_FI(fi_mr_reg(domain, buffer, LENGTH, FI_SEND | FI_RECV, 0, 0, 0, &region, NULL));
	CHECK_FI(fi_close(&region->fid));
}

/* Populated, as registering with a device that pins would do. */
static char *map_buffer(void *hint, int flags)
{
	char *buffer = mmap(hint, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | flags, -1, 0);

	CHECK(buffer != MAP_FAILED, "mmap(%p, %d)", hint, LENGTH);
	return buffer;
}

/* The same buffer again and again: the device must see it hardly ever. */
static void same_buffer(struct fid_domain *domain, exchange_function exchange)
{
	char *buffer = map_buffer(NULL, 0);
	long before = device_registrations();
	long seen;
	int round;

	for (round = 0; round < ROUNDS; round++) {
		use(domain, buffer);
		if (exchange && round % ROUNDS_PER_EXCHANGE == 0)
			exchange(buffer, LENGTH, round);
	}
	seen = device_registrations() - before;
	printf("same buffer, %d rounds: %ld device registrations\n", ROUNDS, seen);
	CHECK(seen >= 1 && seen <= 3, "%ld device registrations in %d rounds: the cache does not work", seen,
	      ROUNDS);
	CHECK(munmap(buffer, LENGTH) == 0, "munmap(%p)", (void *) buffer);
}

/*
 * An address at which no other thread's mmap lands between our munmap and our
 * mmap: deep below a gap that the kernel fills from its top.
 */
static char *lonely_address(void)
{
	size_t gap = 1ul << 32;
	char *base = mmap(NULL, gap, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(base != MAP_FAILED, "mmap(4 GiB of addresses)");
	CHECK(munmap(base, gap) == 0, "munmap(%p)", (void *) base);
	return base + gap / 2;
}

/*
 * New pages at the same address, by nothing but munmap and mmap: what the cache
 * has is stale every time. MAP_FIXED_NOREPLACE replaces nothing, so it is the
 * munmap that has to be noticed.
 */
static void remapped_buffer(struct fid_domain *domain, exchange_function exchange)
{
	char *address = lonely_address();
	long before = device_registrations();
	long seen;
	int round;

	for (round = 0; round < ROUNDS; round++) {
		char *buffer = map_buffer(address, MAP_FIXED_NOREPLACE);

		CHECK(buffer == address, "%p instead of %p", (void *) buffer, (void *) address);
		use(domain, buffer);
		seen = device_registrations() - before;
		CHECK(seen == round + 1, "round %d has %ld device registrations: a stale one was used", round, seen);
		if (exchange && round % ROUNDS_PER_EXCHANGE == 0)
			exchange(buffer, LENGTH, round);
		CHECK(munmap(buffer, LENGTH) == 0, "munmap(%p)", (void *) buffer);
	}
	printf("munmap and mmap of the same address, %d rounds: %d device registrations\n", ROUNDS, ROUNDS);
}

/*
 * Two domains have a cache each, and the monitor is not told which one asks.
 * After a change both hold a stale entry of the same range.
 */
static void two_domains(struct fid_domain *first, struct fid_domain *second)
{
	char *address = lonely_address();
	long before = device_registrations();
	long seen;
	int round;

	for (round = 0; round < ROUNDS; round++) {
		char *buffer = map_buffer(address, MAP_FIXED_NOREPLACE);

		CHECK(buffer == address, "%p instead of %p", (void *) buffer, (void *) address);
		use(first, buffer);
		use(second, buffer);
		seen = device_registrations() - before;
		CHECK(seen == 2 * (round + 1), "round %d has %ld device registrations: a stale one was used", round,
		      seen);
		CHECK(munmap(buffer, LENGTH) == 0, "munmap(%p)", (void *) buffer);
	}
	printf("the same in two domains, %d rounds: %d device registrations\n", ROUNDS, 2 * ROUNDS);
}

/* What the monitor says of itself; the last munmap has had no lookup after it. */
static void check_monitor(void)
{
	const unsigned long long munmaps = 2 * ROUNDS;
	pny_libfabric_monitor_counts counts = monitor_counts();
	unsigned long long events = counts.events;

	CHECK_PNY(pinyard.hooks_verify());
	printf("monitor: %llu lookups, %llu stale, %llu events, %llu delivered, %llu refused\n",
	       (unsigned long long) counts.valid_calls, (unsigned long long) counts.stale_answers, events,
	       (unsigned long long) counts.deliveries, (unsigned long long) counts.refusals);
	CHECK(events >= munmaps - 1, "%llu events of %llu munmaps", events, munmaps);
	CHECK(counts.stale_answers > 0, "no lookup was told that its entry is stale");
}

void incident_run(enum mode mode, struct fid_domain *domain, exchange_function exchange)
{
	struct fid_domain *second = incident_open_domain();

	same_buffer(domain, exchange);
	remapped_buffer(domain, exchange);
	two_domains(domain, second);
	CHECK_FI(fi_close(&second->fid));

	CHECK(mode == MODE_CONTROL || atomic_load(&releases) >= 2 * ROUNDS,
	      "the allocator released pages %ld times only", (long) releases);
	printf("pages released inside the allocator: %ld times\n", (long) releases);
	if (mode == MODE_PINYARD)
		check_monitor();
}
