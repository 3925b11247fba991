//! What must be refused, with the rank and the cause, and leave every rank able to go on.

use super::{FORMS, Form, bcast, bcast_by};
use crate::bench::{Bench, MARGIN, chain_from, text};
use crate::interposed::{Fails, fail_next, fail_none};
use mpi::topology::SimpleCommunicator;
use pinyard_driver::{Call, Simulated};
use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Error, Failure, Gpu, Partition, Path, Reduction, scope};

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    arguments(bench)?;
    if bench.size() == 1 {
        return Ok(());
    }
    if bench.ranks.plan().path != Path::Direct {
        counts_of_a_broadcast(bench)?;
        FORMS.into_iter().try_for_each(|form| counts_on_the_way(bench, form))?;
        FORMS.into_iter().try_for_each(|form| mpi_on_the_way(bench, form))?;
        another_device(bench)?;
        driver(bench)?;
        sent_alone(bench)?;
        context(bench)?;
    }
    counts_of_a_reduction(bench)?;
    FORMS.into_iter().try_for_each(|form| other_calls(bench, form))?;
    if bench.ranks.plan().path == Path::Ipc {
        other_calls_than_a_broadcast(bench)?;
    }
    counts_of_shares(bench)?;
    checked(bench)
}

fn zeros(bench: &Bench, length: usize) -> Result<DeviceBuf<u8>, String> {
    let mut buffer = bench.gpu.alloc(length, &bench.stream).map_err(text)?;
    buffer.write(&vec![0; length]).map_err(text)?;
    Ok(buffer)
}

/// A rank and a tag that do not exist: refused before anything is sent.
fn arguments(bench: &Bench) -> Result<(), String> {
    let mut buffer = zeros(bench, 10)?;
    let size = bench.ranks.size();
    for wanted in [-1, size] {
        let refused = bench.ranks.broadcast_into(wanted, &mut buffer.settle_mut().map_err(text)?);
        let named = matches!(refused, Err(Error::NoSuchRank { wanted: named, .. }) if named == wanted);
        bench.check(named, || format!("a broadcast from rank {wanted}: {refused:?}"))?;
    }
    // Elements without bytes.
    let nothing = || bench.gpu.alloc::<()>(4, &bench.stream).map_err(text);
    let (sent, mut received) = (nothing()?, nothing()?);
    let (next, before) = ((bench.ranks.rank() + 1) % size, (bench.ranks.rank() + size - 1) % size);
    let (from, mut to) = (sent.settle().map_err(text)?, received.settle_mut().map_err(text)?);
    let moved = bench.ranks.exchange(next, &from, before, &mut to, 6);
    bench.check(matches!(moved, Ok(0)), || format!("an exchange of nothing: {moved:?}"))?;
    let refused = bench.ranks.send(0, 32768, &buffer.settle().map_err(text)?);
    bench.check(matches!(refused, Err(Error::Foreign { .. })), || format!("tag 32768: {refused:?}"))
}

/// The last rank has one element less than the root. Nobody hangs; it is named.
fn counts_of_a_broadcast(bench: &Bench) -> Result<(), String> {
    let last = bench.size() - 1;
    for length in [100, 5 * bench.chunk] {
        let mine = length - usize::from(bench.rank() == last);
        let mut buffer = zeros(bench, mine)?;
        let result = bench.ranks.broadcast_into(0, &mut buffer.settle_mut().map_err(text)?);
        let as_it_should = if bench.rank() == last {
            matches!(&result, Err(Error::Counts { rank, bytes, other: 0, other_bytes, .. })
                if *rank == last as i32 && *bytes == mine as u64 && *other_bytes == length as u64)
        } else if length == 100 && bench.ranks.plan().path != Path::Ipc {
            result.is_ok()
        } else {
            matches!(&result, Err(Error::Peer { rank, what: Failure::Length, .. }) if *rank == last as i32)
        };
        bench.check(as_it_should, || format!("a broadcast of {length} to {mine}: {result:?}"))?;
    }
    goes_on(bench)
}

