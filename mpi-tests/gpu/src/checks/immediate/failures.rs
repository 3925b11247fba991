//! One rank's own ring of chunks, events or copies fail, in every operation: it has the cause, and
//! none of the others is left waiting or is told of success.

use super::{bytes, plain};
use crate::bench::{Bench, text};
use mpi::topology::SimpleCommunicator;
use pinyard_driver::{Call, Simulated};
use pinyard_mpi::{DeviceCommunicator, Error, Partition, Path, Reduction, scope};

/// What fails once, at the first rank, which is the root, or at the last: of a ring, where it is made,
/// and then in use.
const CALLS: [(Call, bool); 9] = [
    (Call::StreamCreate, true),
    (Call::StreamCreate, false),
    (Call::EventCreate, true),
    (Call::EventRecord, true),
    (Call::EventRecord, false),
    (Call::EventQuery, false),
    (Call::CopyToHost, true),
    (Call::CopyToDevice, false),
    (Call::CopyOnDevice, false),
];

/// A communicator whose `culprit` has no ring yet, so it makes one for every operation while that
/// fails.
struct Case<'b> {
    bench: &'b Bench,
    simulated: &'b Simulated,
    ranks: DeviceCommunicator,
    culprit: usize,
    call: Call,
}

/// How an operation ended here, and whether a failure of the culprit is one of this rank's.
type Ended = Result<(Result<(), Error>, bool), String>;
type Operation = fn(&Case<'_>, usize) -> Ended;

const OPERATIONS: [(&str, Operation); 11] = [
    ("a broadcast", broadcast),
    ("a broadcast of a buffer given", broadcast_given),
    ("a send", |case, length| message(case, length, true)),
    ("a receive", |case, length| message(case, length, false)),
    ("an allreduce", all_reduce),
    ("an allreduce of a buffer given", all_reduce_given),
    ("a reduce", reduce),
    ("an allgather", all_gather),
    ("an alltoall", all_to_all),
    ("an allgather of parts", parts),
    // The last: it has two rings, of which one can be kept for the next.
    ("an exchange", exchange),
];

pub(super) fn all(bench: &Bench) -> Result<(), String> {
    let (size, path) = (bench.size(), bench.ranks.plan().path);
    let Some(simulated) = &bench.simulated else { return Ok(()) };
    if size == 1 || path == Path::Direct {
        return Ok(());
    }
    for (call, at_root) in CALLS {
        let culprit = if at_root { 0 } else { size - 1 };
        let ranks = DeviceCommunicator::builder(&bench.gpu).build(&SimpleCommunicator::world());
        let case = Case { bench, simulated, ranks: ranks.map_err(text)?, culprit, call };
        let checked = case.all();
        if checked.is_err() {
            // The others are elsewhere: its drop would wait for them.
            std::mem::forget(case);
            return checked;
        }
    }
    Ok(())
}

impl Case<'_> {
    fn all(&self) -> Result<(), String> {
        let (mut failures, chunk) = (0, self.bench.chunk);
        for (name, operation) in OPERATIONS {
            // Within a message, and in pieces, along a chain where there is one.
            for length in [100, 12 * chunk + 7] {
                let (result, is_told) = operation(self, length)?;
                let has_failed = self.is_as_it_should(&result, is_told, || format!("{name} of {length}"))?;
                failures += usize::from(has_failed);
            }
        }
        let least = match self.call {
            // Without a ring all do, but the last: where it sends before it receives, one that was kept
            // serves both.
            Call::StreamCreate => 2 * OPERATIONS.len() - 1,
            // From one device to another, if at all.
            Call::CopyOnDevice => usize::from(self.ranks.plan().path == Path::Ipc),
            _ => 1,
        };
        self.bench
            .check(failures >= least, || format!("{failures} operations failed where {} did", self.call))
    }

    fn fails(&self) -> bool {
        self.bench.rank() == self.culprit
    }

    /// With the culprit's failure.
    fn run(&self, operation: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        if self.fails() {
            self.simulated.fail_next(self.call, 1, 1);
        }
        let result = operation();
        self.simulated.fail_never();
        result
    }

    /// Whether the culprit has failed, which all are told here; each rank's result is to fit that.
    fn is_as_it_should(
        &self,
        result: &Result<(), Error>,
        is_told: bool,
        what: impl Fn() -> String,
    ) -> Result<bool, String> {
        let (bench, culprit) = (self.bench, self.culprit);
        let mut word = plain(bench, &[u8::from(result.is_err())])?;
        bench.ranks.broadcast_into(culprit as i32, &mut word.settle_mut().map_err(text)?).map_err(text)?;
        let has_failed = word.to_vec().map_err(text)? == [1];
        let fits = match result {
            Ok(()) => !has_failed || !(is_told || self.fails()),
            Err(Error::Driver { rank, source }) => {
                self.fails() && *rank == culprit as i32 && source.code == 1
            }
            Err(Error::Peer { rank, .. }) => {
                has_failed && is_told && !self.fails() && *rank == culprit as i32
            }
            Err(_) => false,
        };
        bench.check(fits, || {
            format!(
                "{} with {} refused at rank {culprit}, failed there: {has_failed}: {result:?}",
                what(),
                self.call
            )
        })?;
        Ok(has_failed)
    }
}

/// From the first rank. Few elements between nodes come in a message of which nobody tells how
/// it was received.
fn broadcast(case: &Case<'_>, length: usize) -> Ended {
    let mut buffer = plain(case.bench, &bytes(3, length))?;
    let mut settled = buffer.settle_mut().map_err(text)?;
    let result =
        case.run(|| scope(|scope| case.ranks.immediate_broadcast_into(scope, 0, &mut settled)?.wait()));
    Ok((result, is_broadcast_told(case, length)))
}

