//! Whoever has to be told of a change from inside the hook.
//!
//! A cache that asks before it trusts an entry is a subscriber, and hears later.
//! One that never asks, such as UCX's, has to be told before the change, as its own
//! hooks tell it. Listeners run in the hook: what they lock and allocate is what
//! they lock and allocate in a hook of their own.
//!
//! Telling costs a process without listeners nothing: they count as watched ranges,
//! and the hook looks at those anyway.
#![allow(unsafe_code)]

use crate::monitor::WATCHED;
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// Told that bytes change: first byte and length.
pub type Listener = extern "C" fn(*mut libc::c_void, usize);

/// UCX, and copies of pinyard that hear of changes through this one.
const MOST: usize = 4;
/// Addresses of [`Listener`]s; 0 where there is none.
static LISTENERS: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];

/// Has every later change told to `listener`, until [`forget`]. False where there is
/// no room. One that is there already is not told twice.
///
/// # Safety
/// `listener` keeps to the rules of a hook, or is a function that its own library
/// calls in its hooks; it is callable until the process ends.
pub unsafe fn listen(listener: Listener) -> bool {
    let address = listener as *const () as usize;
    if LISTENERS.iter().any(|place| place.load(Acquire) == address) {
        return true;
    }
    let free = |place: &&AtomicUsize| place.compare_exchange(0, address, AcqRel, Relaxed).is_ok();
    let found = LISTENERS.iter().find(free).is_some();
    if found {
        // AcqRel: a hook that sees the count sees the listener.
        WATCHED.fetch_add(1, AcqRel);
    }
    found
}

/// Tells `listener` no more. A hook that is under way may still do so.
pub fn forget(listener: Listener) {
    let address = listener as *const () as usize;
    let there = |place: &&AtomicUsize| place.compare_exchange(address, 0, AcqRel, Relaxed).is_ok();
    if LISTENERS.iter().find(there).is_some() {
        WATCHED.fetch_sub(1, AcqRel);
    }
}

/// In a hook.
pub(crate) fn tell(start: usize, len: usize) {
    for place in &LISTENERS {
        let address = place.load(Acquire);
        if address != 0 {
            // SAFETY: `listen` stored the address of a function of this type, which
            // stays callable.
            let listener = unsafe { core::mem::transmute::<usize, Listener>(address) };
            listener(core::ptr::without_provenance_mut(start), len);
        }
    }
}
