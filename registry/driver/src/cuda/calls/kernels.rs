//! Modules and their kernels.
#![allow(unsafe_code)]

use super::{Answer, handle};
use crate::cuda::{Cuda, check};
use crate::text;
use crate::token::DriverToken;
use crate::types::{Function, Module, Stream};
use std::ffi::{CStr, c_void};
use std::ptr;

impl Cuda {
    pub(super) fn module_load(&self, ptx: &CStr, _: &DriverToken) -> Answer<Module> {
        self.outside_captures("cuModuleLoadData", |functions| {
            let mut module = ptr::null_mut();
            // SAFETY: stores the module; the text is terminated.
            let result = unsafe { (functions.module_load)(&mut module, ptx.as_ptr().cast()) };
            check(functions, result, || text::module_load(ptx)).map(|()| Module(module as usize))
        })
    }

    pub(super) unsafe fn module_unload(&self, module: Module, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuModuleUnload", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.module_unload)(module.0 as *mut c_void) };
            check(functions, result, || text::module_unload(module))
        })
    }

    pub(super) fn module_function(&self, module: Module, name: &CStr, _: &DriverToken) -> Answer<Function> {
        self.within("cuModuleGetFunction", |functions| {
            let mut function = ptr::null_mut();
            // SAFETY: the module stands (its type's contract); stores the function.
            let result =
                unsafe { (functions.module_function)(&mut function, module.0 as *mut c_void, name.as_ptr()) };
            check(functions, result, || text::module_function(module, name))
                .map(|()| Function(function as usize))
        })
    }

    pub(super) unsafe fn launch(
        &self,
        function: Function,
        grid: u32,
        block: u32,
        arguments: &[u64],
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        self.within("cuLaunchKernel", |functions| {
            // The driver copies the arguments before it returns.
            let mut at: Vec<*mut c_void> =
                arguments.iter().map(|argument| ptr::from_ref(argument).cast_mut().cast()).collect();
            let (kernel, at) = (function.0 as *mut c_void, at.as_mut_ptr());
            let (queue, none) = (handle(stream), ptr::null_mut());
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.launch)(kernel, grid, 1, 1, block, 1, 1, 0, queue, at, none) };
            check(functions, result, || text::launch(function, grid, block, stream))
        })
    }
}
