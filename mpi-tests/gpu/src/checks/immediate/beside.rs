//! Blocking collectives while one rank alone has an operation under way that does not block: the
//! others know nothing of it, and are in the same call all the same.

use super::{bytes, plain};
use crate::bench::{Bench, text};
use pinyard_mpi::{Reduction, scope};

/// The first rank's receive ends only when the last one has come through all collectives.
pub(super) fn all(bench: &Bench) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    if size == 1 {
        return Ok(());
    }
    let last = size - 1;
    let sent = plain(bench, &bytes(90, 100))?;
    let mut received = plain(bench, &[0; 100])?;
    if rank == 0 {
        let mut target = received.settle_mut().map_err(text)?;
        scope(|scope| {
            let request =
                bench.ranks.immediate_receive_into(scope, last as i32, 21, &mut target).map_err(text)?;
            collectives(bench)?;
            request.wait().map_err(text)
        })?;
        return bench.check(received.to_vec().map_err(text)? == bytes(90, 100), || {
            "what a receive beside collectives got".to_owned()
        });
    }
    collectives(bench)?;
    if rank == last {
        bench.ranks.send(0, 21, &sent.settle().map_err(text)?).map_err(text)?;
    }
    Ok(())
}

fn collectives(bench: &Bench) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    for length in [100, 5 * bench.chunk] {
        let mut spread = plain(bench, &if rank == 0 { bytes(80, length) } else { vec![0; length] })?;
        bench.ranks.broadcast_into(0, &mut spread.settle_mut().map_err(text)?).map_err(text)?;
        bench.check(spread.to_vec().map_err(text)? == bytes(80, length), || {
            format!("a broadcast of {length} beside a receive of one rank")
        })?;
        let mut most = plain(bench, &vec![rank as u8; length])?;
        let mut target = most.settle_mut().map_err(text)?;
        bench.ranks.all_reduce_in_place(&mut target, Reduction::Max).map_err(text)?;
        bench.check(most.to_vec().map_err(text)? == vec![size as u8 - 1; length], || {
            format!("an allreduce of {length} beside a receive of one rank")
        })?;
        let mine = plain(bench, &vec![rank as u8; length])?;
        let mut all = plain(bench, &vec![0; size * length])?;
        let mut target = all.settle_mut().map_err(text)?;
        bench.ranks.all_gather_into(&mine.settle().map_err(text)?, &mut target).map_err(text)?;
        let all = all.to_vec().map_err(text)?;
        bench.check(all.iter().enumerate().all(|(at, &byte)| byte as usize == at / length), || {
            format!("an allgather of {length} beside a receive of one rank")
        })?;
    }
    Ok(())
}
