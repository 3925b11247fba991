//! Gatherv, scatterv, allgatherv and alltoallv: parts of other lengths at every rank, in
//! other places than their order, with gaps that stay as they are, in both forms.

use super::{FORMS, Form, lengths};
use crate::bench::{Bench, Element, MARGIN, text};
use pinyard_mpi::{Error, Failure, Partition, Settled, SettledMut, scope};

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    for form in FORMS {
        for length in lengths(bench.chunk) {
            for root in 0..bench.size() {
                gather::<u8>(bench, form, root, length)?;
                scatter::<u8>(bench, form, root, length)?;
            }
            all_gather::<u8>(bench, form, length)?;
            all_to_all::<u8>(bench, form, length)?;
        }
        gather::<f64>(bench, form, 0, bench.chunk)?;
        all_gather::<u32>(bench, form, bench.chunk + 1)?;
        all_to_all::<i16>(bench, form, 2 * bench.chunk + 1)?;
        wrong_parts(bench, form)?;
        no_parts(bench, form)?;
        if bench.size() > 1 {
            wrong_counts(bench, form)?;
        }
        all_to_all::<u8>(bench, form, 100)?;
    }
    Ok(())
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

pub(super) fn elements<T: Element>(from: usize, to: usize, length: usize) -> Vec<T> {
    (0..count(from, to, length)).map(|at| T::of(at + 101 * from + 37 * to)).collect()
}

/// The parts of `counts` from the last rank's to the first's, two elements between them,
/// and the elements of such a buffer.
pub(super) fn backwards(counts: &[usize]) -> (Partition, usize) {
    let mut places = vec![0; counts.len()];
    let mut end = 0;
    for (rank, &count) in counts.iter().enumerate().rev() {
        places[rank] = end;
        end += count + 2;
    }
    (Partition::new(counts.iter().copied(), places).unwrap_or_else(|| Partition::packed([])), end)
}

/// A buffer with `parts` where the partition says, and elements that tell of gaps.
pub(super) fn filled<T: Element>(partition: &Partition, elements: usize, parts: &[Vec<T>]) -> Vec<T> {
    let mut all = vec![T::of(9); elements];
    for (place, part) in partition.parts().zip(parts) {
        all[place].copy_from_slice(part);
    }
    all
}

fn gather<T: Element>(bench: &Bench, form: Form, root: usize, length: usize) -> Result<(), String> {
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
    match form {
        Form::Blocking => bench.ranks.gather_varcount_into(root as i32, &from, given),
        Form::Immediate => scope(|scope| {
            bench.ranks.immediate_gather_varcount_into(scope, root as i32, &from, given)?.wait()
        }),
    }
    .map_err(text)?;
    let expected = if rank == root { filled(&partition, total, &parts) } else { vec![T::of(9); total] };
    bench.holds(&all, &expected, || format!("{form:?} gatherv of about {length} at {root}"))
}

fn scatter<T: Element>(bench: &Bench, form: Form, root: usize, length: usize) -> Result<(), String> {
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
    match form {
        Form::Blocking => bench.ranks.scatter_varcount_into(root as i32, given, &mut target),
        Form::Immediate => scope(|scope| {
            bench.ranks.immediate_scatter_varcount_into(scope, root as i32, given, &mut target)?.wait()
        }),
    }
    .map_err(text)?;
    bench.holds(&mine, &own, || format!("{form:?} scatterv of about {length} from {root}"))
}

fn all_gather<T: Element>(bench: &Bench, form: Form, length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let parts: Vec<Vec<T>> = (0..size).map(|from| elements(from, 1, length)).collect();
    let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
    let (partition, total) = backwards(&counts);
    let (mine, mut all) = (bench.buffer(&parts[rank])?, bench.buffer(&vec![T::of(9); total])?);
    let settled = mine.settle().map_err(text)?;
    let mut target = all.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + total);
    let from = settled.slice(MARGIN..MARGIN + parts[rank].len());
    all_gathered(bench, form, &from, &mut target, &partition).map_err(text)?;
    bench.holds(&all, &filled(&partition, total, &parts), || format!("{form:?} allgatherv of about {length}"))
}

fn all_to_all<T: Element>(bench: &Bench, form: Form, length: usize) -> Result<(), String> {
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
    exchanged(bench, form, (&settled, &sent), (&mut target, &received)).map_err(text)?;
    bench
        .holds(&theirs, &filled(&received, total, &parts), || format!("{form:?} alltoallv of about {length}"))
}