/// A rank in the middle of a long broadcast's way has too little room: all are told.
fn counts_on_the_way(bench: &Bench, form: Form) -> Result<(), String> {
    let length = 9 * bench.chunk;
    let mut buffer = zeros(bench, length - usize::from(bench.rank() == 1))?;
    let result = bcast(bench, form, 0, &mut buffer.settle_mut().map_err(text)?);
    let named = match bench.rank() {
        1 => matches!(&result, Err(Error::Counts { rank: 1, other: 0, .. })),
        _ => matches!(&result, Err(Error::Peer { rank: 1, what: Failure::Length, .. })),
    };
    bench
        .check(named, || format!("a long {form:?} broadcast past a rank with too little room: {result:?}"))?;
    goes_on(bench)
}

/// Rank 1 has other counts than all others: every rank names it.
fn counts_of_a_reduction(bench: &Bench) -> Result<(), String> {
    let elements = 1000 + usize::from(bench.rank() == 1);
    let mut buffer = zeros(bench, elements)?;
    let result = bench.ranks.all_reduce_in_place(&mut buffer.settle_mut().map_err(text)?, Reduction::Sum);
    let named =
        matches!(result, Err(Error::Counts { rank: 1, bytes: 1001, other: 0, other_bytes: 1000, .. }));
    bench.check(named, || format!("an allreduce of 1000 and 1001: {result:?}"))?;
    // Two buffers of one rank that do not fit each other: it has its cause, others its rank.
    let (from, mut to) = (zeros(bench, 1000)?, zeros(bench, if bench.rank() == 1 { 999 } else { 1000 })?);
    let mut target = to.settle_mut().map_err(text)?;
    let result = bench.ranks.all_reduce_into(&from.settle().map_err(text)?, &mut target, Reduction::Min);
    let named = if bench.rank() == 1 {
        matches!(result, Err(Error::Counts { rank: 1, other: 1, .. }))
    } else {
        matches!(result, Err(Error::Peer { rank: 1, what: Failure::Length, .. }))
    };
    bench.check(named, || format!("an allreduce into 999 of 1000: {result:?}"))?;
    goes_on(bench)
}

/// Every rank says that rank 1 is in another call than the first, and in what it differs.
fn rank_1_is_named(bench: &Bench, result: &Result<(), Error>, differs: &str) -> Result<(), String> {
    let named = match result {
        Err(Error::Calls { rank: 1, other: 0, text, .. }) => text.contains(differs),
        _ => false,
    };
    bench.check(named, || format!("calls of which rank 1's is another: {result:?}"))
}

/// Rank 1 names itself as the root, has another reduction, or is in another collective.
fn other_calls(bench: &Bench, form: Form) -> Result<(), String> {
    let (ranks, size, differs) = (&bench.ranks, bench.size(), bench.rank() == 1);
    for length in [100, 3 * bench.chunk] {
        let (mine, mut all) = (zeros(bench, length)?, zeros(bench, size * length)?);
        let (from, mut to) = (mine.settle().map_err(text)?, all.settle_mut().map_err(text)?);
        let root = i32::from(differs);
        let result = match form {
            Form::Blocking => ranks.gather_into(root, &from, Some(&mut to)),
            Form::Immediate => {
                scope(|scope| ranks.immediate_gather_into(scope, root, &from, Some(&mut to))?.wait())
            }
        };
        rank_1_is_named(bench, &result, "rank 1 names root 1 where rank 0 names root 0")?;
        let mut to = to.slice_mut(..length);
        let reduction = if differs { Reduction::Max } else { Reduction::Sum };
        let result = match form {
            Form::Blocking => ranks.all_reduce_into(&from, &mut to, reduction),
            Form::Immediate => {
                scope(|scope| ranks.immediate_all_reduce_into(scope, &from, &mut to, reduction)?.wait())
            }
        };
        rank_1_is_named(bench, &result, "rank 1 reduces otherwise")?;
        let mut to = all.settle_mut().map_err(text)?;
        let result = match (form, differs) {
            (Form::Blocking, false) => ranks.all_gather_into(&from, &mut to),
            (Form::Blocking, true) => ranks.all_reduce_in_place(&mut to, Reduction::Sum),
            (Form::Immediate, false) => {
                scope(|scope| ranks.immediate_all_gather_into(scope, &from, &mut to)?.wait())
            }
            (Form::Immediate, true) => {
                scope(|scope| ranks.immediate_all_reduce_in_place(scope, &mut to, Reduction::Sum)?.wait())
            }
        };
        rank_1_is_named(bench, &result, "rank 1 calls something else than rank 0")?;
    }
    goes_on(bench)
}

