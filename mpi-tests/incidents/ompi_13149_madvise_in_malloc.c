/*
 * open-mpi/ompi#13149, ofiwg/libfabric#10879: Open MPI's import monitor tells
 * libfabric's registration cache of a madvise from inside the call; the cache
 * holds its lock while it allocates; an allocator that calls madvise then hangs
 * the rank on its own lock, in the first broadcast of a new buffer.
 *
 * Run under mpirun with `--mca pml cm --mca mtl ofi`, which makes Open MPI
 * import its monitor, and with the stand-in device preloaded. The registrations
 * that a verbs fabric would make inside MPI_Bcast are made here by hand, on a
 * domain of the verbs provider: Open MPI's own traffic goes over TCP.
 */
#include <string.h>
#include <stdio.h>

#include <mpi.h>

#include "incident.h"

static int rank;

static char expected(size_t at, int round)
{
	return (char) (at * 31 + (size_t) round * 7 + 1);
}

static void broadcast(char *buffer, size_t length, int round)
{
	size_t at;

	for (at = 0; at < length; at++)
		buffer[at] = rank == 0 ? expected(at, round) : 0;
	CHECK(MPI_Bcast(buffer, (int) length, MPI_CHAR, 0, MPI_COMM_WORLD) == MPI_SUCCESS, "round %d", round);
	for (at = 0; at < length; at++)
		CHECK(buffer[at] == expected(at, round), "byte %zu of round %d on rank %d", at, round, rank);
}

int main(int argc, char **argv)
{
	/* With `pinyard`, its monitor is imported here: before MPI_Init. */
	enum mode mode = incident_begin(argc, argv);
	struct fid_domain *domain;
	int provided;
	int ranks;

	MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	CHECK(ranks == 2, "run with 2 ranks, not %d", ranks);
	domain = incident_open_domain();

	incident_run(mode, domain, broadcast);

	CHECK_FI(fi_close(&domain->fid));
	printf("rank %d completed, every byte of every broadcast verified\n", rank);
	fflush(stdout);
	MPI_Finalize();
	return 0;
}
