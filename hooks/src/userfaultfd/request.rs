//! What a thread asks the kernel of a userfaultfd that its table of descriptors lacks: the program has
//! closed it there, or the thread has a table of its own (unshare(2), `CLONE_FILES`). Another thread of
//! pinyard's, which shares the reader's table, asks in its place.
#![allow(unsafe_code)]

use crate::fork;
use crate::holder::Holder;
use crate::sync::{sleep_at_most, sleep_while, wake_one};
use crate::sys::errno;
use crate::threads;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// userfaultfd in the table of the two threads.
pub(super) const MINE: i32 = 0;
/// Words of the longest argument of a request.
pub(super) const WORDS: usize = 4;

/// One thread asks at a time.
static ASKING: Holder = Holder::new();
static STATE: AtomicU32 = AtomicU32::new(IDLE);
const IDLE: u32 = 0;
const ASKED: u32 = 1;
const DONE: u32 = 2;

static REQUEST: AtomicU64 = AtomicU64::new(0);
static ARGUMENT: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// The thread's number.
static SERVER: AtomicI32 = AtomicI32::new(0);
/// Between two looks whether it lives, in nanoseconds: 10 ms.
const PATIENCE: u64 = 10_000_000;

/// 0, or an errno.
static RESULT: AtomicI32 = AtomicI32::new(0);

/// Called before the thread that answers is started. A request of the process that this one was forked from is
/// forgotten.
pub(super) fn reset() {
    STATE.store(IDLE, Relaxed);
}

/// ioctl(2) by the thread that has the descriptor. The error is an errno.
pub(super) fn ioctl(request: libc::c_ulong, argument: [u64; WORDS]) -> Result<(), i32> {
    ASKING.enter(fork::generation());
    REQUEST.store(request, Relaxed);
    for (place, word) in ARGUMENT.iter().zip(argument) {
        place.store(word, Relaxed);
    }
    // Release: pairs with `serve`.
    STATE.store(ASKED, Release);
    wake_one(&STATE);
    let mut lives = true;
    // Acquire: the result comes before.
    while STATE.load(Acquire) == ASKED && lives {
        sleep_at_most(&STATE, ASKED, PATIENCE);
        lives = serves();
    }
    let result = if lives { RESULT.load(Relaxed) } else { libc::ESRCH };
    STATE.store(IDLE, Relaxed);
    ASKING.leave();
    if result == 0 { Ok(()) } else { Err(result) }
}

/// Whether the thread lives: a filter of system calls may have ended it.
fn serves() -> bool {
    // SAFETY: sends nothing.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), SERVER.load(Acquire), 0) == 0 }
}

/// The thread.
pub(super) extern "C" fn serve(_: *mut c_void) -> *mut c_void {
    threads::name(c"pinyard-serve");
    // SAFETY: no preconditions.
    SERVER.store(unsafe { libc::gettid() }, Release);
    loop {
        // Acquire: pairs with `ioctl`.
        match STATE.load(Acquire) {
            ASKED => {
                let mut argument = ARGUMENT.each_ref().map(|place| place.load(Relaxed));
                // SAFETY: the structures of userfaultfd's requests are of so many words, or fewer.
                let done = unsafe { libc::ioctl(MINE, REQUEST.load(Relaxed), argument.as_mut_ptr()) };
                RESULT.store(if done == 0 { 0 } else { errno() }, Relaxed);
                STATE.store(DONE, Release);
                wake_one(&STATE);
            }
            state => sleep_while(&STATE, state),
        }
    }
}
