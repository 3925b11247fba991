//! The pool: what callers see.
#![allow(unsafe_code)] // looks at the memory of a pool that poisons

use crate::block::BlockRef;
use crate::buf::PoolBuf;
use crate::builder::Builder;
use crate::carve::Want;
use crate::classes;
use crate::device::Misuse;
use crate::error::AllocError;
use crate::exit::Heir;
use crate::host::HostSource;
use crate::leaks::PoolLeaks;
use crate::pressure::{Told, Watermarks};
use crate::requests::guarded;
use crate::shared::Core;
use crate::slab::Supplier;
use crate::source::HostMemory;
use crate::sources::PinnedSource;
use crate::stats::{PoolShortage, PoolStats};
use crate::trace::Kind;
use bytemuck::Pod;
use pinyard_driver::Driver;
use pinyard_hooks::PAGE_SIZE;
use pinyard_registry::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Blocks from slabs that are registered once. A handle: clones share one pool.
///
/// Any thread may allocate and free; a block may be dropped by another thread than
/// allocated it. A thread keeps a few free blocks per size; its end gives them
/// back.
///
/// When the last handle is dropped, what is free is deregistered and unmapped, and
/// fences are asked. Blocks that are still in use keep their slabs, which the thread
/// of the pool's releases when the last of them is dropped.
///
/// In a forked child the parent's pools serve nobody: allocations fail, drops do
/// nothing, and nothing hangs. The child makes pools of its own.
#[derive(Clone)]
pub struct Pool {
    pub(crate) handle: Arc<Handle>,
}

/// What the pool's handles share. Blocks do not hold it.
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    pub(crate) supplier: Arc<Supplier>,
    pub(crate) slab_bytes: usize,
    /// May change at any time.
    pub(crate) limit: AtomicUsize,
    pub(crate) patience: Duration,
    pub(crate) watermarks: Option<Watermarks>,
    pub(crate) pressure: Told,
    /// Whether the pool has a thread that asks fences.
    pub(crate) fence_thread: bool,
    /// Told of blocks that outlive the pool.
    pub(crate) heirs: Vec<Heir<PoolLeaks>>,
}

/// Bytes of a slab at most: well below what an address space has, so that no sum
/// overflows.
pub(crate) const MOST: usize = 1 << 46;

impl Handle {
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Blocks in use rely on the end.
        guarded("the report of a pool's leaks", || self.tell_leaks());
        self.core.close();
    }
}

impl Pool {
    /// Starts making a pool of host memory, on huge pages where the system has
    /// them, registered with `registry`.
    pub fn host(registry: &Registry) -> Builder {
        Pool::from_source(registry, HostSource::new())
    }

    /// Starts making a pool of pinned host memory that `driver`'s device reaches, on
    /// the node nearest to it, registered with `registry` as well. For more choice:
    /// [`PinnedSource`] and [`from_source`](Pool::from_source).
    pub fn pinned(registry: &Registry, driver: Arc<dyn Driver>) -> Builder {
        Pool::from_source(registry, PinnedSource::new(driver))
    }

    /// Starts making a pool of memory from a source of the caller's own.
    pub fn from_source(registry: &Registry, source: impl HostMemory + 'static) -> Builder {
        Builder::new(registry, Box::new(source))
    }

    /// A block of `elements` elements, with the alignment of `T`.
    ///
    /// Its contents are unspecified but initialised: zeros in fresh pages, old
    /// bytes in a block that was used before.
    ///
    /// From 64 bytes up a block is at most 12.5 % larger than asked for; beyond an
    /// eighth of a slab, or 32 MiB, it is whole pages. Usually takes no lock. An
    /// allocation that needs a slab waits for its registration; one that would fail
    /// first takes back what other threads keep, trades free slabs, and waits for
    /// deferred blocks ([`Builder::patience`]).
    ///
    /// Not for signal handlers.
    #[inline]
    pub fn alloc<T: Pod>(&self, elements: usize) -> Result<PoolBuf<T>, AllocError> {
        self.alloc_aligned(elements, align_of::<T>())
    }

