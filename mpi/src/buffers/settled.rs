//! Buffers that nothing queued on a device uses: the only ones that MPI gets.
#![allow(unsafe_code)] // implements rsmpi's unsafe traits

use super::gpu::Gpu;
use crate::awareness::CudaAware;
use bytemuck::Pod;
use mpi::Count;
use mpi::datatype::{AsDatatype, Buffer, BufferMut, Collection, Equivalence, Pointer, PointerMut};
use pinyard_driver::DevicePtr;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

/// Where a settled buffer lies.
#[derive(Clone, Copy)]
pub(crate) struct Place<'b> {
    pub(crate) gpu: &'b Gpu,
    pub(crate) ptr: DevicePtr,
    /// Start and bytes of its slab; none where there are no elements.
    pub(crate) slab: Option<(DevicePtr, usize)>,
}

impl Place<'_> {
    fn skip(self, bytes: usize) -> Self {
        Place { ptr: DevicePtr(self.ptr.0 + bytes as u64), ..self }
    }
}

/// A [`DeviceBuf`](crate::DeviceBuf), or a range of one, that nothing queued writes.
pub struct Settled<'b, T> {
    place: Place<'b>,
    elements: usize,
    borrows: PhantomData<&'b [T]>,
}

/// A [`DeviceBuf`](crate::DeviceBuf), or a range of one, that nothing queued uses.
pub struct SettledMut<'b, T> {
    place: Place<'b>,
    elements: usize,
    borrows: PhantomData<&'b mut [T]>,
}

/// The range as numbers. Like a slice's, it panics if it is none of `elements`.
pub(super) fn resolve(range: impl RangeBounds<usize>, elements: usize) -> Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(&at) => at,
        Bound::Excluded(&at) => at + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&at) => at + 1,
        Bound::Excluded(&at) => at,
        Bound::Unbounded => elements,
    };
    assert!(start <= end && end <= elements, "range {start}..{end} of a buffer of {elements} elements");
    start..end
}

impl<'b, T: Pod> Settled<'b, T> {
    pub(super) fn new(place: Place<'b>, elements: usize) -> Settled<'b, T> {
        Settled { place, elements, borrows: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// Some of the elements.
    ///
    /// # Panics
    /// As a slice's index: if the range ends beyond the elements.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Settled<'b, T> {
        let range = resolve(range, self.elements);
        Settled::new(self.place.skip(range.start * size_of::<T>()), range.len())
    }

    /// For rsmpi's own functions, under an MPI that takes device pointers.
    ///
    /// # Safety
    /// MPI takes device pointers in the function that gets it, which moves its bytes and no
    /// more. Not in reductions: rsmpi's take any operation, and MPI runs those of the
    /// program's own, and some MPIs run theirs too, on the host, which may not touch device
    /// memory. [`all_reduce_into`](crate::DeviceCommunicator::all_reduce_into) and its like
    /// reduce it.
    pub unsafe fn direct(&self, _: &CudaAware) -> Direct<'_, T> {
        Direct { place: self.place, elements: self.elements, borrows: PhantomData }
    }

    pub(crate) fn place(&self) -> Place<'b> {
        self.place
    }
}

impl<'b, T: Pod> SettledMut<'b, T> {
    pub(super) fn new(place: Place<'b>, elements: usize) -> SettledMut<'b, T> {
        SettledMut { place, elements, borrows: PhantomData }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// For reading.
    pub fn as_settled(&self) -> Settled<'_, T> {
        Settled::new(self.place, self.elements)
    }

    /// Some of the elements.
    ///
    /// # Panics
    /// As a slice's index: if the range ends beyond the elements.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> SettledMut<'_, T> {
        let range = resolve(range, self.elements);
        SettledMut::new(self.place.skip(range.start * size_of::<T>()), range.len())
    }

    /// The elements before `middle`, and the others: one to send from while the other is
    /// received into.
    ///
    /// # Panics
    /// If `middle` lies beyond the elements.
    pub fn split_at_mut(&mut self, middle: usize) -> (SettledMut<'_, T>, SettledMut<'_, T>) {
        let after = resolve(middle.., self.elements);
        let place = self.place.skip(after.start * size_of::<T>());
        (SettledMut::new(self.place, middle), SettledMut::new(place, after.len()))
    }

    /// For rsmpi's own functions, under an MPI that takes device pointers.
    ///
    /// # Safety
    /// As of [`Settled::direct`].
    pub unsafe fn direct_mut(&mut self, _: &CudaAware) -> DirectMut<'_, T> {
        DirectMut { place: self.place, elements: self.elements, borrows: PhantomData }
    }

    pub(crate) fn place(&self) -> Place<'b> {
        self.place
    }
}

/// A settled buffer as rsmpi's [`Buffer`].
pub struct Direct<'b, T> {
    place: Place<'b>,
    elements: usize,
    borrows: PhantomData<&'b [T]>,
}

/// A settled buffer as rsmpi's [`BufferMut`].
pub struct DirectMut<'b, T> {
    place: Place<'b>,
    elements: usize,
    borrows: PhantomData<&'b mut [T]>,
}

macro_rules! views {
    ($($name:ident)*) => {$(
        // SAFETY: the elements that are borrowed.
        unsafe impl<T: Equivalence> Collection for $name<'_, T> {
            fn count(&self) -> Count {
                count(self.elements)
            }
        }
        // SAFETY: the elements are `T`s.
        unsafe impl<T: Equivalence> AsDatatype for $name<'_, T> {
            type Out = T::Out;
            fn as_datatype(&self) -> T::Out {
                T::equivalent_datatype()
            }
        }
        impl<T> std::fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("ptr", &format_args!("{:#x}", self.place.ptr.0))
                    .field("elements", &self.elements)
                    .finish()
            }
        }
    )*};
}

/// rsmpi's own functions count in `int`, as its slices do.
pub(super) fn count(elements: usize) -> Count {
    assert!(elements <= Count::MAX as usize, "{elements} elements exceed an MPI count: send ranges");
    elements as Count
}

views! { Direct DirectMut }

impl<T> std::fmt::Debug for Settled<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Settled({:#x}, {} elements)", self.place.ptr.0, self.elements)
    }
}

impl<T> std::fmt::Debug for SettledMut<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SettledMut({:#x}, {} elements)", self.place.ptr.0, self.elements)
    }
}

// SAFETY: device memory that is borrowed and that nothing queued writes; that the MPI may
// take its address, and the host leaves it alone, is what whoever called `direct` says.
unsafe impl<T> Pointer for Direct<'_, T> {
    fn pointer(&self) -> *const c_void {
        std::ptr::with_exposed_provenance(self.place.ptr.0 as usize)
    }
}
// SAFETY: as above.
unsafe impl<T: Equivalence> Buffer for Direct<'_, T> {}
// SAFETY: device memory that is borrowed mutably and that nothing queued uses; otherwise as
// above.
unsafe impl<T> PointerMut for DirectMut<'_, T> {
    fn pointer_mut(&mut self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.place.ptr.0 as usize)
    }
}
// SAFETY: as above.
unsafe impl<T: Equivalence> BufferMut for DirectMut<'_, T> {}
