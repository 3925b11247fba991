//! The atomics of this crate: `core`'s, or loom's when the models are built.
//!
//! This is the only file that knows about `cfg(loom)`; every other file names
//! what it needs from here.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

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
