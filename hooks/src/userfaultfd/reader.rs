//! The thread that reads userfaultfd, and publishes what it says.
//!
//! `UNMAP` and `REMAP` come when the pages are gone. `REMOVE` comes before: the
//! event is published once more a little later if a registration began since, for
//! it may have pinned the pages that were about to go.
//!
//! The thread that reads allocates nothing, locks nothing and unmaps nothing: a
//! change of its own in a watched range would wait for itself. Its table of descriptors is its own and
//! has userfaultfd alone, as descriptor 0: what the program closes stays open for it, and a limit of
//! descriptors (RLIMIT_NOFILE), which poll(2) heeds, does not stop it.
#![allow(unsafe_code)]

use super::request::{self, MINE};
use crate::monitor::{Ticket, after, before};
use crate::sync::{sleep_at_most, wake_one};
use crate::sys::{self, errno};
use crate::{PAGE_SIZE, daemon, settled, threads};
use core::mem::size_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// Events taken by one read.
const BATCH: usize = 16;
/// Nanoseconds after which a `REMOVE` has happened, unless its caller was not run at all.
const AGAIN_AFTER: u64 = 2_000_000;
/// Changes that wait for this at a time.
const PENDING: usize = 64;

/// `struct uffd_msg`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    /// `remap`: from, to, length; `remove` and `unmap`: start, end.
    words: [u64; 3],
}

pub(super) static EVENTS_READ: AtomicU64 = AtomicU64::new(0);
/// What a thread that is being started answers, one at a time: an [`Answer`] as a number.
static ANSWER: AtomicU32 = AtomicU32::new(WAITS);
const WAITS: u32 = 0;
const READS: u32 = u32::MAX;
/// Beside the errno: the table is there, and the second thread is not.
const NO_THREAD: u32 = 1 << 16;
/// What both threads' stacks have, in bytes.
static STACK: AtomicUsize = AtomicUsize::new(0);
/// Between two looks whether a thread that does not answer lives, in nanoseconds: 10 ms.
const PATIENCE: u64 = 10_000_000;

/// What became of a thread that was started. Errors are an errno.
pub(super) enum Answer {
    /// It reads, and requests are served.
    Reads,
    /// It could not have a table of descriptors of its own.
    NoTable(i32),
    /// The thread that serves requests could not be made.
    NoThread(i32),
    /// It has ended without an answer.
    Killed,
}

/// Before the thread is started, whose stack has so many bytes.
pub(super) fn prepare(stack: usize) {
    STACK.store(stack, Relaxed);
    ANSWER.store(WAITS, Relaxed);
}

/// Waits for the answer.
pub(super) fn answer(has_ended: impl Fn() -> bool) -> Answer {
    let mut ended = false;
    loop {
        // Acquire: the thread's table of descriptors is its own.
        match ANSWER.load(Acquire) {
            WAITS if ended => return Answer::Killed,
            WAITS => {
                sleep_at_most(&ANSWER, WAITS, PATIENCE);
                // Its answer, if it gave one, came before its end.
                ended = ANSWER.load(Acquire) == WAITS && has_ended();
            }
            READS => return Answer::Reads,
            errno if errno & NO_THREAD != 0 => return Answer::NoThread((errno & !NO_THREAD) as i32),
            errno => return Answer::NoTable(errno as i32),
        }
    }
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

    /// Publishes what is due. Nanoseconds until the next is, if there is one.
    fn publish_due(&mut self) -> Option<u64> {
        if self.announced.iter().all(Option::is_none) {
            return None;
        }
        let now = sys::now();
        let mut wait = None;
        for place in &mut self.announced {
            if let Some(Announced { ticket, start, len, due }) = *place {
                if due <= now {
                    after(ticket, start, len);
                    *place = None;
                } else {
                    wait = Some(wait.unwrap_or(u64::MAX).min(due - now));
                }
            }
        }
        wait
    }
}

/// Takes this thread a table of descriptors of its own, with `fd` alone, as [`MINE`]. The error is
/// close_range(2)'s errno: a filter of system calls may refuse it.
fn keep_to_itself(fd: i32) -> Result<(), i32> {
    threads::own_descriptors(fd + 1)?;
    // SAFETY: descriptors of this thread's own.
    if fd != MINE && unsafe { libc::dup2(fd, MINE) } < 0 {
        return Err(errno());
    }
    threads::own_descriptors(MINE + 1)
}

/// Waits until there is an event, or `wait` (nanoseconds) is over. Whether to read.
fn wait_for_event(wait: Option<u64>) -> bool {
    // `fd_set` of one descriptor. pselect6(2) does not heed RLIMIT_NOFILE.
    let mut readable: u64 = 1 << MINE;
    let timeout = wait.map(sys::time);
    let timeout = timeout.as_ref().map_or(0, |timeout| (&raw const *timeout).addr());
    let args = [MINE as usize + 1, (&raw mut readable).addr(), 0, 0, timeout, 0];
    // SAFETY: a set of one word and a time, of this frame.
    match unsafe { sys::syscall6(libc::SYS_pselect6 as usize, args) } {
        0 => false,
        1.. => true,
        _ => {
            // The kernel has no memory for it: look, and let others run.
            let pause = sys::time(1_000_000);
            // SAFETY: as above.
            unsafe { libc::nanosleep(&raw const pause, null_mut()) };
            true
        }
    }
}

/// Takes a table of descriptors, and starts the thread that shares it. What to answer if that fails.
fn begin(fd: i32) -> Result<(), u32> {
    keep_to_itself(fd).map_err(|errno| errno as u32)?;
    daemon::is_busy();
    let server = threads::create(request::serve, null_mut(), STACK.load(Relaxed));
    daemon::is_idle();
    let server = server.map_err(|errno| errno as u32 | NO_THREAD)?;
    // SAFETY: made above, and nobody joins it.
    unsafe { libc::pthread_detach(server) };
    Ok(())
}

pub(super) extern "C" fn run(argument: *mut libc::c_void) -> *mut libc::c_void {
    threads::name(c"pinyard-watch");
    let begun = begin(argument.addr() as i32);
    // Release: pairs with `answer`.
    ANSWER.store(begun.err().unwrap_or(READS), Release);
    wake_one(&ANSWER);
    if begun.is_err() {
        daemon::is_busy();
        return null_mut();
    }
    let mut pending = Pending { announced: [None; PENDING] };
    loop {
        let wait = pending.publish_due();
        if wait_for_event(wait) {
            settled::suspend();
            read(&mut pending);
            settled::resume();
        }
    }
}

/// Reads what is pending, and publishes it. From the read on, the callers run.
fn read(pending: &mut Pending) {
    let mut messages = [Message { event: 0, reserved: [0; 7], words: [0; 3] }; BATCH];
    // SAFETY: the buffer's own length.
    let got = unsafe { libc::read(MINE, messages.as_mut_ptr().cast(), size_of_val(&messages)) };
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
                pending.add(Announced { ticket, start: first, len, due: sys::now() + AGAIN_AFTER });
            }
            _ => {
                before(PAGE_SIZE, usize::MAX - PAGE_SIZE);
            }
        }
    }
}
