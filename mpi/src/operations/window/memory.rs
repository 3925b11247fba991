//! Memory that a window has, and what its operations take.

use crate::buffers::{BufferStream, DeviceBuf, HostBuf, PinnedBuf, Place, Settled, SettledMut};
use crate::error::BufferError;
use crate::operations::Memory;
use bytemuck::Pod;
use pinyard_driver::DevicePtr;
use sealed::{Lent, Lies, Part, Sealed};

/// What a [`Window`](crate::Window) is made of: [`SettledMut`], or a slice of the host's memory, as
/// of a [`HostBuf`] or of a settled [`PinnedBuf`].
pub trait EpochMemory: Part {}

/// What a [`LockWindow`](crate::LockWindow) is made of: [`DeviceBuf`], [`PinnedBuf`], [`HostBuf`].
pub trait WindowMemory: Sealed {}

/// What is put into a window of `B`: `&Settled` for a device's, a slice for the host's.
pub trait Sent<'b, B>: Lent<'b> {}

/// What is got from a window of `B`: `&mut SettledMut` for a device's, a slice for the host's.
pub trait Got<'b, B>: Lent<'b> {}

pub(super) mod sealed {
    use super::{BufferError, Memory, Place, Pod};

    /// Where memory is: a device's, or without a place the host's.
    pub struct Lies<'b> {
        pub(in super::super) memory: Memory,
        pub(in super::super) place: Option<Place<'b>>,
    }

    pub trait Sealed {
        /// Whether it is a device's.
        const ON_DEVICE: bool;
        /// Bytes of an element.
        const ELEMENT: usize;
        /// Where it is, once nothing queued uses it.
        fn settled(&mut self) -> Result<Lies<'_>, BufferError>;
    }

    pub trait Part {
        /// Whether it is a device's.
        const ON_DEVICE: bool;
        type Element: Pod;
        /// Where it is, which nothing queued uses.
        fn lies_mut(&mut self) -> Lies<'_>;
    }

    pub trait Lent<'b> {
        /// Where it is, which nothing queued uses.
        fn lies(&self) -> Lies<'b>;
    }
}

fn on_device<T>(place: Place<'_>, elements: usize) -> Lies<'_> {
    Lies { memory: Memory::of::<T>(place, elements), place: Some(place) }
}

/// Memory of the host is told as a device's is: its address, and no slab.
fn on_host<'b, T>(at: *const T, elements: usize) -> Lies<'b> {
    let at = DevicePtr(at.expose_provenance() as u64);
    Lies { memory: Memory { at, bytes: elements * size_of::<T>(), slab: None }, place: None }
}

impl<T: Pod> EpochMemory for SettledMut<'_, T> {}

impl<T: Pod> Part for SettledMut<'_, T> {
    const ON_DEVICE: bool = true;
    type Element = T;

    fn lies_mut(&mut self) -> Lies<'_> {
        on_device::<T>(self.place(), self.len())
    }
}

impl<T: Pod> EpochMemory for &mut [T] {}

impl<T: Pod> Part for &mut [T] {
    const ON_DEVICE: bool = false;
    type Element = T;

    fn lies_mut(&mut self) -> Lies<'_> {
        on_host(self.as_mut_ptr(), self.len())
    }
}

impl<T: Pod, S: BufferStream> WindowMemory for DeviceBuf<T, S> {}

impl<T: Pod, S: BufferStream> Sealed for DeviceBuf<T, S> {
    const ON_DEVICE: bool = true;
    const ELEMENT: usize = size_of::<T>();

    fn settled(&mut self) -> Result<Lies<'_>, BufferError> {
        let settled = self.settle_mut()?;
        let (place, elements) = (settled.place(), settled.len());
        Ok(on_device::<T>(place, elements))
    }
}

impl<T: Pod> WindowMemory for PinnedBuf<T> {}

impl<T: Pod> Sealed for PinnedBuf<T> {
    const ON_DEVICE: bool = false;
    const ELEMENT: usize = size_of::<T>();

    fn settled(&mut self) -> Result<Lies<'_>, BufferError> {
        let mut settled = self.settle_mut()?;
        Ok(on_host(settled.as_mut_ptr(), settled.len()))
    }
}

impl<T: Pod> WindowMemory for HostBuf<T> {}

impl<T: Pod> Sealed for HostBuf<T> {
    const ON_DEVICE: bool = false;
    const ELEMENT: usize = size_of::<T>();

    fn settled(&mut self) -> Result<Lies<'_>, BufferError> {
        Ok(on_host(self.as_mut_ptr(), self.len()))
    }
}

impl<'b, T: Pod> Lent<'b> for &'b Settled<'_, T> {
    fn lies(&self) -> Lies<'b> {
        on_device::<T>(self.place(), self.len())
    }
}

impl<'b, T: Pod> Lent<'b> for &'b mut SettledMut<'_, T> {
    fn lies(&self) -> Lies<'b> {
        on_device::<T>(self.place(), self.len())
    }
}

impl<'b, T: Pod> Lent<'b> for &'b [T] {
    fn lies(&self) -> Lies<'b> {
        on_host(self.as_ptr(), self.len())
    }
}

impl<'b, T: Pod> Lent<'b> for &'b mut [T] {
    fn lies(&self) -> Lies<'b> {
        on_host(self.as_ptr(), self.len())
    }
}

impl<'b, T: Pod, S: BufferStream> Sent<'b, DeviceBuf<T, S>> for &'b Settled<'_, T> {}
impl<'b, T: Pod, S: BufferStream> Got<'b, DeviceBuf<T, S>> for &'b mut SettledMut<'_, T> {}
impl<'b, T: Pod> Sent<'b, PinnedBuf<T>> for &'b [T] {}
impl<'b, T: Pod> Got<'b, PinnedBuf<T>> for &'b mut [T] {}
impl<'b, T: Pod> Sent<'b, HostBuf<T>> for &'b [T] {}
impl<'b, T: Pod> Got<'b, HostBuf<T>> for &'b mut [T] {}
