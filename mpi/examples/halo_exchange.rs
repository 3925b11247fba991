//! Heat in a ring of cells, spread over the ranks: in every step each rank sends its
//! outer cells to its neighbours and receives theirs. The result is what one rank alone
//! would compute.
//!
//! ```sh
//! mpirun -n 4 target/release/examples/halo_exchange
//! ```

mod common;

use mpi::topology::SimpleCommunicator;
use mpi::traits::Communicator;
use std::error::Error;
use std::process::ExitCode;

/// Cells of a rank, and of a halo at each end.
const CELLS: usize = 4096;
const HALO: usize = 16;
const EXCHANGES: usize = 6;

fn start(cell: usize) -> f64 {
    if cell % 1000 < 100 { 100.0 } else { (cell % 17) as f64 }
}

fn step(cells: &[f64], next: &mut [f64]) {
    for at in 1..cells.len() - 1 {
        next[at] = 0.25 * cells[at - 1] + 0.5 * cells[at] + 0.25 * cells[at + 1];
    }
}

/// One rank's steps on all cells, as a reference.
fn alone(total: usize) -> Vec<f64> {
    let mut cells: Vec<f64> = (0..total).map(start).collect();
    for _ in 0..EXCHANGES * HALO {
        let around = |at: usize| cells[at % total];
        cells = (0..total)
            .map(|at| 0.25 * around(at + total - 1) + 0.5 * around(at) + 0.25 * around(at + 1))
            .collect();
    }
    cells
}

fn main() -> ExitCode {
    pinyard_mpi::run(part)
}

fn part(world: &SimpleCommunicator) -> Result<(), Box<dyn Error>> {
    let ranks = common::open(world)?;
    let (rank, size) = (world.rank(), world.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);

    let stream = ranks.gpu().stream()?;
    let mut device = ranks.gpu().alloc::<f64>(CELLS + 2 * HALO, &stream)?;
    // A program has a kernel for the steps; here the host takes them, through pinned memory.
    let mut cells = ranks.gpu().alloc_pinned::<f64>(CELLS + 2 * HALO)?;
    let first = rank as usize * CELLS;
    for (at, cell) in cells.settle_mut()?.iter_mut().enumerate() {
        *cell = start((first + at + size as usize * CELLS - HALO) % (size as usize * CELLS));
    }
    cells.copy_to(&mut device)?;
    for _ in 0..EXCHANGES {
        {
            let mut settled = device.settle_mut()?;
            // My last cells to the right, while the left one's come: and the other way.
            let (mut before, mut behind) = settled.split_at_mut(HALO);
            let (inner, mut after) = behind.split_at_mut(CELLS);
            let inner = inner.as_settled();
            ranks.exchange(right, &inner.slice(CELLS - HALO..), left, &mut before, 1)?;
            ranks.exchange(left, &inner.slice(..HALO), right, &mut after, 2)?;
        }
        cells.copy_from(&device)?;
        let mut settled = cells.settle_mut()?;
        // A halo of 16 cells lasts for 16 steps: each spoils one more at the ends.
        for _ in 0..HALO {
            let before = settled.to_vec();
            step(&before, &mut settled);
        }
        cells.copy_to(&mut device)?;
    }
    let expected = alone(size as usize * CELLS);
    let cells = device.to_vec()?;
    for at in 0..CELLS {
        assert!((cells[HALO + at] - expected[first + at]).abs() < 1e-9, "cell {}", first + at);
    }
    println!("rank {rank}: {CELLS} cells are right after {} steps", EXCHANGES * HALO);
    Ok(())
}