    /// The same, at a multiple of `align` bytes: a power of two, up to what the
    /// source's slabs are aligned to (2 MiB for host memory). More than a page
    /// makes it a block of whole pages.
    #[inline]
    pub fn alloc_aligned<T: Pod>(&self, elements: usize, align: usize) -> Result<PoolBuf<T>, AllocError> {
        let core = &self.handle.core;
        let want = self.want::<T>(elements, align)?;
        let block = match want {
            Want::Class(class) => match core.alloc_fast(class) {
                Some(block) => block,
                None => self.handle.alloc_slow(want)?,
            },
            Want::Pages { .. } => self.handle.alloc_slow(want)?,
        };
        if core.watched {
            self.inspect(block, elements * size_of::<T>());
        }
        Ok(PoolBuf::new(block, elements))
    }

    /// A block as [`alloc_aligned`](Pool::alloc_aligned) gives it, out of what this thread keeps; `None`
    /// where that would look further. Takes no lock, and makes no system call, so it is no cancellation
    /// point.
    ///
    /// # Errors
    /// Those of a size or an alignment that no block has.
    ///
    /// ```
    /// # use pinyard_allocator::Pool;
    /// # use pinyard_registry::backend::Custom;
    /// # use pinyard_registry::{Events, MemoryKey, Registry};
    /// # let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    /// # let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build()?;
    /// let pool = Pool::host(&registry).build()?;
    /// assert!(pool.alloc_kept::<u8>(100, 1)?.is_none(), "there is no slab yet");
    /// drop(pool.alloc::<u8>(100)?);
    /// assert!(pool.alloc_kept::<u8>(100, 1)?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn alloc_kept<T: Pod>(
        &self,
        elements: usize,
        align: usize,
    ) -> Result<Option<PoolBuf<T>>, AllocError> {
        let core = &self.handle.core;
        let Want::Class(class) = self.want::<T>(elements, align)? else { return Ok(None) };
        let Some(block) = core.alloc_fast(class) else { return Ok(None) };
        if core.watched {
            self.inspect(block, elements * size_of::<T>());
        }
        Ok(Some(PoolBuf::new(block, elements)))
    }

    /// What holds `elements` elements at `align`.
    #[inline(always)]
    pub(crate) fn want<T: Pod>(&self, elements: usize, align: usize) -> Result<Want, AllocError> {
        let bytes = match elements.checked_mul(size_of::<T>()) {
            Some(bytes) if bytes > 0 && align.is_power_of_two() => bytes,
            _ => return Err(self.refusal::<T>(elements, align)),
        };
        let align = align.max(align_of::<T>());
        if let Some(class) = classes::aligned_class(bytes, align, self.handle.core.largest) {
            return Ok(Want::Class(class));
        }
        // No slice is longer, and no sum of it and an address overflows.
        let pages = bytes.checked_next_multiple_of(PAGE_SIZE).filter(|&bytes| bytes <= isize::MAX as usize);
        match pages {
            Some(bytes) if align <= self.handle.supplier.source.granularity() => {
                Ok(Want::Pages { bytes, align })
            }
            _ => Err(self.refusal::<T>(elements, align)),
        }
    }

    /// Of a pool that is watched.
    #[cold]
    #[inline(never)]
    pub(crate) fn inspect(&self, block: BlockRef, wanted: usize) {
        let place = block.place();
        // SAFETY: the span stands while a block of it is in use.
        let span = unsafe { place.span.as_ref() };
        let bytes = span.kind.block_bytes;
        if let Some(traced) = self.handle.core.traced {
            traced.block(Kind::Alloc, place.address, wanted, bytes, span.slab.start);
        }
        if let Some(poison) = &self.handle.core.poison {
            // SAFETY: the block's memory, which is the host's and about to be the caller's.
            unsafe { poison.allocated(place.address, bytes, wanted) };
        }
    }

    /// Has `alarm` called for each write to freed memory that a pool that poisons finds
    /// ([`Builder::poison`]), by the thread that notices and without a lock. Without one
    /// the log is told, as an error.
    pub fn on_misuse(&self, alarm: impl Fn(&Misuse) + Send + Sync + 'static) {
        if let Some(poison) = &self.handle.core.poison {
            poison.on_misuse(Arc::new(alarm));
        }
    }

    /// Why no block has `elements` at `align`.
    #[cold]
    pub(crate) fn refusal<T>(&self, elements: usize, align: usize) -> AllocError {
        let largest = self.handle.supplier.source.granularity();
        let element_bytes = size_of::<T>();
        if !align.is_power_of_two() || align > largest {
            AllocError::Alignment { align, largest }
        } else if elements == 0 || element_bytes == 0 {
            AllocError::Empty { elements, element_bytes }
        } else {
            AllocError::Overflow { elements, element_bytes }
        }
    }

    /// Has `observer` called when an allocation is about to fail, once per allocation, by
    /// the thread that allocates and without a lock. What it frees is searched again.
    pub fn on_shortage(&self, observer: impl Fn(&PoolShortage) + Send + Sync + 'static) {
        if !self.handle.core.is_forked() {
            self.handle.core.observers.lock().push(Arc::new(observer));
        }
    }

    /// Changes the limit. Slabs beyond a lower one stay until they are given back (see
    /// [`trim`](Pool::trim)); until then nothing is added.
    pub fn set_limit(&self, bytes: usize) {
        self.handle.limit.store(bytes, Relaxed);
    }

    /// Reserves and registers slabs until `bytes` are free for any size. More than the
    /// limit leaves room for is refused before anything is reserved.
    pub fn warmup(&self, bytes: usize) -> Result<(), AllocError> {
        self.handle.warm_up(bytes)
    }

    /// Deregisters and unmaps the slabs that hold no block in use. Takes back the
    /// free blocks that threads keep, and asks every fence. Returns the bytes given
    /// back.
    pub fn trim(&self) -> usize {
        self.handle.core.trim()
    }

    /// Asks every fence of a deferred block, and frees the blocks of those that
    /// have passed; how many. Allocations do it by the way; this is for programs
    /// that want the fences' own resources back sooner.
    pub fn poll_fences(&self) -> usize {
        self.handle.core.poll_fences(usize::MAX)
    }

    /// Counters. Takes the pool's lock: not for hot paths. All zero in a forked child.
    pub fn stats(&self) -> PoolStats {
        self.handle.core.stats()
    }

    /// Bytes of a slab.
    pub fn slab_bytes(&self) -> usize {
        self.handle.slab_bytes
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("source", &self.handle.supplier.source.name())
            .field("slab_bytes", &self.handle.slab_bytes)
            .field("limit", &self.handle.limit())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::AtomicFence;
    use crate::source::DriverToken;
    use pinyard_registry::{Events, MemoryKey, backend::Custom};
    use std::thread;

    fn pool(slab_bytes: usize) -> Pool {
        let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
        let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
        Pool::host(&registry).slab_bytes(slab_bytes).fence_thread(false).build().unwrap()
    }

    /// With the pool's lock held for the whole time: magazines, bins, frees of
    /// another thread's blocks, and deferred blocks.
    #[test]
    fn the_common_path_reaches_no_lock() {
        let pool = pool(2 << 20);
        const SIZES: [usize; 4] = [64, 4096, 100_000, 258_048];
        for bytes in SIZES {
            drop((0..2).map(|_| pool.alloc::<u8>(bytes).unwrap()).collect::<Vec<_>>());
        }
        let given = SIZES.map(|bytes| pool.alloc::<u8>(bytes).unwrap());
        let core = pool.handle.core.clone();
        let mut token = DriverToken::at_entry();
        let guard = core.lock(&mut token);
        for _ in 0..1000 {
            for bytes in SIZES {
                drop(pool.alloc::<u8>(bytes).unwrap());
            }
        }
        // A thread that has no magazines yet, and may not wait to get some.
        thread::spawn(move || drop(given)).join().unwrap();
        pool.alloc::<u8>(64).unwrap().defer_until(AtomicFence::new().at(0));
        drop(guard);
        assert_eq!((pool.poll_fences(), pool.stats().live_blocks), (1, 0));
    }

    #[test]
    fn more_fences_that_have_passed_come_before_a_slab() {
        let pool = pool(64 << 20);
        let fence = AtomicFence::new();
        let blocks: Vec<_> = (0..100).map(|_| pool.alloc::<u8>(512 << 10).unwrap()).collect();
        blocks.into_iter().for_each(|block| block.defer_until(fence.at(1)));
        fence.signal(1);
        let large = pool.alloc::<u8>(24 << 20).unwrap();
        assert_eq!(pool.stats().slabs, 1, "{:?}", pool.stats());
        drop(large);
    }
}
