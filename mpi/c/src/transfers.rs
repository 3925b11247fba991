//! Bcast, and messages between two ranks.
//!
//! Other ranks may open memory only as long as it stands, and the caller may free its own
//! (cudaFree, an array's end) whenever a call has returned. So where ranks of a node copy
//! from each other's devices (`ipc`), what they open is a block of the communicator's own,
//! to which the device copies first: at its memory's speed, several times that of the
//! links. Memory that is only received into is written where it is.
#![allow(unsafe_code)]

use super::communicator::{Ranks, Way, pny_mpi_comm, within};
use super::status::{Failure, at_boundary, failed, pny_status};
use super::straight::check;
use super::types::{Span, tell};
use core::ffi::{c_int, c_void};
use mpi::ffi::{self, MPI_Datatype, MPI_Status};
use pinyard_allocator::DriverToken;
use pinyard_driver::DevicePtr;
use pinyard_mpi::{DeviceBuf, Settled, SettledMut};

/// So few bytes travel in the first message: no rank opens anything for them.
pub(super) const FEW: usize = 1024;
/// Bytes of a broadcast or a reduction that are opened at a time: the communicator's blocks.
pub(super) const PIECE: usize = 64 << 20;

pub(super) fn device_ptr(at: *mut c_void) -> DevicePtr {
    DevicePtr(at.expose_provenance() as u64)
}

