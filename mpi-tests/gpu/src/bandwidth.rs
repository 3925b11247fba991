//! Bcast of device memory on every path, from 1 KiB to 256 MiB: median time of a
//! broadcast and bytes per second, a JSON line each and then a table. Contents are
//! checked at every size.
//!
//! ```sh
//! mpirun -n 2 target/release/gpu-bandwidth            # GPUs
//! mpirun -n 2 target/release/gpu-bandwidth --quick    # simulated: that it runs, no figures
//! ```

use mpi::traits::{Communicator, Root};
use pinyard_driver::Cuda;
use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Gpu, Path, PinnedBuf};
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const SIZES: [usize; 10] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20];

/// What is measured: a path of ours, or what a program does by itself.
enum Way {
    /// All to the host, MPI_Bcast, all to the device.
    CopyThenBcast(PinnedBuf<u8>),
    Ours(Box<DeviceCommunicator>),
}

impl Way {
    fn name(&self) -> String {
        match self {
            Way::CopyThenBcast(_) => "copy-then-bcast".to_owned(),
            Way::Ours(ranks) => ranks.plan().path.to_string(),
        }
    }

    fn once(
        &mut self,
        world: &impl Communicator,
        buffer: &mut DeviceBuf<u8>,
        bytes: usize,
    ) -> Result<(), Box<dyn Error>> {
        match self {
            Way::Ours(ranks) => {
                let mut settled = buffer.settle_mut()?;
                Ok(ranks.broadcast_into(0, &mut settled.slice_mut(..bytes))?)
            }
            Way::CopyThenBcast(host) => {
                if world.rank() == 0 {
                    host.copy_from(buffer)?;
                }
                let mut settled = host.settle_mut()?;
                world.process_at_rank(0).broadcast_into(&mut *settled);
                if world.rank() != 0 {
                    host.copy_to(buffer)?;
                    buffer.settle()?;
                }
                Ok(())
            }
        }
    }
}

fn main() -> ExitCode {
    let Some(universe) = mpi::initialize() else {
        eprintln!("MPI_Init: MPI is initialised already");
        return ExitCode::FAILURE;
    };
    let world = universe.world();
    let quick = std::env::args().any(|argument| argument == "--quick");
    match measure(&world, quick) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rank {}: {error}", world.rank());
            world.abort(1);
        }
    }
}

fn measure(world: &impl Communicator, quick: bool) -> Result<(), Box<dyn Error>> {
    let place = world.split_shared(world.rank()).rank();
    let gpu = match Cuda::count() {
        Ok(count) if count > 0 => Gpu::open(place % count)?,
        _ if quick => Gpu::simulated(1 << 30)?,
        Ok(_) => return Err("there is no GPU, and figures of a simulated one tell nothing: --quick".into()),
        Err(absent) => {
            return Err(format!("{absent}; figures of a simulated GPU tell nothing: --quick").into());
        }
    };
    let mut paths = vec![Path::Staged];
    let best = DeviceCommunicator::builder(&gpu).build(world)?;
    if world.rank() == 0 {
        eprintln!("on {gpu}, best path {}", best.plan());
    }
    if best.plan().path != Path::Staged {
        paths.push(best.plan().path);
    }
    drop(best);
    let stream = gpu.stream()?;
    let mut table = vec![format!("{:>12}", "bytes")];
    table.extend(SIZES.iter().map(|bytes| format!("{bytes:>12}")));
    for number in 0..=paths.len() {
        let mut name = String::new();
        for (row, &bytes) in SIZES.iter().take_while(|&&bytes| !quick || bytes <= 1 << 20).enumerate() {
            // A new way for each size: what its first use costs is its own.
            let mut way = match number {
                0 => Way::CopyThenBcast(gpu.alloc_pinned(bytes)?),
                path => {
                    Way::Ours(Box::new(DeviceCommunicator::builder(&gpu).path(paths[path - 1]).build(world)?))
                }
            };
            let mut buffer = gpu.alloc::<u8>(bytes, &stream)?;
            let (first, median) = of_size(world, &mut way, &mut buffer, bytes, quick)?;
            name = way.name();
            let rate = bytes as f64 / median.as_secs_f64() / 1e9;
            let cell = format!("{:>9.1} us {rate:>8.2}", median.as_secs_f64() * 1e6);
            table[row + 1] += &format!("  {cell}");
            if world.rank() == 0 {
                println!(
                    "{{\"path\": \"{name}\", \"ranks\": {}, \"bytes\": {bytes}, \"first_us\": {:.1}, \"median_us\": {:.2}, \"gb_per_s\": {rate:.3}}}",
                    world.size(),
                    first.as_secs_f64() * 1e6,
                    median.as_secs_f64() * 1e6,
                );
            }
        }
        table[0] += &format!("  {:>21}", format!("{name}, GB/s"));
    }
    if world.rank() == 0 {
        for line in table {
            println!("{line}");
        }
    }
    Ok(())
}

fn pattern(bytes: usize, round: u8) -> Vec<u8> {
    (0..bytes).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ round).collect()
}

/// The first broadcast's time, and the median of the others: each the slowest rank's.
fn of_size(
    world: &impl Communicator,
    way: &mut Way,
    buffer: &mut DeviceBuf<u8>,
    bytes: usize,
    quick: bool,
) -> Result<(Duration, Duration), Box<dyn Error>> {
    let rounds = if quick { 3 } else { (1usize << 30).div_ceil(bytes).clamp(12, 400) };
    let mut times = Vec::with_capacity(rounds);
    for round in 0..=rounds {
        // The first, one in the middle and the last carry contents of their own.
        let checked = round == 0 || round == rounds / 2 || round == rounds;
        if checked {
            let mark = if world.rank() == 0 { round as u8 } else { !(round as u8) };
            buffer.write(&pattern(bytes, mark))?;
        }
        barrier(world);
        let began = Instant::now();
        way.once(world, buffer, bytes)?;
        times.push(slowest(world, began.elapsed()));
        if checked && buffer.to_vec()? != pattern(bytes, round as u8) {
            return Err(format!("{}: {bytes} bytes are wrong in round {round}", way.name()).into());
        }
    }
    let first = times.remove(0);
    times.sort_unstable();
    Ok((first, times[times.len() / 2]))
}

fn barrier(world: &impl Communicator) {
    use mpi::traits::CommunicatorCollectives;
    world.barrier();
}

fn slowest(world: &impl Communicator, mine: Duration) -> Duration {
    use mpi::collective::SystemOperation;
    use mpi::traits::CommunicatorCollectives;
    let mut all = 0u64;
    world.all_reduce_into(&(mine.as_nanos() as u64), &mut all, SystemOperation::max());
    Duration::from_nanos(all)
}
