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

use self::reader::errno;
use crate::descriptors::{Identity, moved_up};
use crate::fork;
use crate::holder::Holder;
use crate::report::Why;
use crate::signals::SignalsBlocked;
use crate::stack_size;
use core::mem::MaybeUninit;
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

/// Bytes of stack that the thread needs itself: it calls next to nothing.
const STACK: usize = 128 << 10;

/// The descriptor and, above it, the fork generation it belongs to, plus one; 0
/// before the first start.
static SERVING: AtomicU64 = AtomicU64::new(0);
/// Which file it is: the number of its inode.
static SERVED: AtomicU64 = AtomicU64::new(0);
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

/// Opens the descriptor and starts the thread that reads it, once per process, and again where the
/// program has closed the descriptor.
/// Not for hooks or signal handlers.
pub fn start() -> Result<(), Why> {
    if serving().is_some() { Ok(()) } else { start_after(None).map(drop) }
}

/// Starts it, unless another thread has since `last` was serving. The descriptor that serves.
fn start_after(last: Option<i32>) -> Result<i32, Why> {
    // Asks the loader: before the lock.
    let stack = stack_size(STACK);
    STARTING.enter(fork::generation());
    let started = match serving() {
        Some(fd) if Some(fd) != last => Ok(fd),
        _ => start_now(stack),
    };
    STARTING.leave();
    started
}

fn start_now(stack: usize) -> Result<i32, Why> {
    let fd = moved_up(open()?);
    let started = start_thread(fd, stack);
    if let Err(why) = started {
        // SAFETY: opened above; no thread reads it.
        unsafe { libc::close(fd) };
        return Err(why);
    }
    SERVED.store(Identity::of(fd).map_or(0, Identity::inode), Relaxed);
    let generation = u64::from(fork::generation()) + 1;
    SERVING.store(generation << 32 | fd as u64, Release);
    Ok(fd)
}

/// Starts the thread, and waits until it has a table of descriptors of its own.
fn start_thread(fd: i32, stack: usize) -> Result<(), Why> {
    reader::ANSWER.store(reader::WAITS, Relaxed);
    let _blocked = SignalsBlocked::now();
    let mut thread = MaybeUninit::uninit();
    let argument = core::ptr::without_provenance_mut(fd as usize);
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: `run` takes the descriptor as its argument; the thread is detached.
    let made = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        let made = match libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack) {
            0 => libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), reader::run, argument),
            refused => refused,
        };
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if made == 0 {
            libc::pthread_detach(thread.assume_init());
        }
        made
    };
    if made != 0 {
        let call = "pthread_create(the thread that reads userfaultfd; a stack of 128 KiB and what glibc \
                    takes of it for static thread-local storage)";
        return Err(Why { call, errno: made });
    }
    match reader::answer() {
        0 => Ok(()),
        errno => {
            let call = "close_range(CLOSE_RANGE_UNSHARE) or dup2, by the thread that reads userfaultfd";
            Err(Why { call, errno })
        }
    }
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

/// Whether `fd`, which was ours, still is.
fn is_ours(fd: i32) -> bool {
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
    // The program may have closed it; what it watches stays watched by its thread.
    match is_ours(fd).then(|| watch_by(fd, &range)) {
        None | Some(Err(Why { errno: libc::EBADF | libc::ENOTTY, .. })) => {
            watch_by(start_after(Some(fd))?, &range)
        }
        Some(done) => done,
    }
}

fn watch_by(fd: i32, range: &Range<usize>) -> Result<(), Why> {
    let mut register = [range.start as u64, range.len() as u64, MODE_WRITE_PROTECT, 0];
    // SAFETY: `struct uffdio_register` is these four words. Without a protected
    // page the range behaves as before, except that its changes are told.
    if unsafe { libc::ioctl(fd, UFFDIO_REGISTER, register.as_mut_ptr()) } == 0 {
        return Ok(());
    }
    Err(Why { call: "ioctl(UFFDIO_REGISTER)", errno: errno() })
}

/// No more events for `range`. What has been unmapped meanwhile has none anyway.
pub fn unwatch(range: Range<usize>) {
    let Some(fd) = serving().filter(|fd| is_ours(*fd)) else { return };
    let mut unregister = [range.start as u64, range.len() as u64];
    // SAFETY: `struct uffdio_range` is these two words. Where the range is not
    // ours any more, the kernel refuses and nothing has changed.
    unsafe { libc::ioctl(fd, UFFDIO_UNREGISTER, unregister.as_mut_ptr()) };
}
