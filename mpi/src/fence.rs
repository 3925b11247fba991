//! Fences on MPI requests: a block that MPI still uses is given up at once, and is used again
//! when MPI says that it has done.
//!
//! A pool asks fences on whichever thread needs memory, and on its own. MPI may be called by any
//! thread with `MPI_THREAD_MULTIPLE` alone. Below that a fence is asked on the thread that made it,
//! and on all others answers that it has not passed.
//!
//! What is in doubt has not passed: an `MPI_Test` that fails and does not say that the operation
//! has ended, and `MPI_Finalize` before it has.
#![allow(unsafe_code)]

use crate::calls::Given;
use mpi::{Threading, ffi};
use pinyard_allocator::{Fence, Poll};
use std::thread::{self, ThreadId};

/// A fence on an MPI request, which it takes over: it passes when `MPI_Test` says that the operation
/// has ended (MPI-4.1, section 3.7.3). A pool's block that the operation uses is given up until then
/// ([`PoolBuf::defer_until`](pinyard_allocator::PoolBuf::defer_until),
/// [`DeviceBuf::defer_until`](pinyard_allocator::device::DeviceBuf::defer_until), and those of this
/// crate's buffers). Of several requests: `Fence::poll(vec![one.into(), two.into()])`.
///
/// ```no_run
/// use mpi::request::StaticScope;
/// use mpi::traits::*;
/// use pinyard_allocator::Pool;
/// use pinyard_mpi::RequestFence;
///
/// fn send(pool: &Pool, to: &impl Destination) -> Result<(), Box<dyn std::error::Error>> {
///     let mut block = pool.alloc::<f32>(1 << 20)?;
///     block.fill(1.0);
///     // SAFETY: nobody writes them until the fence has passed: the pool has the block until then.
///     let elements: &'static [f32] = unsafe { std::slice::from_raw_parts(block.as_ptr(), block.len()) };
///     let request = to.immediate_send(StaticScope, elements);
///     // SAFETY: as above; this thread calls MPI, and MPI is finalised when the blocks are back.
///     let sent = unsafe { RequestFence::new(request) };
///     block.defer_until(sent.into());
///     Ok(())
/// }
///
/// let universe = mpi::initialize().unwrap();
/// # let pool: Pool = todo!();
/// send(&pool, &universe.world().process_at_rank(1))?;
/// // … and at the end:
/// while pool.stats().deferred_blocks > 0 {
///     pool.poll_fences();
/// }
/// drop((pool, universe));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// **Who asks.** With `MPI_THREAD_MULTIPLE` any thread that uses the pool, and the pool's own, so that
/// the block comes back while nobody does anything. Below that only the thread that made the fence,
/// when it allocates with nothing free, or calls
/// [`Pool::poll_fences`](pinyard_allocator::Pool::poll_fences) or `trim`; of a pool that it has dropped,
/// nobody, and the memory stays until the process ends.
///
/// **Errors.** An operation that has ended with an error has passed: MPI uses its buffers no more. That
/// is a warning of `tracing`. Where `MPI_Test` fails and the request stays active, nobody knows: it has
/// not passed, is asked again, and the first such error is told. All of that only where the
/// request's communicator (or file, or window) returns errors; by default MPI ends the program.
///
/// **After `MPI_Finalize`** it never passes: the program was to complete all its operations before
/// (MPI-4.1, section 11.2.2), and another rank may still copy from or to the memory of one that it did
/// not. The block stays as it is, which is an error of `tracing`.
///
/// **Dropped** before it has passed it is asked once more. A request that is active then stays so: to
/// free it would tell nobody when its buffers are free, and to wait could hang. That is a
/// warning, and nobody completes the request any more.
///
/// In a forked child it never passes, and does nothing: the request is the parent's.
#[must_use = "dropped, nobody learns when the request's buffers are free"]
pub struct RequestFence {
    request: Given,
    /// The only thread that may ask MPI; none where every one may.
    asker: Option<ThreadId>,
    /// Whose request it is.
    process: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    UnderWay,
    /// MPI could not say, which was told.
    InDoubt,
    Passed,
    /// MPI was finalised before.
    Lost,
}

// SAFETY: another thread calls MPI with the request where every one may, and never while a second
// does, since asking needs `&mut`. Elsewhere the request is nothing but a value.
unsafe impl Send for RequestFence {}