impl Ranks {
    /// # Safety
    /// Of all here: the spans' memory is there, and the device's; nobody uses it meanwhile, as
    /// long as a value names it.
    pub(super) unsafe fn settled(&self, span: &Span) -> Settled<'_, u8> {
        // SAFETY: the caller's contract.
        unsafe { Settled::from_raw(&self.opened.gpu, device_ptr(span.at), span.bytes()) }
    }

    pub(super) unsafe fn settled_mut(&self, span: &Span) -> SettledMut<'_, u8> {
        // SAFETY: the caller's contract.
        unsafe { SettledMut::from_raw(&self.opened.gpu, device_ptr(span.at), span.bytes()) }
    }

    /// Copies within the device, and waits.
    pub(super) unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<(), Failure> {
        let (driver, token) = (self.opened.gpu.driver(), DriverToken::at_entry());
        let stream = self.stream.stream();
        // SAFETY: the caller's contract; waited for here.
        let queued = unsafe { driver.copy_on_device(to, from, bytes, stream, &token) };
        // A copy that was refused may still have begun.
        driver.stream_synchronize(stream, &token).map_err(failed)?;
        queued.map_err(failed)
    }

    /// A block of the communicator's own with a copy of the span, for others to open. None
    /// where nobody opens anything for so few, and without memory for it: what others cannot
    /// open is staged, at all ranks of a collective.
    pub(super) unsafe fn copied(&self, span: &Span) -> Option<DeviceBuf<u8>> {
        if !self.opens() || span.bytes() <= FEW {
            return None;
        }
        let block = self.opened.gpu.alloc::<u8>(span.bytes(), &self.stream).ok()?;
        // SAFETY: the caller's contract; a block of as many bytes.
        unsafe { self.copy(block.ptr(), device_ptr(span.at), span.bytes()) }.ok().map(|()| block)
    }

    /// The span's bytes, of their copy where there is one.
    pub(super) unsafe fn settled_copy<'a>(
        &'a self,
        span: &Span,
        copy: &'a Option<DeviceBuf<u8>>,
    ) -> Settled<'a, u8> {
        let copy = copy.as_ref().and_then(|block| block.settle().ok());
        // SAFETY: the caller's contract.
        copy.unwrap_or_else(|| unsafe { self.settled(span) })
    }

    unsafe fn broadcast(&mut self, root: c_int, span: &Span) -> Result<(), Failure> {
        let bytes = span.bytes();
        if !self.opens() || bytes <= FEW {
            // SAFETY: the caller's contract.
            let mut buffer = unsafe { self.settled_mut(span) };
            return self.device.broadcast_into(root, &mut buffer).map_err(failed);
        }
        let mut bounce = self.bounce.take().filter(|block| block.len() >= bytes.min(PIECE));
        let mut mine = Ok(());
        if bounce.is_none() {
            let wanted = bytes.next_power_of_two().min(PIECE);
            match self.opened.gpu.alloc::<u8>(wanted, &self.stream) {
                Ok(block) => bounce = Some(block),
                Err(error) => mine = Err(failed(error)),
            }
        }
        // SAFETY: the caller's contract.
        let done = unsafe { self.in_pieces(root, span, bounce.as_mut(), mine) };
        self.bounce = bounce;
        done
    }

    /// Piece by piece through `bounce`. A rank that has failed takes part without bytes,
    /// which tells the others of it.
    unsafe fn in_pieces(
        &self,
        root: c_int,
        span: &Span,
        mut bounce: Option<&mut DeviceBuf<u8>>,
        mut mine: Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (bytes, sends) = (span.bytes(), self.device.rank() == root);
        for start in (0..bytes).step_by(PIECE) {
            let length = PIECE.min(bytes - start);
            let at = DevicePtr(device_ptr(span.at).0 + start as u64);
            if let (true, Ok(()), Some(block)) = (sends, &mine, &bounce) {
                // SAFETY: the caller's contract; the block has as many bytes.
                mine = unsafe { self.copy(block.ptr(), at, length) };
            }
            let settled = match bounce.as_deref_mut().filter(|_| mine.is_ok()).map(DeviceBuf::settle_mut) {
                Some(Ok(settled)) => Some(settled),
                Some(Err(error)) => {
                    mine = Err(failed(error));
                    None
                }
                None => None,
            };
            let told = match settled {
                Some(mut settled) => self.device.broadcast_into(root, &mut settled.slice_mut(..length)),
                None => {
                    // SAFETY: no bytes.
                    let mut nothing = unsafe { SettledMut::<u8>::from_raw(&self.opened.gpu, at, 0) };
                    self.device.broadcast_into(root, &mut nothing)
                }
            };
            // Its own cause comes before what the others made of it.
            mine = mine.and(told.map_err(failed));
            mine.as_ref().map_err(|failure| Failure::new(failure.status, failure.cause.clone()))?;
            if let (false, Some(block)) = (sends, &bounce) {
                // SAFETY: as above.
                mine = unsafe { self.copy(at, block.ptr(), length) };
            }
            if start == 0 && bytes >= PIECE {
                self.same_everywhere(bytes)?;
            }
        }
        mine
    }

    /// Refuses counts that differ: a rank whose count ends with the first piece would leave the
    /// others alone with the next. Collective, of ranks with a piece or more.
    pub(super) fn same_everywhere(&self, bytes: usize) -> Result<(), Failure> {
        let [most, least] = self.own.largest([bytes as u64, !(bytes as u64)])?;
        match most == !least {
            true => Ok(()),
            false => Err(Failure::invalid(format!(
                "rank {} has {bytes} bytes, and others {} to {most}: their counts must be equal",
                self.device.rank(),
                !least
            ))),
        }
    }

    unsafe fn send(&self, to: c_int, tag: c_int, span: &Span) -> Result<(), Failure> {
        // SAFETY: the caller's contract.
        let copy = unsafe { self.copied(span) };
        // SAFETY: as above.
        self.device.send(to, tag, &unsafe { self.settled_copy(span, &copy) }).map_err(failed)
    }

    /// Bytes received.
    unsafe fn receive(&self, from: c_int, tag: c_int, span: &Span) -> Result<usize, Failure> {
        // SAFETY: the caller's contract.
        let mut buffer = unsafe { self.settled_mut(span) };
        self.device.receive_into(from, tag, &mut buffer).map_err(failed)
    }

    unsafe fn exchange(
        &self,
        (to, sent): (c_int, &Span),
        (from, received): (c_int, &Span),
        tag: c_int,
    ) -> Result<usize, Failure> {
        // SAFETY: the caller's contract.
        let (copy, mut into) = unsafe { (self.copied(sent), self.settled_mut(received)) };
        // SAFETY: as above.
        let out = unsafe { self.settled_copy(sent, &copy) };
        self.device.exchange(to, &out, from, &mut into, tag).map_err(failed)
    }
}

fn nobody(rank: c_int) -> bool {
    // SAFETY: a constant.
    rank == unsafe { ffi::RSMPI_PROC_NULL }
}

/// What came of nobody.
///
/// # Safety
/// As `tell`.
unsafe fn tell_nobody(status: *mut MPI_Status, span: &Span) {
    // SAFETY: constants; the caller's contract.
    unsafe { tell(status, ffi::RSMPI_PROC_NULL, ffi::RSMPI_ANY_TAG, span, 0) };
}

