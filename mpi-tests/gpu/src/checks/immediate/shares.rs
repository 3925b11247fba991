//! Gather, scatter, allgather and alltoall that do not block: several at a time, beside blocking
//! operations, of memory in no slab, and refused. Each alone is checked where the blocking form is.
#![allow(unsafe_code)] // lends device memory of no slab

use crate::bench::{Bench, MARGIN, text};
use crate::checks::shares::{all_to_all, share};
use crate::checks::windows::plain;
use crate::checks::{Form, lengths};
use pinyard_driver::Call;
use pinyard_mpi::{DeviceBuf, Error, Failure, Path, Reduction, Settled, SettledMut, scope};

pub(super) fn all(bench: &Bench) -> Result<(), String> {
    for length in lengths(bench.chunk) {
        all_gather(bench, length)?;
    }
    several(bench)?;
    for last in [false, true] {
        in_no_slab(bench, last)?;
    }
    if bench.size() > 1 {
        beside_blocking(bench)?;
        too_short(bench)?;
        different(bench)?;
        devices_that_fail(bench)?;
    }
    all_to_all(bench, Form::Immediate, 100)
}

/// What ranks have for rank `to`, one after the other.
fn of_all(size: usize, to: usize, length: usize) -> Vec<u8> {
    (0..size).flat_map(|from| share(from, to, length)).collect()
}

/// What rank `from` has for all.
fn for_all(size: usize, from: usize, length: usize) -> Vec<u8> {
    (0..size).flat_map(|to| share(from, to, length)).collect()
}

/// With a broadcast and a sum behind it.
fn all_gather(bench: &Bench, length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let own: Vec<u8> = share(rank, 0, length).collect();
    let (mine, mut all) = (bench.buffer(&own)?, bench.buffer(&vec![1; size * length])?);
    let (mut spread, mut ones) = (bench.buffer(&[rank as u8; 99])?, bench.buffer(&[1u32; 50])?);
    let settled = mine.settle().map_err(text)?;
    let settled = settled.slice(MARGIN..MARGIN + length);
    let mut target = all.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + size * length);
    let mut root = spread.settle_mut().map_err(text)?;
    let mut root = root.slice_mut(MARGIN..MARGIN + 99);
    let mut sums = ones.settle_mut().map_err(text)?;
    let mut sums = sums.slice_mut(MARGIN..MARGIN + 50);
    scope(|scope| {
        let gathered = bench.ranks.immediate_all_gather_into(scope, &settled, &mut target)?;
        let spread = bench.ranks.immediate_broadcast_into(scope, 0, &mut root)?;
        let summed = bench.ranks.immediate_all_reduce_in_place(scope, &mut sums, Reduction::Sum)?;
        summed.wait().and(spread.wait()).and(gathered.wait())
    })
    .map_err(text)?;
    bench.holds(&all, &of_all(size, 0, length), || format!("iallgather of {length}"))?;
    bench.holds(&spread, &[0; 99], || "an ibcast behind it".to_owned())?;
    bench.holds(&ones, &[size as u32; 50], || "an iallreduce behind that".to_owned())?;
    bench.holds(&mine, &own, || "what was gathered".to_owned())
}

/// All kinds under way at a time, and a blocking one meanwhile: two are waited for in the opposite
/// order, one is dropped, one leaked.
fn several(bench: &Bench) -> Result<(), String> {
    let (rank, size, length) = (bench.rank(), bench.size(), 2 * bench.chunk + 11);
    let last = size - 1;
    let sent = plain(bench, &for_all(size, rank, length))?;
    let mut came = Vec::new();
    for elements in [size * length, length, size * length, size * length, size * length] {
        came.push(plain(bench, &vec![0u8; elements])?);
    }
    let settled = sent.settle().map_err(text)?;
    let own = settled.slice(last * length..);
    let targets = came.iter_mut().map(DeviceBuf::settle_mut).collect::<Result<Vec<_>, _>>();
    let mut targets = targets.map_err(text)?;
    let [gathered, scattered, collected, exchanged, blocking] = &mut targets[..] else {
        return Err("five buffers".to_owned());
    };
    scope(|scope| {
        let ranks = &bench.ranks;
        let to = (rank == last).then_some(gathered);
        let first = ranks.immediate_gather_into(scope, last as i32, &own, to)?;
        let from = (rank == 0).then_some(&settled);
        let second = ranks.immediate_scatter_into(scope, 0, from, scattered)?;
        let third = ranks.immediate_all_gather_into(scope, &own, collected)?;
        let fourth = ranks.immediate_all_to_all_into(scope, &settled, exchanged)?;
        drop(first);
        std::mem::forget(second);
        ranks.all_to_all_into(&settled, blocking)?;
        fourth.wait().and(third.wait())
    })
    .map_err(text)?;
    drop(targets);
    let to_last = of_all(size, last, length);
    let expected = [
        if rank == last { to_last.clone() } else { vec![0; size * length] },
        share(0, rank, length).collect(),
        to_last,
        of_all(size, rank, length),
        of_all(size, rank, length),
    ];
    for (number, (buffer, expected)) in came.iter().zip(expected).enumerate() {
        let right = buffer.to_vec().map_err(text)? == expected;
        bench.check(right, || format!("shares {number} of several at a time"))?;
    }
    Ok(())
}

