//! Allocations that wait for memory without a thread: a future, or a callback, served
//! by the pool's thread in the order of asking.
//!
//! Nobody is overtaken: while requests wait, a new one queues behind them, also one
//! that would fit. (Plain `alloc` does not queue: it has the patience of its thread.)
//! While any wait, the pool's thread looks every few milliseconds at most, since a block
//! that is dropped tells nobody; with none it sleeps.

use super::alloc::Effort;
use super::buf::DeviceBuf;
use super::core::Core;
use super::error::DeviceError;
use super::pool::PoolStream;
use super::worker;
use crate::source::DriverToken;
use crate::trace::Kind;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

type Answer = Result<DeviceBuf, DeviceError>;

enum Slot {
    Waiting(Option<Waker>),
    Answered(Answer),
    /// The answer was taken, or the future is gone: an answer has no use.
    Done,
}

enum To {
    Future(Arc<Mutex<Slot>>),
    Callback(Box<dyn FnOnce(Answer) + Send>),
}

struct Request {
    stream: PoolStream,
    bytes: usize,
    to: To,
}

#[derive(Default)]
pub(super) struct Requests {
    queue: Mutex<VecDeque<Request>>,
    /// Without an answer, the one included that is being tried.
    open: AtomicUsize,
}

impl Requests {
    pub(super) fn is_empty(&self) -> bool {
        self.open.load(SeqCst) == 0
    }
}

/// Resolves to a block when memory has come free; see [`PoolStream::alloc_async`]. It
/// needs no executor's support. Dropping it withdraws the request; a block that it had
/// been given meanwhile is free again.
#[must_use = "it asks when it is first polled"]
pub struct AllocFuture {
    stream: PoolStream,
    bytes: usize,
    slot: Option<Arc<Mutex<Slot>>>,
}

impl Future for AllocFuture {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let Some(slot) = self.slot.clone() else {
            let (core, _) = self.stream.parts();
            if core.requests.is_empty()
                && let Some(answer) = core.answer(&self.stream, self.bytes)
            {
                self.slot = Some(Arc::new(Mutex::new(Slot::Done)));
                return Poll::Ready(answer);
            }
            let slot = Arc::new(Mutex::new(Slot::Waiting(Some(context.waker().clone()))));
            self.slot = Some(slot.clone());
            let (core, _) = self.stream.parts();
            core.ask(self.stream.clone(), self.bytes, To::Future(slot));
            return Poll::Pending;
        };
        let mut slot = slot.lock();
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

impl Drop for AllocFuture {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            // The answer, if there is one, is dropped with the slot unlocked.
            let answer = std::mem::replace(&mut *slot.lock(), Slot::Done);
            drop(answer);
        }
    }
}

impl PoolStream {
    /// A block of at least `bytes` when there is memory for it, without a thread that
    /// waits. Fails, soon, only with what waiting does not mend: a size beyond the limit,
    /// or a shortage while no block of the pool's is in use.
    pub fn alloc_async(&self, bytes: usize) -> AllocFuture {
        AllocFuture { stream: self.clone(), bytes, slot: None }
    }

    /// The same for a callback, called once: now, on this thread, or later on the pool's,
    /// with no lock held. It should be short; it may allocate, and ask again.
    pub fn alloc_then(
        &self,
        bytes: usize,
        then: impl FnOnce(Result<DeviceBuf, DeviceError>) + Send + 'static,
    ) {
        let (core, _) = self.parts();
        if core.requests.is_empty()
            && let Some(answer) = core.answer(self, bytes)
        {
            return then(answer);
        }
        core.ask(self.clone(), bytes, To::Callback(Box::new(then)));
    }
}

impl Core {
    fn ask(&self, stream: PoolStream, bytes: usize, to: To) {
        self.watch.event(Kind::Wait, stream.id(), bytes, 0);
        self.requests.open.fetch_add(1, SeqCst);
        self.requests.queue.lock().push_back(Request { stream, bytes, to });
        self.wake();
    }

    /// Tries once, without waiting; `None` where waiting may help.
    fn answer(&self, stream: &PoolStream, bytes: usize) -> Option<Answer> {
        let answer = stream.alloc_with(bytes, Effort::Once);
        let Err(DeviceError::OutOfMemory { .. }) = answer else { return Some(answer) };
        let (_, state) = stream.parts();
        if bytes > self.settings.limit() {
            self.failed(state, bytes);
            return Some(answer);
        }
        let mut token = DriverToken::at_entry();
        let mut central = self.lock(&mut token);
        let counts = central.counts();
        let hopeless = counts.allocations == counts.frees && central.waiting.is_empty();
        drop(central);
        // Looked at before and after the attempt by nobody: a block dropped in between
        // makes room, so what is hopeless is tried once more.
        let last = hopeless.then(|| stream.alloc_with(bytes, Effort::Once));
        last.inspect(|answer| {
            if answer.is_err() {
                self.failed(state, bytes);
            }
        })
    }

    /// Serves requests from the first on, until one has to wait; whether any does.
    pub(super) fn serve(&self) -> bool {
        loop {
            // Only this thread takes requests out, so the first stays the first.
            let Some(request) = self.requests.queue.lock().pop_front() else { return false };
            if let To::Future(slot) = &request.to
                && matches!(*slot.lock(), Slot::Done)
            {
                self.requests.open.fetch_sub(1, SeqCst);
                continue;
            }
            let Some(answer) = self.answer(&request.stream, request.bytes) else {
                self.requests.queue.lock().push_front(request);
                return true;
            };
            self.requests.open.fetch_sub(1, SeqCst);
            match request.to {
                To::Callback(then) => worker::guarded("a callback", || then(answer)),
                To::Future(slot) => {
                    let mut slot = slot.lock();
                    if let Slot::Waiting(waker) = &mut *slot {
                        let waker = waker.take();
                        *slot = Slot::Answered(answer);
                        drop(slot);
                        if let Some(waker) = waker {
                            worker::guarded("a waker", || waker.wake());
                        }
                    }
                    // Else withdrawn: the block goes back as this ends.
                }
            }
        }
    }
}
