//! Reduce that does not block: at every root, several at a time, beside blocking operations, in
//! place of a buffer given, and refused.
#![allow(unsafe_code)] // lends device memory of no slab

use crate::bench::{Bench, Element, MARGIN, text};
use crate::checks::lengths;
use crate::checks::windows::plain;
use half::f16;
use mpi::topology::SimpleCommunicator;
use pinyard_driver::{Call, Simulated};
use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Error, Failure, Reduction, Settled, SettledMut, scope};

pub(super) fn all(bench: &Bench) -> Result<(), String> {
    for length in lengths(bench.chunk) {
        for root in 0..bench.size() {
            at_root::<u32>(bench, root, length / 4, Reduction::Sum)?;
        }
        given::<i16>(bench, length % bench.size(), length / 2, Reduction::Max)?;
    }
    for reduction in [Reduction::Sum, Reduction::Min, Reduction::Max] {
        at_root::<f64>(bench, 0, bench.chunk, reduction)?;
        at_root::<f16>(bench, bench.size() - 1, bench.chunk + 1, reduction)?;
        given::<f32>(bench, 0, 3 * bench.chunk + 7, reduction)?;
    }
    several(bench)?;
    dropped(bench)?;
    in_no_slab(bench)?;
    if bench.size() > 1 {
        refused(bench)?;
        devices_that_fail(bench)?;
        no_chunks(bench)?;
    }
    at_root::<u32>(bench, 0, bench.chunk, Reduction::Sum)
}

fn of_rank<T: Element>(rank: usize, length: usize) -> Vec<T> {
    (0..length).map(|at| T::of(at + 131 * rank)).collect()
}

/// What all ranks' elements come to.
fn joined<T: Element>(size: usize, length: usize, reduction: Reduction) -> Vec<T> {
    (0..length).map(|at| T::folded(reduction, (0..size).map(|rank| T::of(at + 131 * rank)))).collect()
}

fn at_root<T: Element>(
    bench: &Bench,
    root: usize,
    length: usize,
    reduction: Reduction,
) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let own = of_rank::<T>(rank, length);
    let (mine, mut all) = (bench.buffer(&own)?, bench.buffer(&vec![T::of(3); length])?);
    let settled = mine.settle().map_err(text)?;
    let settled = settled.slice(MARGIN..MARGIN + length);
    let mut target = all.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + length);
    let to = (rank == root).then_some(&mut target);
    scope(|scope| bench.ranks.immediate_reduce_into(scope, root as i32, &settled, to, reduction)?.wait())
        .map_err(text)?;
    let expected = if rank == root { joined(size, length, reduction) } else { vec![T::of(3); length] };
    bench.holds(&all, &expected, || format!("ireduce ({reduction:?}) of {length} at {root}"))?;
    bench.holds(&mine, &own, || "what was reduced".to_owned())
}

/// With a buffer of its own: the root has the result in it, the others what they had.
fn given<T: Element>(bench: &Bench, root: usize, length: usize, reduction: Reduction) -> Result<(), String> {
    let own = of_rank::<T>(bench.rank(), length);
    let request = bench.ranks.immediate_reduce(root as i32, plain(bench, &own)?, reduction);
    let (buffer, result) = request.map_err(text)?.wait();
    result.map_err(text)?;
    let expected = if bench.rank() == root { joined(bench.size(), length, reduction) } else { own };
    bench.check(buffer.to_vec().map_err(text)? == expected, || {
        format!("ireduce ({reduction:?}) of {length} in a buffer given, at {root}")
    })
}

