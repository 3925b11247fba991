//! Gatherv, scatterv, allgatherv and alltoallv: parts of other lengths at every rank, in
//! other places than their order, with gaps that stay as they are.

use super::lengths;
use crate::bench::{Bench, Element, MARGIN, text};
use pinyard_mpi::{Error, Failure, Partition};

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    for length in lengths(bench.chunk) {
        for root in 0..bench.size() {
            gather::<u8>(bench, root, length)?;
            scatter::<u8>(bench, root, length)?;
        }
        all_gather::<u8>(bench, length)?;
        all_to_all::<u8>(bench, length)?;
    }
    gather::<f64>(bench, 0, bench.chunk)?;
    all_gather::<u32>(bench, bench.chunk + 1)?;
    all_to_all::<i16>(bench, 2 * bench.chunk + 1)?;
    wrong_parts(bench)?;
    if bench.size() > 1 {
        wrong_counts(bench)?;
    }
    all_to_all::<u8>(bench, 100)
}

/// Elements that rank `from` has for rank `to`: for some none.
fn count(from: usize, to: usize, length: usize) -> usize {
    match (from + 2 * to) % 4 {
        0 => length,
        1 => length / 3,
        2 => 0,
        _ => length + 7,
    }
}

fn elements<T: Element>(from: usize, to: usize, length: usize) -> Vec<T> {
    (0..count(from, to, length)).map(|at| T::of(at + 101 * from + 37 * to)).collect()
}

/// The parts of `counts` from the last rank's to the first's, two elements between them,
/// and the elements of such a buffer.
fn backwards(counts: &[usize]) -> (Partition, usize) {
    let mut places = vec![0; counts.len()];
    let mut end = 0;
    for (rank, &count) in counts.iter().enumerate().rev() {
        places[rank] = end;
        end += count + 2;
    }
    (Partition::new(counts.iter().copied(), places).unwrap_or_else(|| Partition::packed([])), end)
}

/// A buffer with `parts` where the partition says, and elements that tell of gaps.
fn filled<T: Element>(partition: &Partition, elements: usize, parts: &[Vec<T>]) -> Vec<T> {
    let mut all = vec![T::of(9); elements];
    for (place, part) in partition.parts().zip(parts) {
        all[place].copy_from_slice(part);
    }
    all
}

fn gather<T: Element>(bench: &Bench, root: usize, length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let own = elements::<T>(rank, root, length);
    let parts: Vec<Vec<T>> = (0..size).map(|from| elements(from, root, length)).collect();
    let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
    let (partition, total) = backwards(&counts);
    let (mine, mut all) = (bench.buffer(&own)?, bench.buffer(&vec![T::of(9); total])?);
    let settled = mine.settle().map_err(text)?;
    let mut target = all.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + total);
    let given = (rank == root).then_some((&mut target, &partition));
    let from = settled.slice(MARGIN..MARGIN + own.len());
    bench.ranks.gather_varcount_into(root as i32, &from, given).map_err(text)?;
    let expected = if rank == root { filled(&partition, total, &parts) } else { vec![T::of(9); total] };
    bench.holds(&all, &expected, || format!("gatherv of about {length} at {root}"))
}

fn scatter<T: Element>(bench: &Bench, root: usize, length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let parts: Vec<Vec<T>> = (0..size).map(|to| elements(root, to, length)).collect();
    let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
    let (partition, total) = backwards(&counts);
    let all = bench.buffer(&filled(&partition, total, &parts))?;
    let own = elements::<T>(root, rank, length);
    let mut mine = bench.buffer(&vec![T::of(3); own.len()])?;
    let settled = all.settle().map_err(text)?;
    let settled = settled.slice(MARGIN..MARGIN + total);
    let mut target = mine.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + own.len());
    let given = (rank == root).then_some((&settled, &partition));
    bench.ranks.scatter_varcount_into(root as i32, given, &mut target).map_err(text)?;
    bench.holds(&mine, &own, || format!("scatterv of about {length} from {root}"))
}

