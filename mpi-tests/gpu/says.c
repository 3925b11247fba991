/*
 * In front of an MPI (LD_PRELOAD): what one that takes device pointers says of itself, by
 * the standard's kinds of memory (KINDS) or by the function that Open MPI and MPICH have.
 */
#include <mpi.h>
#include <string.h>

#ifdef KINDS
int MPI_Info_get(MPI_Info info, const char *key, int length, char *value, int *found)
{
	static const char kinds[] = "system,mpi,cuda:device";

	if (strcmp(key, "mpi_memory_alloc_kinds") || length < (int)sizeof(kinds) - 1)
		return PMPI_Info_get(info, key, length, value, found);
	memcpy(value, kinds, sizeof(kinds));
	*found = 1;
	return MPI_SUCCESS;
}
#else
int MPIX_Query_cuda_support(void)
{
	return 1;
}
#endif