/// At every root at a time, with a broadcast among them and blocking ones in between; the first
/// is dropped, the second leaked, the others waited for in the opposite order.
fn several(bench: &Bench) -> Result<(), String> {
    let (rank, size, length) = (bench.rank(), bench.size(), bench.chunk + 3);
    let own = of_rank::<u32>(rank, length);
    let mine = plain(bench, &own)?;
    let mut results = Vec::new();
    for _ in 0..2 * size {
        results.push(plain(bench, &vec![0u32; length])?);
    }
    let (mut spread, mut blocking) = (plain(bench, &[rank as u8; 50])?, plain(bench, &[1u8; 90])?);
    let settled = mine.settle().map_err(text)?;
    let targets = results.iter_mut().map(DeviceBuf::settle_mut).collect::<Result<Vec<_>, _>>();
    let mut targets = targets.map_err(text)?;
    let (mut from_last, mut counted) =
        (spread.settle_mut().map_err(text)?, blocking.settle_mut().map_err(text)?);
    scope(|scope| {
        let (ranks, mut requests) = (&bench.ranks, Vec::new());
        for (number, target) in targets.iter_mut().enumerate() {
            let to = (number % size == rank).then_some(target);
            let root = (number % size) as i32;
            let request = ranks.immediate_reduce_into(scope, root, &settled, to, Reduction::Sum)?;
            match number {
                0 => drop(request),
                1 => std::mem::forget(request),
                _ => requests.push(request),
            }
        }
        requests.push(ranks.immediate_broadcast_into(scope, size as i32 - 1, &mut from_last)?);
        ranks.all_reduce_in_place(&mut counted, Reduction::Sum)?;
        while let Some(request) = requests.pop() {
            request.wait()?;
        }
        ranks.all_reduce_in_place(&mut counted, Reduction::Max)
    })
    .map_err(text)?;
    drop(targets);
    let sum = joined::<u32>(size, length, Reduction::Sum);
    for (number, result) in results.iter().enumerate() {
        let elements = result.to_vec().map_err(text)?;
        let right = if number % size == rank { elements == sum } else { elements == vec![0; length] };
        bench.check(right, || format!("ireduce {number} of several"))?;
    }
    bench.check(spread.to_vec().map_err(text)? == [size as u8 - 1; 50], || {
        "an ibcast among them".to_owned()
    })?;
    let right = blocking.to_vec().map_err(text)? == [size as u8; 90];
    bench.check(right, || "a blocking allreduce among them".to_owned())
}

/// Requests that have their buffer and are dropped or leaked: the operations go on, so that those
/// behind them are not mixed up with them.
fn dropped(bench: &Bench) -> Result<(), String> {
    let (rank, length) = (bench.rank(), 2 * bench.chunk + 3);
    for root in 0..bench.size() {
        let [first, second] = [(); 2].map(|()| {
            let buffer = plain(bench, &of_rank::<u32>(rank, length))?;
            bench.ranks.immediate_reduce(root as i32, buffer, Reduction::Sum).map_err(text)
        });
        drop(first?);
        std::mem::forget(second?);
    }
    given::<u32>(bench, 0, length, Reduction::Max)
}

/// The last rank's memory is in no slab that others open: all take the other way.
fn in_no_slab(bench: &Bench) -> Result<(), String> {
    let (rank, size, length) = (bench.rank(), bench.size(), 5 * bench.chunk + 1);
    let own = of_rank::<u8>(rank, length);
    let (mine, mut all) = (plain(bench, &own)?, plain(bench, &vec![0; length])?);
    let settled = mine.settle().map_err(text)?;
    // SAFETY: the buffer's memory, which is settled and stands until the operation is done.
    let raw = unsafe { Settled::from_raw(&bench.gpu, mine.ptr(), length) };
    let lent = if rank == size - 1 { &raw } else { &settled };
    let mut target = all.settle_mut().map_err(text)?;
    let to = (rank == 0).then_some(&mut target);
    scope(|scope| bench.ranks.immediate_reduce_into(scope, 0, lent, to, Reduction::Max)?.wait())
        .map_err(text)?;
    let expected = if rank == 0 { joined::<u8>(size, length, Reduction::Max) } else { vec![0; length] };
    bench.check(all.to_vec().map_err(text)? == expected, || "an ireduce of memory in no slab".to_owned())
}

