//! A function of another library that runs inside the hook.
//!
//! A cache that asks before it trusts an entry is a subscriber, and hears later.
//! UCX's cache never asks: it has to hear before the change, as its own hooks do it.
//! The listener runs in the hook: what it locks and allocates is what it locks and
//! allocates in a hook of its own.
//!
//! A process without one pays nothing: it counts as a watched range, and the hook
//! looks at the count of those anyway.
#![allow(unsafe_code)]

use crate::effect;
use crate::monitor::WATCHED;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// Called before bytes change: first byte and length.
pub type Listener = extern "C" fn(*mut libc::c_void, usize);

/// Whether the range of a notification is that of a changed file: all addresses, since a hook does not know where the
/// file is mapped.
pub fn is_of_a_file(start: usize, len: usize) -> bool {
    effect::EVERYTHING.first() == Some(&(start, len))
}

/// Address of the [`Listener`]; 0 where there is none.
static LISTENER: AtomicUsize = AtomicUsize::new(0);

/// Has `listener` called in every later hook. False where another listens already.
///
/// # Safety
/// `listener` keeps to the rules of a hook, or is a function that its own library
/// calls in its hooks; it is callable until the process ends.
pub unsafe fn listen(listener: Listener) -> bool {
    let address = listener as *const () as usize;
    match LISTENER.compare_exchange(0, address, AcqRel, Acquire) {
        Ok(_) => {
            // AcqRel: a hook that sees the count sees the listener.
            WATCHED.fetch_add(1, AcqRel);
            true
        }
        Err(other) => other == address,
    }
}

/// In a hook.
pub(crate) fn tell(start: usize, len: usize) {
    let address = LISTENER.load(Acquire);
    if address != 0 {
        // SAFETY: `listen` stored the address of a function of this type, which
        // stays callable.
        let listener = unsafe { core::mem::transmute::<usize, Listener>(address) };
        listener(core::ptr::without_provenance_mut(start), len);
    }
}
