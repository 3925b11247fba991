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

/* ---- Errors -------------------------------------------------------------------------- */

/*
 * Why the calling thread's last call of a function of this header failed: the function,
 * the rank, MPI's or the driver's call and its words; "" where that call succeeded. Never
 * null; valid until the thread's next call of a function of this header that returns a
 * status. pny_last_error knows nothing of these.
 *
 * MT-Safe; AS-Unsafe; a forked child may call it.
 */
const char *pny_mpi_last_error(void);

/* ---- Communicators ------------------------------------------------------------------- */

/*
 * Handle of a communicator for device memory. One thread at a time is inside a call with
 * it, and if that is not always the same one MPI is initialised with
 * MPI_THREAD_SERIALIZED at least; another one meanwhile is refused (PNY_ERR_BUSY).
 */
typedef struct pny_mpi_comm_object *pny_mpi_comm;

/*
 * Makes a communicator for the memory of device `device`, of those that the process sees
 * (CUDA_VISIBLE_DEVICES), over the ranks of `ranks`, of which it takes duplicates, and stores
 * its handle in `*made`. Collective: all ranks call it, and all succeed or none. It chooses
 * the path once (pny_mpi_plan); PINYARD_MPI_PATH, PINYARD_MPI_CHUNK_BYTES,
 * PINYARD_MPI_CHUNKS and PINYARD_CUDA_AWARE go before what it would choose. With
 * PINYARD_DRIVER=simulated the device is simulated: its memory is that of a pny_pool with
 * PNY_DRIVER_SIMULATED, or what pny_torch_malloc gives then.
 *
 * A rank whose arguments are refused at once, a null one or no MPI, leaves the others
 * waiting: it ends with MPI_Abort, as after such an error of MPI's own.
 *
 * PNY_ERR_INVALID    null; an inter-communicator; no such device number
 * PNY_ERR_NOT_READY  before MPI_Init, or after MPI_Finalize
 * PNY_ERR_ABSENT     there is no CUDA driver, or no such device
 * PNY_ERR_REFUSED    a setting of the environment cannot be read, or the path is none here
 * PNY_ERR_RESOURCES  no memory for chunks, or 1024 communicators exist
 * PNY_ERR_BACKEND    MPI or the driver failed, or another rank: it has the cause
 * PNY_ERR_FORKED     the parent process uses the device
 *
 * Requires: `ranks` is a communicator; `made` is writable.
 *
 * MT-Unsafe: one thread at a time in a communicator; AS-Unsafe; refused in a forked child.
 */
pny_status pny_mpi_comm_create(MPI_Comm ranks, int device, pny_mpi_comm *made);

/*
 * Destroys a communicator, before MPI_Finalize. Collective: it waits for the other ranks
 * where they have memory of each other's open, and after a second says so on stderr, on `ipc`
 * with their numbers. On `ipc` their collectives of device memory end meanwhile with
 * PNY_ERR_INVALID, which names this rank. In a forked child, and after MPI_Finalize,
 * only the handle goes.
 *
 * PNY_ERR_INVALID  null
 * PNY_ERR_STALE    not a communicator, or one that was destroyed
 * PNY_ERR_BUSY     another thread is inside a call with it
 *
 * Requires: no other thread begins a call with this handle.
 *
 * MT-Unsafe: one thread at a time in a communicator; AS-Unsafe; in a forked child as said above.
 */
pny_status pny_mpi_comm_destroy(pny_mpi_comm comm);

/*
 * How the communicator carries operations out, and why, as a line of text: copied to `text`
 * as snprintf copies, cut to `capacity` bytes and terminated; its whole length without the
 * terminator in `*length`, unless that is null. The text is for people: it changes.
 *
 * PNY_ERR_INVALID  `comm` is null, or `text` is null with a capacity
 * PNY_ERR_STALE    not a communicator
 * PNY_ERR_BUSY     another thread is inside a call with it
 * PNY_ERR_FORKED   it is the parent process's
 *
 * Requires: `text` is writable for `capacity` bytes; `length` is null or writable.
 *
 * MT-Unsafe: one thread at a time in a communicator; AS-Unsafe; refused in a forked child.
 */
pny_status pny_mpi_plan(pny_mpi_comm comm, char *text, size_t capacity, size_t *length);

/* ---- Bcast and messages -------------------------------------------------------------- */

