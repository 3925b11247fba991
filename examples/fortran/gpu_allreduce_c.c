/*
 * What a Fortran program adds to call libpinyard_mpi: MPI's handles are integers in Fortran,
 * and of a type of each MPI's own in C.
 */
#include <pinyard_mpi.h>

pny_status of_fortran_comm_create(MPI_Fint ranks, int device, pny_mpi_comm *made)
{
	return pny_mpi_comm_create(MPI_Comm_f2c(ranks), device, made);
}

pny_status of_fortran_allreduce(const void *from, void *to, int count, MPI_Fint of, MPI_Fint operation,
				pny_mpi_comm comm)
{
	return pny_mpi_allreduce(from, to, count, MPI_Type_f2c(of), MPI_Op_f2c(operation), comm, NULL);
}