/// Counts that differ, a root without a buffer or with a shorter one, and no root at all.
fn refused(bench: &Bench) -> Result<(), String> {
    let (rank, last, length) = (bench.rank(), bench.size() - 1, 200);
    let (mine, mut all) = (plain(bench, &[1u8; 200])?, plain(bench, &[0u8; 200])?);
    let settled = mine.settle().map_err(text)?;
    let mut target = all.settle_mut().map_err(text)?;
    let mut reduced = |count: usize, to: Option<usize>| {
        let from = settled.slice(..count);
        let mut to = to.map(|count| target.slice_mut(..count));
        scope(|scope| {
            let to = to.as_mut();
            bench.ranks.immediate_reduce_into(scope, last as i32, &from, to, Reduction::Sum)?.wait()
        })
    };
    let shorter = length - usize::from(rank == 0);
    let result = reduced(shorter, (rank == last).then_some(length));
    let named = matches!(&result, Err(Error::Counts { other: 0, other_bytes: 199, bytes: 200, .. }));
    bench.check(named, || format!("an ireduce of different counts: {result:?}"))?;
    for (to, has) in [(None, 0), (Some(length - 1), length as u64 - 1)] {
        let result = reduced(length, to.filter(|_| rank == last));
        let named = if rank == last {
            matches!(&result, Err(Error::Counts { rank, bytes, other_bytes: 200, .. })
                if *rank == last as i32 && *bytes == has)
        } else {
            matches!(&result, Err(Error::Peer { rank, what: Failure::Length, .. }) if *rank == last as i32)
        };
        bench.check(named, || format!("an ireduce to {to:?} elements at the root: {result:?}"))?;
    }
    let result = scope(|scope| {
        let (root, none) = (bench.ranks.size(), None::<&mut SettledMut<'_, u8>>);
        bench.ranks.immediate_reduce_into(scope, root, &settled, none, Reduction::Sum).map(drop)
    });
    bench.check(matches!(result, Err(Error::NoSuchRank { .. })), || format!("no such root: {result:?}"))
}

/// A kernel or a copy to the host that the root's driver refuses: the others are told.
fn devices_that_fail(bench: &Bench) -> Result<(), String> {
    let Some(simulated) = &bench.simulated else { return Ok(()) };
    let call = if bench.ranks.reduces_on_device() { Call::Launch } else { Call::CopyToHost };
    let buffer = plain(bench, &vec![1u8; 5 * bench.chunk])?;
    if bench.rank() == 0 {
        simulated.fail_next(call, 1, 701);
    }
    let request = bench.ranks.immediate_reduce(0, buffer, Reduction::Sum).map_err(text)?;
    let (_, result) = request.wait();
    simulated.fail_never();
    let named = if bench.rank() == 0 {
        matches!(&result, Err(Error::Driver { source, .. }) if source.code == 701)
    } else {
        matches!(&result, Err(Error::Peer { rank: 0, what: Failure::Driver, .. }))
    };
    bench.check(named, || format!("an ireduce without {call}: {result:?}"))
}

/// Of many operations, all begun before the other ranks come, the first has no chunks at one rank:
/// the others are told of it alone. Those that wait for their turn have taken nothing.
fn no_chunks(bench: &Bench) -> Result<(), String> {
    let Some(simulated) = &bench.simulated else { return Ok(()) };
    let ranks = DeviceCommunicator::builder(&bench.gpu).build(&SimpleCommunicator::world()).map_err(text)?;
    let checked = first_without_chunks(bench, simulated, &ranks);
    if checked.is_err() {
        // The others are elsewhere: its drop would wait for them.
        std::mem::forget(ranks);
    }
    checked
}

fn first_without_chunks(
    bench: &Bench,
    simulated: &Simulated,
    ranks: &DeviceCommunicator,
) -> Result<(), String> {
    let last = bench.size() - 1;
    let mut word = plain(bench, &[0u8])?;
    if bench.rank() == 0 {
        let mut word = word.settle_mut().map_err(text)?;
        bench.ranks.receive_into(last as i32, 12, &mut word).map_err(text)?;
    }
    let made = simulated.calls(Call::EventCreate);
    if bench.rank() == last {
        simulated.fail_next(Call::StreamCreate, 1, 2);
    }
    let mut requests = Vec::new();
    for _ in 0..20 {
        let buffer = plain(bench, &[1u8; 64])?;
        requests.push(ranks.immediate_reduce(0, buffer, Reduction::Sum).map_err(text)?);
    }
    if bench.rank() == last {
        let events = simulated.calls(Call::EventCreate) - made;
        // One for each buffer, which marks how far its stream was.
        bench.check(events <= 20, || format!("{events} events for operations that wait for their turn"))?;
        bench.ranks.send(0, 12, &word.settle().map_err(text)?).map_err(text)?;
    }
    let mut results: Vec<_> = requests.into_iter().map(|request| request.wait().1).collect();
    simulated.fail_never();
    let result = results.remove(0);
    let named = match &result {
        Err(Error::Driver { source, .. }) => bench.rank() == last && source.code == 2,
        Err(Error::Peer { rank, what: Failure::Driver, .. }) => *rank == last as i32,
        _ => false,
    };
    bench.check(named, || format!("an ireduce without chunks: {result:?}"))?;
    let right = results.iter().all(Result::is_ok);
    bench.check(right, || format!("ireduces behind one without chunks: {results:?}"))
}