impl RequestFence {
    /// Takes a request of rsmpi's over, out of its scope, which does not wait for it then.
    ///
    /// # Safety
    /// As of [`from_raw`](RequestFence::from_raw). The lifetime of the request's buffers does not
    /// tell how long MPI uses them any more.
    pub unsafe fn new<'a, D: ?Sized, S: mpi::request::Scope<'a>>(
        request: mpi::request::Request<'a, D, S>,
    ) -> RequestFence {
        // SAFETY: the caller's contract.
        let (raw, ..) = unsafe { request.into_raw() };
        // SAFETY: the caller's contract.
        unsafe { RequestFence::from_raw(raw) }
    }

    /// Takes over what a function of MPI's in C has made: any kind of request. The null request
    /// has passed; a persistent or partitioned one passes when it is inactive, and is freed.
    ///
    /// # Safety
    /// - Nobody else asks, waits for, starts or frees the request from now on.
    /// - Until the fence has passed, the operation's buffers stand, nobody writes them, and where MPI
    ///   writes them nobody reads them: they are of the block that is given up with the fence, or of
    ///   something else that stays as long. A fence that was dropped has not passed.
    /// - This thread may call MPI: below `MPI_THREAD_MULTIPLE` now, and whenever it calls the pool or
    ///   asks the fence otherwise. With `MPI_THREAD_SERIALIZED` no other thread is in MPI then.
    /// - No function that MPI calls, such as an operation of the program's own, calls the pool.
    /// - `MPI_Finalize` is called when the fence has passed, or by the only thread that asks it.
    pub unsafe fn from_raw(request: ffi::MPI_Request) -> RequestFence {
        let asker =
            (mpi::environment::threading_support() != Threading::Multiple).then(|| thread::current().id());
        // SAFETY: the caller's contract.
        let request = unsafe { Given::new(request) };
        RequestFence { request, asker, process: std::process::id(), state: State::UnderWay }
    }

    /// Whether this thread may ask MPI.
    fn is_askers(&self) -> bool {
        self.process == std::process::id() && self.asker.is_none_or(|asker| asker == thread::current().id())
    }

    fn ask(&mut self) {
        if !self.is_askers() {
            return;
        }
        // Any thread may ask this, at any time (MPI-4.1, section 11.2.3).
        if mpi::is_finalized() {
            tracing::error!(
                "MPI was finalised with a request under way: its block is never used again; ask \
                 the pool's fences before MPI_Finalize until none is left"
            );
            self.state = State::Lost;
            return;
        }
        // SAFETY: a thread that may call MPI (`is_askers`, and the contract of `from_raw`), which was not
        // finalised just now; and no other thread does so before this has passed (the contract).
        let (ended, answer) = unsafe { self.request.test() };
        match answer {
            Err(error) if ended => {
                tracing::warn!(%error, "an operation that a block was given up with has failed");
            }
            Err(error) if self.state == State::UnderWay => {
                tracing::error!(
                    %error,
                    "whether MPI still uses a block is unknown: it is not used again before that is"
                );
                self.state = State::InDoubt;
            }
            _ => {}
        }
        if ended {
            self.state = State::Passed;
        }
    }
}

impl Poll for RequestFence {
    fn passed(&mut self) -> bool {
        if matches!(self.state, State::UnderWay | State::InDoubt) {
            self.ask();
        }
        self.state == State::Passed
    }

    fn any_thread(&self) -> bool {
        self.asker.is_none()
    }
}

impl From<RequestFence> for Fence {
    fn from(fence: RequestFence) -> Fence {
        Fence::poll(fence)
    }
}

impl Drop for RequestFence {
    fn drop(&mut self) {
        let is_child = self.process != std::process::id();
        // That it is lost was told.
        if !is_child && !self.passed() && self.state != State::Lost {
            tracing::warn!(
                "a fence on an MPI request was dropped before it had passed: nobody completes the request"
            );
        }
    }
}

impl std::fmt::Debug for RequestFence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestFence")
            .field("request", &self.request)
            .field("asker", &self.asker)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MPI is not initialised here: any call of it would end the process.
    fn fence(asker: Option<ThreadId>, process: u32) -> RequestFence {
        RequestFence { request: Given::null(), asker, process, state: State::UnderWay }
    }

    #[test]
    fn threads_that_may_not_call_mpi_do_not() {
        let other = thread::spawn(|| thread::current().id()).join().unwrap();
        let mut fence = fence(Some(other), std::process::id());
        assert!(!fence.passed() && !fence.any_thread());
        drop(fence);
    }

    #[test]
    fn a_forked_child_does_not_ask_for_its_parent() {
        let parent = std::process::id() + 1;
        for asker in [None, Some(thread::current().id())] {
            let mut fence = fence(asker, parent);
            assert!(!fence.passed() && fence.any_thread() == asker.is_none());
            drop(fence);
        }
    }
}