/*
 * MPI_Bcast: `count` elements of `root`'s to every rank's `buffer`. Collective.
 *
 * `buffer` is memory of the communicator's device, whoever allocated it, at every rank, or
 * host memory at every rank. Device memory: what was given to `stream` before has passed
 * when the bytes are read or written, and when the call returns they are there for every
 * stream; `datatype` is predefined and without gaps. Host memory goes to MPI_Bcast at
 * once, with whatever datatype, and `stream` is not looked at. The same holds for all
 * functions below.
 *
 * A rank whose arguments or stream are refused takes no part, which leaves the others
 * waiting: it ends with MPI_Abort, as after an error of MPI's.
 *
 * PNY_ERR_INVALID    null; no such root; the datatype; counts that differ between ranks;
 *                    memory of another device
 * PNY_ERR_STALE      not a communicator
 * PNY_ERR_BUSY       another thread is inside a call with the communicator
 * PNY_ERR_NOT_READY  MPI is finalised
 * PNY_ERR_RESOURCES  no pinned or device memory for chunks
 * PNY_ERR_BACKEND    MPI or the driver failed, or another rank: what came is incomplete
 * PNY_ERR_FORKED     the communicator is the parent process's
 *
 * Requires: `buffer` has `count` elements, which no work but that of `stream` uses before the
 * call returns, and `datatype` is one. `stream` is a CUstream (cudaStream_t) of the device's
 * primary context, or null, the default stream; of a simulated device null.
 *
 * MT-Unsafe: one thread at a time in a communicator; AS-Unsafe; refused in a forked child.
 */
pny_status pny_mpi_bcast(void *buffer,
			 int count,
			 MPI_Datatype datatype,
			 int root,
			 pny_mpi_comm comm,
			 void *stream);

/*
 * MPI_Send: to rank `to`, which receives with pny_mpi_recv or pny_mpi_sendrecv of the same
 * communicator and `tag`, 0 to 32767, and whose memory is a device's where this is.
 * MPI_PROC_NULL is nobody. More than 2 KiB of device memory are sent when the other rank
 * receives, not before. A null pointer with a count of 0 counts as device memory.
 *
 * Errors: as pny_mpi_bcast.
 *
 * Requires: as pny_mpi_bcast.
 *
 * MT-Unsafe: one thread at a time in a communicator; AS-Unsafe; refused in a forked child.
 */
pny_status pny_mpi_send(const void *buffer,
			int count,
			MPI_Datatype datatype,
			int to,
			int tag,
			pny_mpi_comm comm,
			void *stream);

/*
 * MPI_Recv: what rank `from` sends with this `tag`, up to `count` elements. Device memory
 * is received of a rank and with a tag that are named: MPI_ANY_SOURCE and MPI_ANY_TAG are
 * refused; MPI_PROC_NULL is nobody. `status` has source, tag and count (MPI_Get_count).
 *
 * Errors: as pny_mpi_bcast; PNY_ERR_INVALID also where more elements come than `count`.
 *
 * Requires: as pny_mpi_bcast; `status` is writable, or MPI_STATUS_IGNORE.
 *
 * MT-Unsafe: one thread at a time in a communicator; AS-Unsafe; refused in a forked child.
 */
pny_status pny_mpi_recv(void *buffer,
			int count,
			MPI_Datatype datatype,
			int from,
			int tag,
			pny_mpi_comm comm,
			MPI_Status *status,
			void *stream);

/*
 * MPI_Sendrecv: both at a time, with whichever ranks, this one included. Neither waits for
 * the other, so the other ranks may as well call pny_mpi_send and pny_mpi_recv. The buffers do
 * not overlap, and both are device memory or both host memory. With device memory both
 * tags are equal.
 *
 * Errors: as pny_mpi_recv.
 *
 * Requires: as pny_mpi_recv, of both buffers.
 *
 * MT-Unsafe: one thread at a time in a communicator; AS-Unsafe; refused in a forked child.
 */
pny_status pny_mpi_sendrecv(const void *sendbuf,
			    int sendcount,
			    MPI_Datatype sendtype,
			    int to,
			    int sendtag,
			    void *recvbuf,
			    int recvcount,
			    MPI_Datatype recvtype,
			    int from,
			    int recvtag,
			    pny_mpi_comm comm,
			    MPI_Status *status,
			    void *stream);

/* ---- Reductions ---------------------------------------------------------------------- */

/*
 * MPI_Allreduce: every rank's `sendbuf`, or with MPI_IN_PLACE its `recvbuf`, element by
 * element, in every rank's `recvbuf`. Collective. Device memory: the operation is MPI_SUM,
 * MPI_MIN or MPI_MAX, of integers of 8 to 64 bits, float or double, C's or Fortran's, or of half
 * precision where MPI has a datatype for it (MPIX_C_FLOAT16); on a node the devices reduce, and
 * elsewhere MPI does, on pinned chunks.
 *
 * Errors: as pny_mpi_bcast.
 *
 * Requires: as pny_mpi_bcast, of both buffers, which do not overlap.
 *
 * MT-Unsafe: one thread at a time in a communicator; AS-Unsafe; refused in a forked child.
 */
