//! A driver whose calls are counted.
#![allow(unsafe_code)] // forwards unsafe functions

use crate::call::{CALLS, Call};
use crate::driver::Driver;
use crate::error::DriverError;
use crate::table::every_call;
use crate::token::DriverToken;
use crate::types::{Capture, Device, DevicePtr, Event, Function, MemInfo, Module, Physical, Stream};
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How often each function of a driver was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls([u64; CALLS]);

impl Calls {
    /// How often `call`.
    pub fn of(&self, call: Call) -> u64 {
        self.0[call as usize]
    }

    /// All calls.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Those that were called, by number.
    pub fn iter(&self) -> impl Iterator<Item = (Call, u64)> + '_ {
        Call::ALL.into_iter().map(|call| (call, self.of(call))).filter(|&(_, count)| count > 0)
    }
}

impl Default for Calls {
    fn default() -> Calls {
        Calls([0; CALLS])
    }
}

/// Passes every call on to another driver, and counts it: one addition beside a call
/// that takes at least fifty nanoseconds. Failed calls count.
pub struct Counted {
    driver: Arc<dyn Driver>,
    counts: [AtomicU64; CALLS],
}

impl Counted {
    /// Counts the calls of `driver` that go through the value.
    pub fn new(driver: Arc<dyn Driver>) -> Counted {
        Counted { driver, counts: [const { AtomicU64::new(0) }; CALLS] }
    }

    /// The counts now. Calls of other threads meanwhile are in it or not.
    pub fn calls(&self) -> Calls {
        Calls(std::array::from_fn(|at| self.counts[at].load(Relaxed)))
    }

    fn count(&self, call: Call) {
        self.counts[call as usize].fetch_add(1, Relaxed);
    }
}

macro_rules! forward {
    (
        safe { $($name:ident($($argument:ident: $kind:ty),*) -> $result:ty, $call:ident;)* }
        unsafe { $($uname:ident($($uargument:ident: $ukind:ty),*) -> $uresult:ty, $ucall:ident;)* }
    ) => {
        $(fn $name(&self, $($argument: $kind,)* token: &DriverToken) -> Result<$result, DriverError> {
            self.count(Call::$call);
            self.driver.$name($($argument,)* token)
        })*
        $(unsafe fn $uname(&self, $($uargument: $ukind,)* token: &DriverToken) -> Result<$uresult, DriverError> {
            self.count(Call::$ucall);
            // SAFETY: the contract is the same, and the caller keeps it.
            unsafe { self.driver.$uname($($uargument,)* token) }
        })*
    };
}

// SAFETY: the other driver's memory, and its promises.
unsafe impl Driver for Counted {
    fn name(&self) -> &'static str {
        self.driver.name()
    }

    fn device(&self) -> &Device {
        self.driver.device()
    }

    every_call! { forward }
}
