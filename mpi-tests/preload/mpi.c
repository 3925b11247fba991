/*
 * An MPI program that knows nothing of pinyard. libfabric registers on a domain of the
 * stand-in device beside MPI's own traffic.
 *
 *   late    libfabric is used, then MPI starts and imports its monitor, then it goes on
 *   again   MPI starts and ends, then libfabric is used anew
 *   bcast N N rounds of mmap, MPI_Bcast and munmap, every byte checked
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mpi.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#define LENGTH 258048ul
#define ROUNDS 100
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
			_exit(1); \
		} \
	} while (0)

static long registrations(void)
{
	long (*count)(void);

	*(void **) &count = dlsym(RTLD_DEFAULT, "fakeverbs_registrations");
	CHECK(count);
	return count();
}

static struct fid_domain *open_domain(void)
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
	return domain;
}

static char *map(char *at)
{
	char *buffer = mmap(at, LENGTH, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);

	CHECK(buffer != MAP_FAILED && (!at || buffer == at));
	return buffer;
}

/* New pages at one address, registered twice each round. */
static void rounds(struct fid_domain *domain, const char *when)
{
	size_t gap = 1ul << 32;
	char *address = mmap(NULL, gap, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	long hits = 0, stale = 0;

	CHECK(address != MAP_FAILED && munmap(address, gap) == 0);
	address += gap / 2;
	for (int round = 0; round < ROUNDS; round++) {
		char *buffer = map(address);

		for (int use = 0; use < 2; use++) {
			long before = registrations();
			struct fid_mr *region;

			CHECK(fi_mr_reg(domain, buffer, LENGTH, FI_SEND | FI_RECV, 0, 0, 0, &region, NULL) == 0);
			CHECK(fi_close(&region->fid) == 0);
			if (registrations() == before)
				use == 0 ? stale++ : hits++;
		}
		CHECK(munmap(buffer, LENGTH) == 0);
	}
	printf("%s: hits %ld of %d stale %ld\n", when, hits, ROUNDS, stale);
	CHECK(stale == 0);
}

static void broadcasts(int count)
{
	int rank, bad = 0;

	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int round = 0; round < count; round++) {
		char *buffer = map(NULL);

		memset(buffer, rank == 0 ? round + 1 : 0xee, LENGTH);
		CHECK(MPI_Bcast(buffer, LENGTH, MPI_BYTE, 0, MPI_COMM_WORLD) == MPI_SUCCESS);
		for (size_t at = 0; at < LENGTH; at++)
			if (buffer[at] != (char) (round + 1)) {
				bad++;
				break;
			}
		CHECK(munmap(buffer, LENGTH) == 0);
	}
	printf("bad rounds %d of %d\n", bad, count);
	CHECK(bad == 0);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	struct fid_domain *domain = NULL;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (strcmp(mode, "late") == 0) {
		domain = open_domain();
		rounds(domain, "before MPI_Init");
	}
	MPI_Init(&argc, &argv);
	broadcasts(argc > 2 ? atoi(argv[2]) : 10);
	if (domain)
		rounds(domain, "after MPI_Init");
	MPI_Finalize();
	if (domain) {
		rounds(domain, "after MPI_Finalize");
		CHECK(fi_close(&domain->fid) == 0);
	}
	if (strcmp(mode, "again") == 0) {
		for (int start = 0; start < 2; start++) {
			domain = open_domain();
			rounds(domain, "anew after MPI_Finalize");
			CHECK(fi_close(&domain->fid) == 0);
		}
	}
	printf("completed\n");
	return 0;
}
