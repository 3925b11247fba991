//! Sendrecv that does not block: several at a time, before and behind other messages, dropped and
//! leaked, and refused. One alone is checked where the blocking form is.

use super::bytes;
use crate::bench::{Bench, text};
use crate::checks::windows::plain;
use pinyard_mpi::{DeviceBuf, Error, Failure, Path, scope};

pub(super) fn all(bench: &Bench) -> Result<(), String> {
    for length in [100, 3 * bench.chunk + 5] {
        several(bench, length)?;
        if bench.size() > 1 {
            between_others(bench, length)?;
        }
    }
    if bench.size() > 1 {
        refused(bench)?;
    }
    several(bench, 1)
}

/// Over every distance at a time with one tag, the first dropped, the second leaked; and a
/// blocking one of another tag meanwhile.
fn several(bench: &Bench, length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let sent = plain(bench, &bytes(rank, length))?;
    let mut came = Vec::new();
    for _ in 0..=size {
        came.push(plain(bench, &vec![0u8; length])?);
    }
    let settled = sent.settle().map_err(text)?;
    let targets = came.iter_mut().map(DeviceBuf::settle_mut).collect::<Result<Vec<_>, _>>();
    let mut targets = targets.map_err(text)?;
    let peers =
        |distance: usize| (((rank + distance) % size) as i32, ((rank + size - distance) % size) as i32);
    let (blocking, others) = targets.split_last_mut().ok_or("no buffers")?;
    scope(|scope| {
        let (ranks, mut requests) = (&bench.ranks, Vec::new());
        for (distance, target) in others.iter_mut().enumerate() {
            let (to, from) = peers(distance);
            let request = ranks.immediate_exchange(scope, to, &settled, from, target, 21)?;
            match distance {
                0 => drop(request),
                1 => std::mem::forget(request),
                _ => requests.push(request),
            }
        }
        let (to, from) = peers(1);
        ranks.exchange(to, &settled, from, blocking, 22)?;
        requests.into_iter().rev().try_for_each(|request| request.wait().map(drop))
    })
    .map_err(text)?;
    drop(targets);
    for (number, buffer) in came.iter().enumerate() {
        let distance = if number == size { 1 } else { number };
        let right = buffer.to_vec().map_err(text)? == bytes(peers(distance).1 as usize, length);
        bench.check(right, || format!("exchange {number} of several, of {length}"))?;
    }
    Ok(())
}

/// The last rank takes what the first one exchanges only when the first one has taken two messages
/// of its: the one behind the exchange does not wait for what that sends.
fn between_others(bench: &Bench, length: usize) -> Result<(), String> {
    let (rank, last) = (bench.rank(), bench.size() - 1);
    let own = plain(bench, &bytes(rank, length))?;
    let (mut one, mut two) = (plain(bench, &vec![0u8; length])?, plain(bench, &vec![0u8; length])?);
    let settled = own.settle().map_err(text)?;
    let (mut first, mut second) = (one.settle_mut().map_err(text)?, two.settle_mut().map_err(text)?);
    let (ranks, peer) = (&bench.ranks, last as i32);
    if rank == 0 {
        scope(|scope| {
            let both = ranks.immediate_exchange(scope, peer, &settled, peer, &mut first, 23)?;
            let behind = ranks.immediate_receive_into(scope, peer, 23, &mut second)?;
            both.wait().and(behind.wait())
        })
        .map_err(text)?;
    } else if rank == last {
        scope(|scope| {
            let before = ranks.immediate_send(scope, 0, 23, &settled)?;
            let behind = ranks.immediate_send(scope, 0, 23, &settled)?;
            before.wait().and(behind.wait())
        })
        .map_err(text)?;
        ranks.receive_into(0, 23, &mut first).map_err(text)?;
    }
    let expected = [
        if rank == 0 { bytes(last, length) } else { bytes(0, length) },
        if rank == 0 { bytes(last, length) } else { vec![0; length] },
    ];
    if rank != 0 && rank != last {
        return Ok(());
    }
    for (buffer, expected) in [&one, &two].into_iter().zip(expected) {
        let right = buffer.to_vec().map_err(text)? == expected;
        bench.check(right, || format!("a message of {length} before or behind an exchange"))?;
    }
    Ok(())
}

/// A message that is too long is the receiver's error, and what it sends arrives; ranks and tags
/// that are none begin nothing.
fn refused(bench: &Bench) -> Result<(), String> {
    let (rank, last, length) = (bench.rank(), bench.size() - 1, 5 * bench.chunk);
    let (ranks, path) = (&bench.ranks, bench.ranks.plan().path);
    let own = plain(bench, &bytes(rank, length))?;
    let mut came = plain(bench, &vec![0u8; length])?;
    let settled = own.settle().map_err(text)?;
    let mut target = came.settle_mut().map_err(text)?;
    for (to, tag) in [(ranks.size(), 24), (0, -1)] {
        let result =
            scope(|scope| ranks.immediate_exchange(scope, 0, &settled, to, &mut target, tag).map(drop));
        let named = match &result {
            Err(Error::NoSuchRank { wanted, .. }) => *wanted == ranks.size(),
            Err(Error::Foreign { text, .. }) => text.contains("tag -1"),
            _ => false,
        };
        bench.check(named, || format!("an exchange with {to} of tag {tag}: {result:?}"))?;
    }
    // On the direct path it is MPI's truncation, after which MPI promises nothing.
    if path == Path::Direct || (rank != 0 && rank != last) {
        return Ok(());
    }
    let peer = if rank == 0 { last } else { 0 };
    let mut short = target.slice_mut(..length - usize::from(rank == last));
    let result = scope(|scope| {
        ranks.immediate_exchange(scope, peer as i32, &settled, peer as i32, &mut short, 24)?.wait()
    });
    let named = match &result {
        Err(Error::Counts { rank: at, other: 0, .. }) => rank == last && *at == last as i32,
        // Where the receiver copies, the sender waits for it, and is told.
        Err(Error::Peer { rank: at, what: Failure::Length, .. }) => rank == 0 && *at == last as i32,
        Ok(count) => rank == 0 && *count == length && path != Path::Ipc,
        Err(_) => false,
    };
    bench.check(named, || format!("an exchange into one less than came: {result:?}"))?;
    let expected = if rank == 0 { bytes(last, length) } else { vec![0; length] };
    bench.check(came.to_vec().map_err(text)? == expected, || "beside what was refused".to_owned())
}
