//! Keys of pthread's (pthread_key_create(3)).
#![allow(unsafe_code)]

use pinyard_hooks::{Holder, daemon, fork_generation};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::{io, thread};

/// The keys are made.
static MADE: AtomicBool = AtomicBool::new(false);
/// Of two threads that make them, one would find too few left.
static MAKING: Holder = Holder::new();

/// Makes the keys that this process's threads need, ours and that of Rust's standard library: a program
/// may use up all of them later, and then the first thread that needs one would end the process. `stack` is the
/// size of a thread's stack, in bytes.
pub(crate) fn make_keys(stack: usize) -> io::Result<()> {
    if MADE.load(Acquire) {
        return Ok(());
    }
    MAKING.enter(fork_generation());
    let made = if MADE.load(Acquire) { Ok(()) } else { make_now(stack) };
    MAKING.leave();
    made
}

fn make_now(stack: usize) -> io::Result<()> {
    let mut spare = 0;
    // SAFETY: stores a key, without a destructor.
    if !pinyard_hooks::make_key() || unsafe { libc::pthread_key_create(&raw mut spare, None) } != 0 {
        return Err(io::Error::other(
            "pthread_key_create: the process has PTHREAD_KEYS_MAX (1024) keys already: make registries \
             and pools before other libraries take them all",
        ));
    }
    // SAFETY: made above, and no thread has a value of it.
    unsafe { libc::pthread_key_delete(spare) };
    // The library makes its own on a thread that begins. The calling one may be about to end, and have given up
    // its thread-local variables.
    let new = thread::Builder::new().stack_size(stack);
    let _ = daemon::make(|| new.spawn(daemon::is_busy))?.join();
    MADE.store(true, Release);
    Ok(())
}
