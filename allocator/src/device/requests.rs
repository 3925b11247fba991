//! Allocations that wait for memory without a thread ([`crate::requests`]).

use super::alloc::Effort;
use super::buf::DeviceBuf;
use super::core::Core;
use super::error::DeviceError;
use super::pool::PoolStream;
use crate::requests::{Requests, Ticket, To};
use crate::source::DriverToken;
use crate::trace::Kind;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

type Answer = Result<DeviceBuf, DeviceError>;
/// Of bytes, in a stream's order.
pub(super) type DeviceRequests = Requests<(PoolStream, usize), Answer>;

/// Resolves to a block when memory has come free; see [`PoolStream::alloc_async`]. It
/// needs no executor's support. Dropping it withdraws the request; a block that it had
/// been given meanwhile is free again.
#[must_use = "it asks when it is first polled"]
pub struct AllocFuture {
    stream: PoolStream,
    bytes: usize,
    ticket: Option<Ticket<Answer>>,
}

impl Future for AllocFuture {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let (stream, bytes) = (self.stream.clone(), self.bytes);
        let (core, _) = stream.parts();
        if core.is_forked() {
            return Poll::Ready(Err(DeviceError::Forked));
        }
        if let Some(ticket) = &self.ticket {
            return ticket.poll(context);
        }
        if core.requests.is_empty()
            && let Some(answer) = core.answer(&stream, bytes)
        {
            self.ticket = Some(Ticket::done());
            return Poll::Ready(answer);
        }
        let (ticket, to) = Ticket::new(context);
        self.ticket = Some(ticket);
        core.ask(stream.clone(), bytes, to);
        Poll::Pending
    }
}

impl Drop for AllocFuture {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take_if(|_| self.stream.parts().0.is_forked()) {
            ticket.forget();
        }
    }
}

impl PoolStream {
    /// A block of at least `bytes` when there is memory for it, without a thread that
    /// waits. Fails, soon, only with what waiting does not mend: a size beyond the limit,
    /// or a shortage while no block of the pool's is in use.
    pub fn alloc_async(&self, bytes: usize) -> AllocFuture {
        AllocFuture { stream: self.clone(), bytes, ticket: None }
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
    fn ask(&self, stream: PoolStream, bytes: usize, to: To<Answer>) {
        self.watch.event(Kind::Wait, stream.id(), bytes, 0);
        self.requests.push((stream, bytes), to);
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
        self.requests.serve(|(stream, bytes)| self.answer(stream, *bytes))
    }
}
