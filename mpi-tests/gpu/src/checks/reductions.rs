//! Allreduce and Reduce of every type and operation, beside what the host computes.

use super::lengths;
use crate::bench::{Bench, Element, MARGIN, text};
use pinyard_mpi::Reduction;

const ALL: [Reduction; 3] = [Reduction::Sum, Reduction::Min, Reduction::Max];

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    for length in lengths(bench.chunk) {
        everywhere::<u32>(bench, length / 4, Reduction::Sum)?;
        in_place::<f64>(bench, length / 8, Reduction::Sum)?;
        at_root::<i16>(bench, length % bench.size(), length / 2, Reduction::Max)?;
    }
    for reduction in ALL {
        for root in 0..bench.size() {
            at_root::<f32>(bench, root, bench.chunk, reduction)?;
        }
        of_every_type(bench, reduction)?;
    }
    Ok(())
}

fn of_every_type(bench: &Bench, reduction: Reduction) -> Result<(), String> {
    let length = bench.chunk + 3;
    // Sums of bytes of four ranks stay below 128: elements are below 32.
    everywhere::<i8>(bench, length, reduction)?;
    everywhere::<u8>(bench, length, reduction)?;
    everywhere::<i16>(bench, length, reduction)?;
    everywhere::<u16>(bench, length, reduction)?;
    everywhere::<i32>(bench, length, reduction)?;
    everywhere::<u64>(bench, length, reduction)?;
    everywhere::<i64>(bench, length, reduction)?;
    everywhere::<f32>(bench, length, reduction)?;
    everywhere::<f64>(bench, length, reduction)
}

fn elements<T: Element>(rank: usize, length: usize) -> Vec<T> {
    (0..length).map(|at| T::of(at + 997 * rank)).collect()
}

fn expected<T: Element>(bench: &Bench, length: usize, reduction: Reduction) -> Vec<T> {
    let at = |at: usize| T::folded(reduction, (0..bench.size()).map(|rank| T::of(at + 997 * rank)));
    (0..length).map(at).collect()
}

fn everywhere<T: Element>(bench: &Bench, length: usize, reduction: Reduction) -> Result<(), String> {
    let mine = bench.buffer(&elements::<T>(bench.rank(), length))?;
    let mut all = bench.buffer(&vec![T::of(5); length])?;
    let settled = mine.settle().map_err(text)?;
    let mut target = all.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + length);
    bench
        .ranks
        .all_reduce_into(&settled.slice(MARGIN..MARGIN + length), &mut target, reduction)
        .map_err(text)?;
    let name = std::any::type_name::<T>();
    bench.holds(&all, &expected::<T>(bench, length, reduction), || {
        format!("{reduction:?} of {length} {name}")
    })?;
    bench.holds(&mine, &elements::<T>(bench.rank(), length), || "what was reduced".to_owned())
}

fn in_place<T: Element>(bench: &Bench, length: usize, reduction: Reduction) -> Result<(), String> {
    let mut buffer = bench.buffer(&elements::<T>(bench.rank(), length))?;
    let mut settled = buffer.settle_mut().map_err(text)?;
    bench
        .ranks
        .all_reduce_in_place(&mut settled.slice_mut(MARGIN..MARGIN + length), reduction)
        .map_err(text)?;
    bench.holds(&buffer, &expected::<T>(bench, length, reduction), || format!("in place, of {length}"))
}

fn at_root<T: Element>(
    bench: &Bench,
    root: usize,
    length: usize,
    reduction: Reduction,
) -> Result<(), String> {
    let mine = bench.buffer(&elements::<T>(bench.rank(), length))?;
    let before = vec![T::of(5); length];
    let mut all = bench.buffer(&before)?;
    let settled = mine.settle().map_err(text)?;
    let mut target = all.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + length);
    let given = if bench.rank() == root { Some(&mut target) } else { None };
    let from = settled.slice(MARGIN..MARGIN + length);
    bench.ranks.reduce_into(root as i32, &from, given, reduction).map_err(text)?;
    let result = if bench.rank() == root { expected::<T>(bench, length, reduction) } else { before };
    bench.holds(&all, &result, || format!("{reduction:?} of {length} at root {root}"))
}
