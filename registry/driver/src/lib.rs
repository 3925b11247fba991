//! The one module through which pinyard talks to a GPU's driver.
//!
//! [`Driver`] has two implementations: [`Cuda`], which opens `libcuda.so.1` at run
//! time, and [`Simulated`], a device with a byte budget, a virtual clock and faults
//! on request, on which everything above is tested without a GPU.
//!
//! Every call takes a [`DriverToken`]: whoever guards a pool's state borrows the
//! token mutably for as long as the guard lives, so a driver call under such a lock
//! does not compile. The driver may wait for streams, and streams for host
//! functions, and host functions for that lock (mlx#2099, rmm#2470).
//!
//! ```
//! use pinyard_driver::{Driver, DriverToken, Simulated};
//!
//! let token = DriverToken::at_entry();
//! let gpu = Simulated::new(1 << 20);
//! let block = gpu.mem_alloc(4096, &token)?;
//! assert!(gpu.mem_alloc(1 << 20, &token).unwrap_err().is_out_of_memory());
//! // SAFETY: nothing uses the block.
//! unsafe { gpu.mem_free(block, &token)? };
//! assert_eq!(gpu.outstanding(), "");
//! # Ok::<(), pinyard_driver::DriverError>(())
//! ```
// Printing panics where the text cannot be written, as on a full disk.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod call;
mod chosen;
mod counted;
mod cuda;
mod driver;
mod error;
pub mod reduction;
mod simulated;
mod table;
mod text;
mod token;
mod types;

pub use self::{
    call::Call,
    chosen::{Chosen, NoDriver},
    counted::{Calls, Counted},
    cuda::Cuda,
    driver::Driver,
    error::{Absent, DriverError},
    simulated::{Costs, Simulated},
    token::DriverToken,
    types::{Capture, Device, DevicePtr, Event, Function, MemInfo, Module, Physical, Stream},
};
