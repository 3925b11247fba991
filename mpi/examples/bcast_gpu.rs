//! Rank 0's grid to every other rank's device, and to half of one.
//!
//! ```sh
//! mpirun -n 2 target/release/examples/bcast_gpu
//! ```

mod common;

use mpi::topology::SimpleCommunicator;
use mpi::traits::Communicator;
use std::error::Error;
use std::process::ExitCode;

const CELLS: usize = 1 << 20;

fn main() -> ExitCode {
    pinyard_mpi::run(part)
}

fn part(world: &SimpleCommunicator) -> Result<(), Box<dyn Error>> {
    let ranks = common::open(world)?;

    let stream = ranks.gpu().stream()?;
    let mut grid = ranks.gpu().alloc::<f32>(CELLS, &stream)?;
    if world.rank() == 0 {
        let cells: Vec<f32> = (0..CELLS).map(|cell| cell as f32).collect();
        grid.write(&cells)?;
    }
    ranks.broadcast_into(0, &mut grid.settle_mut()?)?;
    let cells = grid.to_vec()?;
    assert!(cells.iter().enumerate().all(|(cell, &value)| value == cell as f32));

    // The last rank sets the second half.
    let last = world.size() - 1;
    if world.rank() == last {
        grid.write(&vec![-1.0; CELLS])?;
    }
    ranks.broadcast_into(last, &mut grid.settle_mut()?.slice_mut(CELLS / 2..))?;
    let cells = grid.to_vec()?;
    assert!(cells[CELLS / 2..].iter().all(|&value| value == -1.0));
    assert!(world.rank() == last || cells[CELLS / 2 - 1] == (CELLS / 2 - 1) as f32);
    println!("rank {}: {CELLS} cells are right", world.rank());
    Ok(())
}
