/*
 * A ring of MPI ranks. Every round each rank maps buffers, registers them, passes a page
 * on to its right, checks what came from its left, and unmaps them: the pattern of a
 * program whose allocator gives memory back.
 *
 *   mpirun -n 2 ring [ROUNDS]           changes of the mapping are noticed
 *   mpirun -n 2 ring ROUNDS notify      where libc may not be patched: the program tells of them
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <mpi.h>
#include <pinyard.h>

enum { WORDS = 16 * 1024, MESSAGES = 4 };

static int rank, size, notify;

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "ring: rank %d: %s: %s\n", rank, what, why);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

#define CHECK(call) \
	do { \
		if ((call) != PNY_OK) \
			fail(#call, pny_last_error()); \
	} while (0)

static uint64_t *map_words(void)
{
	void *at = mmap(NULL, WORDS * sizeof(uint64_t), PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		fail("mmap", "no memory");
	return (uint64_t *) at;
}

/* Nobody sees it where libc may not be patched: the registry is told before. */
static void unmap(void *at, size_t length)
{
	if (notify)
		pny_notify_unmapped(at, length);
	munmap(at, length);
}

/* Real pinning with no network card: io_uring, or mlock where the system refuses that. */
static pny_registry create(void)
{
	pny_registry_config config;
	pny_registry registry;
	pny_status status;

	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.backend = PNY_BACKEND_IO_URING;
	config.flags = notify ? PNY_NOTIFY_ONLY : 0;
	status = pny_registry_create(&config, &registry);
	if (status == PNY_ERR_REFUSED) {
		if (rank == 0)
			printf("io_uring is refused, mlock instead: %s\n", pny_last_error());
		config.backend = PNY_BACKEND_MLOCK;
		status = pny_registry_create(&config, &registry);
	}
	CHECK(status);
	return registry;
}

static void pass_on(pny_registry registry, uint64_t round)
{
	const size_t length = WORDS * sizeof(uint64_t);
	const int right = (rank + 1) % size, left = (rank + size - 1) % size;
	uint64_t *mine = map_words(), *theirs = map_words();

	for (uint64_t message = 0; message < MESSAGES; message++) {
		pny_lease sends, receives;

		for (uint64_t word = 0; word < WORDS; word++)
			mine[word] = (round << 32) + (message << 24) + ((uint64_t) rank << 16) + word;
		CHECK(pny_get(registry, mine, length, PNY_LOCAL_READ, &sends));
		CHECK(pny_get(registry, theirs, length, PNY_LOCAL_WRITE, &receives));
		MPI_Sendrecv(mine, WORDS, MPI_UINT64_T, right, 0, theirs, WORDS, MPI_UINT64_T, left, 0,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(pny_put(&sends));
		CHECK(pny_put(&receives));
		for (uint64_t word = 0; word < WORDS; word++)
			if (theirs[word] !=
			    (round << 32) + (message << 24) + ((uint64_t) left << 16) + word)
				fail("what came from the left", "not what it sent");
	}
	unmap(mine, length);
	unmap(theirs, length);
}

int main(int argc, char **argv)
{
	uint64_t rounds, total[3], sums[3];
	pny_registry_counts counts;
	pny_registry registry;

	notify = argc > 2 && strcmp(argv[2], "notify") == 0;
	if (!notify)
		CHECK(pny_init()); /* The hooks first: MPI's own then ride on them. */
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (!notify)
		CHECK(pny_hooks_verify()); /* What MPI has loaded may have patched libc. */
	rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 200;

	registry = create();
	for (uint64_t round = 0; round < rounds; round++)
		pass_on(registry, round);

	memset(&counts, 0, sizeof(counts));
	counts.size = sizeof(counts);
	CHECK(pny_registry_stats(registry, &counts));
	/* Whatever address a buffer has, its pages are new: none may be a hit at first. */
	if (counts.registrations - counts.merges < rounds || counts.misses < rounds)
		fail("registrations", "fewer than rounds: a stale one was served");
	if (counts.hits + counts.misses != 2 * MESSAGES * rounds)
		fail("hits and misses", "do not add up");
	CHECK(pny_registry_destroy(registry));
	total[0] = counts.hits;
	total[1] = counts.misses;
	total[2] = counts.registrations;
	MPI_Reduce(total, sums, 3, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks, %" PRIu64 " rounds: %" PRIu64 " hits, %" PRIu64 " misses, %" PRIu64
		       " registrations\ncompleted\n",
		       size, rounds, sums[0], sums[1], sums[2]);
	MPI_Finalize();
	if (!notify)
		CHECK(pny_finalize());
	return 0;
}
