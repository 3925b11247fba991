/*
 * Mistakes of a program's own between MPI_Init and MPI_Finalize, which the run under valgrind
 * must notice: `leak`, `read` or `use`.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	volatile int *numbers;
	int seen = 0;

	MPI_Init(&argc, &argv);
	numbers = malloc(4 * sizeof *numbers);
	if (!numbers)
		return 1;
	if (!strcmp(what, "read"))
		seen = numbers[4];
	if (!strcmp(what, "use") && numbers[0] > 0)
		seen = 1;
	if (strcmp(what, "leak"))
		free((void *) numbers);
	numbers = NULL;
	MPI_Finalize();
	printf("completed\n");
	return seen > 1 << 30;
}
