//! Copies to the device whose source is kept until they have passed, and given up
//! then by the pool's thread, whether or not anybody allocates again (CuPy #8789).
//!
//! A copy from pinned memory reads its source when the stream comes to it. So a safe
//! copy owns its source, and what can be a source is a promise about its bytes, not
//! about who registered them: [`CopySource`] is unsafe to implement, and borrows are not
//! among its types. Nothing here, and nothing else in this crate's safe interface,
//! registers memory that others made: `cuMemHostRegister` of a user's `Vec` would
//! make another crate's safe "synchronous" copy of it asynchronous behind its back.
//! `PinnedSource` registers mappings of its own, before anybody has seen them.
#![allow(unsafe_code)]

use super::buf::DeviceBuf;
use super::core::Core;
use super::error::CopyError;
use super::pool::PoolStream;
use super::stream::StreamInUse;
use crate::buf::PoolBuf;
use crate::requests::guarded;
use crate::retire::{Callable, Retired};
use crate::source::DriverToken;
use bytemuck::Pod;
use parking_lot::Mutex;
use pinyard_driver::{Capture, DevicePtr};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// What an asynchronous copy may read from.
///
/// # Safety
/// While the value lives, and wherever it is moved, `bytes` gives the same address and
/// length, and nobody writes there.
pub unsafe trait CopySource: Send + 'static {
    /// The bytes to copy.
    fn bytes(&self) -> &[u8];
}

// SAFETY: a Vec that is owned is neither written nor reallocated.
unsafe impl<T: Pod + Send> CopySource for Vec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

// SAFETY: as of a Vec.
unsafe impl<T: Pod + Send> CopySource for Box<[T]> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

// SAFETY: plain data that is shared is not written while a handle lives: `get_mut` and
// its kind ask for the only one.
unsafe impl<T: Pod + Send + Sync> CopySource for Arc<[T]> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

// SAFETY: plain data, shared for good.
unsafe impl<T: Pod + Sync> CopySource for &'static [T] {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

// SAFETY: it owns its block, which does not move.
unsafe impl<T: Pod + Send> CopySource for PoolBuf<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

/// Sources of a stream's copies, in its order.
#[derive(Default)]
pub(super) struct Copies(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    /// Copies that no mark is behind yet.
    unmarked: Vec<Box<dyn CopySource>>,
    /// With the value that passes after them.
    marked: Vec<(u64, Vec<Box<dyn CopySource>>)>,
}

impl Copies {
    /// Of a copy that was queued while the stream was in use, and still is.
    fn push(&self, source: Box<dyn CopySource>, _: &StreamInUse<'_>) {
        self.0.lock().unmarked.push(source);
    }

    pub(super) fn is_empty(&self) -> bool {
        let queue = self.0.lock();
        queue.unmarked.is_empty() && queue.marked.is_empty()
    }
}

impl PoolStream {
    /// Copies `source` to `target`, from the byte `offset` on, in the stream's order, and
    /// returns when the copy is queued. The source is dropped by the pool's thread when
    /// the copy has passed; one of pinned memory ([`Pool::pinned`](crate::Pool::pinned))
    /// costs no staging.
    ///
    /// `target` may be a block of another stream: the use is recorded. Not while the
    /// stream is captured, as a graph would read the source again at each launch.
    pub fn copy_to_device(
        &self,
        source: impl CopySource,
        target: &mut DeviceBuf,
        offset: usize,
    ) -> Result<(), CopyError> {
        let (core, state) = self.parts();
        if core.is_forked() {
            return Err(CopyError::Forked);
        }
        let token = DriverToken::at_entry();
        // Before the retire lock, so that a source that is not copied is dropped without it.
        let source: Box<dyn CopySource> = Box::new(source);
        let (from, bytes) = (source.bytes().as_ptr(), source.bytes().len());
        // Until the source is in the list: a stream's last mark is behind all copies there.
        let in_use = state.in_use(&token).map_err(|Retired(_)| CopyError::Retired)?;
        if offset.checked_add(bytes).is_none_or(|end| end > target.len()) {
            return Err(CopyError::Bounds { offset, bytes, target: target.len() });
        }
        if core.driver.stream_capture(in_use.handle(), &token)? != Capture::None {
            return Err(CopyError::Captured);
        }
        if bytes == 0 {
            return Ok(());
        }
        target.record_use(self);
        let to = DevicePtr(target.ptr().0 + offset as u64);
        // Counted before it is queued: the worker does not end, nor sleep, without it.
        core.copies.fetch_add(1, SeqCst);
        // SAFETY: the source is kept until the stream has passed, and not written
        // (`CopySource`); the target is borrowed mutably, lies within its block, and its
        // use is recorded.
        let queued = unsafe { core.driver.copy_to_device(to, from, bytes, in_use.handle(), &token) };
        state.copies.push(source, &in_use);
        drop(in_use);
        core.wake();
        // A copy that was refused may still have begun: its source goes the same way.
        queued.map_err(CopyError::Driver)
    }
}

impl Core {
    /// Marks streams behind their copies, once for all of them, and gives up sources
    /// whose copies have passed. No lock is held while they are dropped.
    pub(super) fn settle_copies(&self, token: &mut DriverToken) {
        if self.copies.load(SeqCst) == 0 {
            return;
        }
        let central = self.lock(token);
        let streams: Vec<_> =
            central.streams.iter().filter(|state| !state.copies.is_empty()).cloned().collect();
        drop(central);
        for state in &streams {
            let unmarked = std::mem::take(&mut state.copies.0.lock().unmarked);
            if !unmarked.is_empty() {
                match self.mark(state, token) {
                    Some(mark) => state.copies.0.lock().marked.push((mark.value, unmarked)),
                    // Captured meanwhile: asked again later.
                    None => state.copies.0.lock().unmarked.extend(unmarked),
                }
            }
            let passed = state.timeline.passed();
            let mut queue = state.copies.0.lock();
            let count = queue.marked.iter().take_while(|&&(value, _)| value <= passed).count();
            let done: Vec<_> = queue.marked.drain(..count).collect();
            drop(queue);
            let sources: usize = done.iter().map(|(_, sources)| sources.len()).sum();
            for source in done.into_iter().flat_map(|(_, sources)| sources) {
                guarded("the drop of a copy's source", || drop(source));
            }
            self.copies.fetch_sub(sources, SeqCst);
        }
    }
}
