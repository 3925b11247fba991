//! Handles of operations that do not block.

use super::engine::Engine;
use super::scope::Scope;
use crate::buffers::{BufferStream, DeviceBuf};
use crate::error::Error;
use bytemuck::Pod;
use pinyard_allocator::device::PoolStream;
use std::marker::PhantomData;
use std::rc::Rc;

/// An operation of a [`scope()`](crate::scope()). Dropped or leaked, it is completed at the
/// scope's end.
#[must_use = "an operation's result is told by `wait` or `test`"]
pub struct Request<'scope, O> {
    engine: Rc<Engine>,
    id: u64,
    /// The bytes received as what the program is told.
    told: fn(usize) -> O,
    scope: PhantomData<&'scope ()>,
}

impl<'scope, O> Request<'scope, O> {
    pub(super) fn new(
        scope: &'scope Scope<'scope, '_>,
        engine: &Rc<Engine>,
        id: u64,
        told: fn(usize) -> O,
    ) -> Request<'scope, O> {
        scope.begin(engine, id);
        Request { engine: engine.clone(), id, told, scope: PhantomData }
    }

    /// Waits for it. All operations of the thread's communicators go on meanwhile.
    pub fn wait(self) -> Result<O, Error> {
        let mut request = self;
        loop {
            match request.test() {
                Ok(result) => return result,
                Err(again) => request = again,
            }
            crate::calls::progress::of_others();
        }
    }

    /// Takes it as far as it gets: its result, or `Err` with the request.
    pub fn test(self) -> Result<Result<O, Error>, Request<'scope, O>> {
        use crate::calls::progress::Progress;
        self.engine.advance();
        match self.engine.take(self.id) {
            Some(result) => Ok(result.map(self.told)),
            None => Err(self),
        }
    }
}

impl<O> std::fmt::Debug for Request<'_, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("under_way", &self.engine.is_under_way(self.id)).finish()
    }
}

/// The buffer of an operation that is done, and how many elements were received (0 where
/// none are).
pub type Returned<T, S = PoolStream> = (DeviceBuf<T, S>, Result<usize, Error>);

/// An operation that has its buffer, and needs no scope. Dropped, the operation goes on and
/// the communicator keeps the buffer until it is done; leaked, the buffer is leaked with
/// it. In neither case is its memory reused or freed before. Where MPI was finalised
/// meanwhile nobody knows when it ends: the memory stays as it is for good, and an empty
/// buffer comes back with [`Error::Finalized`].
#[must_use = "the buffer and the operation's result come back by `wait` or `test`"]
pub struct OwnedRequest<T: Pod, S: BufferStream = PoolStream> {
    engine: Rc<Engine>,
    id: u64,
    /// None once it is done or dropped.
    buffer: Option<DeviceBuf<T, S>>,
}

impl<T: Pod, S: BufferStream> OwnedRequest<T, S> {
    pub(super) fn new(engine: &Rc<Engine>, id: u64, buffer: DeviceBuf<T, S>) -> OwnedRequest<T, S> {
        OwnedRequest { engine: engine.clone(), id, buffer: Some(buffer) }
    }

    /// Waits for it. The buffer comes back also when the operation has failed.
    pub fn wait(self) -> Returned<T, S> {
        let mut request = self;
        loop {
            match request.test() {
                Ok(done) => return done,
                Err(again) => request = again,
            }
            crate::calls::progress::of_others();
        }
    }

    /// Takes it as far as it gets: as `wait`, or `Err` with the request.
    pub fn test(mut self) -> Result<Returned<T, S>, OwnedRequest<T, S>> {
        use crate::calls::progress::Progress;
        self.engine.advance();
        let Some(result) = self.engine.take(self.id) else { return Err(self) };
        match self.buffer.take() {
            Some(buffer) => {
                let buffer = if self.engine.is_lost(self.id) { buffer.leaked() } else { buffer };
                Ok((buffer, result.map(|bytes| bytes / size_of::<T>().max(1))))
            }
            None => Err(self),
        }
    }
}

impl<T: Pod, S: BufferStream> Drop for OwnedRequest<T, S> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.engine.drop_request(self.id, Some(Box::new(buffer)));
        }
    }
}

impl<T: Pod, S: BufferStream> std::fmt::Debug for OwnedRequest<T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnedRequest").field("buffer", &self.buffer).finish_non_exhaustive()
    }
}
