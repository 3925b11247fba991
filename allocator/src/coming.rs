//! Memory to come, of a host pool: allocations that wait without a thread
//! ([`requests`](crate::requests)).

use crate::buf::PoolBuf;
use crate::carve::Want;
use crate::error::AllocError;
use crate::pool::{Handle, Pool};
use crate::requests::{Requests, Ticket, To};
use crate::shared::Core;
use crate::source::DriverToken;
use bytemuck::Pod;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A block's bytes, of whatever type.
type Answer = Result<PoolBuf<u8>, AllocError>;
pub(crate) type PoolRequests = Requests<Request, Answer>;

/// It keeps the pool.
pub(crate) struct Request {
    pool: Pool,
    want: Want,
    bytes: usize,
}

/// Resolves to a block when memory has come free; see [`Pool::alloc_async`]. It needs no
/// executor's support. Dropping it withdraws the request; a block that it had been given
/// meanwhile is free again.
#[must_use = "it asks when it is first polled"]
pub struct AllocFuture<T: Pod> {
    pool: Pool,
    elements: usize,
    ticket: Option<Ticket<Answer>>,
    of: PhantomData<fn() -> T>,
}

impl<T: Pod> Future for AllocFuture<T> {
    type Output = Result<PoolBuf<T>, AllocError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let elements = self.elements;
        if let Some(ticket) = &self.ticket {
            return ticket.poll(context).map(|answer| typed(answer, elements));
        }
        let request = self.pool.request::<T>(elements);
        let answer = request.and_then(|request| match request.now() {
            Some(answer) => answer.map(Some),
            None => {
                let (ticket, to) = Ticket::new(context);
                self.ticket = Some(ticket);
                request.ask(to);
                Ok(None)
            }
        });
        match answer.transpose() {
            Some(answer) => {
                self.ticket = Some(Ticket::done());
                Poll::Ready(typed(answer, elements))
            }
            None => Poll::Pending,
        }
    }
}

/// As many elements were asked for, at their alignment.
fn typed<T: Pod>(answer: Answer, elements: usize) -> Result<PoolBuf<T>, AllocError> {
    answer.map(|bytes| PoolBuf::new(bytes.into_block(), elements))
}

impl Pool {
    /// A block of `elements` elements when there is memory for it, without a thread that waits.
    /// Fails, soon, only with what waiting does not mend: a size beyond the limit, a shortage while
    /// no block of the pool's is in use, or where a request would wait and the pool's thread cannot
    /// be made. That thread begins with the first request that waits
    /// ([`Builder::fence_thread`](crate::Builder::fence_thread) is of fences alone, which it then
    /// asks as well). A request that waits keeps the pool.
    pub fn alloc_async<T: Pod>(&self, elements: usize) -> AllocFuture<T> {
        AllocFuture { pool: self.clone(), elements, ticket: None, of: PhantomData }
    }

    /// The same for a callback, called once: now, on this thread, or later on the pool's, with no
    /// lock held. It should be short; it may allocate, and ask again.
    pub fn alloc_then<T: Pod>(
        &self,
        elements: usize,
        then: impl FnOnce(Result<PoolBuf<T>, AllocError>) + Send + 'static,
    ) {
        let request = match self.request::<T>(elements) {
            Ok(request) => request,
            Err(error) => return then(Err(error)),
        };
        match request.now() {
            Some(answer) => then(typed(answer, elements)),
            None => request.ask(To::Callback(Box::new(move |answer| then(typed(answer, elements))))),
        }
    }

    fn request<T: Pod>(&self, elements: usize) -> Result<Request, AllocError> {
        let want = self.want::<T>(elements, align_of::<T>())?;
        Ok(Request { pool: self.clone(), want, bytes: elements * size_of::<T>() })
    }
}

impl Request {
    /// The answer, unless it has to wait, for others or for memory.
    fn now(&self) -> Option<Answer> {
        let core = &self.pool.handle.core;
        if !core.requests.is_empty() && !core.is_forked() {
            return None;
        }
        match self.answer() {
            Ok(answer) => Some(answer),
            Err(_) if core.start_worker() => None,
            // Nobody would serve it.
            Err(error) => Some(Err(error)),
        }
    }

    fn ask(self, to: To<Answer>) {
        let core = self.pool.handle.core.clone();
        core.requests.push(self, to);
        core.sleep.wake(core.worker.get());
    }

    /// Tries once, without waiting; why not, where waiting may help.
    fn answer(&self) -> Result<Answer, AllocError> {
        let Request { pool, want, bytes } = self;
        let handle = &pool.handle;
        let block = match handle.alloc_now(*want) {
            Ok(block) => block,
            Err(error) if error.is_shortage() && handle.may_come(*want) => return Err(error),
            // Looked at after the attempt: a block dropped in between makes room.
            Err(error) if error.is_shortage() => match handle.alloc_at_last(*want) {
                Ok(block) => block,
                Err(error) => return Ok(Err(error)),
            },
            Err(error) => return Ok(Err(error)),
        };
        let buf = PoolBuf::new(block, *bytes);
        if handle.core.watched {
            pool.inspect(buf.block(), *bytes);
        }
        Ok(Ok(buf))
    }
}

impl Handle {
    /// Whether blocks that are given back can make room for it.
    fn may_come(&self, want: Want) -> bool {
        let exact = want.bytes().checked_next_multiple_of(self.supplier.source.granularity());
        let mut token = DriverToken::at_entry();
        let counts = self.core.counts(&self.core.lock(&mut token));
        counts.live_blocks() > 0 && exact.is_some_and(|exact| exact <= self.limit())
    }
}

impl Core {
    /// Serves requests from the first on, until one has to wait; whether any does.
    pub(crate) fn serve(&self) -> bool {
        self.requests.serve(|request| request.answer().ok())
    }
}
