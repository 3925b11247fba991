//! A kernel that keeps a stream busy and takes nothing of the device from others: one
//! thread that looks at the clock, and says when it began and ended.
#![allow(unsafe_code)] // a kernel is launched

use super::contenders::token;
use pinyard_benches::turns::or_fail;
use pinyard_driver::{DevicePtr, Driver, Function, Module, Stream};
use std::sync::Arc;

/// `spin(nanoseconds, stamps)`: the two times go to `stamps`, unless that is 0.
const TEXT: &std::ffi::CStr = c".version 6.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 nanoseconds, .param .u64 stamps)
{
  .reg .pred %on, %silent;
  .reg .b64 %most, %began, %now, %stamps, %end;
  ld.param.u64 %most, [nanoseconds];
  ld.param.u64 %stamps, [stamps];
  mov.u64 %began, %globaltimer;
again:
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %began;
  setp.lt.u64 %on, %now, %most;
  @%on bra again;
  setp.eq.u64 %silent, %stamps, 0;
  @%silent bra done;
  mov.u64 %end, %globaltimer;
  st.global.u64 [%stamps], %began;
  st.global.u64 [%stamps+8], %end;
done:
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
        // SAFETY: without a place for its times the kernel uses no memory.
        unsafe { self.launch_stamped(stream, nanoseconds, DevicePtr(0)) };
    }

    /// The same; when it began and ended goes to `stamps`, in nanoseconds of the device's clock.
    ///
    /// # Safety
    /// `stamps` is 0, or 16 bytes of device memory that stand until the work has passed.
    pub(super) unsafe fn launch_stamped(&self, stream: Stream, nanoseconds: u64, stamps: DevicePtr) {
        let arguments = [nanoseconds, stamps.0];
        // SAFETY: the kernel takes these arguments, and writes what the caller promises; the
        // module goes after the work (`drop`).
        or_fail(unsafe { self.driver.launch(self.function, 1, 1, &arguments, stream, &token()) });
    }
}

impl Drop for Spin {
    fn drop(&mut self) {
        or_fail(self.driver.synchronize(&token()));
        // SAFETY: all work has passed, and nobody launches it any more.
        or_fail(unsafe { self.driver.module_unload(self.module, &token()) });
    }
}
