//! userfaultfd: the kernel itself tells of changes in watched ranges, whoever
//! makes them. The net under system calls that no entry sees.
//!
//! Ranges are registered for write protection and never protected: there are no
//! page faults to answer, only the events `UNMAP`, `REMOVE` and `REMAP`
//! (userfaultfd(2), ioctl_userfaultfd(2)). Who makes the change waits until a
//! thread of ours has read its event; the read is what lets it go on, a moment
//! before we know the range. So hits are suspended ([`crate::unsettled`]) before
//! the read and until the range is published: a `get` that starts after the
//! changing call has returned finds either.
#![allow(unsafe_code)]

mod reader;
mod request;

use self::reader::Answer;
use crate::descriptors::{Identity, moved_up};
use crate::fork;
use crate::holder::Holder;
use crate::report::Why;
use crate::sys::errno;
use crate::{stack_size, threads};
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::*};

const USER_MODE_ONLY: i32 = 1;
const API: u64 = 0xaa;
const EVENTS: u64 = 1 << 2 | 1 << 3 | 1 << 6; // REMAP, REMOVE, UNMAP
const WRITE_PROTECT: u64 = 1;
const WRITE_PROTECT_SHARED: u64 = 1 << 12;
const MODE_WRITE_PROTECT: u64 = 2;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_aa01;

/// Bytes of stack that its threads need themselves: they call next to nothing.
const STACK: usize = 128 << 10;

/// The descriptor and, above it, the fork generation it belongs to, plus one; 0
/// before the first start.
static SERVING: AtomicU64 = AtomicU64::new(0);
/// Which file it is: the number of its inode, or [`NONE`] where fstat(2) was refused.
static SERVED: AtomicU64 = AtomicU64::new(NONE);
const NONE: u64 = u64::MAX;
static STARTING: Holder = Holder::new();

fn serving() -> Option<i32> {
    let word = SERVING.load(Acquire);
    let generation = u64::from(fork::generation()) + 1;
    (word >> 32 == generation).then_some(word as u32 as i32)
}

/// Whether the event of a change may come after its addresses were given to another
/// thread. One load, for hooks; true in a forked child of a process that watched.
#[inline(always)]
pub(crate) fn may_be_late() -> bool {
    // Acquire: pairs with `start_now`.
    SERVING.load(Acquire) != 0
}

/// Events read since the start.
pub fn events() -> u64 {
    reader::EVENTS_READ.load(Relaxed)
}

/// Opens the descriptor and starts the threads that have it, once per process.
/// Not for hooks or signal handlers.
pub fn start() -> Result<(), Why> {
    if serving().is_some() {
        return Ok(());
    }
    // Asks the loader: before the lock.
    let stack = stack_size(STACK);
    STARTING.enter(fork::generation());
    let started = if serving().is_some() { Ok(()) } else { start_now(stack) };
    STARTING.leave();
    started
}

fn start_now(stack: usize) -> Result<(), Why> {
    let fd = moved_up(open()?);
    request::reset();
    if let Err(why) = start_reader(fd, stack) {
        // SAFETY: opened above; no thread reads it.
        unsafe { libc::close(fd) };
        return Err(why);
    }
    SERVED.store(Identity::of(fd).map_or(NONE, Identity::inode), Relaxed);
    let generation = u64::from(fork::generation()) + 1;
    SERVING.store(generation << 32 | fd as u64, Release);
    Ok(())
}

const CREATE: &str = "pthread_create(a thread for userfaultfd; a stack of 128 KiB and what glibc takes of it \
                      for static thread-local storage)";

/// Starts the thread that reads, and waits until it has a table of descriptors of its own, which it shares
/// with the one that takes requests.
fn start_reader(fd: i32, stack: usize) -> Result<(), Why> {
    reader::prepare(stack);
    let argument = core::ptr::without_provenance_mut(fd as usize);
    let thread =
        threads::create(reader::run, argument, stack).map_err(|errno| Why { call: CREATE, errno })?;
    // SAFETY: joins a thread of ours that nobody else does, once it has ended.
    let has_ended = || unsafe { libc::pthread_tryjoin_np(thread, core::ptr::null_mut()) == 0 };
    let why = match reader::answer(has_ended) {
        Answer::Reads => {
            // SAFETY: not joined: it runs.
            unsafe { libc::pthread_detach(thread) };
            return Ok(());
        }
        Answer::NoTable(errno) => Why {
            call: "close_range(CLOSE_RANGE_UNSHARE) or dup2, by the thread that reads userfaultfd",
            errno,
        },
        Answer::NoThread(errno) => Why { call: CREATE, errno },
        Answer::Killed => {
            let call = "close_range(CLOSE_RANGE_UNSHARE): it ended the thread that reads userfaultfd \
                        (a filter of system calls, SECCOMP_RET_KILL_THREAD)";
            return Err(Why { call, errno: 0 });
        }
    };
    // SAFETY: it is about to end, and was not joined.
    unsafe { libc::pthread_join(thread, core::ptr::null_mut()) };
    Err(why)
}

