//! Pools beside other allocators.

pub(crate) mod calls;
pub(crate) mod contenders;
pub(crate) mod device;
pub(crate) mod host;
pub(crate) mod pinned;
pub(crate) mod registered;
mod shim;
pub(crate) mod shortage;
mod spin;
pub(crate) mod threads;
mod ticks;

use crate::tell;
use contenders::token;
use pinyard_benches::turns::or_fail;
use pinyard_cli::bench::Absence;
use pinyard_driver::{Cuda, Driver, Simulated};
use std::sync::Arc;

/// Bytes of the simulated device.
const SIMULATED_BYTES: usize = 140 << 30;

/// The device that pools are measured on.
struct Device {
    driver: Arc<dyn Driver>,
    cuda: Option<Arc<Cuda>>,
    simulated: Option<Arc<Simulated>>,
    /// What the cases of a simulated device are told apart by.
    suffix: &'static str,
}

/// The first GPU, or a simulated one: there a call of the driver costs nothing, and the
/// figures are those of the pool's own work.
fn device() -> Device {
    match Cuda::open(0) {
        Ok(cuda) => {
            let cuda = Arc::new(cuda);
            tell::peer("GPU", Ok(cuda.device().name.clone()));
            Device { driver: cuda.clone(), cuda: Some(cuda), simulated: None, suffix: "" }
        }
        Err(absent) => {
            let remedy = "install NVIDIA's driver; the pools alone ran, on a simulated device";
            tell::peer("GPU", Err(Absence::new(absent.to_string(), remedy)));
            let simulated = Simulated::new(SIMULATED_BYTES).running();
            Device {
                driver: simulated.clone(),
                cuda: None,
                simulated: Some(simulated),
                suffix: " (simulated)",
            }
        }
    }
}

/// A stream of the device.
fn stream(driver: &Arc<dyn Driver>) -> pinyard_driver::Stream {
    or_fail(driver.stream_create(&token()))
}
