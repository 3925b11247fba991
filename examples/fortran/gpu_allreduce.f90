! The sum of every rank's device memory, from Fortran: gpu_allreduce_c.c makes C's handles of
! MPI's.
!
!   PINYARD_DRIVER=simulated mpirun -n 2 gpu_allreduce
!
! A simulated device's memory is read and written here as the host's; a GPU's is CUDA
! Fortran's or OpenACC's to fill.
program gpu_allreduce
    use, intrinsic :: iso_c_binding
    use mpi
    use pinyard
    implicit none

    interface
        function of_fortran_comm_create(ranks, device, made) bind(c) result(status)
            import
            integer(c_int), value :: ranks, device
            type(c_ptr), intent(out) :: made
            integer(c_int) :: status
        end function
        function of_fortran_allreduce(from, to, count, of, operation, comm) bind(c) result(status)
            import
            type(c_ptr), value :: from, to, comm
            integer(c_int), value :: count, of, operation
            integer(c_int) :: status
        end function
        function pny_mpi_comm_destroy(comm) bind(c) result(status)
            import
            type(c_ptr), value :: comm
            integer(c_int) :: status
        end function
    end interface

    integer, parameter :: cells = 10000
    real(c_double), pointer :: mine(:), sums(:)
    type(c_ptr) :: comm, from, to
    integer :: rank, ranks, error

    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
    call check(of_fortran_comm_create(MPI_COMM_WORLD, 0_c_int, comm), "comm_create")

    from = pny_torch_malloc(cells * c_sizeof(0.0_c_double), 0_c_int, c_null_ptr)
    to = pny_torch_malloc(cells * c_sizeof(0.0_c_double), 0_c_int, c_null_ptr)
    call c_f_pointer(from, mine, [cells])
    call c_f_pointer(to, sums, [cells])
    mine = rank + 1
    call check(of_fortran_allreduce(from, to, cells, MPI_DOUBLE_PRECISION, MPI_SUM, comm), "allreduce")
    if (any(nint(sums) /= ranks * (ranks + 1) / 2)) call check(-1, "the sums")

    call check(pny_mpi_comm_destroy(comm), "comm_destroy")
    call pny_torch_free(from, 0_c_size_t, 0_c_int, c_null_ptr)
    call pny_torch_free(to, 0_c_size_t, 0_c_int, c_null_ptr)
    if (rank == 0) print "(a)", "completed"
    call MPI_Finalize(error)

contains

    subroutine check(status, what)
        integer(c_int), intent(in) :: status
        character(*), intent(in) :: what
        integer :: ignored
        if (status == 0) return
        print "(a, i0, a, i0)", "gpu_allreduce: rank ", rank, ": " // what // ": ", status
        call MPI_Abort(MPI_COMM_WORLD, 1, ignored)
    end subroutine
end program