/// Refuses a rank or a tag that is anybody's.
fn named(from: c_int, tag: c_int) -> Result<(), Failure> {
    // SAFETY: constants.
    match unsafe { from == ffi::RSMPI_ANY_SOURCE || tag == ffi::RSMPI_ANY_TAG } {
        false => Ok(()),
        true => Err(Failure::invalid("device memory is received of a rank and with a tag that are named")),
    }
}

/// MPI_Bcast: `count` elements of `root`'s to every rank's `buffer`. Collective.
///
/// `buffer` is memory of the communicator's device, whoever allocated it, at every rank, or
/// host memory at every rank. Device memory: what was given to `stream` before has passed
/// when the bytes are read or written, and when the call returns they are there for every
/// stream; `datatype` is predefined and without gaps. Host memory goes to MPI_Bcast at
/// once, with whatever datatype, and `stream` is not looked at. The same holds for all
/// functions below.
///
/// A rank whose arguments or stream are refused takes no part, which leaves the others
/// waiting: it ends with MPI_Abort, as after an error of MPI's.
///
/// PNY_ERR_INVALID    null; no such root; the datatype; counts that differ between ranks;
///                    memory of another device
/// PNY_ERR_STALE      not a communicator
/// PNY_ERR_BUSY       another thread is inside a call with the communicator
/// PNY_ERR_NOT_READY  MPI is finalised
/// PNY_ERR_RESOURCES  no pinned or device memory for chunks
/// PNY_ERR_BACKEND    MPI or the driver failed, or another rank: what came is incomplete
/// PNY_ERR_FORKED     the communicator is the parent process's
///
/// # Safety
/// `buffer` has `count` elements, which no work but that of `stream` uses before the
/// call returns, and `datatype` is one. `stream` is a CUstream (cudaStream_t) of the device's
/// primary context, or null, the default stream; of a simulated device null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_mpi_bcast(
    buffer: *mut c_void,
    count: c_int,
    datatype: MPI_Datatype,
    root: c_int,
    comm: pny_mpi_comm,
    stream: *mut c_void,
) -> pny_status {
    at_boundary("pny_mpi_bcast", || {
        within(comm, |ranks| {
            ranks.root(root)?;
            // SAFETY: the caller's contract.
            let span = unsafe { Span::new(buffer, count, datatype) }?;
            if span.bytes() == 0 {
                return Ok(());
            }
            // SAFETY: as above.
            match unsafe { ranks.way(&[span], stream) }? {
                // SAFETY: as above.
                Way::Device(_loan) => unsafe { ranks.broadcast(root, &span) },
                Way::Straight => {
                    // SAFETY: as above.
                    let code = unsafe { ffi::MPI_Bcast(buffer, count, datatype, root, ranks.own.raw()) };
                    check(code, "MPI_Bcast")
                }
            }
        })
    })
}

/// MPI_Send: to rank `to`, which receives with pny_mpi_recv or pny_mpi_sendrecv of the same
/// communicator and `tag`, 0 to 32767, and whose memory is a device's where this is.
/// MPI_PROC_NULL is nobody. More than 2 KiB of device memory are sent when the other rank
/// receives, not before. A null pointer with a count of 0 counts as device memory.
///
/// Errors: as pny_mpi_bcast.
///
/// # Safety
/// As pny_mpi_bcast.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_mpi_send(
    buffer: *const c_void,
    count: c_int,
    datatype: MPI_Datatype,
    to: c_int,
    tag: c_int,
    comm: pny_mpi_comm,
    stream: *mut c_void,
) -> pny_status {
    at_boundary("pny_mpi_send", || {
        within(comm, |ranks| {
            // SAFETY: the caller's contract.
            let span = unsafe { Span::new(buffer, count, datatype) }?;
            if nobody(to) {
                return Ok(());
            }
            // SAFETY: as above.
            match unsafe { ranks.way(&[span], stream) }? {
                // SAFETY: as above.
                Way::Device(_loan) => unsafe { ranks.send(to, tag, &span) },
                Way::Straight => {
                    // SAFETY: as above.
                    let code = unsafe { ffi::MPI_Send(buffer, count, datatype, to, tag, ranks.own.raw()) };
                    check(code, "MPI_Send")
                }
            }
        })
    })
}

