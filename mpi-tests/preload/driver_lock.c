/*
 * ofiwg/libfabric#9003: one thread is in the CUDA driver, holds the driver's lock and
 * unmaps; another is in libfabric's cache, holds the cache's lock and calls the driver.
 *
 * The driver is a lock here. The second thread takes it where libfabric, without CUDA,
 * calls out of its cache with the cache's lock held: in an allocation.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include "../incidents/watchdog.h"

#define PAGE 4096ul
#define LENGTH (16 * PAGE)
#define ROUNDS 200
#define EXIT_HANG 42
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s does not hold (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			_exit(1); \
		} \
	} while (0)

static pthread_mutex_t driver = PTHREAD_MUTEX_INITIALIZER;
static __thread bool registering;
/* The first thread is in the driver; the second waits for it. */
static atomic_bool held, waiting, ended;
static atomic_long calls, met;
/* What a thread is in, for the watchdog. */
static _Atomic(const char *) first = "nothing", second = "nothing";

extern void *__libc_malloc(size_t);

/* cuPointerGetAttribute, from inside fi_mr_reg. */
static void call_driver(void)
{
	second = "fi_mr_reg, waiting for the driver";
	waiting = true;
	pthread_mutex_lock(&driver);
	waiting = false;
	calls++;
	pthread_mutex_unlock(&driver);
	second = "fi_mr_reg";
}

void *malloc(size_t size)
{
	if (registering)
		call_driver();
	return __libc_malloc(size);
}

/* The driver at work, as in cuMemFree or NCCL's set-up: it unmaps when the other waits for
 * it, with the cache's lock held. */
static void *in_driver(void *argument)
{
	while (!ended) {
		char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		CHECK(page != MAP_FAILED);
		pthread_mutex_lock(&driver);
		held = true;
		for (int look = 0; look < 1000 && !waiting && !ended; look++)
			usleep(100);
		met += waiting;
		first = "munmap, with the driver's lock";
		CHECK(munmap(page, PAGE) == 0);
		first = "nothing";
		held = false;
		pthread_mutex_unlock(&driver);
		usleep(100);
	}
	return argument;
}

static void on_hang(void)
{
	const char *parts[] = { "watchdog: hang; one thread in ", first, "; the other in ", second, "\n" };

	for (size_t part = 0; part < sizeof(parts) / sizeof(*parts); part++)
		if (write(STDERR_FILENO, parts[part], strlen(parts[part])) < 0)
			break;
	_exit(EXIT_HANG);
}

static struct fid_domain *open_domain(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;

	CHECK(hints);
	hints->fabric_attr->prov_name = strdup("verbs");
	hints->ep_attr->type = FI_EP_DGRAM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->mode = ~0ull;
	CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == 0);
	CHECK(fi_fabric(info->fabric_attr, &fabric, NULL) == 0);
	CHECK(fi_domain(fabric, info, &domain, NULL) == 0);
	return domain;
}

int main(void)
{
	struct fid_domain *domain = open_domain();
	char *buffer = mmap(NULL, 2 * ROUNDS * LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t thread;

	CHECK(buffer != MAP_FAILED);
	watchdog_start(CLOCK_PROCESS_CPUTIME_ID, on_hang);
	CHECK(pthread_create(&thread, NULL, in_driver, NULL) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		struct fid_mr *region;

		watchdog_feed();
		while (!held)
			usleep(50);
		second = "fi_mr_reg";
		registering = true;
		/* Apart, so that each has a node of its own. */
		CHECK(fi_mr_reg(domain, buffer + 2 * round * LENGTH, LENGTH, FI_SEND, 0, 0, 0, &region, NULL) == 0);
		registering = false;
		second = "nothing";
		CHECK(fi_close(&region->fid) == 0);
	}
	ended = true;
	CHECK(pthread_join(thread, NULL) == 0);
	/* The two locks were asked for in both orders. */
	CHECK(calls >= ROUNDS && met >= ROUNDS / 2);
	printf("completed: %d registrations, %ld calls of the driver, %ld changes in it meanwhile\n", ROUNDS, calls, met);
	return 0;
}
