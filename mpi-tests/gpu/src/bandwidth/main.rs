//! Bcast and Allreduce of device memory on every path, beside what programs do without
//! them, from 4 B to 1 GiB: the first time, median and p99 of the slowest rank's, a JSON
//! line each and then a table. All ways are made for each size, and take turns.
//! Contents are checked with each.
//!
//! ```sh
//! mpirun -n 2 target/release/gpu-bandwidth            # GPUs
//! mpirun -n 2 target/release/gpu-bandwidth --aware    # with an MPI that takes device pointers
//! mpirun -n 2 target/release/gpu-bandwidth --quick    # simulated: that it runs, no figures
//! mpirun -n 2 target/release/gpu-bandwidth --more     # other operations, and those that do not block
//! mpirun -n 2 target/release/gpu-bandwidth --sweep    # staged, by the chunks
//! ```

mod more;
mod nccl;
mod row;
mod sweep;
mod ways;

use mpi::traits::Communicator;
use pinyard_driver::Cuda;
use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Gpu};
use row::{Row, timed};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;
use ways::Operation;

const SIZES: [usize; 13] = [
    4,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    32 << 20,
    64 << 20,
    256 << 20,
    1 << 30,
];

/// After so long in all a way is left out, once it has been measured often enough.
const LONG: Duration = Duration::from_secs(1);
const LEAST: usize = 5;
/// What takes less is slowed by links that sleep.
const FAST: Duration = Duration::from_millis(10);

/// What the command line says.
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) aware: bool,
}

fn main() -> ExitCode {
    let Some(universe) = mpi::initialize() else {
        eprintln!("MPI_Init: MPI is initialised already");
        return ExitCode::FAILURE;
    };
    let world = universe.world();
    let given = |flag| std::env::args().any(|argument| argument == flag);
    let options = Options { quick: given("--quick"), aware: given("--aware") };
    match measure(&world, &options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rank {}: {error}", world.rank());
            world.abort(1);
        }
    }
}

fn measure(world: &impl Communicator, options: &Options) -> Result<(), Box<dyn Error>> {
    let place = world.split_shared(world.rank()).rank();
    let gpu = match Cuda::count() {
        Ok(count) if count > 0 => Gpu::open(place % count)?,
        _ if options.quick => Gpu::simulated(1 << 30)?,
        Ok(_) => return Err("there is no GPU, and figures of a simulated one tell nothing: --quick".into()),
        Err(absent) => {
            return Err(format!("{absent}; figures of a simulated GPU tell nothing: --quick").into());
        }
    };
    let best = DeviceCommunicator::builder(&gpu).build(world)?;
    if world.rank() == 0 {
        eprintln!("on {gpu}, best path {}", best.plan());
    }
    drop(best);
    let given = |flag| std::env::args().any(|argument| argument == flag);
    if given("--more") {
        return more::measure(world, &gpu, options);
    }
    if given("--sweep") {
        return sweep::measure(world, &gpu, options);
    }
    for operation in [Operation::Bcast, Operation::AllReduce] {
        let mut lines = Vec::new();
        for &bytes in SIZES.iter().filter(|&&bytes| !options.quick || bytes <= 1 << 20) {
            let rows = of_size(world, &gpu, operation, bytes, options)?;
            if lines.is_empty() {
                let names = rows.iter().map(|row| format!("  {:>24}", row.name));
                lines.push(format!("{:>11}{}", operation.name(), names.collect::<String>()));
            }
            let cells = rows.iter().map(|row| format!("  {}", row.cells(bytes)));
            lines.push(format!("{bytes:>11}{}", cells.collect::<String>()));
            if world.rank() == 0 {
                rows.iter()
                    .for_each(|row| println!("{}", row.json(operation.name(), world.size(), bytes, "")));
            }
        }
        if world.rank() == 0 {
            lines.iter().for_each(|line| println!("{line}"));
        }
    }
    Ok(())
}

/// Small whole numbers, so that sums are exact in any order.
fn element(at: usize, mark: usize) -> f32 {
    ((at % 8191) + 7 * mark) as f32
}

/// Buffers with contents that the next operation has to change, and what must then be in
/// the one that receives.
struct Contents {
    from: DeviceBuf<f32>,
    to: DeviceBuf<f32>,
}

impl Contents {
    fn write(&mut self, operation: Operation, rank: usize, round: usize) -> Result<(), Box<dyn Error>> {
        let mine: Vec<f32> = (0..self.from.len()).map(|at| element(at, rank + round)).collect();
        self.from.write(&mine)?;
        if operation == Operation::AllReduce {
            self.to.write(&mine)?;
        }
        Ok(())
    }

    fn are_right(&self, operation: Operation, ranks: usize, round: usize) -> Result<bool, Box<dyn Error>> {
        let (is, wanted): (_, fn(usize, usize, usize) -> f32) = match operation {
            Operation::Bcast => (self.from.to_vec()?, |at, _, round| element(at, round)),
            Operation::AllReduce => {
                (self.to.to_vec()?, |at, ranks, round| (0..ranks).map(|rank| element(at, rank + round)).sum())
            }
        };
        Ok(is.iter().enumerate().all(|(at, &is)| is == wanted(at, ranks, round)))
    }
}

/// Every way of one size in turns. The first and the last round carry contents of their
/// own, which are checked. What is fast goes once untimed before it is timed: links between
/// devices that were idle for milliseconds take 0.2 ms to wake, and who paid for that would
/// be a matter of who comes before.
fn of_size(
    world: &impl Communicator,
    gpu: &Gpu,
    operation: Operation,
    bytes: usize,
    options: &Options,
) -> Result<Vec<Row>, Box<dyn Error>> {
    let elements = bytes / size_of::<f32>();
    let mut ways = ways::all(gpu, world, elements, options.aware)?;
    let stream = gpu.stream()?;
    let received = if operation == Operation::AllReduce { elements } else { 0 };
    let mut contents = Contents { from: gpu.alloc(elements, &stream)?, to: gpu.alloc(received, &stream)? };
    let rounds = if options.quick { 3 } else { (1usize << 30).div_ceil(bytes).clamp(10, 300) };
    let mut times: Vec<Vec<Duration>> = ways.iter().map(|_| Vec::with_capacity(rounds + 1)).collect();
    let (rank, ranks) = (world.rank() as usize, world.size() as usize);
    for round in 0..=rounds {
        for turn in 0..ways.len() {
            let number = (turn + round) % ways.len();
            let checked = round == 0 || round == rounds;
            // A slow way's median is known before a fast one's. All ranks see the same times.
            let spent: Duration = times[number].iter().sum();
            if spent > LONG && times[number].len() > LEAST && !checked {
                continue;
            }
            if checked {
                contents.write(operation, rank, round)?;
            }
            let way = &mut ways[number];
            let mut once = || way.once(operation, world, &mut contents.from, &mut contents.to);
            if times[number].last().is_some_and(|&last| last < FAST) {
                timed(world, &mut once)?;
            }
            times[number].push(timed(world, once)?);
            if checked && !contents.are_right(operation, ranks, round)? {
                let (name, what) = (way.name(), operation.name());
                return Err(format!("{name}: {what} of {bytes} bytes is wrong in round {round}").into());
            }
        }
    }
    let rows = ways.iter().zip(times).map(|(way, mut times)| {
        let first = times.remove(0);
        Row::new(way.name(), first, times)
    });
    Ok(rows.collect())
}
