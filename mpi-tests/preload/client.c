/*
 * A libfabric client that knows nothing of pinyard, over the stand-in device. Each
 * mode is a scenario; counts go to the standard output, and the exit status is 0
 * unless something is wrong with the program itself.
 *
 *   rounds N libc|number   N times: map at one address, register twice, close, unmap
 *                          by munmap or by syscall(SYS_munmap)
 *   domains N              the same in four domains and four threads
 *   fork                   a child changes and registers what its parent registered
 *   close                  imports a monitor of its own and closes it before the domain
 *   again                  closes everything and starts libfabric anew, three times
 *   idle N                 N buffers are registered and unmapped, and nobody looks again
 *   asked N libc|number    as rounds, after fi_getparams, which starts libfabric
 *   unseen N libc|number   as rounds, after fi_getparams by an address from dlsym
 *   hardened N             as rounds, where the kernel refuses writes to text
 *   overflow               20,000 changes between two lookups
 *   pinned N               as rounds, and the kernel pins pages, as it does for a device;
 *                          0: a fabric alone, and what pins is another's cache
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>

#define PAGE 4096ul
#define LENGTH (64 * 1024ul)
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s does not hold (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			_exit(1); \
		} \
	} while (0)

static long device_count(const char *which)
{
	long (*count)(void);

	*(void **) &count = dlsym(RTLD_DEFAULT, which);
	CHECK(count);
	return count();
}

#define registrations() device_count("fakeverbs_registrations")
#define deregistrations() device_count("fakeverbs_deregistrations")

struct opened {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
};

static void open_fabric(struct opened *opened)
{
	struct fi_info *hints = fi_allocinfo();

	CHECK(hints);
	hints->fabric_attr->prov_name = strdup("verbs");
	hints->ep_attr->type = FI_EP_DGRAM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->mode = ~0ull;
	CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &opened->info) == 0);
	CHECK(fi_fabric(opened->info->fabric_attr, &opened->fabric, NULL) == 0);
	fi_freeinfo(hints);
}

static struct opened open_domain(void)
{
	struct opened opened;

	open_fabric(&opened);
	CHECK(fi_domain(opened.fabric, opened.info, &opened.domain, NULL) == 0);
	return opened;
}

static void close_domain(struct opened *opened)
{
	CHECK(fi_close(&opened->domain->fid) == 0);
	CHECK(fi_close(&opened->fabric->fid) == 0);
	fi_freeinfo(opened->info);
}

/* Registers and closes: the registration stays in the cache. */
static void use(struct fid_domain *domain, void *buffer, size_t length)
{
	struct fid_mr *region;

	CHECK(fi_mr_reg(domain, buffer, length, FI_SEND | FI_RECV, 0, 0, 0, &region, NULL) == 0);
	CHECK(fi_close(&region->fid) == 0);
}

