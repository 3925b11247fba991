/*
 * Broadcasts of blocks of a pool whose slabs are registered once: every round each rank
 * takes a block of another size, has its key without registering anything, and gives it back
 * after the broadcast. malloc in its place would hand out pages that nothing has registered.
 *
 *   mpirun -n 2 bcast [ROUNDS]
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>
#include <pinyard.h>

enum { SLAB = 2 * 1024 * 1024, MOST = 100 * 1000 };

static int rank, size;

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "bcast: rank %d: %s: %s\n", rank, what, why);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

#define CHECK(call) \
	do { \
		if ((call) != PNY_OK) \
			fail(#call, pny_last_error()); \
	} while (0)

static unsigned char value(uint64_t round, size_t at)
{
	return (unsigned char) (round * 131 + at * 7);
}

static void broadcast(pny_pool pool, uint64_t round)
{
	const size_t bytes = 1 + (size_t) (round * 7919 % MOST);
	const int root = (int) (round % (uint64_t) size);
	pny_block_place place;
	unsigned char *block;
	void *at;

	CHECK(pny_pool_alloc(pool, bytes, NULL, &at));
	block = (unsigned char *) at;
	/* What a transport would hand to the card: the slab's key, and where in it. */
	memset(&place, 0, sizeof(place));
	place.size = sizeof(place);
	CHECK(pny_pool_find(pool, block, &place));
	if (place.slab_base + place.offset != (uint64_t) (uintptr_t) block)
		fail("pny_pool_find", "another block");
	for (size_t byte = 0; byte < bytes; byte++)
		block[byte] = rank == root ? value(round, byte) : 0;
	MPI_Bcast(block, (int) bytes, MPI_BYTE, root, MPI_COMM_WORLD);
	for (size_t byte = 0; byte < bytes; byte++)
		if (block[byte] != value(round, byte))
			fail("what came from the root", "not what it sent");
	CHECK(pny_pool_free(pool, block));
}

int main(int argc, char **argv)
{
	pny_registry_config config;
	pny_pool_config pool_config;
	pny_registry_counts counts;
	pny_pool_counts slabs;
	pny_registry registry;
	pny_pool pool;
	uint64_t rounds;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 200;

	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.backend = PNY_BACKEND_MLOCK; /* A card's would be PNY_BACKEND_VERBS, _UCX, _LIBFABRIC. */
	config.flags = PNY_NOTIFY_ONLY; /* Nobody but the pool unmaps a slab: no hooks are needed. */
	CHECK(pny_registry_create(&config, &registry));
	memset(&pool_config, 0, sizeof(pool_config));
	pool_config.size = sizeof(pool_config);
	pool_config.memory = PNY_MEMORY_HOST;
	pool_config.registry = registry;
	pool_config.slab_bytes = SLAB;
	CHECK(pny_pool_create(&pool_config, &pool));

	for (uint64_t round = 0; round < rounds; round++)
		broadcast(pool, round);

	memset(&counts, 0, sizeof(counts));
	counts.size = sizeof(counts);
	CHECK(pny_registry_stats(registry, &counts));
	memset(&slabs, 0, sizeof(slabs));
	slabs.size = sizeof(slabs);
	CHECK(pny_pool_stats(pool, &slabs));
	if (counts.registrations != slabs.slabs_made || (rounds >= 100 && slabs.slabs_made * 20 > rounds))
		fail("registrations", "a slab is registered once, and serves many rounds");
	CHECK(pny_pool_destroy(pool));
	CHECK(pny_registry_destroy(registry));
	if (rank == 0)
		printf("%d ranks, %" PRIu64 " rounds, %" PRIu64 " registrations each\ncompleted\n", size, rounds,
		       counts.registrations);
	MPI_Finalize();
	return 0;
}
