//! Communicators of device memory.
#![allow(unsafe_code, non_camel_case_types)]

use super::devices::{self, Loan, Opened, Owner, readable};
use super::status::{Failure, at_boundary, failed, pny_status, pny_status::*};
use super::straight::{Own, check};
use super::types::Span;
use core::ffi::{c_char, c_int, c_void};
use mpi::ffi::{self, MPI_Comm};
use mpi::raw::FromRaw;
use mpi::topology::SimpleCommunicator;
use parking_lot::Mutex;
use pinyard_allocator::device::PoolStream;
use pinyard_boundary::{Handles, from_pointer, to_pointer};
use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Path};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A communicator. Only its address is used, as a name.
pub struct pny_mpi_comm_object {
    _private: [u8; 0],
}

/// Handle of a communicator for device memory. One thread at a time is inside a call with
/// it, and if that is not always the same one MPI is initialised with
/// MPI_THREAD_SERIALIZED at least; another one meanwhile is refused (PNY_ERR_BUSY).
pub type pny_mpi_comm = *mut pny_mpi_comm_object;

static COMMUNICATORS: Handles<Entry> = Handles::new(9, "pny_mpi_comm");

/// A communicator that C has a handle of.
struct Entry {
    ranks: Mutex<Ranks>,
    _seat: Seat,
    /// The fork generation of the process that made it.
    forks: u32,
}

/// One of the table's places, taken before the ranks agree: a communicator that one of them
/// has no place for is made by none.
struct Seat;

static SEATS: AtomicUsize = AtomicUsize::new(0);
/// Places of the table.
const MOST: usize = 1024;

impl Seat {
    fn take() -> Result<Seat, Failure> {
        let seat = Seat;
        match SEATS.fetch_add(1, SeqCst) < MOST {
            true => Ok(seat),
            false => Err(Failure::new(
                PNY_ERR_RESOURCES,
                format!("{MOST} communicators exist, as many as there can be"),
            )),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        SEATS.fetch_sub(1, SeqCst);
    }
}

/// What a call works with.
pub(super) struct Ranks {
    pub(super) device: DeviceCommunicator,
    /// For what goes straight to MPI, and for agreeing.
    pub(super) own: Own,
    pub(super) opened: &'static Opened,
    /// For copies to and from memory of the communicator's own.
    pub(super) stream: PoolStream,
    /// Memory that other ranks open, in place of the caller's: see `transfers`.
    pub(super) bounce: Option<DeviceBuf<u8>>,
}

// SAFETY: MPI's handles may be used by any thread, one at a time where MPI is initialised
// with MPI_THREAD_SERIALIZED, which the header asks for. What the communicator counts without
// atomics lies within it, and one thread at a time is in it (`within`). A thread's own list
// names communicators only from their first operation that does not block on, and there is
// none here. The rest is `Send`.
unsafe impl Send for Ranks {}

/// How a call is carried out.
pub(super) enum Way {
    /// By MPI, with the pointers as they are.
    Straight,
    /// On the communicator's path.
    Device(Loan<'static>),
}

impl Ranks {
    /// Whether other ranks of a node open this one's memory.
    pub(super) fn opens(&self) -> bool {
        matches!(self.device.plan().path, Path::Ipc | Path::IpcAndStaged)
    }

    /// How memory of `spans` goes; of a device's, the work of `stream` is over then.
    ///
    /// # Safety
    /// `stream` is null or a stream of the device's primary context.
    pub(super) unsafe fn way(&self, spans: &[Span], stream: *mut c_void) -> Result<Way, Failure> {
        let (mut host, mut slabs, mut device) = (false, Vec::new(), false);
        for span in spans {
            let owner = match span.at.is_null() {
                // MPI_BOTTOM with a datatype of addresses, or nothing at all.
                true if span.bytes() == 0 => Owner::Device { slab: None },
                true => Owner::Host,
                false => self.opened.owner(span.at, span.bytes())?,
            };
            match owner {
                Owner::Host => {
                    // Of a derived datatype nobody knows where its bytes lie.
                    if span.is_predefined() && span.bytes() > 0 {
                        readable(span.at, span.bytes())?;
                    }
                    host = true;
                }
                Owner::Device { slab } => {
                    device = true;
                    slabs.extend(slab);
                }
            }
        }
        if host && device {
            let nothing = spans.iter().all(|span| span.bytes() == 0);
            if !nothing {
                return Err(Failure::invalid("one buffer is host memory and the other the device's"));
            }
        }
        if !device {
            return Ok(Way::Straight);
        }
        // SAFETY: the caller's contract.
        unsafe { self.opened.wait(stream) }?;
        if self.device.plan().path == Path::Direct {
            return Ok(Way::Straight);
        }
        for span in spans {
            span.plain()?;
        }
        Ok(Way::Device(self.opened.lend(slabs)?))
    }

