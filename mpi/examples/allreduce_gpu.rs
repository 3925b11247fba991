//! The mean of all ranks' gradients, as data-parallel training wants it: summed by
//! Allreduce in place, and the largest absolute value with Max.
//!
//! ```sh
//! mpirun -n 4 target/release/examples/allreduce_gpu
//! ```

mod common;

use mpi::topology::SimpleCommunicator;
use mpi::traits::Communicator;
use pinyard_mpi::Reduction;
use std::error::Error;
use std::process::ExitCode;

const PARAMETERS: usize = 300_001;

fn main() -> ExitCode {
    pinyard_mpi::run(part)
}

fn part(world: &SimpleCommunicator) -> Result<(), Box<dyn Error>> {
    let ranks = common::open(world)?;
    let (rank, size) = (world.rank() as usize, world.size() as usize);

    let stream = ranks.gpu().stream()?;
    let gradient = |rank: usize, at: usize| ((at * 7 + rank * 3) % 64) as f32;
    let mut gradients = ranks.gpu().alloc::<f32>(PARAMETERS, &stream)?;
    let mine: Vec<f32> = (0..PARAMETERS).map(|at| gradient(rank, at)).collect();
    gradients.write(&mine)?;

    let mut largest = ranks.gpu().alloc::<f32>(PARAMETERS, &stream)?;
    ranks.all_reduce_into(&gradients.settle()?, &mut largest.settle_mut()?, Reduction::Max)?;
    ranks.all_reduce_in_place(&mut gradients.settle_mut()?, Reduction::Sum)?;

    let (sums, largest) = (gradients.to_vec()?, largest.to_vec()?);
    for at in 0..PARAMETERS {
        let all = (0..size).map(|rank| gradient(rank, at));
        assert_eq!(sums[at], all.clone().sum::<f32>(), "sum of parameter {at}");
        assert_eq!(largest[at], all.fold(0.0, f32::max), "largest of parameter {at}");
    }
    let mean = f64::from(sums.iter().sum::<f32>()) / (PARAMETERS * size) as f64;
    println!("rank {rank}: {PARAMETERS} parameters are right, mean gradient {mean:.3}");
    Ok(())
}
