//! Modules and their kernels.
#![allow(unsafe_code)]

use super::{Answer, offence, refused};
use crate::call::Call;
use crate::error::code;
use crate::reduction;
use crate::simulated::machine::Op;
use crate::simulated::{Simulated, kernels};
use crate::text;
use crate::token::DriverToken;
use crate::types::{Function, Module, Stream};
use std::ffi::CStr;

impl Simulated {
    /// Of any text: its entries.
    pub(super) fn module_load(&self, ptx: &CStr, _: &DriverToken) -> Answer<Module> {
        let call = || text::module_load(ptx);
        let mut machine = self.enter(Call::ModuleLoad, call)?;
        let entries = kernels::entries(&ptx.to_string_lossy());
        if entries.is_empty() {
            return refused(call(), code::INVALID_PTX, "no entry in the text");
        }
        let handle = machine.handle();
        machine.modules.insert(handle, entries);
        Ok(Module(handle))
    }

    pub(super) unsafe fn module_unload(&self, module: Module, _: &DriverToken) -> Answer<()> {
        let call = || text::module_unload(module);
        let mut machine = self.enter(Call::ModuleUnload, call)?;
        machine.functions.retain(|_, (owner, _)| *owner != module.0);
        match machine.modules.remove(&module.0) {
            Some(_) => Ok(()),
            None => offence(&mut machine, call(), code::INVALID_HANDLE, "no such module"),
        }
    }

    pub(super) fn module_function(&self, module: Module, name: &CStr, _: &DriverToken) -> Answer<Function> {
        let call = || text::module_function(module, name);
        let mut machine = self.enter(Call::ModuleFunction, call)?;
        let name = name.to_string_lossy().into_owned();
        match machine.modules.get(&module.0) {
            Some(names) if names.contains(&name) => {
                let handle = machine.handle();
                machine.functions.insert(handle, (module.0, name));
                Ok(Function(handle))
            }
            Some(_) => refused(call(), code::NOT_FOUND, "no such kernel in the module"),
            None => offence(&mut machine, call(), code::INVALID_HANDLE, "no such module"),
        }
    }

    /// Of the kernels that pinyard ships ([`reduction`]).
    pub(super) unsafe fn launch(
        &self,
        function: Function,
        grid: u32,
        block: u32,
        arguments: &[u64],
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        let call = || text::launch(function, grid, block, stream);
        let mut machine = self.enter(Call::Launch, call)?;
        let Some((_, name)) = machine.functions.get(&function.0) else {
            return offence(&mut machine, call(), code::INVALID_HANDLE, "no such kernel");
        };
        let Some(kernel) = reduction::named(name) else {
            return refused(
                call(),
                code::NOT_SUPPORTED,
                "the simulated device knows pinyard's kernels alone",
            );
        };
        match kernels::Reduction::new(kernel, arguments).filter(|_| grid > 0 && (1..=1024).contains(&block)) {
            Some(reduction) => {
                let bytes = reduction.bytes();
                self.queue_within(machine, stream, call, Op::Reduce(reduction), bytes)
            }
            None => offence(&mut machine, call(), code::INVALID_VALUE, "not the kernel's arguments"),
        }
    }
}