    /// Carries a collective of `spans` out: by `device` on the communicator's path, or by
    /// `straight`, MPI's own `call` of the communicator that it is given. Without bytes there
    /// is nothing to do.
    ///
    /// # Safety
    /// As `way`.
    pub(super) unsafe fn carry(
        &self,
        call: &'static str,
        spans: &[Span],
        stream: *mut c_void,
        device: impl FnOnce() -> Result<(), Failure>,
        straight: impl FnOnce(MPI_Comm) -> c_int,
    ) -> Result<(), Failure> {
        if spans.iter().all(|span| span.bytes() == 0) {
            return Ok(());
        }
        // SAFETY: the caller's contract.
        match unsafe { self.way(spans, stream) }? {
            Way::Device(_loan) => device(),
            Way::Straight => check(straight(self.own.raw()), call),
        }
    }

    /// Refuses a root that is none.
    pub(super) fn root(&self, root: c_int) -> Result<(), Failure> {
        match root >= 0 && root < self.device.size() {
            true => Ok(()),
            false => {
                Err(Failure::invalid(format!("root is {root}, and there are {} ranks", self.device.size())))
            }
        }
    }
}

/// Runs `body` with the communicator, alone in it.
pub(super) fn within(
    communicator: pny_mpi_comm,
    body: impl FnOnce(&mut Ranks) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let entry = COMMUNICATORS.get(from_pointer(communicator))?;
    if entry.forks != pinyard_hooks::fork_generation() {
        return Err(Failure::new(PNY_ERR_FORKED, "the communicator is the parent process's"));
    }
    if mpi::is_finalized() {
        return Err(Failure::new(PNY_ERR_NOT_READY, "MPI is finalised"));
    }
    let Some(mut ranks) = entry.ranks.try_lock() else {
        return Err(Failure::new(PNY_ERR_BUSY, "another thread is inside a call with the communicator"));
    };
    body(&mut ranks)
}

/// Makes a communicator for the memory of device `device`, of those that the process sees
/// (CUDA_VISIBLE_DEVICES), over the ranks of `ranks`, of which it takes duplicates, and stores
/// its handle in `*made`. Collective: all ranks call it, and all succeed or none. It chooses
/// the path once (pny_mpi_plan); PINYARD_MPI_PATH, PINYARD_MPI_CHUNK_BYTES,
/// PINYARD_MPI_CHUNKS and PINYARD_CUDA_AWARE go before what it would choose. With
/// PINYARD_DRIVER=simulated the device is simulated: its memory is that of a pny_pool with
/// PNY_DRIVER_SIMULATED, or what pny_torch_malloc gives then.
///
/// A rank whose arguments are refused at once, a null one or no MPI, leaves the others
/// waiting: it ends with MPI_Abort, as after such an error of MPI's own.
///
/// PNY_ERR_INVALID    null; an inter-communicator; no such device number
/// PNY_ERR_NOT_READY  before MPI_Init, or after MPI_Finalize
/// PNY_ERR_ABSENT     there is no CUDA driver, or no such device
/// PNY_ERR_REFUSED    a setting of the environment cannot be read, or the path is none here
/// PNY_ERR_RESOURCES  no memory for chunks, or 1024 communicators exist
/// PNY_ERR_BACKEND    MPI or the driver failed, or another rank: it has the cause
/// PNY_ERR_FORKED     the parent process uses the device
///
/// # Safety
/// `ranks` is a communicator; `made` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_mpi_comm_create(
    ranks: MPI_Comm,
    device: c_int,
    made: *mut pny_mpi_comm,
) -> pny_status {
    at_boundary("pny_mpi_comm_create", || {
        if made.is_null() {
            return Err(Failure::invalid("made is a null pointer"));
        }
        if !mpi::is_initialized() || mpi::is_finalized() {
            return Err(Failure::new(PNY_ERR_NOT_READY, "MPI is not initialised, or finalised already"));
        }
        // SAFETY: a constant.
        if ranks == unsafe { ffi::RSMPI_COMM_NULL } {
            return Err(Failure::invalid("ranks is MPI_COMM_NULL"));
        }
        // SAFETY: the caller's contract.
        let own = unsafe { Own::of(ranks) }?;
        let handle = create(own, device)?;
        // SAFETY: the caller's contract.
        unsafe { made.write(to_pointer(handle)) };
        Ok(())
    })
}

/// All go on, or none does. Collective.
fn together<T>(own: &Own, mine: Result<T, Failure>) -> Result<T, Failure> {
    let [failed] = own.largest([u64::from(mine.is_err())])?;
    match mine {
        Ok(_) if failed != 0 => {
            Err(Failure::new(PNY_ERR_BACKEND, "another rank could not make its part: it has the cause"))
        }
        mine => mine,
    }
}

fn create(own: Own, device: c_int) -> Result<u64, Failure> {
    let ready = devices::open(device).and_then(|opened| Ok((opened, Seat::take()?)));
    let (opened, seat) = together(&own, ready)?;
    // SAFETY: ours, of which the builder takes a duplicate; not freed by this value.
    let ranks = ManuallyDrop::new(unsafe { SimpleCommunicator::from_raw(own.raw()) });
    let device = DeviceCommunicator::builder(&opened.gpu).build(&*ranks).map_err(failed)?;
    let stream = together(&own, opened.gpu.stream().map_err(failed))?;
    let forks = pinyard_hooks::fork_generation();
    let held = Ranks { device, own, opened, stream, bounce: None };
    let made = COMMUNICATORS.insert(Entry { ranks: Mutex::new(held), _seat: seat, forks })?;
    Ok(made)
}

/// Destroys a communicator, before MPI_Finalize. Collective: it waits for the other ranks
/// where they have memory of each other's open, and after a second says so on stderr, on `ipc`
/// with their numbers. On `ipc` their collectives of device memory end meanwhile with
/// PNY_ERR_INVALID, which names this rank. In a forked child, and after MPI_Finalize,
/// only the handle goes.
///
/// PNY_ERR_INVALID  null
/// PNY_ERR_STALE    not a communicator, or one that was destroyed
/// PNY_ERR_BUSY     another thread is inside a call with it
///
/// # Safety
/// No other thread begins a call with this handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_mpi_comm_destroy(comm: pny_mpi_comm) -> pny_status {
    at_boundary("pny_mpi_comm_destroy", || {
        let entry = COMMUNICATORS.take(from_pointer(comm), |entry| {
            let forked = entry.forks != pinyard_hooks::fork_generation();
            match forked || entry.ranks.try_lock().is_some() {
                true => Ok(()),
                false => Err(Failure::new(PNY_ERR_BUSY, "another thread is inside a call with it")),
            }
        })?;
        if entry.forks != pinyard_hooks::fork_generation() {
            // Everything is the parent's.
            std::mem::forget(entry);
        }
        Ok(())
    })
}

