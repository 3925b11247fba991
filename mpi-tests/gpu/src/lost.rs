//! A device that is reset at the last rank, under its communicator, buffers, streams and what
//! others have opened of its memory: each operation says so there and names that rank at the
//! others, and all of it can be dropped.

use mpi::traits::Communicator;
use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Error as Refusal, Failure, Gpu, PinnedBuf, Reduction};
use std::error::Error;

/// Elements, and more bytes than those up to which a sender does not wait for what became of a
/// Bcast between nodes.
const SHORT: usize = 2048;

/// `reset` does it, and keeps what it returns until all else is dropped.
pub(crate) fn all<R>(
    world: &impl Communicator,
    gpu: Gpu,
    reset: impl FnOnce() -> Result<R, Box<dyn Error>>,
) -> Result<Option<R>, Box<dyn Error>> {
    let ranks = DeviceCommunicator::builder(&gpu).build(world)?;
    let (rank, last) = (ranks.rank(), ranks.size() - 1);
    let stream = gpu.stream()?;
    for length in [100, 5_000_011] {
        let mut buffer: DeviceBuf<f32> = gpu.alloc(length, &stream)?;
        let mut settled = buffer.settle_mut()?;
        ranks.broadcast_into(last, &mut settled)?;
    }
    let mut buffer: DeviceBuf<f32> = gpu.alloc(5_000_011, &stream)?;
    let mut settled = buffer.settle_mut()?;
    // Memory of the host's that pinyard has pinned, which stays the process's.
    let mut pinned: PinnedBuf<u8> = gpu.alloc_pinned(1 << 20)?;
    pinned.settle_mut()?.fill(7);
    let others = if rank == last { Some(reset()?) } else { None };
    let results = [
        ("a sum", ranks.all_reduce_in_place(&mut settled, Reduction::Sum)),
        ("a broadcast", ranks.broadcast_into(0, &mut settled)),
        ("a broadcast from there", ranks.broadcast_into(last, &mut settled)),
        ("a short one", ranks.broadcast_into(0, &mut settled.slice_mut(..SHORT))),
    ];
    for (what, result) in results {
        let named = match &result {
            Err(Refusal::Context { rank: named, .. }) => rank == last && *named == last,
            Err(Refusal::Peer { rank: named, what: Failure::Context, .. }) => rank != last && *named == last,
            _ => false,
        };
        match result {
            Err(error) if named => println!("rank {rank}: {what}: {error}"),
            other => return Err(format!("{what} past rank {last}'s reset: {other:?}").into()),
        }
    }
    // More than the pool has, and less than the device.
    let more = gpu.alloc::<f32>(1 << 26, &stream).map(drop);
    let is_lost = more.as_ref().is_err_and(|error| error.to_string().contains("709"));
    if is_lost != (rank == last) || (rank != last && more.is_err()) {
        return Err(format!("memory of a device that was reset, or not: {more:?}").into());
    }
    if pinned.settle_mut()?.iter().any(|&byte| byte != 7) {
        return Err("pinned memory has lost what was written".into());
    }
    drop((pinned, buffer, ranks, stream, gpu));
    println!("rank {rank} knows of the reset");
    Ok(others)
}