/* Below a gap that the kernel fills from its top: nobody else's mmap lands there. */
static char *lonely_address(void)
{
	size_t gap = 1ul << 32;
	char *base = mmap(NULL, gap, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(base != MAP_FAILED && munmap(base, gap) == 0);
	return base + gap / 2;
}

static char *map_at(char *address, size_t length)
{
	char *buffer = mmap(address, length, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	CHECK(buffer == address);
	return buffer;
}

struct counts {
	long fresh, hits, stale;
};

/* New pages: the first lookup must register; the same pages: the second must not. */
static struct counts rounds(struct fid_domain *domain, int count, bool by_number)
{
	struct counts counts = { 0, 0, 0 };
	char *address = lonely_address();

	for (int round = 0; round < count; round++) {
		char *buffer = map_at(address, LENGTH);
		long before = registrations();

		use(domain, buffer, LENGTH);
		if (registrations() == before)
			counts.stale++;
		else
			counts.fresh++;
		before = registrations();
		use(domain, buffer, LENGTH);
		if (registrations() == before)
			counts.hits++;
		CHECK((by_number ? syscall(SYS_munmap, buffer, LENGTH) : munmap(buffer, LENGTH)) == 0);
	}
	return counts;
}

/* ---- Several domains, each with a thread: the caches share one monitor. ---- */

static pthread_barrier_t barrier;
static int rounds_of_threads;
static long changed;

static void *in_domain(void *argument)
{
	struct opened opened = open_domain();
	char *address = argument;

	pthread_barrier_wait(&barrier);
	for (int round = 0; round < rounds_of_threads; round++) {
		char *buffer = map_at(address, LENGTH);

		use(opened.domain, buffer, LENGTH);
		use(opened.domain, buffer + PAGE, LENGTH - PAGE);
		CHECK(munmap(buffer, LENGTH) == 0);
		__atomic_fetch_add(&changed, 1, __ATOMIC_RELAXED);
	}
	pthread_barrier_wait(&barrier);
	close_domain(&opened);
	return NULL;
}

static void domains(int count)
{
	enum { THREADS = 4 };
	pthread_t threads[THREADS];
	char *base = lonely_address();
	long before, seen;

	rounds_of_threads = count;
	pthread_barrier_init(&barrier, NULL, THREADS + 1);
	for (int thread = 0; thread < THREADS; thread++)
		CHECK(pthread_create(&threads[thread], NULL, in_domain, base + thread * 2 * LENGTH) == 0);
	before = registrations();
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	seen = registrations() - before;
	for (int thread = 0; thread < THREADS; thread++)
		CHECK(pthread_join(threads[thread], NULL) == 0);
	printf("changed %ld registered %ld fewer %d\n", changed, seen, seen < changed);
}

/* ---- A child. ---- */

static void forks(void)
{
	struct opened opened = open_domain();
	char *address = lonely_address(), *buffer = map_at(address, LENGTH);
	long before;
	int status;
	pid_t child;

	use(opened.domain, buffer, LENGTH);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(10);
		/* A registration of the parent's is none of the child's. */
		before = registrations();
		use(opened.domain, buffer, LENGTH);
		CHECK(registrations() == before + 1);
		CHECK(munmap(buffer, LENGTH) == 0);
		for (int round = 0; round < 1000; round++)
			free(malloc(256 * 1024));
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(status == 0);
	before = registrations();
	use(opened.domain, buffer, LENGTH);
	printf("child ended well, parent hits %d\n", registrations() == before);
	CHECK(munmap(buffer, LENGTH) == 0);
	map_at(address, LENGTH);
	use(opened.domain, buffer, LENGTH);
	printf("parent stale %d\n", registrations() == before);
	close_domain(&opened);
}

/* ---- An importer that closes its monitor before the domain (libfabric PR #9829). ---- */

static int monitor_start(struct fid_mem_monitor *monitor) { return (void) monitor, 0; }
static void monitor_stop(struct fid_mem_monitor *monitor) { (void) monitor; }
static int monitor_subscribe(struct fid_mem_monitor *monitor, const void *address, size_t length)
{
	return (void) monitor, (void) address, (void) length, 0;
}
static void monitor_unsubscribe(struct fid_mem_monitor *monitor, const void *address, size_t length)
{
	(void) monitor, (void) address, (void) length;
}
static bool monitor_valid(struct fid_mem_monitor *monitor, const void *address, size_t length)
{
	return (void) monitor, (void) address, (void) length, true;
}

static void closes(void)
{
	static struct fi_ops_mem_monitor operations = {
		sizeof(operations), monitor_start, monitor_stop, monitor_subscribe, monitor_unsubscribe, monitor_valid,
	};
	static struct fid_mem_monitor monitor = { .fid.fclass = FI_CLASS_MEM_MONITOR, .export_ops = &operations };
	struct opened opened;
	struct fid *cache;
	int imported;

	CHECK(fi_open(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &cache, NULL) == 0);
	imported = fi_import_fid(cache, &monitor.fid, 0);
	printf("own import: %d %s\n", imported, imported ? fi_strerror(-imported) : "");
	CHECK(fi_close(cache) == 0);
	opened = open_domain();
	use(opened.domain, map_at(lonely_address(), LENGTH), LENGTH);
	if (imported == 0)
		CHECK(fi_close(&monitor.fid) == 0);
	close_domain(&opened);
	printf("closed\n");
}

/* ---- The rest. ---- */

static void idle(int count)
{
	struct opened opened = open_domain();
	char *base = lonely_address(), *other = base + (1ul << 30);
	long before;

	for (int at = 0; at < count; at++)
		use(opened.domain, map_at(base + at * LENGTH, LENGTH), LENGTH);
	before = deregistrations();
	CHECK(munmap(base, count * LENGTH) == 0);
	/* The helper thread's period is 100 ms; libfabric deregisters at its next lookup. */
	usleep(500 * 1000);
	use(opened.domain, map_at(other, LENGTH), LENGTH);
	printf("unmapped %d deregistered %ld\n", count, deregistrations() - before);
	close_domain(&opened);
}

static void overflow(void)
{
	struct opened opened = open_domain();
	char *address = lonely_address(), *buffer = map_at(address, LENGTH);
	long before;

	use(opened.domain, buffer, LENGTH);
	for (int round = 0; round < 20000; round++) {
		/* Within the same granules of addresses as what is registered. */
		CHECK(munmap(buffer + LENGTH - PAGE, PAGE) == 0);
		map_at(buffer + LENGTH - PAGE, PAGE);
	}
	before = registrations();
	use(opened.domain, buffer, LENGTH);
	printf("stale %d\n", registrations() == before);
	before = registrations();
	use(opened.domain, buffer, LENGTH);
	printf("hits %d\n", registrations() == before);
	close_domain(&opened);
}

/* pwrite and mprotect with PROT_EXEC answer EPERM from now on. */
static void harden(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pwrite64, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void report(struct counts counts)
{
	printf("fresh %ld hits %ld stale %ld\n", counts.fresh, counts.hits, counts.stale);
}

/* What a registration does in the kernel, which the stand-in device does not: until the end. */
static void pin(void)
{
	struct io_uring_params params = { 0 };
	struct iovec buffer = { map_at(lonely_address(), LENGTH), LENGTH };
	long ring = syscall(SYS_io_uring_setup, 4, &params);

	CHECK(ring >= 0);
	CHECK(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &buffer, 1) == 0);
}

/* libfabric starts, and with it its providers. */
static void start(bool unseen)
{
	int (*ask)(struct fi_param **, int *) = fi_getparams;
	struct fi_param *parameters;
	void *libfabric;
	int count;

	if (unseen) {
		CHECK((libfabric = dlopen("libfabric.so.1", RTLD_LAZY | RTLD_NOLOAD)) != NULL);
		CHECK((*(void **) &ask = dlsym(libfabric, "fi_getparams")) != NULL);
	}
	CHECK(ask(&parameters, &count) == 0 && count > 0);
	fi_freeparams(parameters);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int count = argc > 2 ? atoi(argv[2]) : 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (strcmp(mode, "rounds") == 0 || strcmp(mode, "hardened") == 0 || strcmp(mode, "asked") == 0 ||
	    strcmp(mode, "unseen") == 0) {
		struct opened opened;

		if (strcmp(mode, "asked") == 0 || strcmp(mode, "unseen") == 0)
			start(strcmp(mode, "unseen") == 0);
		if (strcmp(mode, "hardened") == 0)
			harden();
		opened = open_domain();
		report(rounds(opened.domain, count, argc > 3 && strcmp(argv[3], "number") == 0));
		close_domain(&opened);
	} else if (strcmp(mode, "pinned") == 0) {
		struct opened opened;

		if (count > 0) {
			opened = open_domain();
			report(rounds(opened.domain, count, false));
		} else {
			open_fabric(&opened);
		}
		pin();
	} else if (strcmp(mode, "domains") == 0) {
		domains(count);
	} else if (strcmp(mode, "fork") == 0) {
		forks();
	} else if (strcmp(mode, "close") == 0) {
		closes();
	} else if (strcmp(mode, "again") == 0) {
		for (int start = 0; start < 3; start++) {
			struct opened opened = open_domain();

			report(rounds(opened.domain, 50, false));
			close_domain(&opened);
		}
	} else if (strcmp(mode, "idle") == 0) {
		idle(count);
	} else if (strcmp(mode, "overflow") == 0) {
		overflow();
	} else {
		fprintf(stderr, "unknown mode '%s'\n", mode);
		return 2;
	}
	printf("completed\n");
	return 0;
}
