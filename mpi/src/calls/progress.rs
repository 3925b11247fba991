//! What goes on while this thread waits in MPI.
//!
//! MPI without threads of its own gets on in its calls, and so do operations that do not
//! block: whoever waits here asks those of every communicator of the thread between two
//! `MPI_Test`s. While none is under way, waits are MPI's own.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

/// Polls of a call that blocks between two yields, where nothing else is under way.
const TURNS: u32 = 64;

/// Operations that do not block.
pub(crate) trait Progress {
    /// Whether one is under way.
    fn is_busy(&self) -> bool;
    /// Takes each as far as it gets. Asked from within, does nothing.
    fn advance(&self);
}

thread_local! {
    static ALL: RefCell<Vec<Weak<dyn Progress>>> = const { RefCell::new(Vec::new()) };
}

fn all() -> Vec<Rc<dyn Progress>> {
    // At the thread's end nobody is asked.
    ALL.try_with(|all| all.borrow().iter().filter_map(Weak::upgrade).collect()).unwrap_or_default()
}

/// From now on it is asked, until it is dropped.
pub(crate) fn register(operations: Weak<dyn Progress>) {
    ALL.with(|all| {
        let mut all = all.borrow_mut();
        all.retain(|known| known.strong_count() > 0);
        all.push(operations);
    });
}

/// Whether any is under way.
pub(crate) fn is_wanted() -> bool {
    let busy = |known: &Weak<dyn Progress>| known.upgrade().is_some_and(|operations| operations.is_busy());
    ALL.try_with(|all| all.borrow().iter().any(busy)).unwrap_or(false)
}

/// Takes all of them further, and lets other processes run.
pub(crate) fn of_others() {
    for operations in all() {
        operations.advance();
    }
    // More ranks than cores: the one that is waited for needs one.
    std::thread::yield_now();
}

/// The result of `work`, which is polled here until it has one: a call that blocks.
pub(crate) fn complete<R>(work: impl Future<Output = R>) -> R {
    let mut work = pin!(work);
    let mut context = Context::from_waker(Waker::noop());
    let mut turns = 0u32;
    loop {
        if let Poll::Ready(result) = work.as_mut().poll(&mut context) {
            return result;
        }
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(TURNS) || is_wanted() {
            of_others();
        } else {
            std::hint::spin_loop();
        }
    }
}
