//! Typed buffers over the pools' blocks.

mod device;
mod exports;
mod gpu;
mod host;
mod pinned;
mod settled;

pub(crate) use self::settled::Place;
pub use self::{
    device::DeviceBuf,
    gpu::Gpu,
    host::HostBuf,
    pinned::{Pinned, PinnedBuf, PinnedMut},
    settled::{Direct, DirectMut, Settled, SettledMut},
};
