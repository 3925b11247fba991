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
//!
//! `UNMAP` and `REMAP` come when the pages are gone. `REMOVE` comes before: the
//! event is published once more a little later if a registration began since, for
//! it may have pinned the pages that were about to go.
//!
//! The thread that reads allocates nothing, locks nothing and unmaps nothing: a
//! change of its own in a watched range would wait for itself.
#![allow(unsafe_code)]

use crate::holder::Holder;
use crate::monitor::{Ticket, after, before};
use crate::report::Why;
use crate::settled;
use crate::signals::SignalsBlocked;
use crate::stack_size;
use crate::{PAGE_SIZE, fork};
use core::mem::{MaybeUninit, size_of};
use core::ops::Range;
use core::ptr::null_mut;
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

const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// Events taken by one read.
const BATCH: usize = 16;
/// Nanoseconds after which a `REMOVE` has happened, unless its caller was not run at all.
const AGAIN_AFTER: u64 = 2_000_000;
/// Changes that wait for this at a time.
const PENDING: usize = 64;

/// Bytes of stack that the thread needs itself: it calls next to nothing.
const STACK: usize = 128 << 10;

/// `struct uffd_msg`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    /// `remap`: from, to, length; `remove` and `unmap`: start, end.
    words: [u64; 3],
}

/// The descriptor and, above it, the fork generation it belongs to, plus one; 0
/// before the first start.
static SERVING: AtomicU64 = AtomicU64::new(0);
static STARTING: Holder = Holder::new();
static EVENTS_READ: AtomicU64 = AtomicU64::new(0);

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
    EVENTS_READ.load(Relaxed)
}

/// In a forked child: the thread that reads is the parent's.
pub(crate) fn forget_parent() {
    settled::resume();
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
    let fd = open()?;
    let _blocked = SignalsBlocked::now();
    let mut thread = MaybeUninit::uninit();
    let argument = core::ptr::without_provenance_mut(fd as usize);
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: `run` takes the descriptor as its argument; the thread is detached.
    let made = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        let made = match libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack) {
            0 => libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, argument),
            refused => refused,
        };
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if made == 0 {
            libc::pthread_detach(thread.assume_init());
        } else {
            libc::close(fd);
        }
        made
    };
    if made != 0 {
        let call = "pthread_create(the thread that reads userfaultfd; a stack of 128 KiB and what glibc \
                    takes of it for static thread-local storage)";
        return Err(Why { call, errno: made });
    }
    let generation = u64::from(fork::generation()) + 1;
    SERVING.store(generation << 32 | fd as u64, Release);
    Ok(fd)
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

fn errno() -> i32 {
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Events for `range` (whole pages, private anonymous memory) from now on; call
/// after [`start`] and before pages are pinned.
pub fn watch(range: Range<usize>) -> Result<(), Why> {
    let fd = serving().ok_or(Why { call: "userfaultfd is not started", errno: 0 })?;
    match watch_by(fd, &range) {
        // The program has closed it; what it watches stays watched by its thread.
        Err(Why { errno: libc::EBADF | libc::ENOTTY, .. }) => watch_by(start_after(Some(fd))?, &range),
        done => done,
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
    let Some(fd) = serving() else { return };
    let mut unregister = [range.start as u64, range.len() as u64];
    // SAFETY: `struct uffdio_range` is these two words. Where the range is not
    // ours any more, the kernel refuses and nothing has changed.
    unsafe { libc::ioctl(fd, UFFDIO_UNREGISTER, unregister.as_mut_ptr()) };
}

/// A change that had not happened when it was told: its range, and when it has.
#[derive(Clone, Copy)]
struct Announced {
    ticket: Ticket,
    start: usize,
    len: usize,
    /// Nanoseconds of CLOCK_MONOTONIC.
    due: u64,
}

fn now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The changes that are to be published again. Bounded: one more than fit is published
/// as if it touched everything, when the first of them is due.
struct Pending {
    announced: [Option<Announced>; PENDING],
}

impl Pending {
    fn add(&mut self, announced: Announced) {
        match self.announced.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(announced),
            None => {
                // The last one grows: its ticket is the older, its due time the later.
                if let Some(Some(last)) = self.announced.last_mut() {
                    *last = Announced { start: PAGE_SIZE, len: usize::MAX - PAGE_SIZE, ..*last };
                    last.due = announced.due;
                }
            }
        }
    }

    /// Publishes what is due. Milliseconds until the next is, or -1.
    fn publish_due(&mut self) -> i32 {
        if self.announced.iter().all(Option::is_none) {
            return -1;
        }
        let now = now();
        let mut wait = u64::MAX;
        for place in &mut self.announced {
            if let Some(Announced { ticket, start, len, due }) = *place {
                if due <= now {
                    after(ticket, start, len);
                    *place = None;
                } else {
                    wait = wait.min(due - now);
                }
            }
        }
        if wait == u64::MAX { -1 } else { wait.div_ceil(1_000_000) as i32 }
    }
}

/// Takes this thread a table of descriptors of its own, with `fd` alone: the program may close what it
/// does not know, as one that becomes a daemon does, and poll(2) looks its descriptors up again each time
/// it wakes. Where the kernel refuses, it is the program's table. (close_range(2))
fn keep_to_itself(fd: i32) {
    const UNSHARE: u32 = 1 << 1;
    let close = |first: i32, last: u32, flags: u32| {
        // SAFETY: closes descriptors of a table that no other thread has: the first call makes it.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
    };
    if close(fd + 1, u32::MAX, UNSHARE) && fd > 0 {
        close(0, fd as u32 - 1, 0);
    }
}

extern "C" fn run(argument: *mut libc::c_void) -> *mut libc::c_void {
    let fd = argument.addr() as i32;
    keep_to_itself(fd);
    let mut pending = Pending { announced: [None; PENDING] };
    loop {
        let wait = pending.publish_due();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, of this frame.
        let ready = unsafe { libc::poll(&raw mut poll, 1, wait) };
        if ready <= 0 {
            continue;
        }
        settled::suspend();
        let is_open = poll.revents & libc::POLLIN != 0 && read(fd, &mut pending);
        if !is_open {
            // The program has closed it, where the table of descriptors could not be this thread's own.
            before(PAGE_SIZE, usize::MAX - PAGE_SIZE);
        }
        settled::resume();
        if !is_open {
            return null_mut();
        }
    }
}

/// Reads what is pending, and publishes it. From the read on, the callers run. `false` where the
/// descriptor is closed.
fn read(fd: i32, pending: &mut Pending) -> bool {
    let mut messages = [Message { event: 0, reserved: [0; 7], words: [0; 3] }; BATCH];
    // SAFETY: the buffer's own length.
    let got = unsafe { libc::read(fd, messages.as_mut_ptr().cast(), size_of_val(&messages)) };
    if got < 0 && errno() == libc::EBADF {
        return false;
    }
    let count = usize::try_from(got).unwrap_or(0) / size_of::<Message>();
    EVENTS_READ.fetch_add(count as u64, Relaxed);
    for message in messages.iter().take(count) {
        let [first, second, third] = message.words.map(|word| word as usize);
        match message.event {
            EVENT_REMAP => {
                before(first, third);
                before(second, third);
            }
            EVENT_UNMAP => {
                before(first, second.saturating_sub(first));
            }
            EVENT_REMOVE => {
                let len = second.saturating_sub(first);
                let ticket = before(first, len);
                pending.add(Announced { ticket, start: first, len, due: now() + AGAIN_AFTER });
            }
            _ => {
                before(PAGE_SIZE, usize::MAX - PAGE_SIZE);
            }
        }
    }
    true
}
