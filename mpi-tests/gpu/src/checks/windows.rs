//! Windows of device memory: puts and gets of every rank to and from every other, several in an epoch, epoch
//! after epoch, and what is refused.

mod host;

use super::lengths;
use crate::bench::{Bench, Element, MARGIN, text};
use pinyard_mpi::{DeviceBuf, Error, Reduction};

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    for length in lengths(bench.chunk) {
        around::<u8>(bench, length)?;
        everywhere::<u32>(bench, length / 4)?;
    }
    several::<f64>(bench, bench.chunk)?;
    of_own_lengths(bench)?;
    abandoned(bench)?;
    of_different_epochs(bench)?;
    refused(bench)?;
    host::all(bench)
}

fn elements<T: Element>(rank: usize, epoch: usize, length: usize) -> Vec<T> {
    (0..length).map(|at| T::of(at * 7 + 311 * rank + 53 * epoch)).collect()
}

/// Each puts to the next rank and gets from the one before, in turns, within margins that stay
/// as they are.
fn around<T: Element>(bench: &Bench, length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut part = bench.buffer(&vec![T::of(9); length])?;
    let mut window = bench.ranks.window(part.settle_mut().map_err(text)?).map_err(text)?;
    for epoch in 0..2 {
        let mine = bench.buffer(&elements::<T>(rank, epoch, length))?;
        let settled = mine.settle().map_err(text)?;
        let from = settled.slice(MARGIN..MARGIN + length);
        let mut puts = window.epoch();
        puts.put(next as i32, MARGIN, &from).map_err(text)?;
        puts.close().map_err(text)?;
        let mut got = bench.buffer(&vec![T::of(5); length])?;
        let mut target = got.settle_mut().map_err(text)?;
        let mut into = target.slice_mut(MARGIN..MARGIN + length);
        let mut gets = window.epoch();
        gets.get(before as i32, MARGIN, &mut into).map_err(text)?;
        gets.close().map_err(text)?;
        // What the one before has is of the one before that.
        let origin = (before + size - 1) % size;
        bench.holds(&got, &elements::<T>(origin, epoch, length), || format!("get of {length}"))?;
        bench.holds(&mine, &elements::<T>(rank, epoch, length), || "what was put".to_owned())?;
    }
    drop(window);
    bench.holds(&part, &elements::<T>(before, 1, length), || format!("put of {length}"))
}

pub(super) fn plain<T: Element>(bench: &Bench, elements: &[T]) -> Result<DeviceBuf<T>, String> {
    let mut buffer = bench.gpu.alloc(elements.len(), &bench.stream).map_err(text)?;
    buffer.write(elements).map_err(text)?;
    Ok(buffer)
}

/// Each rank has a place in the part of every rank, and puts there; then gets all of the last
/// rank's.
fn everywhere<T: Element>(bench: &Bench, length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let mut part = plain(bench, &vec![T::of(1); size * length])?;
    let mut window = bench.ranks.window(part.settle_mut().map_err(text)?).map_err(text)?;
    let mine = plain(bench, &elements::<T>(rank, 0, length))?;
    let from = mine.settle().map_err(text)?;
    let mut epoch = window.epoch();
    for target in 0..size {
        epoch.put(target as i32, rank * length, &from).map_err(text)?;
    }
    epoch.close().map_err(text)?;
    let mut got = plain(bench, &vec![T::of(2); size * length])?;
    let mut into = got.settle_mut().map_err(text)?;
    let mut epoch = window.epoch();
    epoch.get(size as i32 - 1, 0, &mut into).map_err(text)?;
    epoch.close().map_err(text)?;
    drop(window);
    let expected: Vec<T> = (0..size).flat_map(|rank| elements::<T>(rank, 0, length)).collect();
    let (part, got) = (part.to_vec().map_err(text)?, got.to_vec().map_err(text)?);
    bench.check(part == expected, || format!("puts of {length} to all ranks"))?;
    bench.check(got == expected, || format!("a get of {length} from each"))
}

