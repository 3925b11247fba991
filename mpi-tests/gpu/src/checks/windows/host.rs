//! Windows of the host's memory: pinned, registered and any other.

use super::{elements, plain};
use crate::bench::{Bench, MARGIN, text};
use crate::checks::locks;
use pinyard_mpi::{Error, HostBuf, PinnedBuf, scope};

pub(super) fn all(bench: &Bench) -> Result<(), String> {
    for length in [0, 1, bench.chunk + 1, 11 * bench.chunk + 5] {
        around(bench, length)?;
    }
    with_own_part(bench)?;
    beside_others(bench)?;
    abandoned(bench)?;
    refused(bench)
}

fn same(bench: &Bench, got: &[u64], expected: &[u64], what: &str) -> Result<(), String> {
    bench.check(got == expected, || format!("{what}: {} elements of the host's memory", expected.len()))
}

/// Puts to the next rank, from registered memory to pinned, then gets from the one before, in two
/// epochs, within margins that stay as they are.
fn around(bench: &Bench, length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut part: PinnedBuf<u64> = locks::Kind::make(bench, &vec![9; length + 2 * MARGIN])?;
    let mut mine: HostBuf<u64> = locks::Kind::make(bench, &vec![0; length.max(1)])?;
    let mut settled = part.settle_mut().map_err(text)?;
    let mut window = bench.ranks.window(&mut settled[..]).map_err(text)?;
    for round in 0..2 {
        mine[..length].copy_from_slice(&elements::<u64>(rank, round, length));
        let mut puts = window.epoch();
        puts.put(next as i32, MARGIN, &mine[..length]).map_err(text)?;
        puts.close().map_err(text)?;
        let mut got = vec![5; length];
        let mut gets = window.epoch();
        gets.get(before as i32, MARGIN, &mut got).map_err(text)?;
        gets.close().map_err(text)?;
        // What the one before has is of the one before that.
        same(bench, &got, &elements((before + size - 1) % size, round, length), "a get")?;
    }
    let local = window.local();
    same(bench, &local[MARGIN..MARGIN + length], &elements(before, 1, length), "a put")?;
    let margins = local[..MARGIN].iter().chain(&local[MARGIN + length..]);
    bench.check(margins.copied().all(|element| element == 9), || "what lies beside a put".to_owned())
}

/// Parts of other lengths, none at rank 0: each rank puts and gets several times in one epoch, to
/// and from every one, itself as well; and its part changes between two.
fn with_own_part(bench: &Bench) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let length = |rank: usize| 4 * size * 300 * rank;
    let mut part: Vec<u64> = elements(rank, 0, length(rank));
    let mut window = bench.ranks.window(&mut part[..]).map_err(text)?;
    let puts: Vec<Vec<u64>> = (0..size).map(|target| elements(rank, 1 + target, 300 * target)).collect();
    let mut gets: Vec<Vec<u64>> = (0..size).map(|target| vec![0; length(target) / 2]).collect();
    let mut epoch = window.epoch();
    for (target, (from, into)) in puts.iter().zip(&mut gets).enumerate() {
        // The first half is each rank's, in two pieces; the second stays, and is got.
        let (whom, place) = (target as i32, 2 * rank * from.len());
        epoch.put(whom, place + from.len(), from).map_err(text)?;
        epoch.get(whom, length(target) / 2, into).map_err(text)?;
        epoch.put(whom, place, from).map_err(text)?;
    }
    epoch.close().map_err(text)?;
    for (target, got) in gets.iter().enumerate() {
        let told = window.len_of(target as i32);
        bench.check(told == length(target), || format!("rank {target} has {told} elements"))?;
        same(bench, got, &elements(target, 0, length(target))[length(target) / 2..], "one of several gets")?;
    }
    let expected: Vec<u64> =
        (0..size).flat_map(|other| elements(other, 1 + rank, 300 * rank).repeat(2)).collect();
    same(bench, &window.local()[..length(rank) / 2], &expected, "several puts")?;
    window.local_mut().fill(rank as u64);
    let mut last = vec![0; length(size - 1)];
    let mut epoch = window.epoch();
    epoch.get(size as i32 - 1, 0, &mut last).map_err(text)?;
    epoch.close().map_err(text)?;
    same(bench, &last, &vec![size as u64 - 1; length(size - 1)], "what its rank wrote")
}