pny_status pny_mpi_allreduce(const void *sendbuf,
			     void *recvbuf,
			     int count,
			     MPI_Datatype datatype,
			     MPI_Op op,
			     pny_mpi_comm comm,
			     void *stream);

/*
 * MPI_Reduce: as pny_mpi_allreduce, in `root`'s `recvbuf` alone; the other ranks' is not
 * looked at. MPI_IN_PLACE at the root is its `recvbuf`. Collective.
 *
 * Errors: as pny_mpi_bcast.
 *
 * Requires: as pny_mpi_allreduce.
 *
 * MT-Unsafe: one thread at a time in a communicator; AS-Unsafe; refused in a forked child.
 */
pny_status pny_mpi_reduce(const void *sendbuf,
			  void *recvbuf,
			  int count,
			  MPI_Datatype datatype,
			  MPI_Op op,
			  int root,
			  pny_mpi_comm comm,
			  void *stream);

/* ---- Every rank's share -------------------------------------------------------------- */

/*
 * MPI_Gather: every rank's `sendbuf`, one after the other, in `root`'s `recvbuf`, of
 * `recvcount` elements for each rank; the other ranks' is not looked at. MPI_IN_PLACE at
 * the root: its share is in its place already. Collective. Device memory: the bytes of
 * `sendcount` and of `recvcount` elements are equal.
 *
 * Errors: as pny_mpi_bcast.
 *
 * Requires: as pny_mpi_bcast, of both buffers, which do not overlap.
 *
 * MT-Unsafe: one thread at a time in a communicator; AS-Unsafe; refused in a forked child.
 */
pny_status pny_mpi_gather(const void *sendbuf,
			  int sendcount,
			  MPI_Datatype sendtype,
			  void *recvbuf,
			  int recvcount,
			  MPI_Datatype recvtype,
			  int root,
			  pny_mpi_comm comm,
			  void *stream);

/*
 * MPI_Scatter: of `root`'s `sendbuf`, which has `sendcount` elements for each rank, every
 * rank's share in its `recvbuf`; the other ranks' `sendbuf` is not looked at. MPI_IN_PLACE
 * as the root's `recvbuf`: its share stays where it is. Collective. Otherwise as
 * pny_mpi_gather.
 *
 * Errors: as pny_mpi_bcast.
 *
 * Requires: as pny_mpi_gather.
 *
 * MT-Unsafe: one thread at a time in a communicator; AS-Unsafe; refused in a forked child.
 */
pny_status pny_mpi_scatter(const void *sendbuf,
			   int sendcount,
			   MPI_Datatype sendtype,
			   void *recvbuf,
			   int recvcount,
			   MPI_Datatype recvtype,
			   int root,
			   pny_mpi_comm comm,
			   void *stream);

/*
 * MPI_Allgather: every rank's `sendbuf`, one after the other, in every rank's `recvbuf`, of
 * `recvcount` elements for each rank. MPI_IN_PLACE: each rank's share is in its place
 * already. Collective. Otherwise as pny_mpi_gather.
 *
 * Errors: as pny_mpi_bcast.
 *
 * Requires: as pny_mpi_gather.
 *
 * MT-Unsafe: one thread at a time in a communicator; AS-Unsafe; refused in a forked child.
 */
pny_status pny_mpi_allgather(const void *sendbuf,
			     int sendcount,
			     MPI_Datatype sendtype,
			     void *recvbuf,
			     int recvcount,
			     MPI_Datatype recvtype,
			     pny_mpi_comm comm,
			     void *stream);

/*
 * MPI_Alltoall: share n of `sendbuf`, of `sendcount` elements, to rank n, which has it in
 * its `recvbuf` at this rank's place. Collective. Device memory: MPI_IN_PLACE is refused.
 * Otherwise as pny_mpi_gather.
 *
 * Errors: as pny_mpi_bcast.
 *
 * Requires: as pny_mpi_gather.
 *
 * MT-Unsafe: one thread at a time in a communicator; AS-Unsafe; refused in a forked child.
 */
pny_status pny_mpi_alltoall(const void *sendbuf,
			    int sendcount,
			    MPI_Datatype sendtype,
			    void *recvbuf,
			    int recvcount,
			    MPI_Datatype recvtype,
			    pny_mpi_comm comm,
			    void *stream);

#ifdef __cplusplus
}
#endif

#endif