/// Several puts and gets of one rank to and from another in one epoch, beside each other: half
/// of its part changes, the quarters that are got do not.
fn several<T: Element>(bench: &Bench, length: usize) -> Result<(), String> {
    let (rank, size, quarter) = (bench.rank(), bench.size(), length / 4);
    let target = (rank + 1) % size;
    let before = elements::<T>(rank, 0, 4 * quarter);
    let mut part = plain(bench, &before)?;
    let mut window = bench.ranks.window(part.settle_mut().map_err(text)?).map_err(text)?;
    let (first, second) = (elements::<T>(rank, 1, quarter), elements::<T>(rank, 2, quarter));
    let (one, two) = (plain(bench, &first)?, plain(bench, &second)?);
    let (one, two) = (one.settle().map_err(text)?, two.settle().map_err(text)?);
    let mut got = plain(bench, &vec![T::of(0); 2 * quarter])?;
    let mut settled = got.settle_mut().map_err(text)?;
    let (mut low, mut high) = settled.split_at_mut(quarter);
    let mut epoch = window.epoch();
    epoch.put(target as i32, quarter, &two).map_err(text)?;
    epoch.get(target as i32, 3 * quarter, &mut high).map_err(text)?;
    epoch.put(target as i32, 0, &one).map_err(text)?;
    epoch.get(target as i32, 2 * quarter, &mut low).map_err(text)?;
    epoch.close().map_err(text)?;
    drop(window);
    let origin = (rank + size - 1) % size;
    let mut expected = elements::<T>(origin, 1, quarter);
    expected.extend(elements::<T>(origin, 2, quarter));
    expected.extend_from_slice(&before[2 * quarter..]);
    let theirs = elements::<T>(target, 0, 4 * quarter);
    let (part, got) = (part.to_vec().map_err(text)?, got.to_vec().map_err(text)?);
    bench.check(part == expected, || "several puts in an epoch".to_owned())?;
    bench.check(got == theirs[2 * quarter..], || "several gets in an epoch".to_owned())
}

/// Parts of other lengths, none at rank 0, and an epoch in which one rank alone does anything.
fn of_own_lengths(bench: &Bench) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let length = |rank: usize| 1000 * rank;
    let mut part = plain(bench, &vec![3u16; length(rank)])?;
    let mut window = bench.ranks.window(part.settle_mut().map_err(text)?).map_err(text)?;
    for other in 0..size {
        let told = window.len_of(other as i32);
        bench.check(told == length(other), || format!("rank {other} has {told} elements"))?;
    }
    let mine = plain(bench, &elements::<u16>(rank, 4, length(size - 1)))?;
    let from = mine.settle().map_err(text)?;
    let parts: Vec<_> = (0..size).map(|target| from.slice(..length(target))).collect();
    let mut epoch = window.epoch();
    if rank == size - 1 {
        for (target, part) in parts.iter().enumerate() {
            epoch.put(target as i32, 0, part).map_err(text)?;
        }
    }
    epoch.close().map_err(text)?;
    bench.check(window.local().len() == length(rank), || "this rank's own part".to_owned())?;
    drop(window);
    let expected = &elements::<u16>(size - 1, 4, length(size - 1))[..length(rank)];
    bench.check(part.to_vec().map_err(text)? == expected, || "parts of other lengths".to_owned())
}

/// An epoch and its window that are leaked at every rank: nothing has moved, and nothing does.
fn abandoned(bench: &Bench) -> Result<(), String> {
    let mine = plain(bench, &[1u32; 5000])?;
    let mut part = plain(bench, &[2u32; 5000])?;
    let from = mine.settle().map_err(text)?;
    let mut window = bench.ranks.window(part.settle_mut().map_err(text)?).map_err(text)?;
    let mut epoch = window.epoch();
    epoch.put(0, 0, &from).map_err(text)?;
    std::mem::forget(epoch);
    std::mem::forget(window);
    let mut empty = plain::<u32>(bench, &[])?;
    let mut window = bench.ranks.window(empty.settle_mut().map_err(text)?).map_err(text)?;
    window.epoch().close().map_err(text)?;
    bench.check(part.to_vec().map_err(text)? == [2; 5000], || "an epoch that was leaked".to_owned())
}

