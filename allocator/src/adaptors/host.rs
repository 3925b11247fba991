//! What adaptors see of a host pool, whatever its source.

use super::{Allocate, Block, Held, Refusal, Terms};
use crate::{AllocError, Fence, Pool, PoolBuf};
use bytemuck::Pod;
use std::ops::{Deref, DerefMut};

/// The terms of host memory: where a block may begin, at multiples of so many bytes. A
/// power of two, see [`Pool::alloc_aligned`]; `Align(1)` is anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Align(pub usize);

impl Align {
    /// Where a `T` may lie.
    pub const fn of<T>() -> Align {
        Align(align_of::<T>())
    }
}

impl Terms for Align {}

/// A block of host memory: a slice of plain data, registered. Adaptors hand out bytes, or
/// what [`AllocateHost::alloc_slice`] makes of them.
pub trait HostBlock: Block + DerefMut<Target = [<Self as HostBlock>::Element]> + Sized {
    /// Of what it is a slice.
    type Element: Pod;
    /// The same block with other elements.
    type Of<T: Pod + Send>: HostBlock<Element = T>;

    /// The pool's own block, which knows its key and its place in the slab.
    fn buf(&self) -> &PoolBuf<Self::Element>;

    /// See [`PoolBuf::cast`].
    fn cast<T: Pod + Send>(self) -> Result<Self::Of<T>, Self>;
}

/// Host memory by elements. Every [`Allocate`] around a host pool has it; as a bound it says
/// that the innermost pool is one: `fn gather(memory: &impl AllocateHost)`.
pub trait AllocateHost: Allocate<Terms = Align, Error = AllocError, Block: HostBlock<Element = u8>> {
    /// A block of `elements` elements, at least one, with the alignment of `T`: what
    /// [`Pool::alloc`] is to a pool. Adaptors count its bytes.
    ///
    /// Fails as [`alloc`](Allocate::alloc) does, with [`AllocError::Overflow`] before anybody
    /// is asked, and with [`AllocError::Alignment`] where an `Allocate` of the program's own
    /// gave a block that does not fit.
    fn alloc_slice<T: Pod + Send>(
        &self,
        elements: usize,
    ) -> Result<<Self::Block as HostBlock>::Of<T>, AllocError> {
        let element_bytes = size_of::<T>();
        let overflow = AllocError::Overflow { elements, element_bytes };
        let bytes = elements.checked_mul(element_bytes).ok_or(overflow)?;
        self.alloc(bytes, &Align::of::<T>())?.cast().map_err(|block| AllocError::Alignment {
            align: align_of::<T>(),
            largest: 1 << block.as_ptr().addr().trailing_zeros(),
        })
    }
}

impl<A> AllocateHost for A where A: Allocate<Terms = Align, Error = AllocError, Block: HostBlock<Element = u8>>
{}

impl Allocate for Pool {
    type Block = PoolBuf<u8>;
    type Terms = Align;
    type Error = AllocError;

    fn alloc(&self, bytes: usize, align: &Align) -> Result<PoolBuf<u8>, AllocError> {
        self.alloc_aligned(bytes, align.0)
    }
}

impl<T: Pod + Send> Block for PoolBuf<T> {
    fn address(&self) -> u64 {
        self.as_ptr().addr() as u64
    }

    fn defer_until(self, fence: Fence) {
        PoolBuf::defer_until(self, fence);
    }
}

impl<T: Pod + Send> HostBlock for PoolBuf<T> {
    type Element = T;
    type Of<U: Pod + Send> = PoolBuf<U>;

    fn buf(&self) -> &PoolBuf<T> {
        self
    }

    fn cast<U: Pod + Send>(self) -> Result<PoolBuf<U>, PoolBuf<T>> {
        PoolBuf::cast(self)
    }
}

impl<B: HostBlock, T: Send, E: Send> HostBlock for Held<B, T, E> {
    type Element = B::Element;
    type Of<U: Pod + Send> = Held<B::Of<U>, T, E>;

    fn buf(&self) -> &PoolBuf<B::Element> {
        self.block.buf()
    }

    fn cast<U: Pod + Send>(self) -> Result<Held<B::Of<U>, T, E>, Held<B, T, E>> {
        let Held { early, block, owed } = self;
        match block.cast() {
            Ok(block) => Ok(Held { early, block, owed }),
            Err(block) => Err(Held { early, block, owed }),
        }
    }
}

impl<B: HostBlock, T, E> Deref for Held<B, T, E> {
    type Target = [B::Element];

    fn deref(&self) -> &[B::Element] {
        &self.block
    }
}

impl<B: HostBlock, T, E> DerefMut for Held<B, T, E> {
    fn deref_mut(&mut self) -> &mut [B::Element] {
        &mut self.block
    }
}

impl Refusal for AllocError {
    fn is_shortage(&self) -> bool {
        AllocError::is_shortage(self)
    }

    fn share(limit: usize, wanted: usize, used: usize) -> AllocError {
        AllocError::Share { limit, wanted, used }
    }

    fn injected(number: u64, wanted: usize) -> AllocError {
        AllocError::Injected { number, wanted }
    }
}
