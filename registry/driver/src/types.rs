//! Handles and answers of a driver.
#![allow(unsafe_code)] // declares unsafe functions, calls none

use std::fmt;

/// A device address. Arithmetic on it is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePtr(pub u64);

/// A stream that stands: `CUstream`. Copies name the same stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stream(usize);

impl Stream {
    /// The default stream of the context.
    pub const DEFAULT: Stream = Stream(0);

    /// `CU_STREAM_PER_THREAD`: one handle for another stream in every thread.
    pub const PER_THREAD: usize = 2;

    /// A stream made elsewhere.
    ///
    /// # Safety
    /// `raw` is a `CUstream` of the driver's context, and stands as long as any copy
    /// of the value is used.
    pub unsafe fn from_raw(raw: usize) -> Stream {
        Stream(raw)
    }

    /// The `CUstream`.
    pub fn raw(self) -> usize {
        self.0
    }

    /// Whether it is [`PER_THREAD`](Stream::PER_THREAD).
    pub fn is_per_thread(self) -> bool {
        self.0 == Stream::PER_THREAD
    }
}

/// An event that stands: `CUevent`, without timing.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(usize);

impl Event {
    pub(crate) fn new(raw: usize) -> Event {
        Event(raw)
    }

    /// The `CUevent`.
    pub fn raw(self) -> usize {
        self.0
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:#x})", self.0)
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:#x})", self.0)
    }
}

/// Physical device memory without an address: `CUmemGenericAllocationHandle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Physical(pub u64);

/// A module of kernels that is loaded: `CUmodule`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Module(pub(crate) usize);

/// A kernel of a loaded module: `CUfunction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function(pub(crate) usize);

/// Whether a stream's work is recorded into a graph instead of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// It runs.
    None,
    /// It is recorded; the capture's number, unique in the process.
    Active(u64),
    /// A capture failed and has not been ended.
    Invalidated,
}

/// Bytes of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemInfo {
    /// Free now, for every process.
    pub free: usize,
    /// All.
    pub total: usize,
}

/// What a device is and can do. Asked once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub ordinal: i32,
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub total_bytes: usize,
    /// The host's NUMA node nearest to it, if the system has nodes.
    pub host_node: Option<u32>,
    /// Its place on PCI, as numbers that are near for devices behind the same switch: the domain
    /// from bit 16 on, then 8 bits of the bus and 8 of the device (`CU_DEVICE_ATTRIBUTE_PCI_*_ID`).
    pub pci: Option<u64>,
    /// `cuStreamWriteValue64` and `cuStreamWaitValue64` work.
    pub stream_values: bool,
    /// `cuMemCreate` and its kin work.
    pub virtual_memory: bool,
    /// Memory of `cuMemCreate` can be reached by a NIC.
    pub rdma_virtual_memory: bool,
    /// Ranges can be exported as dma-buf.
    pub dma_buf: bool,
    /// Managed memory may be touched by the host while the device runs.
    pub concurrent_managed: bool,
}
