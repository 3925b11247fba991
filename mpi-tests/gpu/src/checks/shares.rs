//! Gather, scatter, allgather and alltoall, in both forms.

use super::{FORMS, Form, lengths};
use crate::bench::{Bench, MARGIN, text};
use pinyard_mpi::scope;

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    for length in lengths(bench.chunk) {
        for form in FORMS {
            for root in 0..bench.size() {
                gather(bench, form, root, length)?;
                scatter(bench, form, root, length)?;
            }
            all_gather(bench, form, length)?;
            all_to_all(bench, form, length)?;
        }
    }
    Ok(())
}

/// What rank `from` has for rank `to`.
pub(super) fn share(from: usize, to: usize, length: usize) -> impl Iterator<Item = u8> {
    (0..length).map(move |at| (at * 5 + from * 101 + to * 37) as u8)
}

fn gather(bench: &Bench, form: Form, root: usize, length: usize) -> Result<(), String> {
    let size = bench.size();
    let mine = bench.buffer(&share(bench.rank(), root, length).collect::<Vec<_>>())?;
    let mut all = bench.buffer(&vec![0u8; length * size])?;
    let settled = mine.settle().map_err(text)?;
    let mut target = all.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + length * size);
    let given = if bench.rank() == root { Some(&mut target) } else { None };
    let (ranks, from) = (&bench.ranks, settled.slice(MARGIN..MARGIN + length));
    match form {
        Form::Blocking => ranks.gather_into(root as i32, &from, given),
        Form::Immediate => {
            scope(|scope| ranks.immediate_gather_into(scope, root as i32, &from, given)?.wait())
        }
    }
    .map_err(text)?;
    let expected: Vec<u8> = if bench.rank() == root {
        (0..size).flat_map(|from| share(from, root, length)).collect()
    } else {
        vec![0; length * size]
    };
    bench.holds(&all, &expected, || format!("{form:?} gather of {length} at {root}"))
}

fn scatter(bench: &Bench, form: Form, root: usize, length: usize) -> Result<(), String> {
    let size = bench.size();
    let all: Vec<u8> = (0..size).flat_map(|to| share(root, to, length)).collect();
    let all = bench.buffer(&all)?;
    let mut mine = bench.buffer(&vec![0u8; length])?;
    let settled = all.settle().map_err(text)?;
    let settled = settled.slice(MARGIN..MARGIN + length * size);
    let mut target = mine.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + length);
    let given = (bench.rank() == root).then_some(&settled);
    let ranks = &bench.ranks;
    match form {
        Form::Blocking => ranks.scatter_into(root as i32, given, &mut target),
        Form::Immediate => {
            scope(|scope| ranks.immediate_scatter_into(scope, root as i32, given, &mut target)?.wait())
        }
    }
    .map_err(text)?;
    let expected: Vec<u8> = share(root, bench.rank(), length).collect();
    bench.holds(&mine, &expected, || format!("{form:?} scatter of {length} from {root}"))
}

fn all_gather(bench: &Bench, form: Form, length: usize) -> Result<(), String> {
    let size = bench.size();
    let mine = bench.buffer(&share(bench.rank(), 0, length).collect::<Vec<_>>())?;
    let mut all = bench.buffer(&vec![0u8; length * size])?;
    let settled = mine.settle().map_err(text)?;
    let mut target = all.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + length * size);
    let (ranks, from) = (&bench.ranks, settled.slice(MARGIN..MARGIN + length));
    match form {
        Form::Blocking => ranks.all_gather_into(&from, &mut target),
        Form::Immediate => scope(|scope| ranks.immediate_all_gather_into(scope, &from, &mut target)?.wait()),
    }
    .map_err(text)?;
    let expected: Vec<u8> = (0..size).flat_map(|from| share(from, 0, length)).collect();
    bench.holds(&all, &expected, || format!("{form:?} allgather of {length}"))
}

pub(super) fn all_to_all(bench: &Bench, form: Form, length: usize) -> Result<(), String> {
    let (size, rank) = (bench.size(), bench.rank());
    let mine = bench.buffer(&(0..size).flat_map(|to| share(rank, to, length)).collect::<Vec<_>>())?;
    let mut theirs = bench.buffer(&vec![0u8; length * size])?;
    let settled = mine.settle().map_err(text)?;
    let mut target = theirs.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + length * size);
    let (ranks, from) = (&bench.ranks, settled.slice(MARGIN..MARGIN + length * size));
    match form {
        Form::Blocking => ranks.all_to_all_into(&from, &mut target),
        Form::Immediate => scope(|scope| ranks.immediate_all_to_all_into(scope, &from, &mut target)?.wait()),
    }
    .map_err(text)?;
    let expected: Vec<u8> = (0..size).flat_map(|from| share(from, rank, length)).collect();
    bench.holds(&theirs, &expected, || format!("{form:?} alltoall of {length}"))
}
