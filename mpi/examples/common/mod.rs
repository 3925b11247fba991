//! What the examples share: a device for each rank.

use mpi::traits::Communicator;
use pinyard_driver::{Chosen, Cuda};
use pinyard_mpi::{DeviceCommunicator, Gpu};
use std::error::Error;

/// The ranks' devices: of a machine with GPUs those, in turn, and simulated ones elsewhere, unless
/// `PINYARD_DRIVER` says which of the two.
pub(crate) fn open(world: &impl Communicator) -> Result<DeviceCommunicator, Box<dyn Error>> {
    let place = world.split_shared(world.rank()).rank();
    let told = std::env::var_os("PINYARD_DRIVER").is_some();
    let gpu = match (Chosen::from_environment()?, Cuda::count()) {
        (Chosen::Cuda, Ok(count)) if count > 0 => Gpu::open(place % count)?,
        (Chosen::Cuda, _) if told => Gpu::open(place)?,
        _ => Gpu::simulated(1 << 30)?,
    };
    let ranks = DeviceCommunicator::builder(&gpu).build(world)?;
    if world.rank() == 0 {
        println!("on {gpu}, {}", ranks.plan());
    }
    Ok(ranks)
}