/// Messages and a broadcast that do not block are under way while an epoch closes.
fn beside_others(bench: &Bench) -> Result<(), String> {
    let (rank, size, ranks, length) = (bench.rank(), bench.size(), &bench.ranks, 9 * bench.chunk);
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut spread = plain(bench, &elements::<u8>(0, if rank == 0 { 1 } else { 2 }, length))?;
    let (sent, mut came) = (plain(bench, &elements::<u8>(rank, 3, length))?, plain(bench, &vec![0; length])?);
    let mut part = elements::<u64>(rank, 4, length);
    let mut got = vec![0; length];
    let (mut chain, source) = (spread.settle_mut().map_err(text)?, sent.settle().map_err(text)?);
    let mut target = came.settle_mut().map_err(text)?;
    scope(|scope| {
        let receive = ranks.immediate_receive_into(scope, before as i32, 0, &mut target)?;
        let broadcast = ranks.immediate_broadcast_into(scope, 0, &mut chain)?;
        let mut window = ranks.window(&mut part[..])?;
        let mut epoch = window.epoch();
        epoch.get(next as i32, 0, &mut got)?;
        epoch.close()?;
        ranks.immediate_send(scope, next as i32, 0, &source)?.wait()?;
        receive.wait()?;
        broadcast.wait()
    })
    .map_err(text)?;
    same(bench, &got, &elements(next, 4, length), "a get beside others")?;
    let right = came.to_vec().map_err(text)? == elements::<u8>(before, 3, length)
        && spread.to_vec().map_err(text)? == elements::<u8>(0, 1, length);
    bench.check(right, || "a message and a broadcast beside an epoch".to_owned())
}

/// An epoch that is dropped, and one that is leaked with its window: nothing has moved.
fn abandoned(bench: &Bench) -> Result<(), String> {
    let (mine, mut part) = ([1; 5000], vec![2; 5000]);
    let mut window = bench.ranks.window(&mut part[..]).map_err(text)?;
    let mut dropped = window.epoch();
    dropped.put(0, 0, &mine).map_err(text)?;
    drop(dropped);
    window.epoch().close().map_err(text)?;
    let mut leaked = window.epoch();
    leaked.put(0, 0, &mine).map_err(text)?;
    std::mem::forget(leaked);
    std::mem::forget(window);
    bench.ranks.window(&mut [0u8; 0][..]).map_err(text)?.epoch().close().map_err(text)?;
    same(bench, &part, &[2; 5000], "an epoch that was abandoned")
}

/// Elements and ranks that do not exist; and memory of the device at one rank alone.
fn refused(bench: &Bench) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size() as i32);
    let mut part = vec![7u64; 100];
    let mut window = bench.ranks.window(&mut part[..]).map_err(text)?;
    let mine = [8; 60];
    let mut epoch = window.epoch();
    for at in [41, usize::MAX, usize::MAX - 59] {
        let beyond = epoch.put(size - 1, at, &mine);
        bench.check(matches!(beyond, Err(Error::Range { count: 60, elements: 100, .. })), || {
            format!("{beyond:?}")
        })?;
    }
    for target in [-1, size] {
        let nobody = epoch.put(target, 0, &mine);
        bench.check(matches!(nobody, Err(Error::NoSuchRank { .. })), || format!("{nobody:?}"))?;
    }
    epoch.close().map_err(text)?;
    drop(window);
    same(bench, &part, &[7; 100], "puts that were refused")?;
    if size == 1 {
        return Ok(());
    }
    let mut buffer = plain(bench, &[0u64; 10])?;
    let mixed = match rank {
        0 => bench.ranks.window(buffer.settle_mut().map_err(text)?).map(drop),
        _ => bench.ranks.window(&mut part[..]).map(drop),
    };
    bench
        .check(matches!(mixed, Err(Error::Unsupported { .. })), || format!("memory of both kinds: {mixed:?}"))
}
