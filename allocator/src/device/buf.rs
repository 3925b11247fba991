//! A block in use.
#![allow(unsafe_code)]

use super::block::BlockRef;
use super::core::Core;
use super::pool::PoolStream;
use super::slab::Slab;
use crate::fence::Fence;
use pinyard_driver::DevicePtr;
use pinyard_registry::MemoryKey;

/// Device memory from a [`DevicePool`](super::DevicePool).
///
/// Any thread may drop it, with any lock held, a host function of a stream included:
/// dropping calls no driver and waits for nobody. It is reused at once by later
/// allocations on the stream that it was allocated on, and by others when that stream
/// has come as far as it was at the drop. Use on further streams is told by
/// [`record_use`](DeviceBuf::record_use).
///
/// A block that a captured graph uses must outlive the graph.
pub struct DeviceBuf {
    block: BlockRef,
    bytes: usize,
}

impl DeviceBuf {
    #[inline(always)]
    pub(super) fn new(block: BlockRef, bytes: usize) -> DeviceBuf {
        DeviceBuf { block, bytes }
    }

    fn slab(&self) -> &Slab {
        // SAFETY: a slab stands while a block lies in it.
        unsafe { &*self.block.slab.get() }
    }

    /// Where it begins: a multiple of 256, and of 4096 above 32 KiB.
    #[inline]
    pub fn ptr(&self) -> DevicePtr {
        DevicePtr(self.block.address.get())
    }

    /// Bytes asked for.
    #[inline]
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Bytes that the pool set aside.
    pub fn block_bytes(&self) -> usize {
        self.block.bytes.get()
    }

    /// The key of its slab's registration; the default one without a registrar.
    pub fn key(&self) -> MemoryKey {
        self.slab().key
    }

    /// Where its slab begins: what is exported to other processes, with
    /// [`offset_in_slab`](DeviceBuf::offset_in_slab).
    pub fn slab_base(&self) -> DevicePtr {
        DevicePtr(self.slab().start())
    }

    /// Bytes of the slab. A block of a source that joins may go on in the next one.
    pub fn slab_bytes(&self) -> usize {
        self.slab().segment.bytes
    }

    /// Where it begins in its slab, in bytes.
    pub fn offset_in_slab(&self) -> usize {
        (self.block.address.get() - self.slab().start()) as usize
    }

    /// Work of another stream uses it: after the drop it is not reused before that
    /// stream has done what it had been given when its use was noticed, at the drop or
    /// soon after. It may be another pool's handle of a stream, and keeps that pool until
    /// then. What a stream is given after [`PoolStream::retire`] is not waited for.
    pub fn record_use(&mut self, stream: &PoolStream) {
        if std::ptr::eq(self.block.home.get(), stream.state()) {
            return;
        }
        let mut uses = self.block.uses.take().unwrap_or_default();
        let (user, owner) = (stream.state(), stream.state().owner);
        // SAFETY: the home of a block in use stands, as its core does.
        let core = unsafe { &*(*self.block.home.get()).core };
        core.watch.used(self.block, user.id);
        let is_own = std::ptr::eq(core, user.core);
        if is_own {
            match uses.streams.iter_mut().find(|(known, _)| *known == owner) {
                // If another had the place when it was told of, that one has passed.
                Some((_, id)) => *id = user.id,
                None => uses.streams.push((owner, user.id)),
            }
        }
        if !is_own && !uses.foreign.iter().any(|known| std::ptr::eq(known.state(), user)) {
            uses.foreign.push(stream.clone());
        }
        self.block.uses.set(Some(uses));
    }

    /// Gives it up: it is reused only after `fence` has passed as well.
    pub fn defer_until(self, fence: Fence) {
        let mut uses = self.block.uses.take().unwrap_or_default();
        uses.fences.push(fence);
        self.block.uses.set(Some(uses));
    }
}

// SAFETY: it owns its block; cells of the descriptor are changed through `&mut self`
// or by value only.
unsafe impl Send for DeviceBuf {}
// SAFETY: shared, it only tells where it is.
unsafe impl Sync for DeviceBuf {}

impl Drop for DeviceBuf {
    #[inline(always)]
    fn drop(&mut self) {
        Core::free(self.block);
    }
}

impl std::fmt::Debug for DeviceBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceBuf")
            .field("ptr", &format_args!("{:#x}", self.ptr().0))
            .field("len", &self.bytes)
            .finish()
    }
}