/// Rank 1 takes itself for the root of a broadcast, is alone in one, or alone in none.
fn other_calls_than_a_broadcast(bench: &Bench) -> Result<(), String> {
    let (ranks, differs) = (&bench.ranks, bench.rank() == 1);
    // Within a message, from the device, and along a chain.
    for length in [100, bench.chunk, 20 * bench.chunk] {
        let mut buffer = zeros(bench, length)?;
        let mut settled = buffer.settle_mut().map_err(text)?;
        for (own, theirs) in [(1, 0), (0, 1)] {
            let result = ranks.broadcast_into(if differs { own } else { theirs }, &mut settled);
            rank_1_is_named(bench, &result, &format!("names root {own} where rank 0 names root {theirs}"))?;
        }
        for (root, alone) in [(0, false), (0, true), (1, false), (1, true)] {
            let result = match differs == alone {
                true => ranks.broadcast_into(root, &mut settled),
                false => ranks.all_reduce_in_place(&mut settled, Reduction::Sum),
            };
            rank_1_is_named(bench, &result, "rank 1 calls something else than rank 0")?;
        }
        bench.check(buffer.to_vec().map_err(text)?.iter().all(|&byte| byte == 0), || {
            "what differs moves nothing".to_owned()
        })?;
    }
    goes_on(bench)
}

/// A communicator that checks finds out on every path, in both forms, what else would hang.
fn checked(bench: &Bench) -> Result<(), String> {
    let builder = DeviceCommunicator::builder(&bench.gpu).checks(bench.rank() == 0);
    let ranks = builder.build(&SimpleCommunicator::world()).map_err(text)?;
    let told = FORMS.into_iter().try_for_each(|form| told_by_checks(bench, &ranks, form));
    if told.is_err() {
        // The others are elsewhere: its drop would wait for them.
        std::mem::forget(ranks);
    }
    told
}

fn told_by_checks(bench: &Bench, ranks: &DeviceCommunicator, form: Form) -> Result<(), String> {
    let differs = bench.rank() == 1;
    bench.check(ranks.plan().to_string().contains("every collective is compared"), || {
        ranks.plan().to_string()
    })?;
    for length in [100, bench.chunk, 20 * bench.chunk] {
        let mut buffer = zeros(bench, length)?;
        let mut settled = buffer.settle_mut().map_err(text)?;
        for (own, theirs) in [(1, 0), (0, 1)] {
            let result = bcast_by(ranks, form, if differs { own } else { theirs }, &mut settled);
            rank_1_is_named(bench, &result, &format!("names root {own} where rank 0 names root {theirs}"))?;
        }
        let parts = Partition::packed(vec![length / bench.size(); bench.size()]);
        let sent = zeros(bench, length / bench.size())?;
        let from = sent.settle().map_err(text)?;
        let result = match (differs, form) {
            (true, _) => bcast_by(ranks, form, 0, &mut settled),
            (false, Form::Blocking) => ranks.all_gather_varcount_into(&from, &mut settled, &parts),
            (false, Form::Immediate) => scope(|scope| {
                ranks.immediate_all_gather_varcount_into(scope, &from, &mut settled, &parts)?.wait()
            }),
        };
        rank_1_is_named(bench, &result, "rank 1 calls something else than rank 0")?;
        bcast_by(ranks, form, 0, &mut settled).map_err(text)?;
    }
    Ok(())
}

