//! MPI on GPU buffers, whatever the MPI.
//!
//! A stock Open MPI takes a device pointer for a host address and ends with a
//! segmentation fault. A [`DeviceCommunicator`] carries Bcast and its family out on any
//! MPI, on a path that is chosen once ([`Plan`]):
//!
//! ```text
//! ipc         the sender tells the handle of a slab; the receiver copies from device to device
//! direct      the pointer goes to an MPI that takes it
//! staged      load i -> pinned chunk -> MPI i -> pinned chunk -> store i, all three at a time
//! ipc+staged  ipc for messages on a node, staged between nodes and for Bcast
//! ```
//!
//! MPI sees a buffer only after the streams that use it: [`DeviceBuf::settle`] waits and
//! returns the only type that operations take, so that to forget it does not compile.
//!
//! ```no_run
//! use mpi::traits::*;
//! use pinyard_mpi::{DeviceCommunicator, Gpu, Reduction};
//! use std::error::Error;
//!
//! fn main() -> std::process::ExitCode {
//!     pinyard_mpi::run(|world| -> Result<(), Box<dyn Error>> {
//!         let gpu = Gpu::open(world.rank() % 2)?;
//!         let ranks = DeviceCommunicator::builder(&gpu).build(world)?;
//!         println!("{}", ranks.plan());
//!
//!         let stream = gpu.stream()?;
//!         let mut grid = gpu.alloc::<f32>(1 << 20, &stream)?;
//!         grid.write(&vec![1.0; 1 << 20])?; // or a kernel on `stream`
//!         ranks.broadcast_into(0, &mut grid.settle_mut()?)?;
//!         ranks.all_reduce_in_place(&mut grid.settle_mut()?, Reduction::Sum)?;
//!         Ok(())
//!     })
//! }
//! ```
// Printing panics where the text cannot be written, as on a full disk.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

/// The book's page, whose examples are compiled.
#[cfg(doctest)]
#[allow(rustdoc::invalid_codeblock_attributes)] // marks of xtask/ci/book-commands.sh
#[doc = include_str!("../../docs/src/gpu-mpi.md")]
mod book {}

mod awareness;
mod buffers;
mod called;
mod calls;
mod communicator;
mod ending;
mod error;
mod fence;
mod immediate;
mod nodes;
mod operations;
mod paths;
mod probe;
pub mod probed;
mod report;
mod run;
mod settings;
mod variables;
mod words;

#[cfg(feature = "cudarc")]
pub use self::buffers::{CudaBuf, CudaPart, CudaPartMut, Lend, LendMut};
pub use self::{
    awareness::{Awareness, AwarenessError, CudaAware, Source},
    buffers::{
        BufferStream, DeviceBuf, Direct, DirectMut, Gpu, HostBuf, Pinned, PinnedBuf, PinnedMut, Settled,
        SettledMut,
    },
    communicator::{Builder, DeviceCommunicator},
    error::{BufferError, CommunicatorError, Error, Failure, MpiError, OpenError},
    fence::RequestFence,
    immediate::{After, AfterMut, OwnedRequest, Receiving, Request, Returned, Scope, Sending, scope},
    operations::{
        Epoch, EpochMemory, Got, Lock, LockWindow, Locked, LockedAll, Number, Own, Partition, Reduction,
        Sent, Window, WindowMemory,
    },
    paths::{Path, Plan},
    run::run,
};
