//! Memory of our own: arrays that are zero at first, never move, cost nothing
//! until touched, and never come from the program's allocator.
#![allow(unsafe_code)]

#[cfg(not(loom))]
use crate::{PAGE_SIZE, sys};
use core::ops::Deref;
#[cfg(not(loom))]
use core::ptr::NonNull;

/// A value that all-zero bytes represent.
///
/// # Safety
/// All-zero bytes are a valid value of the type, which has no destructor.
pub unsafe trait Zero: Sized {
    /// The value that all-zero bytes have.
    fn zero() -> Self;
}

macro_rules! zero {
    ($($atomic:ident),*) => {$(
        // SAFETY: an atomic integer has the representation of its integer.
        unsafe impl Zero for crate::sync::$atomic {
            fn zero() -> Self {
                Self::new(0)
            }
        }
    )*};
}
zero!(AtomicU32, AtomicU64, AtomicI64);

// SAFETY: atomics alone, and an empty inbox has all of them 0.
unsafe impl<const N: usize> Zero for crate::Inbox<N> {
    fn zero() -> Self {
        Self::new()
    }
}

/// `len` values that start as zero bytes, unmapped on drop.
#[cfg(not(loom))]
pub struct Array<T> {
    base: NonNull<T>,
    len: usize,
}

// SAFETY: an Array owns its values like a Vec and gives out shared references only.
#[cfg(not(loom))]
unsafe impl<T: Send> Send for Array<T> {}
// SAFETY: as above.
#[cfg(not(loom))]
unsafe impl<T: Sync> Sync for Array<T> {}

/// A mapping of `bytes`, which costs nothing until it is touched, also in a program whose new mappings are
/// locked and so made resident (`MCL_FUTURE`, mlockall(2)): a page that is not locked grows, and what a
/// mapping grows by is as it is.
#[cfg(not(loom))]
fn map(bytes: usize) -> Result<usize, i32> {
    const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
    const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    if bytes <= PAGE_SIZE || cfg!(miri) {
        // SAFETY: a fresh anonymous mapping, unmapped in `drop` alone.
        return unsafe { sys::mmap(0, bytes, BOTH, FLAGS) };
    }
    // SAFETY: as above.
    let page = unsafe { sys::mmap(0, PAGE_SIZE, BOTH, FLAGS) }?;
    let _ = sys::munlock(page, PAGE_SIZE);
    // SAFETY: the mapping of just now, which nobody refers to.
    unsafe { sys::mremap(page, PAGE_SIZE, bytes) }.inspect_err(|_| {
        // SAFETY: as above.
        let _ = unsafe { sys::munmap(page, PAGE_SIZE) };
    })
}

#[cfg(not(loom))]
impl<T: Zero> Array<T> {
    /// Beyond this many bytes of an array, huge pages are asked for: a random
    /// walk over a large array is bound by the TLB, and a small array must not
    /// cost megabytes.
    const SMALL: usize = 2 << 20;

    /// Maps the array; pages become resident when they are written.
    ///
    /// The error is mmap's or mremap's errno: ENOMEM where RLIMIT_AS or the overcommit
    /// policy refuses the address space.
    pub fn new(len: usize) -> Result<Self, i32> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(libc::ENOMEM)?.max(1);
        let base = map(bytes)?;
        if bytes > 2 * Self::SMALL {
            // SAFETY: our mapping; the advice changes no contents, and a kernel
            // that refuses it leaves small pages.
            let _ = unsafe { sys::madvise(base + Self::SMALL, bytes - Self::SMALL, libc::MADV_HUGEPAGE) };
        }
        // SAFETY: mmap does not return address 0 unless asked to with MAP_FIXED.
        Ok(Array { base: unsafe { NonNull::new_unchecked(base as *mut T) }, len })
    }

    /// Makes the pages of `values` resident, so that who writes them first does not
    /// wait for the kernel: a few at a time, since changes of mappings wait
    /// meanwhile. Where the kernel cannot (before Linux 5.14), nothing is done.
    pub fn make_resident(&self, values: core::ops::Range<usize>) {
        const STEP: usize = 64 << 10;
        let bytes = |index: usize| index.min(self.len) * size_of::<T>();
        let (first, end) = (bytes(values.start) & !(PAGE_SIZE - 1), bytes(values.end));
        for at in (first..end).step_by(STEP) {
            let len = STEP.min(end - at);
            // SAFETY: our mapping, whose length the kernel rounds up as this one's; the
            // advice changes no contents.
            let done =
                unsafe { sys::madvise(self.base.as_ptr() as usize + at, len, libc::MADV_POPULATE_WRITE) };
            if done.is_err() {
                return;
            }
        }
    }

    /// Makes every value zero again and gives the pages back to the kernel.
    ///
    /// Another thread may load meanwhile: it sees the old value or zero.
    pub fn clear(&self) {
        let bytes = (self.len * size_of::<T>()).max(1);
        // SAFETY: our private anonymous mapping, whose values are atomics: the
        // kernel replaces pages by zero pages, which are valid values.
        let _ = unsafe { sys::madvise(self.base.as_ptr() as usize, bytes, libc::MADV_DONTNEED) };
    }
}

#[cfg(not(loom))]
impl<T> Drop for Array<T> {
    fn drop(&mut self) {
        let bytes = (self.len * size_of::<T>()).max(1);
        // SAFETY: the mapping of `new`; T has no destructor, and `&mut self`
        // says that no reader is left.
        let _ = unsafe { sys::munmap(self.base.as_ptr() as usize, bytes) };
    }
}

#[cfg(not(loom))]
impl<T> Deref for Array<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` values lie in the mapping, page-aligned, and zero bytes
        // are a valid T (the `Zero` bound of the only constructor).
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

/// loom's atomics are not words of memory: the models use a vector.
#[cfg(loom)]
pub struct Array<T>(Vec<T>);

#[cfg(loom)]
impl<T: Zero> Array<T> {
    /// As outside the models.
    pub fn new(len: usize) -> Result<Self, i32> {
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
