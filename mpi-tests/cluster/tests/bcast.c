/* MPI_Bcast from rank 0, checked in every round.
 *
 *   bcast BYTES ROUNDS [fresh]     fresh: the buffer is mapped and unmapped each round
 *
 * Prints the rounds whose data was wrong on any rank, and those whose address was the
 * round's before; with count.c preloaded also the registrations of the rank that made
 * the most after its second round. Exits with 0 if MPI ran to its end, whatever the
 * data. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Of count.c, where it is preloaded. */
__attribute__((weak)) long fakeverbs_registrations(void);

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	if (argc < 3) {
		fprintf(stderr, "usage: bcast BYTES ROUNDS [fresh]\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	size_t len = strtoul(argv[1], NULL, 0);
	int rounds = atoi(argv[2]), fresh = argc > 3, rank, again = 0, wrong = 0, first = 0;
	long before = 0, registered = 0, most;
	unsigned char *buffer = NULL, *last = NULL;

	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int round = 1; round <= rounds; round++) {
		int bad = 0, any;

		if (fresh || !buffer)
			buffer = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (buffer == MAP_FAILED) {
			perror("mmap");
			MPI_Abort(MPI_COMM_WORLD, 2);
		}
		again += buffer == last;
		last = buffer;
		memset(buffer, rank == 0 ? round : 0xee, len);
		MPI_Bcast(buffer, (int)len, MPI_BYTE, 0, MPI_COMM_WORLD);
		for (size_t at = 0; at < len && !bad; at++)
			bad = buffer[at] != (unsigned char)round;
		if (fresh)
			munmap(buffer, len);
		MPI_Allreduce(&bad, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
		wrong += any;
		first += any && round == 1;
		/* The first two rounds connect, and set up what MPI itself registers. */
		if (fakeverbs_registrations && round == 2)
			before = fakeverbs_registrations();
	}
	if (fakeverbs_registrations)
		registered = fakeverbs_registrations() - before;
	MPI_Allreduce(&registered, &most, 1, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
	int repeats;
	MPI_Allreduce(&again, &repeats, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	if (rank == 0)
		printf("bcast: %d rounds of %zu bytes, %d wrong, first round %s, address repeated in %d\n", rounds, len,
		       wrong, first ? "wrong" : "right", repeats);
	if (rank == 0 && fakeverbs_registrations)
		printf("registrations: %ld in %d rounds\n", most, rounds - 2);
	MPI_Finalize();
	return 0;
}