/// MPI_Recv: what rank `from` sends with this `tag`, up to `count` elements. Device memory
/// is received of a rank and with a tag that are named: MPI_ANY_SOURCE and MPI_ANY_TAG are
/// refused; MPI_PROC_NULL is nobody. `status` has source, tag and count (MPI_Get_count).
///
/// Errors: as pny_mpi_bcast; PNY_ERR_INVALID also where more elements come than `count`.
///
/// # Safety
/// As pny_mpi_bcast; `status` is writable, or MPI_STATUS_IGNORE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_mpi_recv(
    buffer: *mut c_void,
    count: c_int,
    datatype: MPI_Datatype,
    from: c_int,
    tag: c_int,
    comm: pny_mpi_comm,
    status: *mut MPI_Status,
    stream: *mut c_void,
) -> pny_status {
    at_boundary("pny_mpi_recv", || {
        within(comm, |ranks| {
            // SAFETY: the caller's contract.
            let span = unsafe { Span::new(buffer, count, datatype) }?;
            if nobody(from) {
                // SAFETY: as above.
                unsafe { tell_nobody(status, &span) };
                return Ok(());
            }
            // SAFETY: as above.
            match unsafe { ranks.way(&[span], stream) }? {
                Way::Device(_loan) => {
                    named(from, tag)?;
                    // SAFETY: as above.
                    unsafe {
                        ranks.receive(from, tag, &span).map(|bytes| tell(status, from, tag, &span, bytes))
                    }
                }
                Way::Straight => {
                    let raw = ranks.own.raw();
                    // SAFETY: as above.
                    let code = unsafe { ffi::MPI_Recv(buffer, count, datatype, from, tag, raw, status) };
                    check(code, "MPI_Recv")
                }
            }
        })
    })
}

/// MPI_Sendrecv: both at a time, with whichever ranks, this one included. Neither waits for
/// the other, so the other ranks may as well call pny_mpi_send and pny_mpi_recv. The buffers do
/// not overlap, and both are device memory or both host memory. With device memory both
/// tags are equal.
///
/// Errors: as pny_mpi_recv.
///
/// # Safety
/// As pny_mpi_recv, of both buffers.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // MPI_Sendrecv's
pub unsafe extern "C" fn pny_mpi_sendrecv(
    sendbuf: *const c_void,
    sendcount: c_int,
    sendtype: MPI_Datatype,
    to: c_int,
    sendtag: c_int,
    recvbuf: *mut c_void,
    recvcount: c_int,
    recvtype: MPI_Datatype,
    from: c_int,
    recvtag: c_int,
    comm: pny_mpi_comm,
    status: *mut MPI_Status,
    stream: *mut c_void,
) -> pny_status {
    at_boundary("pny_mpi_sendrecv", || {
        within(comm, |ranks| {
            // SAFETY: the caller's contract.
            let sent = unsafe { Span::new(sendbuf, sendcount, sendtype) }?;
            // SAFETY: as above.
            let received = unsafe { Span::new(recvbuf, recvcount, recvtype) }?;
            let legs: Vec<Span> = [(to, sent), (from, received)]
                .into_iter()
                .filter_map(|(rank, span)| (!nobody(rank)).then_some(span))
                .collect();
            // SAFETY: as above.
            let loan = match unsafe { ranks.way(&legs, stream) }? {
                Way::Device(loan) => loan,
                Way::Straight => {
                    let raw = ranks.own.raw();
                    // SAFETY: as above.
                    let code = unsafe {
                        ffi::MPI_Sendrecv(
                            sendbuf, sendcount, sendtype, to, sendtag, recvbuf, recvcount, recvtype, from,
                            recvtag, raw, status,
                        )
                    };
                    return check(code, "MPI_Sendrecv");
                }
            };
            named(from, recvtag)?;
            let bytes = match (nobody(to), nobody(from)) {
                (true, true) => 0,
                // SAFETY: as above.
                (false, true) => unsafe { ranks.send(to, sendtag, &sent) }.map(|()| 0)?,
                // SAFETY: as above.
                (true, false) => unsafe { ranks.receive(from, recvtag, &received) }?,
                (false, false) if sendtag != recvtag => {
                    let cause = format!("tags {sendtag} and {recvtag}: with device memory both are equal");
                    return Err(Failure::invalid(cause));
                }
                // SAFETY: as above.
                (false, false) => unsafe { ranks.exchange((to, &sent), (from, &received), sendtag) }?,
            };
            drop(loan);
            // SAFETY: as above.
            unsafe {
                match nobody(from) {
                    true => tell_nobody(status, &received),
                    false => tell(status, from, recvtag, &received, bytes),
                }
            }
            Ok(())
        })
    })
}
