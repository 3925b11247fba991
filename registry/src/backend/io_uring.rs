//! io_uring's fixed buffers: real kernel pinning on any machine.
//!
//! A registration is a slot of the ring's buffer table (io_uring_register(2),
//! `IORING_REGISTER_BUFFERS_UPDATE`); the lkey is the slot's index. What travels
//! through a registered buffer are the pages that were pinned, whatever is
//! mapped at the address now: stale registrations can be *seen* here.
//!
//! Linux 5.13 or newer. Limits (`io_uring/rsrc.c`, Linux 6.18): 16,384 slots, 1 GiB a buffer, and
//! without CAP_IPC_LOCK RLIMIT_MEMLOCK for all rings of a user together.
//!
//! Once the program has closed the ring's descriptor, each call ends with EBADF, also where the number is
//! another file's; what is pinned stays pinned until the process ends.
#![allow(unsafe_code)]

use super::{Backend, BackendError, Limits, MemoryKey, Unlocked};
use crate::access::Access;
use crate::diagnose;
use crate::range::PageRange;
use crate::trust::RingChanging;
use io_uring::{opcode, squeue, types};
use parking_lot::Mutex;
use pinyard_hooks::descriptors::{self, Identity};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

const MAX_SLOTS: u32 = 16_384;
/// What an ended process had pinned is given back by then.
const OTHERS_END: Duration = Duration::from_secs(1);
/// Between two looks whether it has been.
const LOOK: Duration = Duration::from_millis(20);
const MAX_REGION_BYTES: usize = 1 << 30;
/// One transfer; the kernel's own cap on a read or write is just below 2 GiB.
const MAX_TRANSFER: usize = 1 << 30;

/// A ring with a table of fixed buffers.
pub struct IoUring {
    ring: OwnRing,
    slots: u32,
    free: Mutex<Vec<u16>>,
    /// What is left of [`OTHERS_END`].
    patience: Mutex<Duration>,
    /// One submission and its completion at a time. True once a submission was
    /// left in the queue: the ring then moves no more bytes.
    transfer: Mutex<bool>,
}

/// A ring that changes no mapping, and is known not to; see `trust/own_rings.rs`.
struct OwnRing {
    ring: ManuallyDrop<io_uring::IoUring>,
    identity: Identity,
}

impl OwnRing {
    /// A ring, with `entries` in its queue.
    fn new(entries: u32) -> io::Result<OwnRing> {
        let own = RingChanging::begin();
        let ring = moved_up(io_uring::IoUring::new(entries)?)?;
        let fd = ring.as_raw_fd();
        let identity = Identity::of(fd).ok_or_else(io::Error::last_os_error)?;
        own.add(fd, identity.inode());
        Ok(OwnRing { ring: ManuallyDrop::new(ring), identity })
    }

    /// The ring, unless the program has closed it: its number may be another file's.
    fn open(&self) -> io::Result<&io_uring::IoUring> {
        let is_open = Identity::of(self.ring.as_raw_fd()) == Some(self.identity);
        if is_open { Ok(&self.ring) } else { Err(io::Error::from_raw_os_error(libc::EBADF)) }
    }
}

impl Drop for OwnRing {
    fn drop(&mut self) {
        if self.open().is_err() {
            return; // its mappings stay, and with them its place among the own ones
        }
        let own = RingChanging::begin();
        own.remove(self.ring.as_raw_fd(), self.identity.inode());
        // SAFETY: once, and nobody uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
    }
}

/// The ring, at a descriptor that is out of the way, if there is a place.
fn moved_up(ring: io_uring::IoUring) -> io::Result<io_uring::IoUring> {
    let Some(high) = descriptors::duplicate(ring.as_raw_fd()) else { return Ok(ring) };
    // SAFETY: a descriptor of this ring, which nobody else has, and the ring's own parameters.
    unsafe { io_uring::IoUring::from_fd(high, ring.params().clone()) }
}

