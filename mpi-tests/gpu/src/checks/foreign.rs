//! Memory without a handle, which no other rank can open, at some of the ranks or at all:
//! what cudarc allocates, and what a C program brings.
#![allow(unsafe_code)] // names memory of its own buffers as a stranger's

use super::{Form, bcast};
use crate::bench::{Bench, Element, MARGIN, text};
use pinyard_driver::DevicePtr;
use pinyard_mpi::{DeviceBuf, Reduction, Settled, SettledMut};

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    let size = bench.size();
    // Each rank alone, every second one, all but the first, and all.
    let mut whose: Vec<Vec<bool>> =
        (0..size).map(|one| (0..size).map(|rank| rank == one).collect()).collect();
    whose.push((0..size).map(|rank| rank % 2 == 1).collect());
    whose.push((0..size).map(|rank| rank != 0).collect());
    whose.push(vec![true; size]);
    for strange in whose {
        // Within a message, by one copy, and along a chain.
        for length in [100, 2 * bench.chunk + 3, 40 * bench.chunk + 5] {
            for root in 0..size {
                broadcast(bench, Form::Blocking, &strange, root, length)?;
            }
            for root in [0, size - 1].into_iter().filter(|_| length > 100) {
                broadcast(bench, Form::Immediate, &strange, root, length)?;
            }
            sums(bench, &strange, length / 4)?;
            messages(bench, &strange, length)?;
        }
    }
    Ok(())
}

/// Where a buffer's middle begins.
fn middle<T: Element>(buffer: &DeviceBuf<T>) -> DevicePtr {
    DevicePtr(buffer.ptr().0 + (MARGIN * size_of::<T>()) as u64)
}

fn broadcast(bench: &Bench, form: Form, strange: &[bool], root: usize, length: usize) -> Result<(), String> {
    let theirs: Vec<u8> = (0..length).map(|at| u8::of(at + 1000 * root)).collect();
    let mine: Vec<u8> = (0..length).map(|at| u8::of(at + 13)).collect();
    let mut buffer = bench.buffer(if bench.rank() == root { &theirs } else { &mine })?;
    let at = middle(&buffer);
    let mut settled = buffer.settle_mut().map_err(text)?;
    let mut into = settled.slice_mut(MARGIN..MARGIN + length);
    if strange[bench.rank()] {
        // SAFETY: settled, and borrowed mutably until after the broadcast.
        into = unsafe { SettledMut::from_raw(&bench.gpu, at, length) };
    }
    bcast(bench, form, root, &mut into).map_err(text)?;
    bench.holds(&buffer, &theirs, || {
        format!("{form:?} bcast of {length} from {root}, without handles {strange:?}")
    })
}

fn sums(bench: &Bench, strange: &[bool], length: usize) -> Result<(), String> {
    let of = |rank: usize| (0..length).map(move |at| i32::of(at + 77 * rank));
    let expected: Vec<i32> = (0..length)
        .map(|at| i32::folded(Reduction::Sum, (0..bench.size()).map(|rank| i32::of(at + 77 * rank))))
        .collect();
    let mine: DeviceBuf<i32> = bench.buffer(&of(bench.rank()).collect::<Vec<_>>())?;
    let mut all = bench.buffer(&vec![0; length])?;
    let (at_mine, at_all) = (middle(&mine), middle(&all));
    let (sent, mut settled) = (mine.settle().map_err(text)?, all.settle_mut().map_err(text)?);
    let mut from = sent.slice(MARGIN..MARGIN + length);
    let mut into = settled.slice_mut(MARGIN..MARGIN + length);
    if strange[bench.rank()] {
        // SAFETY: both settled, and borrowed until after the operation.
        from = unsafe { Settled::from_raw(&bench.gpu, at_mine, length) };
        // SAFETY: likewise, mutably.
        into = unsafe { SettledMut::from_raw(&bench.gpu, at_all, length) };
    }
    bench.ranks.all_reduce_into(&from, &mut into, Reduction::Sum).map_err(text)?;
    bench.holds(&all, &expected, || format!("sum of {length}, without handles {strange:?}"))
}

/// To the next rank, and from the one before.
fn messages(bench: &Bench, strange: &[bool], length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let of = |rank: usize| (0..length).map(|at| u8::of(at + 31 * rank)).collect::<Vec<_>>();
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let mine = bench.buffer(&of(rank))?;
    let mut theirs = bench.buffer(&vec![0u8; length])?;
    let (at_mine, at_theirs) = (middle(&mine), middle(&theirs));
    let (sent, mut settled) = (mine.settle().map_err(text)?, theirs.settle_mut().map_err(text)?);
    let mut from = sent.slice(MARGIN..MARGIN + length);
    let mut into = settled.slice_mut(MARGIN..MARGIN + length);
    if strange[bench.rank()] {
        // SAFETY: both settled, and borrowed until after the operation.
        from = unsafe { Settled::from_raw(&bench.gpu, at_mine, length) };
        // SAFETY: likewise, mutably.
        into = unsafe { SettledMut::from_raw(&bench.gpu, at_theirs, length) };
    }
    bench.ranks.exchange(next as i32, &from, before as i32, &mut into, 5).map_err(text)?;
    bench.holds(&theirs, &of(before), || format!("exchange of {length}, without handles {strange:?}"))
}
