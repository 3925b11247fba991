//! Typed buffers over the pools' blocks.

#[cfg(feature = "cudarc")]
mod cuda;
#[cfg(feature = "cudarc")]
mod cuda_host;
mod device;
mod exports;
mod foreign;
mod gpu;
mod host;
mod kernels;
mod pinned;
mod settled;

#[cfg(feature = "cudarc")]
pub use self::cuda::{CudaBuf, CudaPart, CudaPartMut, Lend, LendMut};
pub use self::{
    device::{BufferStream, DeviceBuf},
    gpu::Gpu,
    host::HostBuf,
    pinned::{Pinned, PinnedBuf, PinnedMut},
    settled::{Direct, DirectMut, Settled, SettledMut},
};
pub(crate) use self::{kernels::Kernels, settled::Place};
