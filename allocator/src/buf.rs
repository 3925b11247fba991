//! A block in use.
#![allow(unsafe_code)]

use crate::block::BlockRef;
use crate::fence::Fence;
use crate::shared::Core;
use crate::span::Span;
use bytemuck::Pod;
use pinyard_registry::MemoryKey;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Memory from a [`Pool`](crate::Pool): a slice of plain data, registered.
///
/// Any thread may drop it, with any lock held: dropping takes no lock that
/// anybody waits for, and calls no driver. A block that a device or a peer still
/// uses is given up with [`defer_until`](PoolBuf::defer_until) instead. A block
/// that is leaked keeps its slab.
pub struct PoolBuf<T: Pod> {
    start: NonNull<T>,
    elements: usize,
    block: BlockRef,
    owns: PhantomData<T>,
}

// SAFETY: it owns its memory as a Vec does, and blocks may be freed by any thread.
unsafe impl<T: Pod + Send> Send for PoolBuf<T> {}
// SAFETY: shared, it gives out shared slices only.
unsafe impl<T: Pod + Sync> Sync for PoolBuf<T> {}

impl<T: Pod> PoolBuf<T> {
    /// `block` is the caller's, aligned for `T`, with room for `elements`.
    #[inline(always)]
    pub(crate) fn new(block: BlockRef, elements: usize) -> PoolBuf<T> {
        let start = std::ptr::with_exposed_provenance_mut(block.place().address);
        // SAFETY: a block's address is in a mapping, not null.
        let start = unsafe { NonNull::new_unchecked(start) };
        PoolBuf { start, elements, block, owns: PhantomData }
    }

    #[inline(always)]
    fn span(&self) -> &Span {
        // SAFETY: the span stands while a block of it is in use.
        unsafe { &*self.block.place().span.as_ptr() }
    }

    /// The key of the slab's registration.
    #[inline]
    pub fn key(&self) -> MemoryKey {
        self.span().key
    }

    /// Address of the slab's first byte.
    #[inline]
    pub fn slab_base(&self) -> usize {
        self.span().slab.start
    }

    /// Bytes of the slab.
    #[inline]
    pub fn slab_bytes(&self) -> usize {
        self.span().slab.bytes
    }

    /// Where the block starts in its slab, in bytes.
    #[inline]
    pub fn offset_in_slab(&self) -> usize {
        self.start.as_ptr().addr() - self.slab_base()
    }

    /// Bytes that the pool set aside for the block.
    pub fn block_bytes(&self) -> usize {
        self.span().kind.block_bytes
    }

    pub(crate) fn block(&self) -> BlockRef {
        self.block
    }

    /// The block, which is the caller's to free.
    pub(crate) fn into_block(self) -> BlockRef {
        ManuallyDrop::new(self).block
    }

    /// The same memory, as it is, as elements of another type. If it does not begin where a
    /// `U` may lie, or is no whole number of them, it comes back.
    pub fn cast<U: Pod>(self) -> Result<PoolBuf<U>, PoolBuf<T>> {
        let bytes = size_of_val::<[T]>(&self);
        let elements =
            bytes.checked_div(size_of::<U>()).filter(|elements| elements * size_of::<U>() == bytes);
        match elements {
            Some(elements) if self.start.cast::<U>().is_aligned() => {
                Ok(PoolBuf::new(self.into_block(), elements))
            }
            _ => Err(self),
        }
    }

    /// Gives the block up: it is reused only after `fence` has passed. Takes no
    /// lock, asks the fence nothing and waits for nothing.
    pub fn defer_until(self, fence: Fence) {
        Core::defer(fence, self.into_block());
    }
}

impl<T: Pod> Deref for PoolBuf<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the block is ours, aligned, long enough, and initialised: the
        // source's memory is, and only `Pod` types, which have no padding, are
        // written to it. `Pod` types accept any bytes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.elements) }
    }
}

impl<T: Pod> DerefMut for PoolBuf<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.elements) }
    }
}

impl<T: Pod> Drop for PoolBuf<T> {
    #[inline(always)]
    fn drop(&mut self) {
        Core::free(self.block);
    }
}

impl<T: Pod> std::fmt::Debug for PoolBuf<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolBuf")
            .field("start", &self.start)
            .field("elements", &self.elements)
            .field("key", &self.key())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use pinyard_registry::{Events, MemoryKey, Registry, backend::Custom};

    /// Sizes that are whole numbers of a type have classes that are aligned for it; a cast
    /// does not rely on that.
    #[test]
    fn a_cast_looks_where_the_block_begins() {
        let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
        let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
        let pool = Pool::host(&registry).slab_bytes(2 << 20).fence_thread(false).build().unwrap();
        // Blocks of 88 bytes, of which every second one begins between two multiples of 16.
        let blocks = [(); 4].map(|_| pool.alloc::<u8>(81).unwrap().into_block());
        let casts = blocks.map(|block| PoolBuf::<u8>::new(block, 80).cast::<u128>());
        for cast in &casts {
            match cast {
                Ok(words) => assert_eq!((words.len(), words.start.addr().get() % 16), (5, 0)),
                Err(bytes) => assert_eq!((bytes.len(), bytes.start.addr().get() % 16), (80, 8)),
            }
        }
        assert_eq!(casts.iter().filter(|cast| cast.is_ok()).count(), 2);
        drop(casts);
        assert_eq!(pool.stats().live_blocks, 0);
    }
}
