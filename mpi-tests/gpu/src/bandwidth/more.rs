//! `--more`: the other operations, and the forms that do not block, by our own paths alone: 1 B to
//! 1 GiB of the longest buffer that a rank has. Contents are checked with each, the first time.

use crate::row::{Row, timed};
use crate::{Options, ways};
use mpi::traits::Communicator;
use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Gpu, Number, Path, Reduction, scope};
use std::error::Error;
use std::time::Duration;

const SIZES: [usize; 10] = [1, 16, 256, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 32 << 20, 256 << 20, 1 << 30];
/// After so long in all a size is left, once it has been measured often enough.
const LONG: Duration = Duration::from_millis(150);
const LEAST: usize = 3;
const MOST: usize = 100;

/// What all ranks do. Shares are of equal length.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// From rank 0, in place, waited for at once.
    Ibcast,
    /// The sum, of `f32`, waited for at once.
    IallReduce,
    /// To rank 0.
    Reduce,
    /// To the rank behind, from the one before.
    SendRecv,
    /// To rank 0.
    Gather,
    /// From rank 0.
    Scatter,
    AllGather,
    AllToAll,
}

const ALL: [What; 8] = [
    What::Ibcast,
    What::IallReduce,
    What::Reduce,
    What::SendRecv,
    What::Gather,
    What::Scatter,
    What::AllGather,
    What::AllToAll,
];

impl What {
    fn name(self) -> &'static str {
        match self {
            What::Ibcast => "ibcast",
            What::IallReduce => "iallreduce",
            What::Reduce => "reduce",
            What::SendRecv => "sendrecv",
            What::Gather => "gather",
            What::Scatter => "scatter",
            What::AllGather => "allgather",
            What::AllToAll => "alltoall",
        }
    }

    fn reduces(self) -> bool {
        matches!(self, What::IallReduce | What::Reduce)
    }

    /// MPI copies a rank's own part. UCX for CUDA moves messages of device memory, but Open MPI
    /// without CUDA copies these with `memcpy`, and ends in a segmentation fault.
    fn copies_own(self) -> bool {
        matches!(self, What::Gather | What::Scatter | What::AllGather | What::AllToAll)
    }

    /// Elements of each rank's two buffers, of `whole` in the longest.
    fn lengths(self, whole: usize, ranks: usize) -> [usize; 2] {
        let share = whole / ranks;
        match self {
            What::Ibcast => [whole, 0],
            What::IallReduce | What::Reduce | What::SendRecv => [whole, whole],
            What::Gather | What::AllGather => [share, share * ranks],
            What::Scatter => [share * ranks, share],
            What::AllToAll => [share * ranks, share * ranks],
        }
    }
}

/// Elements of which sums are exact.
trait Cell: Number + PartialEq {
    /// What the rank has before.
    fn of(at: usize, rank: usize) -> Self;
    fn sum(at: usize, ranks: usize) -> Self;
}

impl Cell for u8 {
    fn of(at: usize, rank: usize) -> u8 {
        (at ^ (at >> 8)) as u8 ^ (rank as u8).wrapping_mul(37)
    }
    fn sum(at: usize, ranks: usize) -> u8 {
        (0..ranks).map(|rank| u8::of(at, rank)).fold(0, u8::wrapping_add)
    }
}

impl Cell for f32 {
    fn of(at: usize, rank: usize) -> f32 {
        ((at & 8191) + 7 * rank) as f32
    }
    fn sum(at: usize, ranks: usize) -> f32 {
        (0..ranks).map(|rank| f32::of(at, rank)).sum()
    }
}

/// With an MPI that takes device pointers by that path alone, where that is safe to measure;
/// else by all others.
pub(crate) fn measure(world: &impl Communicator, gpu: &Gpu, options: &Options) -> Result<(), Box<dyn Error>> {
    let mut paths = Vec::new();
    if options.aware {
        paths.push(ways::ours(gpu, world, Path::Direct, true)?);
    } else {
        paths.push(ways::ours(gpu, world, Path::Staged, false)?);
        let best = DeviceCommunicator::builder(gpu).cuda_aware(None).build(world)?;
        if best.plan().path != Path::Staged {
            paths.push(best);
        }
    }
    for what in ALL.into_iter().filter(|what| !(options.aware && what.copies_own())) {
        for &bytes in SIZES.iter().filter(|&&bytes| !options.quick || bytes <= 1 << 20) {
            for ranks in &paths {
                let row = match what.reduces() {
                    true if bytes >= 4 => of_size::<f32>(world, ranks, what, bytes, options)?,
                    _ => of_size::<u8>(world, ranks, what, bytes, options)?,
                };
                if let Some(row) = row.filter(|_| world.rank() == 0) {
                    println!("{}", row.json(what.name(), world.size(), bytes, ""));
                    println!("{:>11} {:>11}  {:>8} {}", what.name(), bytes, row.name, row.cells(bytes));
                }
            }
        }
    }
    Ok(())
}

