//! Who waits for memory without a thread: futures and callbacks, answered by a pool's thread
//! in the order of asking.
//!
//! Nobody is overtaken: while requests wait, a new one queues behind them, also one that would
//! fit. (Plain `alloc` does not queue: it has the patience of its thread.) While any wait, the
//! pool's thread looks every few milliseconds at most, since a block that is dropped tells
//! nobody; with none it sleeps.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

pub(crate) enum Slot<A> {
    Waiting(Option<Waker>),
    Answered(A),
    /// The answer was taken, or the future is gone: an answer has no use.
    Done,
}

/// A future's end of a request. Dropping it withdraws the request.
pub(crate) struct Ticket<A>(Arc<Mutex<Slot<A>>>);

/// Who is answered.
pub(crate) enum To<A> {
    Future(Arc<Mutex<Slot<A>>>),
    Callback(Box<dyn FnOnce(A) + Send>),
}

/// Requests `R`, answered with an `A`.
pub(crate) struct Requests<R, A> {
    queue: Mutex<VecDeque<(R, To<A>)>>,
    /// Without an answer, the one included that is being tried.
    open: AtomicUsize,
}

impl<A> Ticket<A> {
    /// Of a request that is about to be made, and whom to answer.
    pub(crate) fn new(context: &Context<'_>) -> (Ticket<A>, To<A>) {
        let slot = Arc::new(Mutex::new(Slot::Waiting(Some(context.waker().clone()))));
        (Ticket(slot.clone()), To::Future(slot))
    }

    /// Of a request that needed no waiting.
    pub(crate) fn done() -> Ticket<A> {
        Ticket(Arc::new(Mutex::new(Slot::Done)))
    }

    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<A> {
        let mut slot = self.0.lock();
        match std::mem::replace(&mut *slot, Slot::Done) {
            Slot::Answered(answer) => Poll::Ready(answer),
            Slot::Waiting(_) => {
                *slot = Slot::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            // Polled after it was ready: nothing will come.
            Slot::Done => Poll::Pending,
        }
    }
}

impl<A> Drop for Ticket<A> {
    fn drop(&mut self) {
        // The answer, if there is one, is dropped with the slot unlocked.
        let answer = std::mem::replace(&mut *self.0.lock(), Slot::Done);
        drop(answer);
    }
}

impl<R, A> Default for Requests<R, A> {
    fn default() -> Requests<R, A> {
        Requests { queue: Mutex::default(), open: AtomicUsize::new(0) }
    }
}

impl<R, A> Requests<R, A> {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.load(SeqCst) == 0
    }

    /// The last in the queue. Whoever pushes wakes the pool's thread.
    pub(crate) fn push(&self, request: R, to: To<A>) {
        self.open.fetch_add(1, SeqCst);
        self.queue.lock().push_back((request, to));
    }

    /// Answers requests from the first on, until one has to wait (`None`); whether any does.
    /// Only by the pool's thread.
    pub(crate) fn serve(&self, mut answer: impl FnMut(&R) -> Option<A>) -> bool {
        loop {
            // Only this thread takes requests out, so the first stays the first.
            let Some((request, to)) = self.queue.lock().pop_front() else { return false };
            if let To::Future(slot) = &to
                && matches!(*slot.lock(), Slot::Done)
            {
                self.open.fetch_sub(1, SeqCst);
                continue;
            }
            let Some(answer) = answer(&request) else {
                self.queue.lock().push_front((request, to));
                return true;
            };
            self.open.fetch_sub(1, SeqCst);
            to.tell(answer);
        }
    }
}

impl<A> To<A> {
    fn tell(self, answer: A) {
        match self {
            To::Callback(then) => guarded("a callback", || then(answer)),
            To::Future(slot) => {
                let mut slot = slot.lock();
                if let Slot::Waiting(waker) = &mut *slot {
                    let waker = waker.take();
                    *slot = Slot::Answered(answer);
                    drop(slot);
                    if let Some(waker) = waker {
                        guarded("a waker", || waker.wake());
                    }
                }
                // Else withdrawn: the block goes back as this ends.
            }
        }
    }
}

/// Runs what belongs to the program on a pool's thread, which a panic of it must not end.
pub(crate) fn guarded(what: &str, run: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(run)).is_err() {
        tracing::error!("{what} panicked on the thread of a pool");
    }
}
