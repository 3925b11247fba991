//! MPI fails one collective of a rank, where its pieces go through chunks. Of one that it does not start
//! the first time nothing is lost; of one that fails under way the rank has the cause, the others its
//! rank. None is left waiting.

use super::windows::plain;
use super::{FORMS, Form, bcast};
use crate::bench::{Bench, text};
use crate::interposed::{Fails, fail_next, fail_none};
use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::CommunicatorCollectives;
use pinyard_mpi::{Error, Failure, Partition, Path, Reduction, Settled, SettledMut, scope};

/// Longer than what ranks tell each other.
const LEAST: i32 = 3000;
/// Of a share: of one piece, and of two.
const LENGTHS: [usize; 2] = [5000, 70_000];
const ROOT: usize = 1;

/// How it ended, and how many of the elements for `all` came here.
type Ended = (Result<(), Error>, usize);
type Operation = fn(Call) -> Ended;

struct Call<'a, 'b, 'c> {
    bench: &'a Bench,
    form: Form,
    from: &'a Settled<'b, u8>,
    to: &'a mut SettledMut<'c, u8>,
}

const OPERATIONS: [(&str, Operation); 7] = [
    ("a broadcast", broadcast),
    ("a gather", gather),
    ("a scatter", scatter),
    ("an allgather", all_gather),
    ("an alltoall", all_to_all),
    ("an allgather of parts", parts),
    ("an allreduce", all_reduce),
];

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    if bench.size() == 1 || bench.ranks.plan().path == Path::Direct {
        return Ok(());
    }
    let last = bench.size() - 1;
    for form in FORMS {
        for (what, culprit) in [(Fails::Collective, 0), (Fails::Late, 0), (Fails::Late, last)] {
            let mut failures = 0;
            for (name, operation) in OPERATIONS {
                for length in LENGTHS {
                    let failed = refused(bench, form, operation, (what, culprit, length));
                    failures += failed.map_err(|text| {
                        format!("{form:?}: {name} of {length}, {what:?} at rank {culprit}: {text}")
                    })?;
                }
            }
            // All but the first and the last are of every rank.
            let least = if bench.ranks.plan().path == Path::Ipc { 0 } else { 5 * LENGTHS.len() };
            bench.check(failures >= least as u64, || format!("{form:?}: {what:?} {failures} times"))?;
        }
    }
    Ok(())
}

fn refused(
    bench: &Bench,
    form: Form,
    operation: Operation,
    (what, culprit, length): (Fails, usize, usize),
) -> Result<u64, String> {
    let elements = length * bench.size();
    let (from, mut to) = (plain(bench, &vec![7; elements])?, plain(bench, &vec![0; elements])?);
    if bench.rank() == culprit {
        fail_next(what, LEAST, 1);
    }
    let (source, mut target) = (from.settle().map_err(text)?, to.settle_mut().map_err(text)?);
    let (result, received) = operation(Call { bench, form, from: &source, to: &mut target });
    let has_failed = fail_none() && bench.rank() == culprit;
    let mut failures = 0u64;
    SimpleCommunicator::world().all_reduce_into(
        &u64::from(has_failed),
        &mut failures,
        SystemOperation::sum(),
    );
    let is_told = failures > 0 && what == Fails::Late;
    let is_named = match &result {
        Ok(()) => !is_told && to.to_vec().map_err(text)?[..received].iter().all(|&byte| byte != 0),
        Err(Error::Mpi { .. }) => is_told && has_failed,
        Err(Error::Peer { rank, what: Failure::Mpi, .. }) => {
            is_told && !has_failed && *rank == culprit as i32
        }
        Err(_) => false,
    };
    bench.check(is_named, || format!("{result:?}"))?;
    Ok(failures)
}

/// From the root's target, which has what is sent first.
fn broadcast(Call { bench, form, from, to }: Call) -> Ended {
    let length = to.len();
    // To itself, as nothing else copies.
    let filled = match bench.rank() {
        ROOT => bench.ranks.exchange(ROOT as i32, from, ROOT as i32, to, 7).map(drop),
        _ => Ok(()),
    };
    (filled.and_then(|()| bcast(bench, form, ROOT, to)), length)
}

fn gather(Call { bench, form, from, to }: Call) -> Ended {
    let (ranks, mine) = (&bench.ranks, from.slice(..from.len() / bench.size()));
    let is_root = bench.rank() == ROOT;
    let (root, received) = (ROOT as i32, if is_root { to.len() } else { 0 });
    let given = is_root.then_some(to);
    let result = match form {
        Form::Blocking => ranks.gather_into(root, &mine, given),
        Form::Immediate => scope(|scope| ranks.immediate_gather_into(scope, root, &mine, given)?.wait()),
    };
    (result, received)
}

fn scatter(Call { bench, form, from, to }: Call) -> Ended {
    let (ranks, root, length) = (&bench.ranks, ROOT as i32, from.len() / bench.size());
    let (given, mut mine) = ((bench.rank() == ROOT).then_some(from), to.slice_mut(..length));
    let result = match form {
        Form::Blocking => ranks.scatter_into(root, given, &mut mine),
        Form::Immediate => scope(|scope| ranks.immediate_scatter_into(scope, root, given, &mut mine)?.wait()),
    };
    (result, length)
}

fn all_gather(Call { bench, form, from, to }: Call) -> Ended {
    let (ranks, mine) = (&bench.ranks, from.slice(..from.len() / bench.size()));
    let result = match form {
        Form::Blocking => ranks.all_gather_into(&mine, to),
        Form::Immediate => scope(|scope| ranks.immediate_all_gather_into(scope, &mine, &mut *to)?.wait()),
    };
    (result, to.len())
}

fn all_to_all(Call { bench, form, from, to }: Call) -> Ended {
    let ranks = &bench.ranks;
    let result = match form {
        Form::Blocking => ranks.all_to_all_into(from, to),
        Form::Immediate => scope(|scope| ranks.immediate_all_to_all_into(scope, from, &mut *to)?.wait()),
    };
    (result, to.len())
}

fn parts(Call { bench, form, from, to }: Call) -> Ended {
    let (ranks, length) = (&bench.ranks, from.len() / bench.size());
    let (mine, parts) = (from.slice(..length), Partition::packed(vec![length; bench.size()]));
    let result = match form {
        Form::Blocking => ranks.all_gather_varcount_into(&mine, to, &parts),
        Form::Immediate => {
            scope(|scope| ranks.immediate_all_gather_varcount_into(scope, &mine, &mut *to, &parts)?.wait())
        }
    };
    (result, to.len())
}

fn all_reduce(Call { bench, form, from, to }: Call) -> Ended {
    let ranks = &bench.ranks;
    let result = match form {
        Form::Blocking => ranks.all_reduce_into(from, to, Reduction::Max),
        Form::Immediate => {
            scope(|scope| ranks.immediate_all_reduce_into(scope, from, &mut *to, Reduction::Max)?.wait())
        }
    };
    (result, to.len())
}