/// None where there is not a byte for each share.
fn of_size<T: Cell>(
    world: &impl Communicator,
    ranks: &DeviceCommunicator,
    what: What,
    bytes: usize,
    options: &Options,
) -> Result<Option<Row>, Box<dyn Error>> {
    let (rank, size) = (world.rank() as usize, world.size() as usize);
    let [sent, received] = what.lengths(bytes / size_of::<T>(), size);
    if sent == 0 {
        return Ok(None);
    }
    let stream = ranks.gpu().stream()?;
    let mut from: DeviceBuf<T> = ranks.gpu().alloc(sent, &stream)?;
    let mut to: DeviceBuf<T> = ranks.gpu().alloc(received, &stream)?;
    from.write(&(0..sent).map(|at| T::of(at, rank)).collect::<Vec<_>>())?;
    to.write(&vec![T::of(1, 99); received])?;
    let first = timed(world, || once(ranks, what, &mut from, &mut to))?;
    if !is_right(what, rank, size, &from, &to)? {
        return Err(format!("{} of {bytes} bytes by {} is wrong", what.name(), ranks.plan().path).into());
    }
    let (mut times, mut spent) = (Vec::new(), Duration::ZERO);
    let most = if options.quick { LEAST } else { MOST };
    // All ranks see the same times.
    while times.len() < most && (spent < LONG || times.len() < LEAST) {
        let time = timed(world, || once(ranks, what, &mut from, &mut to))?;
        spent += time;
        times.push(time);
    }
    Ok(Some(Row::new(ranks.plan().path.to_string(), first, times)))
}

fn once<T: Cell>(
    ranks: &DeviceCommunicator,
    what: What,
    from: &mut DeviceBuf<T>,
    to: &mut DeviceBuf<T>,
) -> Result<(), Box<dyn Error>> {
    if what == What::Ibcast {
        let mut buffer = from.settle_mut()?;
        return Ok(scope(|scope| ranks.immediate_broadcast_into(scope, 0, &mut buffer)?.wait())?);
    }
    let (next, before) =
        ((ranks.rank() + 1) % ranks.size(), (ranks.rank() + ranks.size() - 1) % ranks.size());
    let at_root = ranks.rank() == 0;
    let (from, mut to) = (from.settle()?, to.settle_mut()?);
    match what {
        What::Ibcast => {}
        What::IallReduce => {
            scope(|scope| ranks.immediate_all_reduce_into(scope, &from, &mut to, Reduction::Sum)?.wait())?
        }
        What::Reduce => ranks.reduce_into(0, &from, at_root.then_some(&mut to), Reduction::Sum)?,
        What::SendRecv => ranks.exchange(next, &from, before, &mut to, 3).map(drop)?,
        What::Gather => ranks.gather_into(0, &from, at_root.then_some(&mut to))?,
        What::Scatter => ranks.scatter_into(0, at_root.then_some(&from), &mut to)?,
        What::AllGather => ranks.all_gather_into(&from, &mut to)?,
        What::AllToAll => ranks.all_to_all_into(&from, &mut to)?,
    }
    Ok(())
}

fn is_right<T: Cell>(
    what: What,
    rank: usize,
    size: usize,
    from: &DeviceBuf<T>,
    to: &DeviceBuf<T>,
) -> Result<bool, Box<dyn Error>> {
    if matches!(what, What::Reduce | What::Gather) && rank > 0 {
        return Ok(true);
    }
    let is = if what == What::Ibcast { from.to_vec()? } else { to.to_vec()? };
    let share = is.len() / size;
    let holds = |wanted: &dyn Fn(usize) -> T| is.iter().enumerate().all(|(at, is)| *is == wanted(at));
    Ok(match what {
        What::Ibcast => holds(&|at| T::of(at, 0)),
        What::IallReduce | What::Reduce => holds(&|at| T::sum(at, size)),
        What::SendRecv => holds(&|at| T::of(at, (rank + size - 1) % size)),
        What::Gather | What::AllGather => holds(&|at| T::of(at % share, at / share)),
        What::Scatter => holds(&|at| T::of(rank * is.len() + at, 0)),
        What::AllToAll => holds(&|at| T::of(rank * share + at % share, at / share)),
    })
}
