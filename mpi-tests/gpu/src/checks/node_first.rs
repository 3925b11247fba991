//! Reductions between nodes: kernels on each first, then MPI between those that have the same part, in
//! both forms.
#![allow(unsafe_code)] // lends device memory of no slab

use super::windows::plain;
use super::{FORMS, Form};
use crate::bench::{Bench, Element, text};
use crate::interposed::{Fails, fail_next, fail_none};
use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};
use pinyard_driver::{Call, Simulated};
use pinyard_mpi::{DeviceCommunicator, Error, Failure, Gpu, Path, Reduction, Settled, SettledMut, scope};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that a rank tells another when all agree.
const AGREEMENT: i32 = 8 * size_of::<u64>() as i32;
/// Bytes of a short device.
const DEVICE: usize = 16 << 20;

/// Elements of every length in which all nodes are first, and some part is empty, short or long.
const LENGTHS: [usize; 4] = [16_384, 16_385, 70_001, 300_003];

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    if bench.ranks.plan().path != Path::IpcAndStaged {
        return Ok(());
    }
    FORMS.into_iter().try_for_each(|form| in_form(bench, form))?;
    if bench.simulated.is_none() {
        return Ok(());
    }
    refused_by_mpi(bench)?;
    refused_agreements(bench)?;
    in_place(bench, Form::Blocking, LENGTHS[0])?;
    what_is_open_stays(&small()?)
}

fn in_form(bench: &Bench, form: Form) -> Result<(), String> {
    for length in LENGTHS {
        for root in 0..bench.size() {
            let launches = of_kernels(bench, || at_root(bench, form, root, length, false))?;
            bench.check(launches != Some(0), || {
                format!("{form:?}: a reduce of {length} to {root} without kernels")
            })?;
        }
        let launches = of_kernels(bench, || to_all(bench, form, length, false))?;
        bench.check(launches != Some(0), || format!("{form:?}: an allreduce of {length} without kernels"))?;
        in_place(bench, form, length)?;
    }
    // Memory of one rank that nobody can open: MPI reduces everything.
    for is_rooted in [false, true] {
        let launches = of_kernels(bench, || match is_rooted {
            true => at_root(bench, form, 0, 70_001, true),
            false => to_all(bench, form, 70_001, true),
        })?;
        bench.check(launches.is_none_or(|launches| launches == 0), || {
            format!("{form:?}: {launches:?} kernels where memory is in no slab")
        })?;
    }
    let Some(simulated) = &bench.simulated else { return Ok(()) };
    for culprit in [0, bench.size() - 1] {
        for call in [Call::Launch, Call::CopyToHost, Call::CopyToDevice, Call::CopyOnDevice] {
            refused(bench, form, simulated, culprit, call)?;
        }
    }
    in_place(bench, form, LENGTHS[0])?;
    for culprit in [0, bench.size() - 1] {
        // Its first reduction exports.
        let bench = small()?;
        if let Some(simulated) = &bench.simulated {
            let before = simulated.calls(Call::IpcHandle);
            refused(&bench, form, simulated, culprit, Call::IpcHandle)?;
            bench.check(simulated.calls(Call::IpcHandle) > before, || "nothing was exported".to_owned())?;
        }
        in_place(&bench, form, LENGTHS[0])?;
    }
    no_room(&small()?, form)
}

/// MPI cannot reduce the first part the first time, at any rank that has it or at the first alone: the
/// others of the nodes are told, and nobody waits for good.
fn refused_by_mpi(bench: &Bench) -> Result<(), String> {
    // Nodes are the ones of `run.sh`, or MPI's.
    let per_node = std::env::var("PINYARD_MPI_RANKS_PER_NODE").ok().and_then(|count| count.parse().ok());
    let (world, rank) = (SimpleCommunicator::world(), bench.rank());
    let is_first = match per_node {
        Some(per_node) => rank.is_multiple_of(per_node),
        None => world.split_shared(rank as i32).rank() == 0,
    };
    let mut firsts = vec![false; bench.size()];
    world.all_gather_into(&is_first, &mut firsts[..]);
    for is_alone in [false, true] {
        let is_culprit = |rank: usize| if is_alone { rank == 0 } else { firsts[rank] };
        let mut buffer = plain(bench, &mine(bench, LENGTHS[3]))?;
        if is_culprit(bench.rank()) {
            fail_next(Fails::Reduce, (bench.chunk / 2 / 64 * 64 / size_of::<u32>()) as i32, 1);
        }
        let mut settled = buffer.settle_mut().map_err(text)?;
        let result = bench.ranks.all_reduce_in_place(&mut settled, Reduction::Sum);
        let has_failed = fail_none();
        let named = match &result {
            Err(Error::Mpi { source, .. }) => is_culprit(bench.rank()) && source.call == "MPI_Allreduce",
            Err(Error::Peer { rank, what: Failure::Mpi, .. }) => {
                !is_culprit(bench.rank()) && is_culprit(*rank as usize)
            }
            _ => false,
        };
        bench.check(named && has_failed, || {
            format!("a reduction that MPI refuses, nodes first, at one rank: {is_alone}: {result:?}")
        })?;
    }
    in_place(bench, Form::Blocking, LENGTHS[3])
}