fn all_gather<T: Element>(bench: &Bench, length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let parts: Vec<Vec<T>> = (0..size).map(|from| elements(from, 1, length)).collect();
    let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
    let (partition, total) = backwards(&counts);
    let (mine, mut all) = (bench.buffer(&parts[rank])?, bench.buffer(&vec![T::of(9); total])?);
    let settled = mine.settle().map_err(text)?;
    let mut target = all.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + total);
    let from = settled.slice(MARGIN..MARGIN + parts[rank].len());
    bench.ranks.all_gather_varcount_into(&from, &mut target, &partition).map_err(text)?;
    bench.holds(&all, &filled(&partition, total, &parts), || format!("allgatherv of about {length}"))
}

fn all_to_all<T: Element>(bench: &Bench, length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let sends: Vec<Vec<T>> = (0..size).map(|to| elements(rank, to, length)).collect();
    let parts: Vec<Vec<T>> = (0..size).map(|from| elements(from, rank, length)).collect();
    let sent = Partition::packed(sends.iter().map(Vec::len));
    let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
    let (received, total) = backwards(&counts);
    let all = sends.concat();
    let (mine, mut theirs) = (bench.buffer(&all)?, bench.buffer(&vec![T::of(9); total])?);
    let settled = mine.settle().map_err(text)?;
    let settled = settled.slice(MARGIN..MARGIN + all.len());
    let mut target = theirs.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + total);
    bench.ranks.all_to_all_varcount_into(&settled, &sent, &mut target, &received).map_err(text)?;
    bench.holds(&theirs, &filled(&received, total, &parts), || format!("alltoallv of about {length}"))
}

/// Lists that do not fit at the last rank: it has the cause, the others its rank.
fn wrong_parts(bench: &Bench) -> Result<(), String> {
    let (size, last) = (bench.size(), bench.size() - 1);
    let good = Partition::packed(vec![8; size]);
    let short = Partition::packed(vec![8; size + 1]);
    let beyond = Partition::packed((0..size).map(|rank| 8 + usize::from(rank == size - 1)));
    let mut cases = vec![(short, "parts for"), (beyond, "ends beyond")];
    if size > 1 {
        let overlapping = Partition::new(vec![8; size], (0..size).map(|rank| rank.saturating_sub(1) * 8));
        cases.push((overlapping.ok_or("no such partition")?, "overlap"));
    }
    for (partition, words) in cases {
        let mine = bench.buffer(&[1u8; 2])?;
        let mut all = bench.buffer(&vec![0u8; 8 * size - 2 * MARGIN])?;
        let mut target = all.settle_mut().map_err(text)?;
        let parts = if bench.rank() == last { &partition } else { &good };
        let from = mine.settle().map_err(text)?;
        let result = bench.ranks.all_gather_varcount_into(&from, &mut target, parts);
        let named = if bench.rank() == last {
            matches!(&result, Err(Error::Partition { rank, text, .. }) if *rank == last as i32 && text.contains(words))
        } else {
            matches!(&result, Err(Error::Peer { rank, what: Failure::Length, .. }) if *rank == last as i32)
        };
        bench.check(named, || format!("an allgatherv with parts of which one {words}: {result:?}"))?;
    }
    Ok(())
}

/// The last rank has one element more for the first than that expects.
fn wrong_counts(bench: &Bench) -> Result<(), String> {
    let (rank, size, last) = (bench.rank(), bench.size(), bench.size() - 1);
    for length in [20, 2 * bench.chunk] {
        let sent = Partition::packed((0..size).map(|to| length + usize::from(rank == last && to == 0)));
        let received = Partition::packed(vec![length; size]);
        let mine = bench.buffer(&vec![1u8; length * size + 1])?;
        let mut theirs = bench.buffer(&vec![0u8; length * size])?;
        let mut target = theirs.settle_mut().map_err(text)?;
        let from = mine.settle().map_err(text)?;
        let result = bench.ranks.all_to_all_varcount_into(&from, &sent, &mut target, &received);
        let named = if rank == 0 {
            matches!(&result, Err(Error::Counts { rank: 0, bytes, other, other_bytes, .. })
                if *bytes == length as u64 && *other == last as i32 && *other_bytes == length as u64 + 1)
        } else {
            matches!(&result, Err(Error::Peer { rank: 0, what: Failure::Length, .. }))
        };
        bench.check(named, || format!("an alltoallv of other counts: {result:?}"))?;
    }
    Ok(())
}
