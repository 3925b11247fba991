//! Memory to come, of a host pool: allocations that wait without a thread
//! ([`requests`](crate::requests)).

use crate::block::BlockRef;
use crate::buf::PoolBuf;
use crate::carve::Want;
use crate::error::AllocError;
use crate::pool::{Handle, Pool};
use crate::requests::{Requests, Ticket, To};
use crate::shared::{Cold, Core};
use crate::source::DriverToken;
use bytemuck::Pod;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A block's bytes, of whatever type.
type Answer = Result<PoolBuf<u8>, AllocError>;
pub(crate) type PoolRequests = Requests<Request, Answer>;

/// It keeps the pool.
pub(crate) struct Request {
    pool: Pool,
    want: Want,
    bytes: usize,
    tried: Option<Tried>,
}

/// The last attempt, in vain.
struct Tried {
    /// How the pool was before it.
    before: Seen,
    /// Its end.
    at: Instant,
    /// It was the limit that refused, of which the pool knows all.
    by_limit: bool,
}

/// What decides whether an attempt can end otherwise than the last one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    frees: u64,
    passed: u64,
    reserved: usize,
    limit: usize,
}

/// Between two attempts, which take back what every thread keeps.
const SHORTEST: Duration = Duration::from_millis(1);
/// Where nothing has changed, or the source or the backend refused: for these, slabs that are free
/// are given back at each attempt, and they may have more of which the pool knows nothing.
const LONGEST: Duration = Duration::from_millis(100);

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
        if self.pool.handle.core.is_forked() {
            return Poll::Ready(Err(AllocError::Forked));
        }
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

impl<T: Pod> Drop for AllocFuture<T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take_if(|_| self.pool.handle.core.is_forked()) {
            ticket.forget();
        }
    }
}

/// As many elements were asked for, at their alignment.
fn typed<T: Pod>(answer: Answer, elements: usize) -> Result<PoolBuf<T>, AllocError> {
    answer.map(|bytes| PoolBuf::new(bytes.into_block(), elements))
}

impl Pool {
    /// A block of `elements` elements when there is memory for it, without a thread that waits for
    /// others to free theirs. Fails, soon, only with what waiting does not mend: a size beyond the
    /// limit, a shortage while no block of the pool's is in use, or where a request would wait and
    /// the pool's thread cannot be made. The first to wait tells `on_shortage` observers. The
    /// pool's thread serves it, and begins for that where it has not
    /// ([`Builder::fence_thread`](crate::Builder::fence_thread)); it asks fences that any thread may
    /// ask. A request that waits keeps the pool; a slab that somebody leases, or a block whose fence only
    /// a thread of the program's may ask, is waited for as long as it takes.
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
        Ok(Request { pool: self.clone(), want, bytes: elements * size_of::<T>(), tried: None })
    }
}

impl Request {
    /// The answer, unless it has to wait, for others or for memory.
    fn now(&self) -> Option<Answer> {
        let Request { pool, want, .. } = self;
        let core = &pool.handle.core;
        let waits = !core.requests.is_empty() && !core.is_forked() && pool.handle.is_possible(*want);
        if !waits {
            if let Want::Class(class) = *want
                && let Some(block) = core.alloc_fast(class)
            {
                return Some(Ok(self.handed_out(block)));
            }
            // Observers are told now, as by any allocation that is about to fail.
            if let Ok(answer) = self.attempt(Handle::alloc_without_patience) {
                return Some(answer);
            }
        }
        if core.start_worker() {
            return None;
        }
        // Nobody would serve it.
        Some(pool.handle.alloc_without_patience(*want).map(|block| self.handed_out(block)))
    }

    fn ask(self, to: To<Answer>) {
        let core = self.pool.handle.core.clone();
        core.requests.push(self, to);
        core.sleep.wake(core.worker.get());
    }

    /// Tries again, if what the pool has may have become more. On the pool's thread.
    fn again(&mut self) -> Option<Answer> {
        let handle = &self.pool.handle;
        let mut token = DriverToken::at_entry();
        let seen = handle.seen(&handle.core.lock(&mut token));
        if let Some(Tried { before, at, by_limit }) = &self.tried {
            let changed = *by_limit && *before != seen;
            if at.elapsed() < if changed { SHORTEST } else { LONGEST } {
                return None;
            }
        }
        match self.attempt(Handle::alloc_now) {
            Ok(answer) => Some(answer),
            Err(error) => {
                let by_limit = matches!(error, AllocError::Limit { .. });
                self.tried = Some(Tried { before: seen, at: Instant::now(), by_limit });
                None
            }
        }
    }

    /// Tries once; why not, where waiting may help.
    fn attempt(
        &self,
        alloc: fn(&Handle, Want) -> Result<BlockRef, AllocError>,
    ) -> Result<Answer, AllocError> {
        let handle = &self.pool.handle;
        let frees = handle.frees();
        match alloc(handle, self.want) {
            Ok(block) => Ok(Ok(self.handed_out(block))),
            // What was freed since it looked may suffice.
            Err(error) if error.is_shortage() && (handle.may_come(self.want) || handle.frees() != frees) => {
                Err(error)
            }
            Err(error) => Ok(Err(error)),
        }
    }

    fn handed_out(&self, block: BlockRef) -> PoolBuf<u8> {
        let buf = PoolBuf::new(block, self.bytes);
        if self.pool.handle.core.watched {
            self.pool.inspect(buf.block(), self.bytes);
        }
        buf
    }
}

impl Handle {
    /// Whether the limit leaves room for it in an empty pool.
    fn is_possible(&self, want: Want) -> bool {
        let exact = want.bytes().checked_next_multiple_of(self.supplier.source.granularity());
        exact.is_some_and(|exact| exact <= self.limit())
    }

    /// Whether something in the pool can still come free for it.
    fn may_come(&self, want: Want) -> bool {
        let mut token = DriverToken::at_entry();
        let mut cold = self.core.lock(&mut token);
        // What is free becomes ranges. What stays cut is in use, or in the hands of a thread that
        // takes or frees it; slabs that are not in the map come, go, or are leased.
        self.core.gather_all(&mut cold, true);
        let slabs: usize = cold.slabs.values().map(|slab| slab.bounds().bytes).sum();
        self.is_possible(want) && (cold.cut.bytes() > 0 || cold.reserved > slabs)
    }

    fn frees(&self) -> u64 {
        let mut token = DriverToken::at_entry();
        self.core.counts(&self.core.lock(&mut token)).frees
    }

    /// Under the lock.
    fn seen(&self, cold: &Cold) -> Seen {
        let core = &self.core;
        let frees = core.counts(cold).frees;
        Seen { frees, passed: core.deferred.passed(), reserved: cold.reserved, limit: self.limit() }
    }
}

impl Core {
    /// Serves requests from the first on, until one has to wait; whether any does.
    pub(crate) fn serve(&self) -> bool {
        self.requests.serve(Request::again)
    }
}