/// A message of the agreements that cannot be started the first time: nothing is lost.
fn refused_agreements(bench: &Bench) -> Result<(), String> {
    for culprit in [0, bench.size() - 1] {
        for what in [Fails::Send, Fails::Receive] {
            if bench.rank() == culprit {
                fail_next(what, AGREEMENT, 1);
            }
            in_place(bench, Form::Blocking, LENGTHS[0])?;
            bench.check(fail_none(), || {
                format!("{what:?} of an agreement at rank {culprit} went unnoticed")
            })?;
        }
    }
    Ok(())
}

/// A device of its own that is so short that one slab is more than a sixteenth of it.
fn small() -> Result<Bench, String> {
    let simulated = Arc::new(Simulated::shareable(DEVICE));
    let gpu = Gpu::new(simulated.clone()).map_err(text)?;
    let ranks = DeviceCommunicator::builder(&gpu).build(&SimpleCommunicator::world()).map_err(text)?;
    Bench::new(ranks, Some(simulated), false)
}

/// A rank that receives nothing has no room for its part: MPI reduces everything.
fn no_room(bench: &Bench, form: Form) -> Result<(), String> {
    let length = LENGTHS[3];
    let least_bytes = length * size_of::<u32>() / bench.size();
    // It has a part however the ranks are spread.
    let culprit = bench.size() - 1;
    let mut fill = Vec::new();
    let reduced = of_kernels(bench, || {
        let (from, mut to) = (plain(bench, &mine(bench, length))?, plain(bench, &vec![7; length])?);
        if bench.rank() == culprit {
            while let Ok(filling) = bench.gpu.alloc::<u8>(least_bytes, &bench.stream) {
                fill.push(filling);
            }
        }
        let mut target = to.settle_mut().map_err(text)?;
        let target = (bench.rank() == 0).then_some(&mut target);
        let settled = from.settle().map_err(text)?;
        let reduced = to_root(bench, form, 0, &settled, target).map_err(text);
        let expected = if bench.rank() == 0 { sums(bench, length) } else { vec![7; length] };
        let right = reduced.is_ok() && to.to_vec().map_err(text)? == expected;
        bench
            .check(right, || format!("{form:?}: a reduce where a rank has no room for its part: {reduced:?}"))
    });
    bench.check(reduced? == Some(0), || "kernels where a rank has no room for its part".to_owned())
}

/// Slabs that others have open stay where they are when their owner trims its pool. The first
/// reduction exports so much that the second one has all closed first.
fn what_is_open_stays(bench: &Bench) -> Result<(), String> {
    let Some(simulated) = &bench.simulated else { return Ok(()) };
    for time in ["first", "second"] {
        in_place(bench, Form::Blocking, LENGTHS[0])?;
        let before = simulated.used_bytes();
        bench.check(before > DEVICE / 16, || format!("only {before} bytes of the device are in use"))?;
        bench.gpu.pool().trim(Duration::from_secs(5));
        let (after, open) = (simulated.used_bytes(), bench.ranks.open_slabs());
        // Who has others' open has a node with them, and they have its own open.
        bench.check(open == 0 || after == before, || {
            format!(
                "{before} bytes in use, {after} after a trim, with {open} slabs open in the {time} reduction"
            )
        })?;
        SimpleCommunicator::world().barrier();
    }
    bench.check(simulated.offences().is_empty(), || format!("{:?}", simulated.offences()))
}

/// Launches of all ranks meanwhile, on simulated devices: others do not count them.
fn of_kernels(bench: &Bench, reduce: impl FnOnce() -> Result<(), String>) -> Result<Option<u64>, String> {
    let Some(simulated) = &bench.simulated else { return reduce().map(|()| None) };
    let before = simulated.calls(Call::Launch);
    reduce()?;
    let (mine, mut all) = (simulated.calls(Call::Launch) - before, 0);
    SimpleCommunicator::world().all_reduce_into(&mine, &mut all, SystemOperation::sum());
    Ok(Some(all))
}

fn element(at: usize, rank: usize) -> u32 {
    u32::of(at * 13 + rank * 577).wrapping_add((at as u32) << 8)
}

fn mine(bench: &Bench, length: usize) -> Vec<u32> {
    (0..length).map(|at| element(at, bench.rank())).collect()
}

fn sums(bench: &Bench, length: usize) -> Vec<u32> {
    let sum = |at| (0..bench.size()).map(|rank| element(at, rank)).fold(0, u32::wrapping_add);
    (0..length).map(sum).collect()
}

