/*
 * Rows of a grid over MPI ranks, whose borders the neighbours need at every step: the four
 * rows that travel are looked up in the cache at each step, and registered at the first.
 * The grid is moved in between, as a program that refines it would do, and nothing has to be
 * told of that.
 *
 *   mpirun -n 2 halo_exchange [STEPS]
 *   mpirun -n 2 halo_exchange STEPS notify   where libc may not be patched: it is told
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <mpi.h>
#include <pinyard.h>

enum { ROWS = 16, COLUMNS = 1024 };

static int rank, size, notify;

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "halo_exchange: rank %d: %s: %s\n", rank, what, why);
	MPI_Abort(MPI_COMM_WORLD, 1);
	exit(1);
}

#define CHECK(call) \
	do { \
		if ((call) != PNY_OK) \
			fail(#call, pny_last_error()); \
	} while (0)

/* ROWS of this rank's own, after one of the rank above and before one of the rank below. */
static double *map_grid(void)
{
	void *at = mmap(NULL, (ROWS + 2) * COLUMNS * sizeof(double), PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		fail("mmap", "no memory");
	return (double *) at;
}

/* Nobody sees it where libc may not be patched: the registry is told before. */
static void unmap(void *at, size_t length)
{
	if (notify)
		pny_notify_unmapped(at, length);
	munmap(at, length);
}

static double *row(double *grid, int number)
{
	return grid + (size_t) number * COLUMNS;
}

/* Sends a row to one neighbour and receives one of the other, both registered meanwhile. */
static void pass(pny_registry registry, double *sent, int to, double *received, int from)
{
	pny_lease out, in;

	CHECK(pny_get(registry, sent, COLUMNS * sizeof(double), PNY_LOCAL_READ, &out));
	CHECK(pny_get(registry, received, COLUMNS * sizeof(double), PNY_LOCAL_WRITE, &in));
	MPI_Sendrecv(sent, COLUMNS, MPI_DOUBLE, to, 0, received, COLUMNS, MPI_DOUBLE, from, 0, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
	CHECK(pny_put(&out));
	CHECK(pny_put(&in));
}

/* The mean of both neighbours, which a slope keeps as it is: a wrong row would show. */
static void relax(double *to, double *from)
{
	for (int number = 1; number <= ROWS; number++)
		for (int column = 0; column < COLUMNS; column++)
			row(to, number)[column] = (row(from, number - 1)[column] + row(from, number + 1)[column]) / 2;
}

static double slope(int number, int column)
{
	return rank * ROWS + number + column * 0.25;
}

static void fill(double *grid, int first, int last)
{
	for (int number = first; number <= last; number++)
		for (int column = 0; column < COLUMNS; column++)
			row(grid, number)[column] = slope(number, column);
}

int main(int argc, char **argv)
{
	const size_t bytes = (ROWS + 2) * COLUMNS * sizeof(double);
	pny_registry_config config;
	pny_registry_counts counts;
	pny_registry registry;
	double *grid, *next;
	int above, below;
	uint64_t steps;

	notify = argc > 2 && strcmp(argv[2], "notify") == 0;
	if (!notify)
		CHECK(pny_init()); /* The hooks first: MPI's own then ride on them. */
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (!notify)
		CHECK(pny_hooks_verify());
	above = rank > 0 ? rank - 1 : MPI_PROC_NULL;
	below = rank + 1 < size ? rank + 1 : MPI_PROC_NULL;
	steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 200;

	memset(&config, 0, sizeof(config));
	config.size = sizeof(config);
	config.backend = PNY_BACKEND_MLOCK; /* A card's would be PNY_BACKEND_VERBS, _UCX, _LIBFABRIC. */
	config.flags = notify ? PNY_NOTIFY_ONLY : 0;
	CHECK(pny_registry_create(&config, &registry));

	grid = map_grid();
	fill(grid, 0, ROWS + 1);
	for (uint64_t step = 0; step < steps; step++) {
		pass(registry, row(grid, 1), above, row(grid, ROWS + 1), below);
		pass(registry, row(grid, ROWS), below, row(grid, 0), above);
		next = map_grid();
		relax(next, grid);
		/* The outer border is nobody's to send. */
		memcpy(row(next, 0), row(grid, 0), COLUMNS * sizeof(double));
		memcpy(row(next, ROWS + 1), row(grid, ROWS + 1), COLUMNS * sizeof(double));
		unmap(grid, bytes);
		grid = next;
	}
	for (int number = 1; number <= ROWS; number++)
		for (int column = 0; column < COLUMNS; column++)
			if (row(grid, number)[column] != slope(number, column))
				fail("the grid", "a row of another step, or of another rank");
	unmap(grid, bytes);

	memset(&counts, 0, sizeof(counts));
	counts.size = sizeof(counts);
	CHECK(pny_registry_stats(registry, &counts));
	/* Every step has new pages, at whatever addresses. */
	if (counts.misses < steps || counts.hits + counts.misses != 4 * steps)
		fail("hits and misses", "a row of an earlier step was served");
	CHECK(pny_registry_destroy(registry));
	if (rank == 0)
		printf("%d ranks, %" PRIu64 " steps: %" PRIu64 " hits, %" PRIu64 " misses\ncompleted\n", size, steps,
		       counts.hits, counts.misses);
	MPI_Finalize();
	if (!notify)
		CHECK(pny_finalize());
	return 0;
}
