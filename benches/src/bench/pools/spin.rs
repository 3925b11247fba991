//! A kernel that keeps a stream busy and takes nothing of the device from others: one
//! thread that looks at the clock.
#![allow(unsafe_code)] // a kernel is launched

use super::contenders::token;
use pinyard_benches::turns::or_fail;
use pinyard_driver::{Driver, Function, Module, Stream};
use std::sync::Arc;

/// `spin(nanoseconds)`.
const TEXT: &std::ffi::CStr = c".version 6.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
  .reg .pred %on;
  .reg .b64 %most, %began, %now;
  ld.param.u64 %most, [nanoseconds];
  mov.u64 %began, %globaltimer;
again:
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %began;
  setp.lt.u64 %on, %now, %most;
  @%on bra again;
  ret;
}
";

/// The kernel, loaded.
pub(super) struct Spin {
    driver: Arc<dyn Driver>,
    module: Module,
    function: Function,
}

impl Spin {
    pub(super) fn load(driver: Arc<dyn Driver>) -> Spin {
        let module = or_fail(driver.module_load(TEXT, &token()));
        let function = or_fail(driver.module_function(module, c"spin", &token()));
        Spin { driver, module, function }
    }

    /// `nanoseconds` of work for `stream`.
    pub(super) fn launch(&self, stream: Stream, nanoseconds: u64) {
        // SAFETY: the kernel takes this argument and uses no memory; the module goes after the
        // work (`drop`).
        or_fail(unsafe { self.driver.launch(self.function, 1, 1, &[nanoseconds], stream, &token()) });
    }
}

impl Drop for Spin {
    fn drop(&mut self) {
        or_fail(self.driver.synchronize(&token()));
        // SAFETY: all work has passed, and nobody launches it any more.
        or_fail(unsafe { self.driver.module_unload(self.module, &token()) });
    }
}
