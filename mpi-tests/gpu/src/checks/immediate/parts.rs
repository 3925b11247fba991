//! Gatherv, scatterv, allgatherv and alltoallv that do not block: several at a time, beside
//! blocking operations, of memory in no slab, and where a rank fails. Each alone is checked
//! where the blocking form is.
#![allow(unsafe_code)] // lends device memory of no slab

use crate::bench::{Bench, Element, text};
use crate::checks::parts::{backwards, elements, filled};
use crate::checks::windows::plain;
use pinyard_driver::Call;
use pinyard_mpi::{DeviceBuf, Error, Failure, Partition, Path, Settled, scope};

pub(super) fn all(bench: &Bench) -> Result<(), String> {
    for length in [20, 3 * bench.chunk + 17] {
        several(bench, length)?;
        in_no_slab(bench, length)?;
    }
    if bench.size() > 1 && bench.ranks.plan().path != Path::Direct {
        devices_that_fail(bench)?;
    }
    several(bench, 100)
}

/// What all ranks have for each other: parts, where they lie when they have come, and the
/// elements of such a buffer.
struct Deal {
    /// What this rank has for each.
    sends: Vec<Vec<u8>>,
    sent: Partition,
    /// What each has for this rank.
    parts: Vec<Vec<u8>>,
    received: Partition,
    total: usize,
}

fn deal(bench: &Bench, length: usize) -> Deal {
    let (rank, size) = (bench.rank(), bench.size());
    let sends: Vec<Vec<u8>> = (0..size).map(|to| elements(rank, to, length)).collect();
    let parts: Vec<Vec<u8>> = (0..size).map(|from| elements(from, rank, length)).collect();
    let sent = Partition::packed(sends.iter().map(Vec::len));
    let (received, total) = backwards(&parts.iter().map(Vec::len).collect::<Vec<_>>());
    Deal { sends, sent, parts, received, total }
}

/// All kinds under way at a time with a broadcast among them, and a blocking alltoallv meanwhile:
/// one is dropped, one leaked, the others are waited for in the opposite order.
fn several(bench: &Bench, length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let (last, deal) = (size - 1, deal(bench, length));
    // What each has for the last one: gathered there, and by all.
    let to_last: Vec<Vec<u8>> = (0..size).map(|from| elements(from, last, length)).collect();
    let (gathered, total) = backwards(&to_last.iter().map(Vec::len).collect::<Vec<_>>());
    let sent = plain(bench, &deal.sends.concat())?;
    let mine = plain(bench, &to_last[rank])?;
    let from_first = elements::<u8>(0, rank, length);
    let mut came = Vec::new();
    for elements in [total, from_first.len(), total, deal.total, deal.total] {
        came.push(plain(bench, &vec![u8::of(9); elements])?);
    }
    let mut spread = plain(bench, &[rank as u8; 77])?;
    let (settled, own) = (sent.settle().map_err(text)?, mine.settle().map_err(text)?);
    let mut root = spread.settle_mut().map_err(text)?;
    let targets = came.iter_mut().map(DeviceBuf::settle_mut).collect::<Result<Vec<_>, _>>();
    let mut targets = targets.map_err(text)?;
    let [at_last, scattered, everywhere, exchanged, blocking] = &mut targets[..] else {
        return Err("five buffers".to_owned());
    };
    scope(|scope| {
        let ranks = &bench.ranks;
        let to = (rank == last).then_some((at_last, &gathered));
        let first = ranks.immediate_gather_varcount_into(scope, last as i32, &own, to)?;
        let from = (rank == 0).then_some((&settled, &deal.sent));
        let second = ranks.immediate_scatter_varcount_into(scope, 0, from, scattered)?;
        let third = ranks.immediate_all_gather_varcount_into(scope, &own, everywhere, &gathered)?;
        let spread = ranks.immediate_broadcast_into(scope, 0, &mut root)?;
        let (out, into) = (&deal.sent, &deal.received);
        let fourth = ranks.immediate_all_to_all_varcount_into(scope, &settled, out, exchanged, into)?;
        drop(first);
        std::mem::forget(second);
        ranks.all_to_all_varcount_into(&settled, out, blocking, into)?;
        fourth.wait().and(spread.wait()).and(third.wait())
    })
    .map_err(text)?;
    drop(targets);
    let of_all = filled(&gathered, total, &to_last);
    let theirs = filled(&deal.received, deal.total, &deal.parts);
    let expected = [
        if rank == last { of_all.clone() } else { vec![u8::of(9); total] },
        from_first,
        of_all,
        theirs.clone(),
        theirs,
    ];
    for (number, (buffer, expected)) in came.iter().zip(expected).enumerate() {
        let right = buffer.to_vec().map_err(text)? == expected;
        bench.check(right, || format!("parts {number} of several at a time, of about {length}"))?;
    }
    bench.check(spread.to_vec().map_err(text)? == [0; 77], || "an ibcast among them".to_owned())
}

/// The last rank's memory is in no slab that others open: all take the other way.
fn in_no_slab(bench: &Bench, length: usize) -> Result<(), String> {
    let (rank, size, deal) = (bench.rank(), bench.size(), deal(bench, length));
    let all = deal.sends.concat();
    let sent = plain(bench, &all)?;
    let mut theirs = plain(bench, &vec![u8::of(9); deal.total])?;
    let settled = sent.settle().map_err(text)?;
    // SAFETY: the buffer's memory, which is settled and stands until the operation is done.
    let raw = unsafe { Settled::from_raw(&bench.gpu, sent.ptr(), all.len()) };
    let lent = if rank == size - 1 { &raw } else { &settled };
    let mut target = theirs.settle_mut().map_err(text)?;
    let (out, into) = (&deal.sent, &deal.received);
    scope(|scope| {
        bench.ranks.immediate_all_to_all_varcount_into(scope, lent, out, &mut target, into)?.wait()
    })
    .map_err(text)?;
    let expected = filled(into, deal.total, &deal.parts);
    bench.check(theirs.to_vec().map_err(text)? == expected, || {
        format!("an ialltoallv of about {length} of memory in no slab")
    })
}

/// A rank that fails has the cause, the others its rank.
fn named(bench: &Bench, at: usize, result: &Result<(), Error>, code: i32, what: &str) -> Result<(), String> {
    let named = if bench.rank() == at {
        matches!(result, Err(Error::Driver { source, .. }) if source.code == code)
    } else {
        matches!(result, Err(Error::Peer { rank, what: Failure::Driver, .. }) if *rank == at as i32)
    };
    bench.check(named, || format!("{what}: {result:?}"))
}

/// A copy that the first rank's driver refuses.
fn devices_that_fail(bench: &Bench) -> Result<(), String> {
    let Some(simulated) = &bench.simulated else { return Ok(()) };
    let (size, length) = (bench.size(), 3 * bench.chunk);
    let call = match bench.ranks.plan().path {
        Path::Ipc => Call::CopyOnDevice,
        _ => Call::CopyToDevice,
    };
    let (mine, mut all) = (plain(bench, &vec![1u8; length])?, plain(bench, &vec![0u8; length * size])?);
    let (settled, mut target) = (mine.settle().map_err(text)?, all.settle_mut().map_err(text)?);
    let parts = Partition::packed(vec![length; size]);
    if bench.rank() == 0 {
        simulated.fail_next(call, 1, 701);
    }
    let result = scope(|scope| {
        bench.ranks.immediate_all_gather_varcount_into(scope, &settled, &mut target, &parts)?.wait()
    });
    simulated.fail_never();
    named(bench, 0, &result, 701, "an iallgatherv without a copy")
}
