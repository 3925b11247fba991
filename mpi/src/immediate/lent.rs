//! Buffers for operations that do not block: settled ones, and those that are ready when a
//! stream has come as far as it is now.
#![allow(unsafe_code)] // destroys events

use crate::buffers::{BufferStream, DeviceBuf, Gpu, Place, Settled, SettledMut};
use crate::error::BufferError;
use crate::operations::{Memory, Whole};
use bytemuck::Pod;
use pinyard_allocator::DriverToken;
use pinyard_allocator::device::PoolStream;
use pinyard_driver::{DriverError, Event};
use std::future::poll_fn;
use std::marker::PhantomData;
use std::task::Poll;

/// Where streams were. Nothing here waits.
pub(crate) struct Marks {
    gpu: Gpu,
    events: Vec<Event>,
    /// A stream could not be marked: whoever waits is told.
    failed: Option<DriverError>,
}

impl Marks {
    fn of<'s>(gpu: &Gpu, mut streams: impl Iterator<Item = &'s PoolStream>) -> Marks {
        let token = DriverToken::at_entry();
        let mut events = Vec::new();
        let marked = streams.try_for_each(|stream| {
            let event = gpu.driver().event_create(&token)?;
            events.push(event);
            gpu.driver().event_record(event, stream.stream(), &token)
        });
        Marks { gpu: gpu.clone(), events, failed: marked.err() }
    }

    /// Until all have passed.
    pub(super) async fn passed(mut self) -> Result<(), DriverError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        for &event in &self.events {
            poll_fn(|_| match self.gpu.driver().event_query(event, &DriverToken::at_entry()) {
                Ok(false) => Poll::Pending,
                Ok(true) => Poll::Ready(Ok(())),
                Err(error) => Poll::Ready(Err(error)),
            })
            .await?;
        }
        Ok(())
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        let token = DriverToken::at_entry();
        for &event in &self.events {
            // SAFETY: ours, used no more. An error means that the context is gone.
            let _ = unsafe { self.gpu.driver().event_destroy(event, &token) };
        }
    }
}

/// A [`DeviceBuf`] for reading, once streams have come as far as they were: see
/// [`DeviceBuf::after`].
pub struct After<'b, T> {
    lent: Lent<'b>,
    borrows: PhantomData<&'b [T]>,
}

/// A [`DeviceBuf`] for writing, once streams have come as far as they were: see
/// [`DeviceBuf::after_mut`].
pub struct AfterMut<'b, T> {
    lent: Lent<'b>,
    borrows: PhantomData<&'b mut [T]>,
}

/// A buffer's place and elements, and what comes before it may be used.
pub struct Lent<'b> {
    pub(super) place: Place<'b>,
    pub(super) elements: usize,
    pub(super) marks: Option<Marks>,
}

impl<'b> Lent<'b> {
    pub(super) fn whole(&self) -> Whole<'b> {
        (self.place, self.elements)
    }

    pub(super) fn memory<T>(&self) -> Memory {
        Memory::of::<T>(self.place, self.elements)
    }

    /// If its streams could be marked.
    fn made(mut self) -> Result<Lent<'b>, BufferError> {
        match self.marks.as_mut().and_then(|marks| marks.failed.take()) {
            Some(error) => Err(error.into()),
            None => Ok(self),
        }
    }
}

impl<T: Pod, S: BufferStream> DeviceBuf<T, S> {
    /// Lends it for reading, to an operation that begins when `stream`, and those that use
    /// the buffer, have done what they have been given so far. The host does not wait.
    /// Not during a capture.
    pub fn after(&self, stream: &S) -> Result<After<'_, T>, BufferError> {
        Ok(After { lent: self.marked(&stream.known(self.gpu())?).made()?, borrows: PhantomData })
    }

    /// The same for writing.
    pub fn after_mut(&mut self, stream: &S) -> Result<AfterMut<'_, T>, BufferError> {
        Ok(AfterMut { lent: self.marked(&stream.known(self.gpu())?).made()?, borrows: PhantomData })
    }

    /// As it is once `stream`, and those that use it, have come as far as they are now.
    fn marked(&self, stream: &PoolStream) -> Lent<'_> {
        let marks = Some(Marks::of(self.gpu(), self.users_and(stream).iter()));
        Lent { place: self.place(), elements: self.len(), marks }
    }

    /// For an operation that has the buffer, when all that uses it so far is done. Where that
    /// cannot be known the operation fails, which is for it to tell the other ranks.
    pub(super) fn lent_whole(&mut self) -> Lent<'_> {
        self.marked(self.home())
    }
}

mod sealed {
    use super::Lent;

    pub trait Sealed<'b> {
        fn lent(self) -> Lent<'b>;
    }
}

pub(super) use self::sealed::Sealed;

/// What an operation that does not block reads: `&Settled`, or [`After`].
pub trait Sending<'b, T>: Sealed<'b> {}

/// What an operation that does not block writes: `&mut SettledMut`, or [`AfterMut`].
pub trait Receiving<'b, T>: Sealed<'b> {}

impl<'b, T: Pod> Sealed<'b> for &'b Settled<'_, T> {
    fn lent(self) -> Lent<'b> {
        Lent { place: self.place(), elements: self.len(), marks: None }
    }
}

impl<'b, T: Pod> Sealed<'b> for &'b mut SettledMut<'_, T> {
    fn lent(self) -> Lent<'b> {
        Lent { place: self.place(), elements: self.len(), marks: None }
    }
}

impl<'b, T> Sealed<'b> for After<'b, T> {
    fn lent(self) -> Lent<'b> {
        self.lent
    }
}

impl<'b, T> Sealed<'b> for AfterMut<'b, T> {
    fn lent(self) -> Lent<'b> {
        self.lent
    }
}

impl<'b, T: Pod> Sending<'b, T> for &'b Settled<'_, T> {}
impl<'b, T: Pod> Sending<'b, T> for After<'b, T> {}
impl<'b, T: Pod> Receiving<'b, T> for &'b mut SettledMut<'_, T> {}
impl<'b, T: Pod> Receiving<'b, T> for AfterMut<'b, T> {}

impl<T> std::fmt::Debug for After<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "After({:#x}, {} elements)", self.lent.place.ptr.0, self.lent.elements)
    }
}

impl<T> std::fmt::Debug for AfterMut<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AfterMut({:#x}, {} elements)", self.lent.place.ptr.0, self.lent.elements)
    }
}
