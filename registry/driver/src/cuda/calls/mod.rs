//! Each call of the driver, with its arguments in its error, by topic.
#![allow(unsafe_code)]

mod events;
mod kernels;
mod mapping;
mod memory;
mod sharing;
mod streams;
mod work;

use super::Cuda;
use crate::driver::Driver;
use crate::error::{DriverError, code};
use crate::table::{by_own_functions, every_call};
use crate::token::DriverToken;
use crate::types::{Capture, Device, DevicePtr, Event, Function, MemInfo, Module, Physical, Stream};
use std::ffi::{CStr, c_void};
use std::os::fd::OwnedFd;

type Answer<T> = Result<T, DriverError>;

fn handle(stream: Stream) -> *mut c_void {
    stream.raw() as *mut c_void
}

fn event_handle(event: Event) -> *mut c_void {
    event.raw() as *mut c_void
}

/// What a boxed closure becomes for a host function.
type Work = Box<dyn FnOnce() + Send>;

extern "C" fn run_work(data: *mut c_void) {
    // SAFETY: made by `host_function`, which the driver runs once.
    let work = unsafe { Box::from_raw(data.cast::<Work>()) };
    // A panic must not cross into the driver.
    let _ = pinyard_worker::caught(work);
}

/// A wait that says "not yet" by a code.
fn ready(answer: Answer<()>) -> Answer<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.code == code::NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}

// SAFETY: memory comes from the driver, which gives it to nobody else.
unsafe impl Driver for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> &Device {
        &self.device
    }

    every_call! { by_own_functions }
}