impl IoUring {
    /// A ring whose table has `slots` places, at most 16,384.
    ///
    /// Fails where the kernel has no io_uring, or it is disabled (sysctl
    /// `kernel.io_uring_disabled`, seccomp): the error says which.
    pub fn new(slots: u32) -> Result<IoUring, BackendError> {
        if slots == 0 || slots > MAX_SLOTS {
            return Err(BackendError::new(format!("io_uring table of {slots} slots"), libc::EINVAL)
                .with_hint(format_args!("ask for 1 to {MAX_SLOTS}")));
        }
        let failed = |call: &str, error: io::Error| {
            let errno = error.raw_os_error().unwrap_or(0);
            BackendError::new(call, errno).with_hint(diagnose::io_uring_refusal(errno))
        };
        let ring = OwnRing::new(8).map_err(|error| failed("io_uring_setup(8 entries)", error))?;
        // Empty buffers rather than IORING_RSRC_REGISTER_SPARSE, which came with Linux 5.19.
        let empty = vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; slots as usize];
        // SAFETY: the buffers are of no bytes; the kernel copies the arrays.
        unsafe { ring.ring.submitter().register_buffers2(&empty, &vec![0; slots as usize]) }.map_err(
            |error| {
                failed(&format!("io_uring_register(IORING_REGISTER_BUFFERS2, {slots} empty slots)"), error)
            },
        )?;
        let free = Mutex::new((0..slots as u16).rev().collect());
        Ok(IoUring { ring, slots, free, patience: Mutex::new(OTHERS_END), transfer: Mutex::new(false) })
    }

    fn update(&self, slot: u16, start: usize, len: usize) -> io::Result<()> {
        let buffer = libc::iovec { iov_base: start as *mut _, iov_len: len };
        // SAFETY: pinning does not touch the pages' contents, and the kernel
        // checks the addresses. What moves bytes through the slot later is
        // `transfer`, whose callers vouch for the memory.
        let updated = unsafe {
            self.ring.open()?.submitter().register_buffers_update(u32::from(slot), &[buffer], None)
        };
        updated.map(drop)
    }

    /// Pins the range. The kernel counts what a user has pinned, and takes back what an
    /// ended process had only when it gets to it: who has pinned nothing itself and is
    /// refused waits a moment for that, as the next step of a job may have to; in all of
    /// the ring's life for no longer than [`OTHERS_END`].
    fn pin(&self, slot: u16, range: PageRange) -> io::Result<()> {
        loop {
            let pinned = self.update(slot, range.start, range.len());
            let refused = matches!(&pinned, Err(error) if error.raw_os_error() == Some(libc::ENOMEM));
            let has_none = self.free.lock().len() + 1 == self.slots as usize;
            if !refused || !has_none || !self.may_wait() {
                return pinned;
            }
            std::thread::sleep(LOOK);
        }
    }

    fn may_wait(&self) -> bool {
        let mut patience = self.patience.lock();
        let some = !patience.is_zero();
        *patience = patience.saturating_sub(LOOK);
        some
    }

    /// Writes `len` bytes at `addr` to `fd` at its current position, out of the
    /// pages that `key` has pinned. Returns the bytes written.
    ///
    /// # Errors
    /// EFAULT where the bytes lie outside the registration or it is gone.
    ///
    /// # Safety
    /// The registration is held (a lease lives), and nobody changes the bytes
    /// meanwhile.
    pub unsafe fn write_fixed(
        &self,
        fd: BorrowedFd<'_>,
        key: MemoryKey,
        addr: *const u8,
        len: usize,
    ) -> io::Result<usize> {
        let (len, slot) = (len.min(MAX_TRANSFER) as u32, key.lkey as u16);
        let entry = opcode::WriteFixed::new(types::Fd(fd.as_raw_fd()), addr, len, slot);
        self.transfer(entry.offset(u64::MAX).build())
    }

    /// Reads up to `len` bytes from `fd` at its current position into the pages
    /// that `key` has pinned. Returns the bytes read.
    ///
    /// # Errors
    /// As [`write_fixed`](IoUring::write_fixed).
    ///
    /// # Safety
    /// The registration is held (a lease lives), the memory is the caller's to
    /// write, and nobody reads it meanwhile.
    pub unsafe fn read_fixed(
        &self,
        fd: BorrowedFd<'_>,
        key: MemoryKey,
        addr: *mut u8,
        len: usize,
    ) -> io::Result<usize> {
        let (len, slot) = (len.min(MAX_TRANSFER) as u32, key.lkey as u16);
        let entry = opcode::ReadFixed::new(types::Fd(fd.as_raw_fd()), addr, len, slot);
        self.transfer(entry.offset(u64::MAX).build())
    }

    fn transfer(&self, entry: squeue::Entry) -> io::Result<usize> {
        let mut broken = self.transfer.lock();
        if *broken {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let ring = self.ring.open()?;
        // SAFETY: the lock makes this thread the only one at either queue; the
        // memory that the entry names is vouched for by the callers until its
        // completion, which is waited for below.
        let (mut submissions, mut completions) =
            unsafe { (ring.submission_shared(), ring.completion_shared()) };
        // SAFETY: as above.
        if unsafe { submissions.push(&entry) }.is_err() {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        drop(submissions);
        loop {
            match ring.submitter().submit_and_wait(1) {
                Ok(_) => {}
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) =>
                {
                    std::thread::yield_now();
                }
                Err(error) => {
                    // The entry may still be in the queue; it must not be
                    // submitted after the caller's memory is gone.
                    *broken = true;
                    return Err(error);
                }
            }
            completions.sync();
            if let Some(completion) = completions.next() {
                let result = completion.result();
                return usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
            }
        }
    }
}

fn refused(call: String, error: &io::Error) -> BackendError {
    let refused = BackendError::new(call, error.raw_os_error().unwrap_or(0));
    match refused.errno {
        libc::EBADF => {
            refused.with_hint("the program has closed the ring's descriptor: make a registry anew")
        }
        _ => refused,
    }
}

impl Backend for IoUring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn locks_memory(&self) -> bool {
        true
    }
    fn limits(&self) -> Limits {
        Limits { max_region_bytes: MAX_REGION_BYTES, max_regions: self.slots as usize }
    }

    fn register(&self, range: PageRange, _: Access, _: &Unlocked) -> Result<MemoryKey, BackendError> {
        let call =
            |slot: u32| format!("io_uring_register(IORING_REGISTER_BUFFERS_UPDATE, slot {slot}, {range})");
        let Some(slot) = self.free.lock().pop() else {
            return Err(BackendError::new(call(self.slots), libc::ENOSPC)
                .with_hint("every slot of the table is taken"));
        };
        match self.pin(slot, range) {
            Ok(()) => Ok(MemoryKey { lkey: u64::from(slot), rkey: 0, handle: 0 }),
            Err(error) => {
                self.free.lock().push(slot);
                Err(refused(call(u32::from(slot)), &error))
            }
        }
    }

    fn deregister(&self, key: MemoryKey, range: PageRange, _: &Unlocked) -> Result<(), BackendError> {
        let slot = key.lkey as u16;
        self.update(slot, 0, 0).map_err(|error| {
            let call =
                format!("io_uring_register(IORING_REGISTER_BUFFERS_UPDATE, clear slot {slot}, {range})");
            refused(call, &error)
        })?;
        self.free.lock().push(slot);
        Ok(())
    }
}