/// Memory of the first or the last rank is in no slab that others open.
fn in_no_slab(bench: &Bench, of_last: bool) -> Result<(), String> {
    let (rank, size, length) = (bench.rank(), bench.size(), bench.chunk + 1);
    let root = if of_last { size - 1 } else { 0 };
    let sent = plain(bench, &for_all(size, rank, length))?;
    let (mut mine, mut theirs) =
        (plain(bench, &vec![0u8; length])?, plain(bench, &vec![0u8; size * length])?);
    let settled = sent.settle().map_err(text)?;
    // SAFETY: the buffer's memory, which is settled and stands until the operations are done.
    let raw = unsafe { Settled::from_raw(&bench.gpu, sent.ptr(), size * length) };
    let lent = if rank == root { &raw } else { &settled };
    let (mut one, mut all) = (mine.settle_mut().map_err(text)?, theirs.settle_mut().map_err(text)?);
    scope(|scope| {
        let from = (rank == root).then_some(lent);
        let scattered = bench.ranks.immediate_scatter_into(scope, root as i32, from, &mut one)?;
        let exchanged = bench.ranks.immediate_all_to_all_into(scope, lent, &mut all)?;
        exchanged.wait().and(scattered.wait())
    })
    .map_err(text)?;
    let expected: Vec<u8> = share(root, rank, length).collect();
    let right = mine.to_vec().map_err(text)? == expected;
    bench.check(right, || "an iscatter of memory in no slab".to_owned())?;
    let right = theirs.to_vec().map_err(text)? == of_all(size, rank, length);
    bench.check(right, || "an ialltoall of memory in no slab".to_owned())
}

/// The root waits in a blocking receive for what the last rank sends when it has its share.
fn beside_blocking(bench: &Bench) -> Result<(), String> {
    let (rank, size, length) = (bench.rank(), bench.size(), 7 * bench.chunk + 2);
    let last = size - 1;
    let (all, mut mine) = (plain(bench, &for_all(size, 0, length))?, plain(bench, &vec![0u8; length])?);
    let mut word = plain(bench, &[0u8])?;
    let settled = all.settle().map_err(text)?;
    let mut target = mine.settle_mut().map_err(text)?;
    scope(|scope| {
        let from = (rank == 0).then_some(&settled);
        let request = bench.ranks.immediate_scatter_into(scope, 0, from, &mut target).map_err(text)?;
        if rank == last {
            request.wait().map_err(text)?;
            let word = word.settle().map_err(text)?;
            for to in 0..last {
                bench.ranks.send(to as i32, 13, &word).map_err(text)?;
            }
            return Ok(());
        }
        let mut word = word.settle_mut().map_err(text)?;
        bench.ranks.receive_into(last as i32, 13, &mut word).map_err(text)?;
        request.wait().map_err(text)
    })?;
    let expected: Vec<u8> = share(0, rank, length).collect();
    bench.check(mine.to_vec().map_err(text)? == expected, || "an iscatter beside a receive".to_owned())
}

/// A rank whose buffers do not have the shares has the cause, the others its rank.
fn named(bench: &Bench, at: usize, result: &Result<(), Error>, what: &str) -> Result<(), String> {
    let named = if bench.rank() == at {
        matches!(result, Err(Error::Share { rank, .. }) if *rank == at as i32)
    } else {
        matches!(result, Err(Error::Peer { rank, what: Failure::Length, .. }) if *rank == at as i32)
    };
    bench.check(named, || format!("{what}: {result:?}"))
}

