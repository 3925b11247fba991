/* Preloaded: counts what reaches a real device, under the names of the stand-in's counts
 * (mpi-tests/incidents/stand_in/fakeverbs.c). With COUNT_LOG set, says so at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#undef ibv_reg_mr
static atomic_long registrations, deregistrations;

long fakeverbs_registrations(void);
long fakeverbs_deregistrations(void);
long fakeverbs_registrations(void) { return registrations; }
long fakeverbs_deregistrations(void) { return deregistrations; }

static void *next(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	/* A plugin's own dependency is not behind us in the global scope. */
	if (!found)
		found = dlsym(dlopen("libibverbs.so.1", RTLD_NOW), name);
	if (!found)
		abort();
	return found;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *at, size_t len, int access)
{
	static struct ibv_mr *(*real)(struct ibv_pd *, void *, size_t, int);

	if (!real)
		*(void **)&real = next("ibv_reg_mr");
	struct ibv_mr *region = real(pd, at, len, access);
	registrations += region != NULL;
	return region;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *at, size_t len, uint64_t iova, unsigned access)
{
	static struct ibv_mr *(*real)(struct ibv_pd *, void *, size_t, uint64_t, unsigned);

	if (!real)
		*(void **)&real = next("ibv_reg_mr_iova2");
	struct ibv_mr *region = real(pd, at, len, iova, access);
	registrations += region != NULL;
	return region;
}

int ibv_dereg_mr(struct ibv_mr *region)
{
	static int (*real)(struct ibv_mr *);

	if (!real)
		*(void **)&real = next("ibv_dereg_mr");
	int status = real(region);
	deregistrations += status == 0;
	return status;
}
