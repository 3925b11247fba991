//! The kernels of reductions, on one device.
#![allow(unsafe_code)]

use pinyard_allocator::DriverToken;
use pinyard_driver::reduction::{Element, INPUTS, Join, module, name};
use pinyard_driver::{DevicePtr, Driver, DriverError, Function, Module, Stream};
use std::sync::Arc;

/// Threads of a block, and the most blocks: a few for each multiprocessor of the largest
/// devices.
const THREADS: u32 = 512;
const BLOCKS: u32 = 1024;
/// Elements that a thread takes at a time, or one after the other.
const LANES: usize = 4;

/// The module, loaded until the value goes. Its work is waited for by whoever launches it.
pub(crate) struct Kernels {
    driver: Arc<dyn Driver>,
    module: Module,
    /// By join and element.
    functions: Vec<Function>,
}

impl Kernels {
    pub(super) fn load(driver: &Arc<dyn Driver>, token: &DriverToken) -> Result<Kernels, DriverError> {
        let module = driver.module_load(&module(), token)?;
        // From here on the module goes with the value.
        let mut kernels = Kernels { driver: driver.clone(), module, functions: Vec::new() };
        for join in Join::ALL {
            for element in Element::ALL {
                kernels.functions.push(driver.module_function(module, &name(join, element), token)?);
            }
        }
        Ok(kernels)
    }

    /// Queues the reduction of `elements` of each of `inputs`, 1 to [`INPUTS`], in their
    /// order.
    ///
    /// # Safety
    /// All have the elements. Until the stream has passed nobody writes the inputs or uses
    /// `to`, which may be one of them.
    pub(crate) unsafe fn queue(
        &self,
        (join, element): (Join, Element),
        to: DevicePtr,
        inputs: &[DevicePtr],
        elements: usize,
        stream: Stream,
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        let mut arguments = [0; 3 + INPUTS];
        arguments[..3].copy_from_slice(&[to.0, elements as u64, inputs.len() as u64]);
        for (place, input) in arguments[3..].iter_mut().zip(inputs) {
            *place = input.0;
        }
        let blocks = elements.div_ceil(LANES * THREADS as usize).clamp(1, BLOCKS as usize) as u32;
        let function = self.functions[join as usize * Element::ALL.len() + element as usize];
        // SAFETY: the kernel's arguments (pinyard_driver::reduction); the rest is the caller's
        // contract.
        unsafe { self.driver.launch(function, blocks, THREADS, &arguments, stream, token) }
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // SAFETY: every launch was waited for. An error means that the context is gone.
        let _ = unsafe { self.driver.module_unload(self.module, &DriverToken::at_entry()) };
    }
}
