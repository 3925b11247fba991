//! Broadcasts that are long enough for a chain along the ranks of a node: that they take it;
//! several at a time with other operations between them; and when some of them fail.

use super::{bytes, plain};
use crate::bench::{Bench, chain_from, text};
use crate::checks::{Form, bcast};
use pinyard_driver::Call;
use pinyard_mpi::{DeviceBuf, Error, Failure, Path, Reduction, SettledMut, scope};

pub(super) fn all(bench: &Bench) -> Result<(), String> {
    is_taken(bench)?;
    in_flight(bench)?;
    if bench.size() > 1 && bench.ranks.plan().path != Path::Direct {
        counts(bench)?;
        copies(bench)?;
    }
    Ok(())
}

/// Bytes that are worth a chain, and no multiple of anything.
fn long(bench: &Bench) -> usize {
    12 * bench.chunk + 7
}

/// Every rank but the chain's last copies to the one behind it, in the order of their devices on PCI;
/// without a chain the root copies nothing.
fn is_taken(bench: &Bench) -> Result<(), String> {
    let Some(simulated) = &bench.simulated else { return Ok(()) };
    let (rank, size) = (bench.rank(), bench.size());
    for root in 0..size {
        let theirs = bytes(root, long(bench));
        let mut buffer = plain(bench, &if rank == root { theirs.clone() } else { vec![0; theirs.len()] })?;
        let mut settled = buffer.settle_mut().map_err(text)?;
        let before = simulated.calls(Call::CopyOnDevice);
        bcast(bench, Form::Immediate, root, &mut settled).map_err(text)?;
        let copies = simulated.calls(Call::CopyOnDevice) - before;
        let is_chain = bench.ranks.plan().path == Path::Ipc && size > 2;
        let is_last = chain_from(root, size).last() == Some(&rank);
        bench.check(!is_chain || if is_last { copies == 0 } else { copies > 2 }, || {
            format!("{copies} copies at rank {rank} of {size} in a chain from {root}")
        })?;
        bench.check(buffer.to_vec().map_err(text)? == theirs, || format!("a chain from {root}"))?;
    }
    Ok(())
}

fn settle_all(buffers: &mut [DeviceBuf<u8>]) -> Result<Vec<SettledMut<'_, u8>>, String> {
    buffers.iter_mut().map(|buffer| buffer.settle_mut().map_err(text)).collect()
}

fn hold(bench: &Bench, buffer: &DeviceBuf<u8>, expected: &[u8], what: &str) -> Result<(), String> {
    bench.check(buffer.to_vec().map_err(text)? == expected, || format!("{what} among chains"))
}

/// A chain from every root, between them messages, sums and shares, a blocking chain, and one
/// whose request is dropped with its buffer: all at a time, waited for in the opposite order.
fn in_flight(bench: &Bench) -> Result<(), String> {
    let (rank, size, length, ranks) = (bench.rank(), bench.size(), long(bench), &bench.ranks);
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let of_root = |root: usize| if rank == root { bytes(root, length) } else { vec![0; length] };
    let mut spread =
        (0..=size).map(|root| plain(bench, &of_root(root % size))).collect::<Result<Vec<_>, _>>()?;
    let mut sums = (0..size).map(|_| plain(bench, &vec![1; length])).collect::<Result<Vec<_>, _>>()?;
    let (sent, mut came) = (plain(bench, &bytes(90 + rank, length))?, plain(bench, &vec![0; length])?);
    let (mut shares, given) = (plain(bench, &vec![0; size * length])?, plain(bench, &of_root(0))?);
    let source = sent.settle().map_err(text)?;
    let (mut target, mut all) = (came.settle_mut().map_err(text)?, shares.settle_mut().map_err(text)?);
    let (mut roots, mut summed) = (settle_all(&mut spread)?, settle_all(&mut sums)?);
    let (blocking, roots) = roots.split_last_mut().ok_or("no buffers")?;
    scope(|scope| {
        let mut requests = Vec::new();
        let message = ranks.immediate_receive_into(scope, before as i32, 31, &mut target)?;
        for (root, (chain, sum)) in roots.iter_mut().zip(&mut summed).enumerate() {
            requests.push(ranks.immediate_broadcast_into(scope, root as i32, chain)?);
            requests.push(ranks.immediate_all_reduce_in_place(scope, sum, Reduction::Sum)?);
        }
        drop(ranks.immediate_broadcast(0, given)?);
        requests.push(ranks.immediate_send(scope, next as i32, 31, &source)?);
        requests.push(ranks.immediate_all_gather_into(scope, &source, &mut all)?);
        ranks.broadcast_into(0, blocking)?;
        requests.into_iter().rev().try_for_each(|request| request.wait())?;
        message.wait().map(drop)
    })
    .map_err(text)?;
    drop((target, all, summed));
    for (root, buffer) in spread.iter().enumerate() {
        hold(bench, buffer, &bytes(root % size, length), "a broadcast")?;
    }
    for sum in &sums {
        hold(bench, sum, &vec![size as u8; length], "a sum")?;
    }
    hold(bench, &came, &bytes(90 + before, length), "a message")?;
    let gathered: Vec<u8> = (0..size).flat_map(|rank| bytes(90 + rank, length)).collect();
    hold(bench, &shares, &gathered, "shares")
}

