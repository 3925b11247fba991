//! Memory of the registry's own: arrays that are zero at first, never move, cost
//! nothing until touched, and never come from the program's allocator.
//!
//! Readers walk them without a lock, so they are unmapped only with the registry.
#![allow(unsafe_code)]

use crate::sync::Zero;
use std::ops::Deref;

/// `len` values that start as zero bytes.
#[cfg(not(loom))]
pub(crate) struct Array<T> {
    base: std::ptr::NonNull<T>,
    len: usize,
}

// SAFETY: an Array owns its values like a Vec and gives out shared references only.
#[cfg(not(loom))]
unsafe impl<T: Send> Send for Array<T> {}
// SAFETY: as above.
#[cfg(not(loom))]
unsafe impl<T: Sync> Sync for Array<T> {}

#[cfg(not(loom))]
impl<T: Zero> Array<T> {
    /// Maps the array; pages become resident when they are written.
    ///
    /// The error is mmap's errno: ENOMEM where RLIMIT_AS or the overcommit
    /// policy refuses the address space.
    pub(crate) fn new(len: usize) -> Result<Self, i32> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let bytes = (len * size_of::<T>()).max(1);
        // SAFETY: a fresh anonymous mapping, unmapped in `drop` alone.
        let base = unsafe { pinyard_hooks::sys::mmap(0, bytes, libc::PROT_READ | libc::PROT_WRITE, flags)? };
        // SAFETY: mmap does not return address 0 unless asked to with MAP_FIXED.
        Ok(Array { base: unsafe { std::ptr::NonNull::new_unchecked(base as *mut T) }, len })
    }
}

#[cfg(not(loom))]
impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        let bytes = (self.len * size_of::<T>()).max(1);
        // SAFETY: the mapping of `new`; T is plain atomics, nothing to drop, and
        // `&mut self` says that no reader is left.
        let _ = unsafe { pinyard_hooks::sys::munmap(self.base.as_ptr() as usize, bytes) };
    }
}

#[cfg(not(loom))]
impl<T> Deref for Array<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` values lie in the mapping, page-aligned, and zero bytes
        // are a valid T (the `Zero` bound of the only constructor).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

/// loom's atomics are not words of memory: the models use a vector.
#[cfg(loom)]
pub(crate) struct Array<T>(Vec<T>);

#[cfg(loom)]
impl<T: Zero> Array<T> {
    pub(crate) fn new(len: usize) -> Result<Self, i32> {
        Ok(Array((0..len).map(|_| T::zero()).collect()))
    }
}

#[cfg(loom)]
impl<T> Deref for Array<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}