fn counts_of_shares(bench: &Bench) -> Result<(), String> {
    let size = bench.size();
    let (mine, mut all) =
        (zeros(bench, 64)?, zeros(bench, if bench.rank() == 0 { 64 * size - 1 } else { 64 * size })?);
    let mut target = all.settle_mut().map_err(text)?;
    let result = bench.ranks.all_gather_into(&mine.settle().map_err(text)?, &mut target);
    let named = if bench.rank() == 0 {
        matches!(result, Err(Error::Share { rank: 0, .. }))
    } else {
        matches!(result, Err(Error::Peer { rank: 0, .. }))
    };
    bench.check(named, || format!("an allgather into too little: {result:?}"))?;
    let mine = zeros(bench, 64 + usize::from(bench.rank() == 1))?;
    let mut all = zeros(bench, mine.len() * size)?;
    let mut target = all.settle_mut().map_err(text)?;
    let result = bench.ranks.all_gather_into(&mine.settle().map_err(text)?, &mut target);
    let named = matches!(result, Err(Error::Counts { rank: 1, bytes: 65, other: 0, other_bytes: 64, .. }));
    bench.check(named, || format!("an allgather of 64 and 65: {result:?}"))?;
    goes_on(bench)
}

/// A buffer of another device, at the root and at another rank.
fn another_device(bench: &Bench) -> Result<(), String> {
    let Some(_) = &bench.simulated else { return Ok(()) };
    let other = Gpu::simulated(64 << 20).map_err(text)?;
    let stream = other.stream().map_err(text)?;
    for culprit in [0, bench.size() - 1] {
        for length in [100, 5 * bench.chunk] {
            let mut ours = zeros(bench, length)?;
            let mut theirs: DeviceBuf<u8> = other.alloc(length, &stream).map_err(text)?;
            let buffer = if bench.rank() == culprit { &mut theirs } else { &mut ours };
            let result = bench.ranks.broadcast_into(0, &mut buffer.settle_mut().map_err(text)?);
            let named = if bench.rank() == culprit {
                matches!(&result, Err(Error::OtherDevice { rank, .. }) if *rank == culprit as i32)
            } else if length == 100 && culprit != 0 && bench.ranks.plan().path != Path::Ipc {
                result.is_ok()
            } else {
                matches!(&result, Err(Error::Peer { rank, what: Failure::Device, .. }) if *rank == culprit as i32)
            };
            bench.check(named, || format!("another device's buffer at rank {culprit}: {result:?}"))?;
        }
    }
    goes_on(bench)
}

