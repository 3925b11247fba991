//! The book's first program, in which the last rank meets an error of its own before the first
//! operation: `gpu-early plain`, `run`, `panic` or `late`, on simulated devices.
//!
//! | | |
//! | --- | --- |
//! | `plain` | as `fn main() -> Result`: the rank drops its communicator, and the others are in a Bcast, then in an Allreduce |
//! | `run` | by `pinyard_mpi::run` |
//! | `panic` | the same, and it panics |
//! | `late` | nobody fails, but the other ranks end their communicators two seconds later |

use mpi::topology::SimpleCommunicator;
use mpi::traits::Communicator;
use pinyard_mpi::{DeviceCommunicator, Gpu, Reduction};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let mode = std::env::args().nth(1).unwrap_or_default();
    if mode == "run" || mode == "panic" {
        return pinyard_mpi::run(|world| program(world, &mode));
    }
    match plain(&mode) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// As `fn main() -> Result`: an error is known when its locals are gone.
fn plain(mode: &str) -> Result<(), Box<dyn Error>> {
    let universe = mpi::initialize().ok_or("MPI is initialised already")?;
    let world = universe.world();
    program(&world, mode).map_err(|error| format!("rank {}: {error}", world.rank()).into())
}

/// In one piece, as several ranks may speak at once.
fn say(text: &str) {
    let said = format!("{text}\n");
    eprint!("{said}");
}

fn program(world: &SimpleCommunicator, mode: &str) -> Result<(), Box<dyn Error>> {
    let gpu = Gpu::simulated(1 << 30)?;
    let ranks = DeviceCommunicator::builder(&gpu).build(world)?;
    let stream = gpu.stream()?;
    let mut grid = gpu.alloc::<f32>(1 << 20, &stream)?;
    let is_last = world.rank() == world.size() - 1;
    match mode {
        "late" if is_last => return Ok(()),
        "late" => {
            std::thread::sleep(Duration::from_secs(2));
            return Ok(());
        }
        "panic" if is_last => panic!("the input file is empty"),
        _ if is_last => return Err("input file not found".into()),
        _ => {}
    }
    let told = ranks.broadcast_into(0, &mut grid.settle_mut()?);
    if mode == "plain"
        && let Err(error) = &told
    {
        // The next one ends so as well: the rank that ends its communicator is still there.
        say(&format!("rank {}: {error}", world.rank()));
        ranks.all_reduce_in_place(&mut grid.settle_mut()?, Reduction::Max)?;
    }
    Ok(told?)
}
