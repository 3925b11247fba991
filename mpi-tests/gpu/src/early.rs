//! The book's first program, in which the last rank meets an error of its own before the first
//! operation: `gpu-early MODE`, on simulated devices.
//!
//! | | |
//! | --- | --- |
//! | `plain` | as `fn main() -> Result`: the rank drops its communicator, and the others are in a Bcast, then in an Allreduce |
//! | `run` | by `pinyard_mpi::run` |
//! | `panic` | the same, and it panics |
//! | `bomb` | the same, and the drop of what it panics with panics |
//! | `late` | nobody fails, but the other ranks end their communicators when the file of the second argument is there |
//! | `some` | by `run`: all drop a communicator, and all but the last rank make another; then all meet |
//! | `parts` | as `plain`, and the others are in an Allgatherv |

use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::{Communicator, CommunicatorCollectives};
use pinyard_mpi::{DeviceCommunicator, Gpu, Partition, Reduction};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let mode = std::env::args().nth(1).unwrap_or_default();
    if matches!(&mode[..], "run" | "panic" | "bomb" | "some") {
        return pinyard_mpi::run(|world| program(world, &mode));
    }
    match plain(&mode) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// As `fn main() -> Result`: an error is known when its locals are gone.
fn plain(mode: &str) -> Result<(), Box<dyn Error>> {
    let universe = mpi::initialize().ok_or("MPI is initialised already")?;
    let world = universe.world();
    // Before MPI_Finalize: a launcher may end the other ranks as soon as one has failed.
    program(&world, mode).inspect_err(|error| say(&format!("rank {}: {error}", world.rank())))
}

/// In one piece, as several ranks may speak at once.
fn say(text: &str) {
    let said = format!("{text}\n");
    eprint!("{said}");
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the drop of a panic's payload");
    }
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
            let file = std::env::args().nth(2).ok_or("no file")?;
            while !std::path::Path::new(&file).exists() {
                std::thread::sleep(Duration::from_millis(20));
            }
            return Ok(());
        }
        "some" => {
            drop(ranks);
            let part = world.split_by_color(if is_last { Color::undefined() } else { Color::with_value(1) });
            if let Some(part) = part {
                drop(DeviceCommunicator::builder(&gpu).build(&part)?);
            }
            world.barrier();
            return Ok(());
        }
        "panic" if is_last => panic!("the input file is empty"),
        "bomb" if is_last => std::panic::panic_any(Bomb),
        _ if is_last => return Err("input file not found".into()),
        _ => {}
    }
    if mode == "parts" {
        let parts = Partition::packed(vec![1000; world.size() as usize]);
        let mine = gpu.alloc::<f32>(1000, &stream)?;
        return Ok(ranks.all_gather_varcount_into(&mine.settle()?, &mut grid.settle_mut()?, &parts)?);
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
