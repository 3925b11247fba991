//! Values of which each process has one: a forked child starts with a new one.
//!
//! A child may be forked while another thread holds a lock of the parent's, or is
//! half way through a change, and that thread does not exist in the child.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::*};

struct Slot<T> {
    /// The fork generation of the process that it belongs to.
    generation: u32,
    value: T,
}

/// A value that is made when it is first asked for in a process, and never freed: a
/// child leaves the parent's where it lies.
pub(crate) struct OfProcess<T: 'static> {
    slot: AtomicPtr<Slot<T>>,
    new: fn() -> T,
}

impl<T: Sync + Send> OfProcess<T> {
    pub(crate) const fn new(new: fn() -> T) -> OfProcess<T> {
        OfProcess { slot: AtomicPtr::new(null_mut()), new }
    }

    /// This process's. Racing threads make one each and keep the first: nobody waits.
    #[allow(unsafe_code)]
    pub(crate) fn get(&self) -> &'static T {
        let generation = pinyard_hooks::fork_generation();
        let mut found = self.slot.load(Acquire);
        loop {
            // SAFETY: null, or from `Box::into_raw` below and never freed; the
            // Acquire pairs with the Release of the exchange.
            if let Some(slot) = unsafe { found.as_ref() }
                && slot.generation == generation
            {
                return &slot.value;
            }
            let made = Box::into_raw(Box::new(Slot { generation, value: (self.new)() }));
            match self.slot.compare_exchange(found, made, AcqRel, Acquire) {
                Ok(_) => found = made,
                Err(other) => {
                    // SAFETY: made just now, and nobody has seen it.
                    drop(unsafe { Box::from_raw(made) });
                    found = other;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[test]
    fn all_threads_of_a_process_have_the_same() {
        static ONE: OfProcess<Mutex<u32>> = OfProcess::new(|| Mutex::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| *ONE.get().lock() += 1);
            }
        });
        assert_eq!(*ONE.get().lock(), 4);
    }

    #[test]
    #[allow(unsafe_code)]
    fn a_child_does_not_wait_for_a_thread_that_it_has_not() {
        static ONE: OfProcess<Mutex<u32>> = OfProcess::new(|| Mutex::new(7));
        pinyard_hooks::notice_forks();
        let held = ONE.get().lock();
        // SAFETY: the child takes its own lock and ends.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::alarm(10);
                libc::_exit(*ONE.get().lock() as i32);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
            assert_eq!(libc::WEXITSTATUS(status), 7, "wait status {status}");
        }
        drop(held);
    }
}
