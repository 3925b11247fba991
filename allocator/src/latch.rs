//! A lock whose release is one store.
//!
//! A mutex that lets waiters sleep ends with a second read-modify-write, to learn whether
//! there are any: of two of each an allocation and its free mostly consisted. Here whoever
//! has to wait looks again by itself, and sleeps between looks, as the holder may not be
//! running. It is for what is rarely waited for, and then not in turn: a stream's cache, which
//! is as a rule one thread's, and which a free that finds it locked leaves alone. What holds it
//! for long is a look over the whole pool.
#![allow(unsafe_code)]

use crate::sync::{AtomicBool, pause};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

pub(crate) struct Latch<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through guards, of which there is one at a time (`try_lock`),
// and goes from thread to thread with them.
unsafe impl<T: Send> Sync for Latch<T> {}

impl<T> Latch<T> {
    pub(crate) fn new(value: T) -> Latch<T> {
        Latch { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    #[inline(always)]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        // Acquire: pairs with the Release of the last guard; what was done under it is seen.
        self.held.compare_exchange(false, true, Acquire, Relaxed).ok()?;
        Some(Guard { latch: self, holder: PhantomData })
    }

    /// Not for a thread that holds it already, which would wait for good.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        let mut looks = 0;
        loop {
            pause(looks);
            looks += 1;
            // The holder keeps its line until it looks free.
            if !self.held.load(Relaxed)
                && let Some(guard) = self.try_lock()
            {
                return guard;
            }
        }
    }
}

pub(crate) struct Guard<'a, T> {
    latch: &'a Latch<T>,
    /// As with other locks: it stays on its thread.
    holder: PhantomData<*mut T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `held` was false when this guard set it, and is true until it is dropped:
        // there is no other guard.
        unsafe { &*self.latch.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and this guard is borrowed for as long.
        unsafe { &mut *self.latch.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with `try_lock`.
        self.latch.held.store(false, Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn it_is_held_once() {
        let latch = Latch::new(0);
        let guard = latch.lock();
        // Nor does a failure release it.
        assert!(latch.try_lock().is_none() && latch.try_lock().is_none());
        drop(guard);
        assert!(latch.try_lock().is_some());
    }

    /// Also by threads that come while it is held for long.
    #[test]
    fn every_thread_gets_it() {
        const EACH: u32 = 20_000;
        let latch = Latch::new(0);
        let guard = latch.lock();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..EACH).for_each(|_| *latch.lock() += 1));
            }
            thread::sleep(Duration::from_millis(20));
            drop(guard);
        });
        assert_eq!(*latch.lock(), 4 * EACH);
    }
}