/// How the communicator carries operations out, and why, as a line of text: copied to `text`
/// as snprintf copies, cut to `capacity` bytes and terminated; its whole length without the
/// terminator in `*length`, unless that is null. The text is for people: it changes.
///
/// PNY_ERR_INVALID  `comm` is null, or `text` is null with a capacity
/// PNY_ERR_STALE    not a communicator
/// PNY_ERR_BUSY     another thread is inside a call with it
/// PNY_ERR_FORKED   it is the parent process's
///
/// # Safety
/// `text` is writable for `capacity` bytes; `length` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_mpi_plan(
    comm: pny_mpi_comm,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> pny_status {
    at_boundary("pny_mpi_plan", || {
        if text.is_null() && capacity != 0 {
            return Err(Failure::invalid("text is a null pointer"));
        }
        within(comm, |ranks| {
            let plan = ranks.device.plan().to_string();
            if !length.is_null() {
                // SAFETY: the caller's contract.
                unsafe { length.write(plan.len()) };
            }
            if capacity > 0 {
                // A character is not cut in two.
                let room = plan.len().min(capacity - 1);
                let end = (0..=room).rev().find(|&end| plan.is_char_boundary(end)).unwrap_or(0);
                // SAFETY: the caller vouches for `capacity` bytes, of which `end + 1` are written.
                unsafe {
                    core::ptr::copy_nonoverlapping(plan.as_ptr(), text.cast::<u8>(), end);
                    text.add(end).write(0);
                }
            }
            Ok(())
        })
    })
}