/// A copy that the driver refuses, at one rank: it has the cause, the others its rank.
fn driver(bench: &Bench) -> Result<(), String> {
    let Some(simulated) = &bench.simulated else { return Ok(()) };
    let last = bench.size() - 1;
    let (ranks, length) = (&bench.ranks, 5 * bench.chunk);
    for culprit in [0, last] {
        let mut buffer = zeros(bench, length)?;
        if bench.rank() == culprit {
            for call in [Call::CopyToDevice, Call::CopyToHost, Call::Launch] {
                simulated.fail_next(call, 1, 1);
            }
        }
        let result = ranks.all_reduce_in_place(&mut buffer.settle_mut().map_err(text)?, Reduction::Sum);
        simulated.fail_never();
        let named = if bench.rank() == culprit {
            matches!(&result, Err(Error::Driver { source, .. }) if source.code == 1)
        } else {
            matches!(&result, Err(Error::Peer { rank, what: Failure::Driver, .. }) if *rank == culprit as i32)
        };
        bench.check(named, || format!("a refused copy at rank {culprit}: {result:?}"))?;
    }
    // Of a broadcast: the last rank's copies, from the other device and from the chunks.
    let mut buffer = zeros(bench, length)?;
    if bench.rank() == last {
        for call in [Call::CopyToDevice, Call::CopyOnDevice] {
            simulated.fail_next(call, 1, 1);
        }
    }
    let result = ranks.broadcast_into(0, &mut buffer.settle_mut().map_err(text)?);
    simulated.fail_never();
    let named = if bench.rank() == last {
        matches!(&result, Err(Error::Driver { source, .. }) if source.code == 1)
    } else {
        matches!(&result, Err(Error::Peer { rank, what: Failure::Driver, .. }) if *rank == last as i32)
    };
    bench.check(named, || format!("a refused copy of a broadcast: {result:?}"))?;
    for (form, sends) in FORMS.into_iter().flat_map(|form| [(form, true), (form, false)]) {
        copy_of_a_message(bench, form, sends, simulated)?;
    }
    goes_on(bench)?;
    if ranks.plan().path == Path::Ipc && bench.size() > 2 {
        FORMS.into_iter().try_for_each(|form| copy_on_the_way(bench, form, simulated))
    } else {
        Ok(())
    }
}

/// Of an exchange around all ranks the first one cannot send: what comes to it is received.
fn sent_alone(bench: &Bench) -> Result<(), String> {
    let Some(simulated) = &bench.simulated else { return Ok(()) };
    let (rank, size) = (bench.rank(), bench.size());
    let (next, before) = (((rank + 1) % size) as i32, (rank + size - 1) % size);
    let (mut sent, mut received) = (zeros(bench, 100)?, zeros(bench, 100)?);
    sent.write(&[rank as u8 + 1; 100]).map_err(text)?;
    let (from, mut to) = (sent.settle().map_err(text)?, received.settle_mut().map_err(text)?);
    if rank == 0 {
        simulated.fail_next(Call::CopyToHost, 1, 1);
    }
    let result = bench.ranks.exchange(next, &from, before as i32, &mut to, 6);
    simulated.fail_never();
    let named = match rank {
        0 => matches!(&result, Err(Error::Driver { source, .. }) if source.code == 1),
        1 => matches!(&result, Err(Error::Peer { rank: 0, what: Failure::Driver, .. })),
        _ => matches!(result, Ok(100)),
    };
    bench.check(named, || format!("an exchange of which rank 0 cannot send: {result:?}"))?;
    let came = if rank == 1 { 0 } else { before as u8 + 1 };
    bench.check(received.to_vec().map_err(text)? == [came; 100], || {
        format!("what came in an exchange, where rank 0 cannot send, is not of {before}")
    })?;
    goes_on(bench)
}

/// A copy of a long message from the first rank to the last, at the one that sends or at the other:
/// neither takes it for a success. Where the receiver copies, the sender has none.
fn copy_of_a_message(bench: &Bench, form: Form, sends: bool, simulated: &Simulated) -> Result<(), String> {
    let (ranks, rank, last) = (&bench.ranks, bench.rank(), bench.size() - 1);
    let plan = ranks.plan();
    if (rank > 0 && rank < last) || (sends && plan.path != Path::Staged && plan.nodes == 1) {
        return Ok(());
    }
    let culprit = if sends { 0 } else { last };
    let mut buffer = zeros(bench, 5 * bench.chunk)?;
    let mut settled = buffer.settle_mut().map_err(text)?;
    if rank == culprit {
        for call in [Call::CopyToHost, Call::CopyToDevice, Call::CopyOnDevice] {
            simulated.fail_next(call, 1, 1);
        }
    }
    let result = match (form, rank) {
        (Form::Blocking, 0) => ranks.send(last as i32, 7, &settled.as_settled()),
        (Form::Blocking, _) => ranks.receive_into(0, 7, &mut settled).map(drop),
        (Form::Immediate, 0) => {
            let sent = settled.as_settled();
            scope(|scope| ranks.immediate_send(scope, last as i32, 7, &sent)?.wait())
        }
        (Form::Immediate, _) => {
            scope(|scope| ranks.immediate_receive_into(scope, 0, 7, &mut settled)?.wait().map(drop))
        }
    };
    simulated.fail_never();
    let named = if rank == culprit {
        matches!(&result, Err(Error::Driver { source, .. }) if source.code == 1)
    } else {
        matches!(&result, Err(Error::Peer { rank, what: Failure::Driver, .. }) if *rank == culprit as i32)
    };
    bench.check(named, || format!("a refused copy at rank {culprit} of a {form:?} message: {result:?}"))
}

