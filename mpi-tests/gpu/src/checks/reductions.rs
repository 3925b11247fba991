//! Allreduce and Reduce of every type and operation, beside what the host computes.

use super::lengths;
use super::windows::plain;
use crate::bench::{Bench, Element, MARGIN, text};
use half::{bf16, f16};
use pinyard_driver::Call;
use pinyard_mpi::{DeviceBuf, Path, Reduction};

const ALL: [Reduction; 3] = [Reduction::Sum, Reduction::Min, Reduction::Max];

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    for length in lengths(bench.chunk) {
        everywhere::<u32>(bench, length / 4, Reduction::Sum)?;
        in_place::<f64>(bench, length / 8, Reduction::Sum)?;
        everywhere::<bf16>(bench, length / 2, Reduction::Sum)?;
        at_root::<i16>(bench, length % bench.size(), length / 2, Reduction::Max)?;
    }
    for reduction in ALL {
        for root in 0..bench.size() {
            at_root::<f32>(bench, root, bench.chunk, reduction)?;
            at_root::<f16>(bench, root, bench.chunk + 1, reduction)?;
        }
        of_every_type(bench, reduction)?;
    }
    unsigned::<u8>(bench, |number| number as u8)?;
    unsigned::<u16>(bench, |number| (number << 8) as u16)?;
    unsigned::<u32>(bench, |number| (number << 24) as u32)?;
    unsigned::<u64>(bench, |number| number << 56)?;
    // Longer than what every rank reduces by itself.
    everywhere::<u32>(bench, 300_001, Reduction::Sum)?;
    for length in [3 * bench.chunk + 7, 300_001] {
        same_bits(bench, length)?;
    }
    Ok(())
}

/// The least and the greatest of numbers some of which have the highest bit: MPICH 4.0.2 takes them
/// for negative ones.
fn unsigned<T: Element + Ord>(bench: &Bench, of: impl Fn(u64) -> T) -> Result<(), String> {
    let elements = |rank: usize| (0..999).map(move |at| ((at * 89 + rank * 131) % 256) as u64).map(&of);
    for reduction in [Reduction::Min, Reduction::Max] {
        let mut both = plain(bench, &elements(bench.rank()).collect::<Vec<T>>())?;
        bench.ranks.all_reduce_in_place(&mut both.settle_mut().map_err(text)?, reduction).map_err(text)?;
        let mut expected: Vec<T> = elements(0).collect();
        for rank in 1..bench.size() {
            for (joined, element) in expected.iter_mut().zip(elements(rank)) {
                *joined =
                    if reduction == Reduction::Min { element.min(*joined) } else { element.max(*joined) };
            }
        }
        bench.check(both.to_vec().map_err(text)? == expected, || {
            format!("{reduction:?} of unsigned numbers of {} bytes", size_of::<T>())
        })?;
    }
    Ok(())
}

/// Sums whose bits depend on the order of additions: in the order of the ranks where
/// kernels reduce, for every element, in place and not, and the same at every rank.
fn same_bits(bench: &Bench, length: usize) -> Result<(), String> {
    let element = |rank: usize, at: usize| {
        let mixed = (at * 31 + rank * 7919).wrapping_mul(2_654_435_761) >> 4;
        let scale = [1e-3f32, 1.0, 1e4, 3e7][(at + 3 * rank) % 4];
        (mixed as u16 as f32 - 32_768.0) * scale
    };
    let own: Vec<f32> = (0..length).map(|at| element(bench.rank(), at)).collect();
    let ordered = |at: usize| (0..bench.size()).map(|rank| element(rank, at)).reduce(|a, b| a + b);
    let expected: Vec<f32> = (0..length).filter_map(ordered).collect();
    let backwards = |at: usize| (0..bench.size()).rev().map(|rank| element(rank, at)).reduce(|a, b| a + b);
    let orders = (0..length).filter(|&at| ordered(at) != backwards(at)).count();
    bench.check(bench.size() < 3 || orders > length / 100, || format!("{orders} sums tell their order"))?;
    let mine: DeviceBuf<f32> = filled(bench, &own)?;
    let (mut all, mut both) = (filled(bench, &own)?, filled(bench, &own)?);
    let mut target = all.settle_mut().map_err(text)?;
    bench.ranks.all_reduce_into(&mine.settle().map_err(text)?, &mut target, Reduction::Sum).map_err(text)?;
    bench.ranks.all_reduce_in_place(&mut both.settle_mut().map_err(text)?, Reduction::Sum).map_err(text)?;
    let (all, both) = (all.to_vec().map_err(text)?, both.to_vec().map_err(text)?);
    let bits = |sums: &[f32]| sums.iter().map(|sum| sum.to_bits()).collect::<Vec<u32>>();
    if bench.ranks.plan().path == Path::Ipc {
        if let Some(simulated) = &bench.simulated {
            let launched = simulated.calls(Call::Launch);
            bench.check(launched > 0, || "no kernel was launched".to_owned())?;
        }
        bench.check(bits(&all) == bits(&expected), || "sums in another order than the ranks'".to_owned())?;
        bench.check(bits(&both) == bits(&expected), || "sums in place in another order".to_owned())?;
    }
    // In whatever order: what rounding may add up to, where large ones cancel.
    let magnitude = |at: usize| (0..bench.size()).map(|rank| element(rank, at).abs()).sum::<f32>();
    let close = |at: usize, sum: f32| (sum - expected[at]).abs() <= 1e-6 * magnitude(at);
    let near = |sums: &[f32]| sums.iter().enumerate().all(|(at, &sum)| close(at, sum));
    bench.check(near(&all) && near(&both), || "sums are far off".to_owned())
}

fn filled(bench: &Bench, elements: &[f32]) -> Result<DeviceBuf<f32>, String> {
    let mut buffer = bench.gpu.alloc(elements.len(), &bench.stream).map_err(text)?;
    buffer.write(elements).map_err(text)?;
    Ok(buffer)
}

fn of_every_type(bench: &Bench, reduction: Reduction) -> Result<(), String> {
    let length = bench.chunk + 1003;
    // Sums of bytes of four ranks stay below 128: elements are below 32.
    everywhere::<i8>(bench, length, reduction)?;
    everywhere::<u8>(bench, length, reduction)?;
    everywhere::<i16>(bench, length, reduction)?;
    everywhere::<u16>(bench, length, reduction)?;
    everywhere::<i32>(bench, length, reduction)?;
    everywhere::<u64>(bench, length, reduction)?;
    everywhere::<i64>(bench, length, reduction)?;
    everywhere::<f32>(bench, length, reduction)?;
    everywhere::<f64>(bench, length, reduction)?;
    everywhere::<f16>(bench, length, reduction)?;
    in_place::<bf16>(bench, length, reduction)
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