/// Three chains at a time from rank 0, a sum between them. What each came to at this rank; those
/// that succeeded have brought their bytes.
fn three(bench: &Bench, lengths: [usize; 3]) -> Result<Vec<Result<(), Error>>, String> {
    let (rank, ranks) = (bench.rank(), &bench.ranks);
    let theirs = |number: usize, length: usize| bytes(40 + number, length);
    let mut spread = Vec::new();
    for (number, length) in lengths.into_iter().enumerate() {
        let elements = if rank == 0 { theirs(number, length) } else { vec![0; length] };
        spread.push(plain(bench, &elements)?);
    }
    let mut sum = plain(bench, &[2; 100])?;
    let (mut chains, mut summed) = (settle_all(&mut spread)?, sum.settle_mut().map_err(text)?);
    let [first, second, third] = &mut chains[..] else { return Err("three buffers".to_owned()) };
    let results = scope(|scope| {
        let first = ranks.immediate_broadcast_into(scope, 0, first)?;
        let second = ranks.immediate_broadcast_into(scope, 0, second)?;
        let sum = ranks.immediate_all_reduce_in_place(scope, &mut summed, Reduction::Sum)?;
        let third = ranks.immediate_broadcast_into(scope, 0, third)?;
        let (third, second, first) = (third.wait(), second.wait(), first.wait());
        sum.wait().map(|()| vec![first, second, third])
    })
    .map_err(text)?;
    drop(chains);
    hold(bench, &sum, &[2 * bench.size() as u8; 100], "a sum")?;
    for (number, (buffer, result)) in spread.iter().zip(&results).enumerate() {
        if result.is_ok() {
            hold(bench, buffer, &theirs(number, lengths[number]), "one of three broadcasts")?;
        }
    }
    Ok(results)
}

/// Rank 1 has another count in the second of three: that one alone fails, at all ranks.
fn counts(bench: &Bench) -> Result<(), String> {
    let length = long(bench);
    let second = length - usize::from(bench.rank() == 1);
    let results = three(bench, [length, second, length])?;
    let named = match (bench.rank(), &results[1]) {
        (1, result) => matches!(result, Err(Error::Counts { rank: 1, other: 0, .. })),
        (_, result) => matches!(result, Err(Error::Peer { rank: 1, what: Failure::Length, .. })),
    };
    let others = results[0].is_ok() && results[2].is_ok();
    bench.check(named && others, || format!("a short buffer in the second of three chains: {results:?}"))
}

/// The driver refuses a copy of one rank, an event's record, or to ask for an event, while three
/// are under way: the one that it was for fails at all ranks, the others at none.
fn copies(bench: &Bench) -> Result<(), String> {
    let (Some(simulated), length) = (&bench.simulated, long(bench)) else { return Ok(()) };
    if bench.ranks.plan().path != Path::Ipc || bench.size() < 3 {
        return Ok(());
    }
    for call in [Call::CopyOnDevice, Call::EventRecord, Call::EventQuery] {
        for &culprit in &chain_from(0, bench.size())[..2] {
            let fails = bench.rank() == culprit;
            if fails {
                simulated.fail_next(call, 1, 1);
            }
            let results = three(bench, [length; 3]);
            simulated.fail_never();
            let results = results?;
            let named = match &results[0] {
                result if fails => matches!(result, Err(Error::Driver { source, .. }) if source.code == 1),
                Err(Error::Peer { rank, what: Failure::Driver, .. }) => *rank == culprit as i32,
                _ => false,
            };
            let others = results[1].is_ok() && results[2].is_ok();
            bench.check(named && others, || {
                format!("{call} refused at rank {culprit} in the first of three chains: {results:?}")
            })?;
        }
    }
    Ok(())
}
