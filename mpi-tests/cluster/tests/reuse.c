/* Memory whose pages are replaced between two operations, every word checked.
 *
 *   reuse BYTES ROUNDS
 *
 * Five ways of replacing pages under three operations. Prints the wrong rounds of each, and
 * of all. Exits with 0 if MPI ran to its end, whatever the data. */
#define _GNU_SOURCE
#include <malloc.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static const char *const ways[] = { "mmap, munmap", "malloc, free", "realloc", "MADV_DONTNEED", "mremap" };
static const char *const operations[] = { "bcast", "sendrecv", "allreduce" };
enum { MMAP, MALLOC, REALLOC, DONTNEED, MREMAP, WAYS };
enum { BCAST, SENDRECV, ALLREDUCE, OPERATIONS };

static void *mapped(size_t length)
{
	void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		MPI_Abort(MPI_COMM_WORLD, 2);
	return at;
}

static unsigned *take(int way, int round, size_t length, void *kept)
{
	switch (way) {
	case MALLOC: return malloc(length);
	case REALLOC: return realloc(kept, length + (size_t) (round % 3) * 4096);
	case DONTNEED: return kept ? kept : mapped(length);
	default: return mapped(length);
	}
}

/* What is there in the next round, or NULL. */
static void *replace(int way, void *buffer, size_t length)
{
	switch (way) {
	case MALLOC:
		free(buffer);
		malloc_trim(0);
		return NULL;
	case REALLOC: return buffer;
	case DONTNEED:
		madvise(buffer, length, MADV_DONTNEED);
		return buffer;
	case MREMAP:
		munmap(mremap(buffer, length, 2 * length, MREMAP_MAYMOVE), 2 * length);
		return NULL;
	default:
		munmap(buffer, length);
		return NULL;
	}
}

/* Whether a word is wrong. `other` is a buffer that nobody replaces. */
static int run(int operation, unsigned *buffer, unsigned *other, size_t words, unsigned round)
{
	int rank, bytes = (int) (words * sizeof *buffer), bad = 0;

	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (unsigned at = 0; at < words; at++) {
		other[at] = (unsigned) rank * 77 + round * 1000003 + at;
		buffer[at] = operation == ALLREDUCE || (operation == BCAST && rank == 0) ? other[at] : 0xeeeeeeee;
	}
	if (operation == BCAST)
		MPI_Bcast(buffer, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
	else if (operation == SENDRECV)
		MPI_Sendrecv(other, bytes, MPI_BYTE, rank ^ 1, 1, buffer, bytes, MPI_BYTE, rank ^ 1, 1, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
	else
		MPI_Allreduce(buffer, other, (int) words, MPI_UNSIGNED, MPI_SUM, MPI_COMM_WORLD);
	for (unsigned at = 0; at < words; at++) {
		unsigned base = round * 1000003 + at;

		if (operation == BCAST)
			bad |= buffer[at] != base;
		else if (operation == SENDRECV)
			bad |= buffer[at] != (unsigned) (rank ^ 1) * 77 + base;
		else
			bad |= other[at] != 77 + 2 * base;
	}
	return bad;
}

int main(int argc, char **argv)
{
	int rank, ranks, rounds, all = 0;
	size_t length;
	unsigned *other;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc < 3 || ranks != 2) {
		fprintf(stderr, "usage: two ranks of reuse BYTES ROUNDS\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	length = strtoul(argv[1], NULL, 0);
	rounds = atoi(argv[2]);
	other = malloc(length);
	for (int way = 0; way < WAYS; way++) {
		for (int operation = 0; operation < OPERATIONS; operation++) {
			void *kept = NULL;
			int wrong = 0;

			for (int round = 1; round <= rounds; round++) {
				unsigned *buffer = take(way, round, length, kept);
				int bad = run(operation, buffer, other, length / sizeof *buffer, (unsigned) round), any;

				kept = replace(way, buffer, length);
				MPI_Allreduce(&bad, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
				wrong += any;
			}
			if (way == REALLOC)
				free(kept);
			else if (kept)
				munmap(kept, length);
			if (rank == 0)
				printf("%-14s %-10s %d of %d wrong\n", ways[way], operations[operation], wrong, rounds);
			all += wrong;
		}
	}
	if (rank == 0)
		printf("reuse: %d of %d rounds wrong\n", all, WAYS * OPERATIONS * rounds);
	free(other);
	MPI_Finalize();
	return 0;
}