/// Ranks that close different epochs, of one window or of two, or of which one is elsewhere: all are
/// told, nothing has moved, and they go on.
fn of_different_epochs(bench: &Bench) -> Result<(), String> {
    if bench.size() == 1 {
        return Ok(());
    }
    let (ranks, differs) = (&bench.ranks, bench.rank() == 1);
    let told = |result: Result<(), Error>, words: &str| {
        let named =
            matches!(&result, Err(Error::Calls { rank: 1, other: 0, text, .. }) if text.contains(words));
        bench.check(named, || format!("{words}: {result:?}"))
    };
    let mine = plain(bench, &[1u32; 3000])?;
    let from = mine.settle().map_err(text)?;
    let (mut one, mut two) = (plain(bench, &[2u32; 3000])?, plain(bench, &[3u32; 3000])?);
    let mut first = ranks.window(one.settle_mut().map_err(text)?).map_err(text)?;
    let mut second = ranks.window(two.settle_mut().map_err(text)?).map_err(text)?;
    let closed = {
        let (mut here, mut there) = (first.epoch(), second.epoch());
        here.put(0, 0, &from).map_err(text)?;
        there.put(0, 0, &from).map_err(text)?;
        if differs { there.close() } else { here.close() }
    };
    told(closed, "rank 1 closes epoch 1 of window ")?;
    // The second of the first window, where others have dropped none.
    if differs {
        drop(first.epoch());
    }
    let mut epoch = first.epoch();
    epoch.put(0, 0, &from).map_err(text)?;
    told(epoch.close(), "rank 1 closes epoch 3 of window ")?;
    let mut epoch = second.epoch();
    epoch.put(0, 0, &from).map_err(text)?;
    let mut words = plain(bench, &[bench.rank() as u32])?;
    let mut settled = words.settle_mut().map_err(text)?;
    let reduced = |settled| ranks.all_reduce_in_place(settled, Reduction::Max);
    told(if differs { reduced(&mut settled) } else { epoch.close() }, "rank 1 calls something else")?;
    second.epoch().close().map_err(text)?;
    drop((first, second));
    let parts = one.to_vec().map_err(text)? == [2; 3000] && two.to_vec().map_err(text)? == [3; 3000];
    bench.check(parts, || "an epoch that not all have closed".to_owned())
}

/// Nothing of what is refused is noted, and the epoch goes on.
fn refused(bench: &Bench) -> Result<(), String> {
    let (rank, size) = (bench.rank() as i32, bench.size() as i32);
    let mut part = plain(bench, &[7u32; 100])?;
    let mut window = bench.ranks.window(part.settle_mut().map_err(text)?).map_err(text)?;
    let mine = plain(bench, &[8u32; 60])?;
    let from = mine.settle().map_err(text)?;
    let mut epoch = window.epoch();
    let beyond = epoch.put(size - 1, 41, &from).map_err(text);
    let told = format!("rank {rank}: 60 elements from element 41 on are not in rank {}'s part", size - 1);
    bench.check(beyond.as_ref().is_err_and(|text| text.starts_with(&told)), || format!("{beyond:?}"))?;
    for at in [usize::MAX, usize::MAX - 59] {
        let wrapped = epoch.put(0, at, &from);
        bench.check(matches!(wrapped, Err(Error::Range { .. })), || format!("{wrapped:?}"))?;
    }
    for target in [-1, size] {
        let nobody = epoch.put(target, 0, &from);
        bench.check(matches!(nobody, Err(Error::NoSuchRank { .. })), || format!("{nobody:?}"))?;
    }
    epoch.close().map_err(text)?;
    drop(window);
    bench.check(part.to_vec().map_err(text)? == [7; 100], || "puts that were refused".to_owned())
}
