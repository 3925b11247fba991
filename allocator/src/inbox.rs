//! A list that anybody pushes to without a lock and that is taken whole: blocks of a
//! device pool that were dropped while their stream's cache was locked, or that other
//! streams use.
#![allow(unsafe_code)]

use crate::sync::AtomicPtr;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering::AcqRel, Ordering::Relaxed, Ordering::Release};

/// What can be in a list: a reference to something that has a place for the next one.
///
/// The place belongs to whoever holds the reference, the list included.
pub(crate) trait Linked: Copy {
    type Node;

    fn into_ptr(self) -> *mut Self::Node;

    /// # Safety
    /// From `into_ptr`.
    unsafe fn from_ptr(node: NonNull<Self::Node>) -> Self;

    fn next(self) -> Option<Self>;

    fn set_next(self, next: Option<Self>);
}

pub(crate) struct Inbox<L: Linked>(AtomicPtr<L::Node>);

impl<L: Linked> Inbox<L> {
    pub(crate) fn new() -> Inbox<L> {
        Inbox(AtomicPtr::new(ptr::null_mut()))
    }

    /// Whoever takes it may have disposed of it before this returns.
    pub(crate) fn push(&self, item: L) {
        let mut first = self.0.load(Relaxed);
        loop {
            // SAFETY: pushed, so from `into_ptr`.
            item.set_next(NonNull::new(first).map(|first| unsafe { L::from_ptr(first) }));
            // Release: pairs with the Acquire in `take`. What is below came by the same
            // exchanges, so the taker sees all of the list.
            match self.0.compare_exchange_weak(first, item.into_ptr(), Release, Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    /// As of a moment ago, unless a fence says more (`Sleep`).
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Relaxed).is_null()
    }

    /// Everything, the last first; taken whole, so there is no ABA.
    pub(crate) fn take(&self) -> Vec<L> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut items = Vec::new();
        let mut next = NonNull::new(self.0.swap(ptr::null_mut(), AcqRel));
        while let Some(item) = next {
            // SAFETY: pushed, so from `into_ptr`; ours since the swap.
            let item = unsafe { L::from_ptr(item) };
            next = item.next().and_then(|next| NonNull::new(next.into_ptr()));
            items.push(item);
        }
        items
    }
}