fn all_gathered<T: Element>(
    bench: &Bench,
    form: Form,
    from: &Settled<'_, T>,
    to: &mut SettledMut<'_, T>,
    parts: &Partition,
) -> Result<(), Error> {
    let ranks = &bench.ranks;
    match form {
        Form::Blocking => ranks.all_gather_varcount_into(from, to, parts),
        Form::Immediate => {
            scope(|scope| ranks.immediate_all_gather_varcount_into(scope, from, to, parts)?.wait())
        }
    }
}

fn exchanged<T: Element>(
    bench: &Bench,
    form: Form,
    (from, sent): (&Settled<'_, T>, &Partition),
    (to, received): (&mut SettledMut<'_, T>, &Partition),
) -> Result<(), Error> {
    let ranks = &bench.ranks;
    match form {
        Form::Blocking => ranks.all_to_all_varcount_into(from, sent, to, received),
        Form::Immediate => {
            scope(|scope| ranks.immediate_all_to_all_varcount_into(scope, from, sent, to, received)?.wait())
        }
    }
}

/// Lists that do not fit at the last rank: it has the cause, the others its rank.
fn wrong_parts(bench: &Bench, form: Form) -> Result<(), String> {
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
        let result = all_gathered(bench, form, &from, &mut target, parts);
        let named = if bench.rank() == last {
            matches!(&result, Err(Error::Partition { rank, text, .. }) if *rank == last as i32 && text.contains(words))
        } else {
            matches!(&result, Err(Error::Peer { rank, what: Failure::Length, .. }) if *rank == last as i32)
        };
        bench.check(named, || format!("{form:?} allgatherv with parts of which one {words}: {result:?}"))?;
    }
    Ok(())
}

/// A root that gives no buffer has the cause, the others its rank.
fn no_parts(bench: &Bench, form: Form) -> Result<(), String> {
    let (ranks, last) = (&bench.ranks, bench.size() - 1);
    let (mine, mut one) = (bench.buffer(&[1u8; 20])?, bench.buffer(&[0u8; 20])?);
    let (from, mut to) = (mine.settle().map_err(text)?, one.settle_mut().map_err(text)?);
    let (nowhere, nothing) =
        (None::<(&mut SettledMut<'_, u8>, &Partition)>, None::<(&Settled<'_, u8>, &Partition)>);
    let root = last as i32;
    let results = match form {
        Form::Blocking => [
            ranks.gather_varcount_into(root, &from, nowhere),
            ranks.scatter_varcount_into(root, nothing, &mut to),
        ],
        Form::Immediate => [
            scope(|scope| ranks.immediate_gather_varcount_into(scope, root, &from, nowhere)?.wait()),
            scope(|scope| ranks.immediate_scatter_varcount_into(scope, root, nothing, &mut to)?.wait()),
        ],
    };
    for result in results {
        let named = if bench.rank() == last {
            matches!(&result, Err(Error::Partition { text, .. }) if text.contains("no buffer"))
        } else {
            matches!(&result, Err(Error::Peer { rank, what: Failure::Length, .. }) if *rank == root)
        };
        bench.check(named, || {
            format!("{form:?} gatherv or scatterv without a buffer at the root: {result:?}")
        })?;
    }
    Ok(())
}

/// The last rank has one element more for the first than that expects.
fn wrong_counts(bench: &Bench, form: Form) -> Result<(), String> {
    let (rank, size, last) = (bench.rank(), bench.size(), bench.size() - 1);
    for length in [20, 2 * bench.chunk] {
        let sent = Partition::packed((0..size).map(|to| length + usize::from(rank == last && to == 0)));
        let received = Partition::packed(vec![length; size]);
        let mine = bench.buffer(&vec![1u8; length * size + 1])?;
        let mut theirs = bench.buffer(&vec![0u8; length * size])?;
        let mut target = theirs.settle_mut().map_err(text)?;
        let from = mine.settle().map_err(text)?;
        let result = exchanged(bench, form, (&from, &sent), (&mut target, &received));
        let named = if rank == 0 {
            matches!(&result, Err(Error::Counts { rank: 0, bytes, other, other_bytes, .. })
                if *bytes == length as u64 && *other == last as i32 && *other_bytes == length as u64 + 1)
        } else {
            matches!(&result, Err(Error::Peer { rank: 0, what: Failure::Length, .. }))
        };
        bench.check(named, || format!("{form:?} alltoallv of other counts: {result:?}"))?;
    }
    Ok(())
}
