//! Who waits for memory without a thread: futures and callbacks, answered by a pool's thread
//! in the order of asking.
//!
//! Nobody is overtaken: while requests wait, a new one queues behind them, also one that would
//! fit. (Plain `alloc` does not queue: it has the patience of its thread.) While any wait, the
//! pool's thread looks every few milliseconds at most, since a block that is dropped tells
//! nobody; with none it sleeps.

use parking_lot::Mutex;
use pinyard_worker::{Panicked, caught, log};
use std::collections::VecDeque;
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
        // Wakers are the program's: neither cloned nor dropped with the slot locked.
        let mut waker = Some(context.waker().clone());
        let mut slot = self.0.lock();
        if let Slot::Waiting(old) = &mut *slot {
            std::mem::swap(old, &mut waker);
            drop(slot);
            return Poll::Pending;
        }
        let before = std::mem::replace(&mut *slot, Slot::Done);
        drop(slot);
        match before {
            Slot::Answered(answer) => Poll::Ready(answer),
            // Polled after it was ready: nothing will come.
            _ => Poll::Pending,
        }
    }

    /// In a forked child, whose parent's thread may hold the slot's lock.
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }
}

impl<A> Drop for Ticket<A> {
    fn drop(&mut self) {
        // The answer, if there is one, is dropped with the slot unlocked.
        let mut slot = self.0.lock();
        let answer = std::mem::replace(&mut *slot, Slot::Done);
        drop(slot);
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
        let mut queue = self.queue.lock();
        queue.push_back((request, to));
        self.open.fetch_add(1, SeqCst);
    }

    /// Answers requests from the first on, until one has to wait (`None`); whether any does.
    /// Only by the pool's thread. An answer that panics (a source, a fence) is tried again.
    pub(crate) fn serve(&self, mut answer: impl FnMut(&mut R) -> Option<A>) -> bool {
        self.forget_withdrawn();
        loop {
            // Only this thread takes requests out, so the first stays the first.
            let Some((mut request, to)) = self.queue.lock().pop_front() else { return false };
            let Some(answer) = guarded("an allocation", || answer(&mut request)).flatten() else {
                self.queue.lock().push_front((request, to));
                return true;
            };
            self.open.fetch_sub(1, SeqCst);
            to.tell(answer);
            end(request);
        }
    }

    /// Whose futures are gone.
    fn forget_withdrawn(&self) {
        let mut queue = self.queue.lock();
        let (gone, left): (VecDeque<_>, _) =
            std::mem::take(&mut *queue).into_iter().partition(|(_, to)| to.is_withdrawn());
        *queue = left;
        self.open.fetch_sub(gone.len(), SeqCst);
        drop(queue);
        gone.into_iter().for_each(|(request, _)| end(request));
    }
}

/// A request may hold the pool's last handle, whose end tells the program of leaks.
fn end<R>(request: R) {
    guarded("the end of a request", || drop(request));
}

impl<A> To<A> {
    fn is_withdrawn(&self) -> bool {
        matches!(self, To::Future(slot) if matches!(*slot.lock(), Slot::Done))
    }

    fn tell(self, answer: A) {
        match self {
            To::Callback(then) => _ = guarded("a callback", || then(answer)),
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

/// Runs what belongs to the program where a panic of it must not go on: on a pool's thread,
/// and at a pool's end. `None`: it panicked, and the log was told.
pub(crate) fn guarded<T>(what: &str, run: impl FnOnce() -> T) -> Option<T> {
    caught(run).inspect_err(|panicked| log!(error, "{what} panicked in the hands of a pool: {panicked}")).ok()
}

/// Of a pool's thread itself, which goes on.
pub(crate) fn thread_panicked(panicked: &Panicked) {
    log!(error, "the thread of a pool panicked, and goes on: {panicked}");
}