/// A rank in the middle of a long broadcast's way cannot copy to the one behind it, though the
/// one before it has written it everything.
fn copy_on_the_way(bench: &Bench, form: Form, simulated: &Simulated) -> Result<(), String> {
    let mut buffer = zeros(bench, 40 * bench.chunk)?;
    let (rank, middle) = (bench.rank(), chain_from(0, bench.size())[1]);
    if rank == middle {
        simulated.fail_next(Call::CopyOnDevice, 1, 1);
    }
    let result = bcast(bench, form, 0, &mut buffer.settle_mut().map_err(text)?);
    simulated.fail_never();
    let named = match &result {
        Err(Error::Driver { source, .. }) => rank == middle && source.code == 1,
        Err(Error::Peer { rank: of, what: Failure::Driver, .. }) => rank != middle && *of == middle as i32,
        _ => false,
    };
    bench.check(named, || format!("a refused copy in a long {form:?} broadcast: {result:?}"))?;
    goes_on(bench)
}

/// MPI fails messages of a rank in the middle of a long broadcast: of where memory is, or of a piece.
/// One that it starts the second time is as any other. Of one that it does not receive at all it
/// names MPI's failure, the others name it, and none waits.
fn mpi_on_the_way(bench: &Bench, form: Form) -> Result<(), String> {
    const MESSAGE: i32 = 2048;
    const WORD: i32 = 8;
    if bench.ranks.plan().path != Path::Ipc || bench.size() < 3 {
        return Ok(());
    }
    let (rank, middle) = (bench.rank(), chain_from(0, bench.size())[1]);
    let all = [(Fails::Send, 1), (Fails::Receive, 1), (Fails::Receive, 2)];
    for ((what, times), bytes) in all.into_iter().flat_map(|what| [(what, WORD), (what, MESSAGE)]) {
        let mut buffer = zeros(bench, 40 * bench.chunk)?;
        if rank == 0 {
            buffer.write(&vec![5; 40 * bench.chunk]).map_err(text)?;
        }
        if rank == middle {
            fail_next(what, bytes, times);
        }
        let result = bcast(bench, form, 0, &mut buffer.settle_mut().map_err(text)?);
        bench.check(fail_none(), || {
            format!("no message of {bytes} bytes in a {form:?} broadcast: {what:?}")
        })?;
        let named = match &result {
            Ok(_) => times == 1 && buffer.to_vec().map_err(text)?.iter().all(|&byte| byte == 5),
            Err(Error::Mpi { rank: of, .. }) => times > 1 && rank == middle && *of == middle as i32,
            Err(Error::Peer { rank: of, what: Failure::Mpi, .. }) => {
                times > 1 && rank != middle && *of == middle as i32
            }
            Err(_) => false,
        };
        bench.check(named, || {
            format!(
                "MPI's {what:?} of {bytes} bytes that fails {times} times in a {form:?} broadcast: {result:?}"
            )
        })?;
        goes_on(bench)?;
        let mut buffer = zeros(bench, 40 * bench.chunk)?;
        bcast(bench, form, 0, &mut buffer.settle_mut().map_err(text)?).map_err(text)?;
    }
    Ok(())
}