fn is_broadcast_told(case: &Case<'_>, length: usize) -> bool {
    case.culprit == 0 || length > 2048 || case.ranks.plan().path == Path::Ipc
}

fn broadcast_given(case: &Case<'_>, length: usize) -> Ended {
    let buffer = plain(case.bench, &bytes(3, length))?;
    let result = case.run(|| case.ranks.immediate_broadcast(0, buffer)?.wait().1.map(drop));
    Ok((result, is_broadcast_told(case, length)))
}

/// From the culprit to the rank behind it, or the other way. A message that fits the first one is
/// sent when it has gone.
fn message(case: &Case<'_>, length: usize, sends: bool) -> Ended {
    let (rank, size) = (case.bench.rank(), case.bench.size());
    let other = (case.culprit + 1) % size;
    let (from, to) = if sends { (case.culprit, other) } else { (other, case.culprit) };
    let mut buffer = plain(case.bench, &bytes(rank, length))?;
    let mut settled = buffer.settle_mut().map_err(text)?;
    let result = case.run(|| match rank {
        rank if rank == from => {
            let sent = settled.as_settled();
            scope(|scope| case.ranks.immediate_send(scope, to as i32, 5, &sent)?.wait())
        }
        rank if rank == to => scope(|scope| {
            case.ranks.immediate_receive_into(scope, from as i32, 5, &mut settled)?.wait().map(drop)
        }),
        _ => Ok(()),
    });
    Ok((result, rank == other && (sends || length > 2048)))
}

/// To the rank behind each, and from the one before.
fn exchange(case: &Case<'_>, length: usize) -> Ended {
    let (rank, size) = (case.bench.rank(), case.bench.size());
    let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
    let sent = plain(case.bench, &bytes(rank, length))?;
    let mut came = plain(case.bench, &bytes(0, length))?;
    let (source, mut target) = (sent.settle().map_err(text)?, came.settle_mut().map_err(text)?);
    let result = case.run(|| {
        scope(|scope| {
            let (to, from) = (next as i32, before as i32);
            case.ranks.immediate_exchange(scope, to, &source, from, &mut target, 6)?.wait().map(drop)
        })
    });
    // Whether it was sending that failed, or receiving, or both, only the culprit knows.
    let fits = rank == case.culprit || result.is_ok() || next == case.culprit || before == case.culprit;
    case.bench.check(fits, || format!("an exchange beside rank {}: {result:?}", case.culprit))?;
    // At first the ring that it cannot have is the send's, so the rank behind is told.
    let is_sends = length == 100 && case.call == Call::StreamCreate;
    let is_told = result.is_err() || before == case.culprit && is_sends;
    Ok((result, is_told))
}

fn all_reduce(case: &Case<'_>, length: usize) -> Ended {
    let mut buffer = plain(case.bench, &bytes(1, length))?;
    let mut settled = buffer.settle_mut().map_err(text)?;
    let result = case.run(|| {
        scope(|scope| case.ranks.immediate_all_reduce_in_place(scope, &mut settled, Reduction::Sum)?.wait())
    });
    Ok((result, true))
}

fn all_reduce_given(case: &Case<'_>, length: usize) -> Ended {
    let buffer = plain(case.bench, &bytes(1, length))?;
    let result = case.run(|| case.ranks.immediate_all_reduce(buffer, Reduction::Max)?.wait().1.map(drop));
    Ok((result, true))
}

fn reduce(case: &Case<'_>, length: usize) -> Ended {
    let (mine, mut all) = (plain(case.bench, &bytes(1, length))?, plain(case.bench, &bytes(2, length))?);
    let (from, mut to) = (mine.settle().map_err(text)?, all.settle_mut().map_err(text)?);
    let result = case.run(|| {
        scope(|scope| {
            let to = (case.bench.rank() == 0).then_some(&mut to);
            case.ranks.immediate_reduce_into(scope, 0, &from, to, Reduction::Min)?.wait()
        })
    });
    Ok((result, true))
}

fn all_gather(case: &Case<'_>, length: usize) -> Ended {
    let mine = plain(case.bench, &bytes(1, length))?;
    let mut all = plain(case.bench, &bytes(2, length * case.bench.size()))?;
    let (from, mut to) = (mine.settle().map_err(text)?, all.settle_mut().map_err(text)?);
    let result =
        case.run(|| scope(|scope| case.ranks.immediate_all_gather_into(scope, &from, &mut to)?.wait()));
    Ok((result, true))
}

fn all_to_all(case: &Case<'_>, length: usize) -> Ended {
    let length = length * case.bench.size();
    let (mine, mut all) = (plain(case.bench, &bytes(1, length))?, plain(case.bench, &bytes(2, length))?);
    let (from, mut to) = (mine.settle().map_err(text)?, all.settle_mut().map_err(text)?);
    let result =
        case.run(|| scope(|scope| case.ranks.immediate_all_to_all_into(scope, &from, &mut to)?.wait()));
    Ok((result, true))
}

fn parts(case: &Case<'_>, length: usize) -> Ended {
    let (rank, size) = (case.bench.rank(), case.bench.size());
    let counts: Vec<usize> = (0..size).map(|rank| length + rank).collect();
    let mine = plain(case.bench, &bytes(1, counts[rank]))?;
    let mut all = plain(case.bench, &bytes(2, counts.iter().sum()))?;
    let (from, mut to) = (mine.settle().map_err(text)?, all.settle_mut().map_err(text)?);
    let parts = Partition::packed(counts);
    let result = case.run(|| {
        scope(|scope| case.ranks.immediate_all_gather_varcount_into(scope, &from, &mut to, &parts)?.wait())
    });
    Ok((result, true))
}
