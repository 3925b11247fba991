//! What the examples share: how a rank's part is run, and a device for it.

use mpi::topology::SimpleCommunicator;
use mpi::traits::Communicator;
use pinyard_driver::{Chosen, Cuda};
use pinyard_mpi::{DeviceCommunicator, Gpu};
use std::error::Error;
use std::process::ExitCode;

/// Runs a rank's part. One that fails says why and ends all ranks: others may be waiting for it.
pub(crate) fn run(part: impl FnOnce(&SimpleCommunicator) -> Result<(), Box<dyn Error>>) -> ExitCode {
    let Some(universe) = mpi::initialize() else {
        eprintln!("MPI is initialised already");
        return ExitCode::FAILURE;
    };
    let world = universe.world();
    if let Err(error) = part(&world) {
        // In one piece, as several ranks may speak at once.
        let said = format!("rank {}: {error}\n", world.rank());
        eprint!("{said}");
        world.abort(1);
    }
    ExitCode::SUCCESS
}

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