fn open() -> Result<i32, Why> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: no memory is passed. User-mode only: no privilege is needed
    // (Linux 5.11), and we answer no faults of the kernel's.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | USER_MODE_ONLY) } as i32;
    if fd < 0 {
        return Err(Why { call: "userfaultfd(UFFD_USER_MODE_ONLY)", errno: errno() });
    }
    for features in [EVENTS | WRITE_PROTECT | WRITE_PROTECT_SHARED, EVENTS | WRITE_PROTECT] {
        let mut api = [API, features, 0];
        // SAFETY: `struct uffdio_api` is these three words.
        if unsafe { libc::ioctl(fd, UFFDIO_API, api.as_mut_ptr()) } == 0 {
            return Ok(fd);
        }
    }
    let why = Why { call: "ioctl(UFFDIO_API, write protection and events)", errno: errno() };
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
    Err(why)
}

/// Whether the calling thread's table has the descriptor, and not another file at its number.
fn is_open_here(fd: i32) -> bool {
    Identity::of(fd).is_some_and(|file| file.inode() == SERVED.load(Relaxed))
}

/// What to do where a limit refuses it, by the text of the [`Why`] of [`start`]; `None` where it is the
/// kernel, or a filter of system calls.
///
/// ```
/// use pinyard_hooks::userfaultfd::remedy;
/// assert_eq!(remedy("userfaultfd(UFFD_USER_MODE_ONLY) (errno 24)"), Some("raise `ulimit -n`, or close files"));
/// assert_eq!(remedy("userfaultfd(UFFD_USER_MODE_ONLY) (errno 1)"), None);
/// ```
pub fn remedy(why: &str) -> Option<&'static str> {
    if why.starts_with("pthread_create") {
        return Some("raise the limits on threads and memory (ulimit -u, ulimit -v, pids.max)");
    }
    let is_full = ["(errno 24)", "(errno 23)"].iter().any(|errno| why.ends_with(errno));
    is_full.then_some("raise `ulimit -n`, or close files")
}

/// Events for `range` (whole pages, private anonymous memory) from now on; call
/// after [`start`] and before pages are pinned.
pub fn watch(range: Range<usize>) -> Result<(), Why> {
    let fd = serving().ok_or(Why { call: "userfaultfd is not started", errno: 0 })?;
    // No page is protected: the range behaves as before, and the kernel reports its changes.
    let register = [range.start as u64, range.len() as u64, MODE_WRITE_PROTECT, 0];
    ioctl(fd, UFFDIO_REGISTER, register).map_err(|errno| Why { call: "ioctl(UFFDIO_REGISTER)", errno })
}

/// No more events for `range`. What has been unmapped meanwhile has none anyway.
pub fn unwatch(range: Range<usize>) {
    let Some(fd) = serving() else { return };
    // Where the range is not ours any more, the kernel refuses and nothing has changed.
    let _ = ioctl(fd, UFFDIO_UNREGISTER, [range.start as u64, range.len() as u64, 0, 0]);
}

/// Asks the kernel by `fd`, where the calling thread's table has it, and by the thread that has it otherwise. The
/// error is an errno.
fn ioctl(fd: i32, request: libc::c_ulong, mut argument: [u64; request::WORDS]) -> Result<(), i32> {
    if is_open_here(fd) {
        // SAFETY: the structures of both requests are of these words, or the first of them.
        match unsafe { libc::ioctl(fd, request, argument.as_mut_ptr()) } {
            0 => return Ok(()),
            // Closed, or another file's, since we looked.
            _ if matches!(errno(), libc::EBADF | libc::ENOTTY) => {}
            _ => return Err(errno()),
        }
    }
    request::ioctl(request, argument)
}
