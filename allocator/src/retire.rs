//! The retire lock of a stream: its handle is given to the driver only while the stream
//! cannot be retired.
//!
//! A stream that is retired may be destroyed, and CUDA gives its handle out anew. So a call
//! for the stream needs the answer to "is it retired?" to hold until the call has returned.
//! [`RetireLock::in_use`] asks and holds it; the handle is to be had from its answer alone.
//!
//! The lock is held over driver calls, which no other lock but a timeline's is. This is
//! sound for four reasons. It belongs to one stream. Calls share it, so a call that the
//! driver holds up (a copy of pageable memory, a full queue) holds up no other call, and a
//! thread waits for it only if somebody retires this very stream. No lock of the pool's is
//! held while a thread waits for it: [`RetireLock::in_use`] asks for the token, which such a
//! lock borrows. And no drop, no poll of events and no code of the program's runs with it.
//!
//! A thread does not take the lock of a stream twice: between the two another thread may
//! have begun to retire the stream, and the second would wait for that one.

use crate::sync::{AtomicU64, ReadGuard, RwLock, WriteGuard};
use std::sync::atomic::{Ordering::Acquire, Ordering::Release};

/// What is known of a stream's handle `H`, and whether it may be used.
pub(crate) struct RetireLock<H> {
    handle: H,
    /// The last mark there will be, plus one; 0 while there may be more.
    last: AtomicU64,
    /// Shared by those that call the driver for the stream; taken alone to retire it.
    lock: RwLock,
}

/// The stream is not retired while this lives.
pub(crate) struct InUse<'a, H> {
    handle: H,
    _shared: ReadGuard<'a>,
}

/// As [`InUse`], for the one thread that retires the stream. If it is dropped without a
/// last mark the stream goes on.
pub(crate) struct Retiring<'a, H> {
    stream: &'a RetireLock<H>,
    _alone: WriteGuard<'a>,
}

/// The stream is retired: its last mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retired(pub(crate) u64);

impl<H: Copy> RetireLock<H> {
    pub(crate) fn new(handle: H) -> RetireLock<H> {
        RetireLock { handle, last: AtomicU64::new(0), lock: RwLock::new() }
    }

    /// The handle to tell the program of. Not for a call of the driver.
    pub(crate) fn name(&self) -> H {
        self.handle
    }

    /// The last mark, if the stream is retired. Without the lock "not retired" is true of the
    /// past alone.
    pub(crate) fn last_mark(&self) -> Option<u64> {
        // Acquire: pairs with `Retiring::end`.
        self.last.load(Acquire).checked_sub(1)
    }

    /// The handle, for calls of the driver while the answer lives. `T` is a token that no
    /// lock of the pool's borrows.
    pub(crate) fn in_use<T>(&self, _: &T) -> Result<InUse<'_, H>, Retired> {
        let shared = self.lock.read();
        match self.last_mark() {
            None => Ok(InUse { handle: self.handle, _shared: shared }),
            Some(last) => Err(Retired(last)),
        }
    }

    /// To retire the stream, after every call for it has returned.
    pub(crate) fn retiring<T>(&self, _: &T) -> Result<Retiring<'_, H>, Retired> {
        let alone = self.lock.write();
        match self.last_mark() {
            None => Ok(Retiring { stream: self, _alone: alone }),
            Some(last) => Err(Retired(last)),
        }
    }
}

impl<H: Copy> Retiring<'_, H> {
    /// From now on the stream is retired, and `last` is its last mark.
    pub(crate) fn end(&self, last: u64) {
        // Release: pairs with `last_mark`.
        self.stream.last.store(last + 1, Release);
    }
}

/// A handle that the driver may be given now.
pub(crate) trait Callable<H> {
    fn handle(&self) -> H;
}

impl<H: Copy> Callable<H> for InUse<'_, H> {
    fn handle(&self) -> H {
        self.handle
    }
}

impl<H: Copy> Callable<H> for Retiring<'_, H> {
    fn handle(&self) -> H {
        self.stream.handle
    }
}
