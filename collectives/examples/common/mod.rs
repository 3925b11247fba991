//! What the examples share: a device for each rank.

use mpi::traits::Communicator;
use pinyard_driver::Cuda;
use pinyard_mpi::{DeviceCommunicator, Gpu};

/// The ranks' devices: of a machine with GPUs those, in turn, and simulated ones elsewhere.
pub(crate) fn open(world: &impl Communicator) -> Result<DeviceCommunicator, Box<dyn std::error::Error>> {
    let place = world.split_shared(world.rank()).rank();
    let gpu = match Cuda::count() {
        Ok(count) if count > 0 => Gpu::open(place % count)?,
        _ => Gpu::simulated(1 << 30)?,
    };
    let ranks = DeviceCommunicator::builder(&gpu).build(world)?;
    if world.rank() == 0 {
        println!("on {gpu}, {}", ranks.plan());
    }
    Ok(ranks)
}
