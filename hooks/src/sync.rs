//! The atomics of this crate: `core`'s, or loom's when the models are built.
//!
//! This is the only file that knows about `cfg(loom)`; every other file names
//! what it needs from here.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64};

/// Sleeps until somebody wakes this thread, unless `word` is not `value` any more. May
/// return early. Not for hooks.
#[cfg(not(loom))]
pub(crate) fn sleep_while(word: &AtomicU32, value: u32) {
    crate::sys::futex(word, libc::FUTEX_WAIT, value, None);
}
/// As [`sleep_while`], for `most` nanoseconds at most.
#[cfg(not(loom))]
pub(crate) fn sleep_at_most(word: &AtomicU32, value: u32, most: u64) {
    crate::sys::futex(word, libc::FUTEX_WAIT, value, Some(most));
}
#[cfg(loom)]
pub(crate) fn sleep_while(_: &AtomicU32, _: u32) {
    loom::thread::yield_now();
}

/// Wakes one of the threads that sleep on `word`.
#[cfg(not(loom))]
pub(crate) fn wake_one(word: &AtomicU32) {
    crate::sys::futex(word, libc::FUTEX_WAKE, 1, None);
}
#[cfg(loom)]
pub(crate) fn wake_one(_: &AtomicU32) {}

/// An array of zeroed atomics. loom's atomics have no `const` constructor.
#[cfg(not(loom))]
macro_rules! zeroed_atomics {
    ($atomic:ident) => {
        [const { $atomic::new(0) }; _]
    };
}
#[cfg(loom)]
macro_rules! zeroed_atomics {
    ($atomic:ident) => {
        core::array::from_fn(|_| $atomic::new(0))
    };
}
pub(crate) use zeroed_atomics;

/// Declares a constructor that is `const` outside the models.
#[cfg(not(loom))]
macro_rules! const_unless_loom {
    ($(#[$meta:meta])* $vis:vis fn $($rest:tt)*) => { $(#[$meta])* $vis const fn $($rest)* };
}
#[cfg(loom)]
macro_rules! const_unless_loom {
    ($(#[$meta:meta])* $vis:vis fn $($rest:tt)*) => { $(#[$meta])* $vis fn $($rest)* };
}
pub(crate) use const_unless_loom;

/// Sizes of a map: what a program needs, or what a model can explore.
#[cfg(not(loom))]
mod sizes {
    /// log2 of the pages of a chunk, and of the chunks of a directory's section.
    pub(crate) const FANOUT_SHIFT: u32 = 9;
    /// Registrations that can be under way at a time.
    pub const COMING: usize = 64;
    /// Events that wait for the registry because they are too wide for a hook.
    pub(crate) const LATER: usize = 256;
    /// Events of an inbox that may be widened over others where it is full.
    pub(crate) const NEAR: usize = 4096;
    /// Directory entries that a hook reads for one event.
    pub(crate) const LOADS: u32 = 4096;
}
#[cfg(loom)]
mod sizes {
    pub(crate) const FANOUT_SHIFT: u32 = 1;
    /// See above.
    pub const COMING: usize = 2;
    pub(crate) const LATER: usize = 2;
    pub(crate) const NEAR: usize = 1;
    pub(crate) const LOADS: u32 = 4;
}
pub use sizes::COMING;
pub(crate) use sizes::{FANOUT_SHIFT, LATER, LOADS, NEAR};
