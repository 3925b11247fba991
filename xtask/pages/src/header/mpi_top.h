/*
 * pinyard_mpi: MPI on device buffers, whatever the MPI.
 *
 * Bcast and its family for memory of a GPU that no CUDA-aware MPI is needed for: copies
 * from device to device on a node, a pipeline of pinned chunks between nodes, or the
 * pointer itself where MPI takes it. Any device memory: a pny_pool's, cudaMalloc's,
 * PyTorch's, CuPy's. Begin with pny_mpi_comm_create; docs/src/gpu-mpi.md has an example.
 *
 * One library for each MPI, as mpi.h is one's: libpinyard_mpi_openmpi, libpinyard_mpi_mpich,
 * and libpinyard_mpi_abi for every MPI that has the standard ABI (MPI 5.0, compiled with
 * mpicc_abi). A program links the one of its mpi.h.
 *
 * Errors: a function that returns pny_status returns PNY_OK or says why not, and
 * pny_mpi_last_error() has the exact cause. Handles that are null, were destroyed, or never
 * were any are refused with a status. Other pointers and MPI's handles are used as they
 * are: what follows "Requires:" is the caller's.
 *
 * Ownership: buffers stay the caller's, who may free them when a call has returned; nobody
 * has them open then. A communicator is given back by pny_mpi_comm_destroy.
 *
 * Units: counts are of elements, as MPI's; sizes are in bytes.
 *
 * The last line of each function's comment says who may call it, in the words of
 * attributes(7).
 *
 * Operations: those that block, with one count for all ranks; the Rust crate has the others.
 *
 * Threads: one at a time in a communicator; see pny_mpi_comm. All functions block.
 *
 * Signals: nothing here may be called in a signal handler.
 *
 * fork: a child has MPI's rules, and every communicator of its parent's is refused
 * (PNY_ERR_FORKED).
 *
 * Made of mpi/c/src by xtask/ci/header.sh.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef PINYARD_MPI_H
#define PINYARD_MPI_H

#include <mpi.h>
#include <pinyard.h>

#ifdef __cplusplus
extern "C" {
#endif