fn too_short(bench: &Bench) -> Result<(), String> {
    let (rank, size, last) = (bench.rank(), bench.size(), bench.size() - 1);
    let (ranks, root) = (&bench.ranks, last as i32);
    let (mine, mut all) = (plain(bench, &vec![1u8; 64 * size])?, plain(bench, &vec![0u8; 64 * size])?);
    let settled = mine.settle().map_err(text)?;
    let mut target = all.settle_mut().map_err(text)?;
    let own = settled.slice(..64);
    let less = 64 * size - usize::from(rank == last);
    let mut short = target.slice_mut(..less);
    let to = (rank == last).then_some(&mut short);
    let result = scope(|scope| ranks.immediate_gather_into(scope, root, &own, to)?.wait());
    named(bench, last, &result, "an igather into too little")?;
    let none = None::<&mut SettledMut<'_, u8>>;
    let result = scope(|scope| ranks.immediate_gather_into(scope, root, &own, none)?.wait());
    named(bench, last, &result, "an igather to nothing")?;
    let result = scope(|scope| ranks.immediate_all_gather_into(scope, &own, &mut short)?.wait());
    named(bench, last, &result, "an iallgather into too little")?;
    let from = settled.slice(..less);
    let result = scope(|scope| ranks.immediate_all_to_all_into(scope, &from, &mut short)?.wait());
    named(bench, last, &result, "an ialltoall of too little")?;
    let mut one = target.slice_mut(..64);
    let from = (rank == last).then_some(&from);
    let result = scope(|scope| ranks.immediate_scatter_into(scope, root, from, &mut one)?.wait());
    named(bench, last, &result, "an iscatter of too little")?;
    let result = scope(|scope| {
        ranks.immediate_scatter_into(scope, ranks.size(), None::<&Settled<'_, u8>>, &mut one).map(drop)
    });
    bench.check(matches!(result, Err(Error::NoSuchRank { .. })), || format!("no such root: {result:?}"))
}

/// Shares of 65 bytes at the first rank and of 64 at the others.
fn different(bench: &Bench) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let (ranks, share) = (&bench.ranks, 64 + usize::from(rank == 0));
    let (mine, mut all) = (plain(bench, &vec![1u8; share * size])?, plain(bench, &vec![0u8; share * size])?);
    let settled = mine.settle().map_err(text)?;
    let own = settled.slice(..share);
    let mut target = all.settle_mut().map_err(text)?;
    let gathered = scope(|scope| {
        let to = (rank == 0).then_some(&mut target);
        ranks.immediate_gather_into(scope, 0, &own, to)?.wait()
    });
    let collected = scope(|scope| ranks.immediate_all_gather_into(scope, &own, &mut target)?.wait());
    let exchanged = scope(|scope| ranks.immediate_all_to_all_into(scope, &settled, &mut target)?.wait());
    let mut one = target.slice_mut(..share);
    let from = (rank == 0).then_some(&settled);
    let scattered = scope(|scope| ranks.immediate_scatter_into(scope, 0, from, &mut one)?.wait());
    for (what, result) in
        [("igather", gathered), ("iallgather", collected), ("ialltoall", exchanged), ("iscatter", scattered)]
    {
        let named =
            matches!(&result, Err(Error::Counts { rank: 1, bytes: 64, other: 0, other_bytes: 65, .. }));
        bench.check(named, || format!("an {what} of 65 and 64: {result:?}"))?;
    }
    Ok(())
}

/// A copy that the root's driver refuses: the others are told.
fn devices_that_fail(bench: &Bench) -> Result<(), String> {
    let (rank, size, length) = (bench.rank(), bench.size(), 3 * bench.chunk);
    let call = match bench.ranks.plan().path {
        Path::Direct => return Ok(()),
        Path::Ipc => Call::CopyOnDevice,
        _ => Call::CopyToDevice,
    };
    let Some(simulated) = &bench.simulated else { return Ok(()) };
    let (mine, mut all) = (plain(bench, &vec![1u8; length])?, plain(bench, &vec![0u8; length * size])?);
    let settled = mine.settle().map_err(text)?;
    let mut target = all.settle_mut().map_err(text)?;
    if rank == 0 {
        simulated.fail_next(call, 1, 701);
    }
    let to = (rank == 0).then_some(&mut target);
    let result = scope(|scope| bench.ranks.immediate_gather_into(scope, 0, &settled, to)?.wait());
    simulated.fail_never();
    let named = if rank == 0 {
        matches!(&result, Err(Error::Driver { source, .. }) if source.code == 701)
    } else {
        matches!(&result, Err(Error::Peer { rank: 0, what: Failure::Driver, .. }))
    };
    bench.check(named, || format!("an igather without {call}: {result:?}"))
}
