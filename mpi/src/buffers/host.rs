//! Elements in registered host memory that no device uses.
#![allow(unsafe_code)] // implements rsmpi's unsafe traits

use super::pinned::{mutable_slices, slices};
use super::settled::count;
use bytemuck::Pod;
use mpi::Count;
use mpi::datatype::{AsDatatype, Buffer, BufferMut, Collection, Equivalence, Pointer, PointerMut};
use pinyard_allocator::{Fence, PoolBuf};
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};

/// A block of a host pool as rsmpi's [`Buffer`] and [`BufferMut`]: a slice. Nothing is
/// waited for, as no stream knows of it.
///
/// ```
/// use mpi::datatype::Collection;
/// use pinyard_allocator::Pool;
/// use pinyard_mpi::HostBuf;
/// use pinyard_registry::{Registry, backend::Mlock};
///
/// let registry = Registry::builder().backend(Mlock::new()).build()?;
/// let pool = Pool::host(&registry).slab_bytes(2 << 20).build()?;
/// let mut buffer = HostBuf::from(pool.alloc::<f32>(1000)?);
/// buffer.fill(1.0);
/// assert_eq!(buffer.count(), 1000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct HostBuf<T: Pod>(PoolBuf<T>);

impl<T: Pod> From<PoolBuf<T>> for HostBuf<T> {
    fn from(block: PoolBuf<T>) -> HostBuf<T> {
        HostBuf(block)
    }
}

impl<T: Pod> HostBuf<T> {
    /// The pool's block.
    pub fn into_inner(self) -> PoolBuf<T> {
        self.0
    }

    /// [`PoolBuf::defer_until`]: gives it up, and its memory is reused only after `fence` has
    /// passed, such as a [`RequestFence`](crate::RequestFence).
    pub fn defer_until(self, fence: Fence) {
        self.0.defer_until(fence);
    }
}

impl<T: Pod> Deref for HostBuf<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Pod> DerefMut for HostBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

slices! { [T: Pod + Equivalence] HostBuf<T>; }
mutable_slices! { [T: Pod + Equivalence] HostBuf<T>; }