/// A device's context that is destroyed under the communicator, or broken by a fault, at one rank:
/// every operation says so there, and names the rank at the others.
fn context(bench: &Bench) -> Result<(), String> {
    // Of cuda.h: destroyed, deinitialized, invalid; an illegal address, an exception.
    [709, 4, 201].into_iter().try_for_each(|code| context_lost(bench, code, false))?;
    [700, 719].into_iter().try_for_each(|code| context_lost(bench, code, true))
}

fn context_lost(bench: &Bench, code: i32, is_fault: bool) -> Result<(), String> {
    let Some(simulated) = &bench.simulated else { return Ok(()) };
    let (ranks, size) = (&bench.ranks, bench.size());
    let (next, before) = ((bench.rank() + 1) % size, (bench.rank() + size - 1) % size);
    for culprit in [0, size - 1] {
        let (mut buffer, sent) = (zeros(bench, 5 * bench.chunk)?, zeros(bench, 5 * bench.chunk)?);
        let (mut target, from) = (buffer.settle_mut().map_err(text)?, sent.settle().map_err(text)?);
        if bench.rank() == culprit {
            simulated.fail_always(code);
        }
        let results = [
            ("an allreduce", ranks.all_reduce_in_place(&mut target, Reduction::Sum)),
            // From there: lost.rs.
            ("a broadcast", ranks.broadcast_into(((culprit + 1) % size) as i32, &mut target)),
        ];
        let moved = ranks.exchange(next as i32, &from, before as i32, &mut target, 5).map(drop);
        simulated.fail_never();
        let own = |result: &Result<(), Error>| {
            matches!(result, Err(Error::Context { rank, source })
                if *rank == culprit as i32 && source.code == code
                    && source.is_fault() == is_fault)
        };
        for (what, result) in &results {
            let named = if bench.rank() == culprit {
                own(result)
            } else {
                matches!(result, Err(Error::Peer { rank, what: Failure::Context, .. }) if *rank == culprit as i32)
            };
            bench.check(named, || format!("{what} past rank {culprit}'s lost context: {result:?}"))?;
        }
        bench.check(bench.rank() != culprit || own(&moved), || format!("an exchange without: {moved:?}"))?;
    }
    goes_on(bench)
}

/// The next operations are as if nothing had been.
fn goes_on(bench: &Bench) -> Result<(), String> {
    for length in [10, 3 * bench.chunk] {
        let mine = if bench.rank() == 0 { vec![4u8; length] } else { vec![0u8; length] };
        let mut buffer = bench.buffer(&mine)?;
        let mut settled = buffer.settle_mut().map_err(text)?;
        bench.ranks.broadcast_into(0, &mut settled.slice_mut(MARGIN..MARGIN + length)).map_err(text)?;
        bench.holds(&buffer, &vec![4u8; length], || "a broadcast after a refusal".to_owned())?;
    }
    Ok(())
}

/// After MPI_Finalize every operation says so.
pub(crate) fn after_finalize(ranks: &DeviceCommunicator, gpu: &Gpu) -> Result<(), String> {
    let stream = gpu.stream().map_err(text)?;
    let mut buffer: DeviceBuf<u8> = gpu.alloc(10, &stream).map_err(text)?;
    let refused = ranks.broadcast_into(0, &mut buffer.settle_mut().map_err(text)?);
    if !matches!(refused, Err(Error::Finalized { .. })) {
        return Err(format!("a broadcast after MPI_Finalize: {refused:?}"));
    }
    let refused = ranks.all_reduce_in_place(&mut buffer.settle_mut().map_err(text)?, Reduction::Sum);
    if !matches!(refused, Err(Error::Finalized { .. })) {
        return Err(format!("an allreduce after MPI_Finalize: {refused:?}"));
    }
    Ok(())
}