fn to_all(bench: &Bench, form: Form, length: usize, closed: bool) -> Result<(), String> {
    let (from, mut to) = (plain(bench, &mine(bench, length))?, plain(bench, &vec![0; length])?);
    let settled = from.settle().map_err(text)?;
    // SAFETY: the buffer's memory, which is settled and stands until the operation is done.
    let raw = unsafe { Settled::from_raw(&bench.gpu, from.ptr(), length) };
    let lent = if closed && bench.rank() == bench.size() - 1 { &raw } else { &settled };
    let mut target = to.settle_mut().map_err(text)?;
    match form {
        Form::Blocking => bench.ranks.all_reduce_into(lent, &mut target, Reduction::Sum),
        Form::Immediate => scope(|scope| {
            bench.ranks.immediate_all_reduce_into(scope, lent, &mut target, Reduction::Sum)?.wait()
        }),
    }
    .map_err(text)?;
    bench.check(to.to_vec().map_err(text)? == sums(bench, length), || {
        format!("{form:?}: an allreduce of {length}, nodes first")
    })?;
    bench.check(from.to_vec().map_err(text)? == mine(bench, length), || "what was reduced".to_owned())
}

/// All ranks' sum in place.
fn summed(bench: &Bench, form: Form, settled: &mut SettledMut<'_, u32>) -> Result<(), Error> {
    match form {
        Form::Blocking => bench.ranks.all_reduce_in_place(settled, Reduction::Sum),
        Form::Immediate => {
            scope(|scope| bench.ranks.immediate_all_reduce_in_place(scope, settled, Reduction::Sum)?.wait())
        }
    }
}

/// The sum at `root`, which gives `to`.
fn to_root(
    bench: &Bench,
    form: Form,
    root: i32,
    from: &Settled<'_, u32>,
    to: Option<&mut SettledMut<'_, u32>>,
) -> Result<(), Error> {
    match form {
        Form::Blocking => bench.ranks.reduce_into(root, from, to, Reduction::Sum),
        Form::Immediate => {
            scope(|scope| bench.ranks.immediate_reduce_into(scope, root, from, to, Reduction::Sum)?.wait())
        }
    }
}

fn in_place(bench: &Bench, form: Form, length: usize) -> Result<(), String> {
    let mut both = plain(bench, &mine(bench, length))?;
    summed(bench, form, &mut both.settle_mut().map_err(text)?).map_err(text)?;
    bench.check(both.to_vec().map_err(text)? == sums(bench, length), || {
        format!("{form:?}: an allreduce of {length} in place, nodes first")
    })
}

fn at_root(bench: &Bench, form: Form, root: usize, length: usize, closed: bool) -> Result<(), String> {
    let (from, mut to) = (plain(bench, &mine(bench, length))?, plain(bench, &vec![7; length])?);
    let settled = from.settle().map_err(text)?;
    // SAFETY: as above.
    let raw = unsafe { Settled::from_raw(&bench.gpu, from.ptr(), length) };
    let lent = if closed && bench.rank() == bench.size() - 1 { &raw } else { &settled };
    let mut target = to.settle_mut().map_err(text)?;
    let target = (bench.rank() == root).then_some(&mut target);
    to_root(bench, form, root as i32, lent, target).map_err(text)?;
    let expected = if bench.rank() == root { sums(bench, length) } else { vec![7; length] };
    bench.check(to.to_vec().map_err(text)? == expected, || {
        format!("{form:?}: a reduce of {length} to {root}, nodes first")
    })?;
    bench.check(from.to_vec().map_err(text)? == mine(bench, length), || "what was reduced".to_owned())
}

/// A call that fails at one rank, if it makes any: it has the cause, the others its rank.
fn refused(
    bench: &Bench,
    form: Form,
    simulated: &Simulated,
    culprit: usize,
    call: Call,
) -> Result<(), String> {
    let mut buffer = plain(bench, &mine(bench, LENGTHS[3]))?;
    let before = simulated.calls(call);
    if bench.rank() == culprit {
        simulated.fail_next(call, 1, 1);
    }
    let mut settled = buffer.settle_mut().map_err(text)?;
    let result = summed(bench, form, &mut settled);
    simulated.fail_never();
    let is_made = bench.rank() == culprit && simulated.calls(call) > before;
    let (mine, mut all) = ([u64::from(is_made), u64::from(result.is_err())], [0u64; 2]);
    SimpleCommunicator::world().all_reduce_into(&mine, &mut all, SystemOperation::sum());
    let [made, failures] = all;
    let named = match &result {
        Ok(()) => made == 0 && failures == 0 && buffer.to_vec().map_err(text)? == sums(bench, LENGTHS[3]),
        Err(Error::Driver { source, .. }) => made == 1 && bench.rank() == culprit && source.code == 1,
        Err(Error::Peer { rank, what: Failure::Driver, .. }) => made == 1 && *rank == culprit as i32,
        Err(_) => false,
    };
    bench.check(named, || format!("{form:?}: {call} that fails at rank {culprit}, nodes first: {result:?}"))
}
