//! Operations that do not block: waited for, tested, several at a time, dropped, leaked,
//! with buffers lent and given, after a stream, and beside blocking ones.
#![allow(unsafe_code)] // fills device memory on a stream

mod beside;
mod chains;
mod exchange;
mod failures;
mod panics;
mod parts;
mod reductions;
mod shares;

use super::lengths;
use crate::bench::{Bench, Element, MARGIN, text};
use half::bf16;
use pinyard_driver::{Call, DriverToken};
use pinyard_mpi::{DeviceBuf, Error, Failure, Path, Reduction, Settled, scope};

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    for length in lengths(bench.chunk) {
        for root in 0..bench.size() {
            broadcast(bench, root, length)?;
        }
        for distance in 0..bench.size() {
            around(bench, distance, length)?;
        }
        reduce::<u32>(bench, length / 4)?;
    }
    reduce::<f64>(bench, bench.chunk)?;
    reduce::<bf16>(bench, bench.chunk + 3)?;
    reductions::all(bench)?;
    shares::all(bench)?;
    parts::all(bench)?;
    exchange::all(bench)?;
    chains::all(bench)?;
    failures::all(bench)?;
    panics::all(bench)?;
    in_no_slab(bench)?;
    several(bench)?;
    same_peer_and_tag(bench)?;
    leaked_and_dropped(bench)?;
    given(bench)?;
    after_a_stream(bench)?;
    beside_blocking(bench)?;
    beside::all(bench)?;
    if bench.size() > 1 && bench.ranks.plan().path != Path::Direct {
        refused(bench)?;
        kernels_that_fail(bench)?;
    }
    Ok(())
}

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 11 + seed * 29) as u8).collect()
}

fn plain(bench: &Bench, elements: &[u8]) -> Result<DeviceBuf<u8>, String> {
    let mut buffer = bench.gpu.alloc(elements.len(), &bench.stream).map_err(text)?;
    buffer.write(elements).map_err(text)?;
    Ok(buffer)
}

fn broadcast(bench: &Bench, root: usize, length: usize) -> Result<(), String> {
    let theirs = bytes(root, length);
    let mut buffer = bench.buffer(&if bench.rank() == root { theirs.clone() } else { vec![0; length] })?;
    let mut settled = buffer.settle_mut().map_err(text)?;
    let mut inner = settled.slice_mut(MARGIN..MARGIN + length);
    scope(|scope| bench.ranks.immediate_broadcast_into(scope, root as i32, &mut inner)?.wait())
        .map_err(text)?;
    bench.holds(&buffer, &theirs, || format!("ibcast of {length} from {root}"))
}

/// To the rank `distance` on, and from the one as far before; asked until it is done.
fn around(bench: &Bench, distance: usize, length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
    let sent = bench.buffer(&bytes(rank, length))?;
    let mut received = bench.buffer(&vec![0u8; length])?;
    let settled = sent.settle().map_err(text)?;
    let settled = settled.slice(MARGIN..MARGIN + length);
    let mut target = received.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + length);
    let count = scope(|scope| {
        let receive = bench.ranks.immediate_receive_into(scope, from as i32, 7, &mut target)?;
        let mut send = bench.ranks.immediate_send(scope, to as i32, 7, &settled)?;
        let count = receive.wait()?;
        loop {
            match send.test() {
                Ok(result) => break result.map(|()| count),
                Err(again) => send = again,
            }
        }
    })
    .map_err(text)?;
    bench.check(count == length, || format!("{count} elements came, not {length}"))?;
    bench.holds(&received, &bytes(from, length), || format!("isend of {length} over {distance}"))?;
    bench.holds(&sent, &bytes(rank, length), || "what was sent".to_owned())
}

fn reduce<T: Element>(bench: &Bench, length: usize) -> Result<(), String> {
    let elements = |rank: usize| (0..length).map(move |at| T::of(at + 131 * rank));
    let expected: Vec<T> = (0..length)
        .map(|at| T::folded(Reduction::Sum, (0..bench.size()).map(|rank| T::of(at + 131 * rank))))
        .collect();
    let own: Vec<T> = elements(bench.rank()).collect();
    let (mine, mut all, mut both) =
        (bench.buffer(&own)?, bench.buffer(&vec![T::of(3); length])?, bench.buffer(&own)?);
    let settled = mine.settle().map_err(text)?;
    let settled = settled.slice(MARGIN..MARGIN + length);
    let mut target = all.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + length);
    let mut in_place = both.settle_mut().map_err(text)?;
    let mut in_place = in_place.slice_mut(MARGIN..MARGIN + length);
    scope(|scope| {
        let ranks = &bench.ranks;
        let into = ranks.immediate_all_reduce_into(scope, &settled, &mut target, Reduction::Sum)?;
        let second = ranks.immediate_all_reduce_in_place(scope, &mut in_place, Reduction::Sum)?;
        second.wait().and(into.wait())
    })
    .map_err(text)?;
    bench.holds(&all, &expected, || format!("iallreduce of {length}"))?;
    bench.holds(&both, &expected, || format!("iallreduce of {length} in place"))
}

/// One rank's memory is in no slab that others open: all take the other way.
fn in_no_slab(bench: &Bench) -> Result<(), String> {
    let (rank, size, length) = (bench.rank(), bench.size(), 5 * bench.chunk + 1);
    let mine = plain(bench, &bytes(rank, length))?;
    let (mut all, mut maxima) = (plain(bench, &vec![0; size * length])?, plain(bench, &bytes(rank, length))?);
    let settled = mine.settle().map_err(text)?;
    // SAFETY: the buffer's memory, which is settled and stands until the operation is done.
    let raw = unsafe { Settled::from_raw(&bench.gpu, mine.ptr(), length) };
    let lent = if rank == size - 1 { &raw } else { &settled };
    let (mut target, mut greatest) = (all.settle_mut().map_err(text)?, maxima.settle_mut().map_err(text)?);
    scope(|scope| {
        let gathered = bench.ranks.immediate_all_gather_into(scope, lent, &mut target)?;
        let joined = bench.ranks.immediate_all_reduce_into(scope, lent, &mut greatest, Reduction::Max)?;
        joined.wait().and(gathered.wait())
    })
    .map_err(text)?;
    let expected: Vec<u8> = (0..size).flat_map(|rank| bytes(rank, length)).collect();
    bench
        .check(all.to_vec().map_err(text)? == expected, || "an iallgather of memory in no slab".to_owned())?;
    let greatest = |at: usize| (0..size).map(|rank| expected[rank * length + at]).max();
    let expected: Vec<u8> = (0..length).filter_map(greatest).collect();
    bench
        .check(maxima.to_vec().map_err(text)? == expected, || "an iallreduce of memory in no slab".to_owned())
}

/// Broadcasts from every root and messages over every distance, all at a time, waited for
/// in the opposite order.
fn several(bench: &Bench) -> Result<(), String> {
    let (rank, size, length) = (bench.rank(), bench.size(), 3 * bench.chunk + 5);
    let mut spread = Vec::new();
    for root in 0..size {
        spread.push(plain(bench, &bytes(root, if rank == root { length } else { 0 }.max(length)))?);
    }
    let sent = plain(bench, &bytes(50 + rank, length))?;
    let mut came = Vec::new();
    for _ in 0..size {
        came.push(plain(bench, &vec![0; length])?);
    }
    let settled = sent.settle().map_err(text)?;
    let mut roots =
        spread.iter_mut().map(DeviceBuf::settle_mut).collect::<Result<Vec<_>, _>>().map_err(text)?;
    let mut targets =
        came.iter_mut().map(DeviceBuf::settle_mut).collect::<Result<Vec<_>, _>>().map_err(text)?;
    scope(|scope| {
        let ranks = &bench.ranks;
        let (mut plain, mut counted) = (Vec::new(), Vec::new());
        for (root, buffer) in roots.iter_mut().enumerate() {
            plain.push(ranks.immediate_broadcast_into(scope, root as i32, buffer)?);
        }
        for (distance, buffer) in targets.iter_mut().enumerate() {
            let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
            plain.push(ranks.immediate_send(scope, to as i32, distance as i32, &settled)?);
            counted.push(ranks.immediate_receive_into(scope, from as i32, distance as i32, buffer)?);
        }
        while let Some(request) = counted.pop() {
            request.wait()?;
        }
        while let Some(request) = plain.pop() {
            request.wait()?;
        }
        Ok::<(), Error>(())
    })
    .map_err(text)?;
    drop((roots, targets));
    for (root, buffer) in spread.iter().enumerate() {
        bench.check(buffer.to_vec().map_err(text)? == bytes(root, length), || {
            format!("one of several ibcasts, from {root}")
        })?;
    }
    for (distance, buffer) in came.iter().enumerate() {
        let from = (rank + size - distance) % size;
        bench.check(buffer.to_vec().map_err(text)? == bytes(50 + from, length), || {
            format!("one of several isends, over {distance}")
        })?;
    }
    Ok(())
}

/// Messages of one tag arrive in the order in which they were sent, long and short ones.
fn same_peer_and_tag(bench: &Bench) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let (to, from) = (((rank + 1) % size) as i32, (rank + size - 1) % size);
    let counts = [3 * bench.chunk, 10, 2 * bench.chunk + 1, 1];
    let mut sent = Vec::new();
    let mut came = Vec::new();
    for (number, &count) in counts.iter().enumerate() {
        sent.push(plain(bench, &bytes(10 * number + rank, count))?);
        came.push(plain(bench, &vec![0; 3 * bench.chunk])?);
    }
    let sources = sent.iter().map(DeviceBuf::settle).collect::<Result<Vec<_>, _>>().map_err(text)?;
    let mut targets =
        came.iter_mut().map(DeviceBuf::settle_mut).collect::<Result<Vec<_>, _>>().map_err(text)?;
    let received = scope(|scope| {
        for buffer in &sources {
            // Dropped: the scope completes them.
            drop(bench.ranks.immediate_send(scope, to, 3, buffer)?);
        }
        let requests = targets
            .iter_mut()
            .map(|buffer| bench.ranks.immediate_receive_into(scope, from as i32, 3, buffer))
            .collect::<Result<Vec<_>, _>>()?;
        requests.into_iter().map(pinyard_mpi::Request::wait).collect::<Result<Vec<_>, _>>()
    })
    .map_err(text)?;
    drop(targets);
    for (number, buffer) in came.iter().enumerate() {
        let elements = buffer.to_vec().map_err(text)?;
        let expected = bytes(10 * number + from, counts[number]);
        let right = received[number] == counts[number] && elements[..counts[number]] == expected[..];
        bench.check(right, || format!("message {number} of one tag: {received:?} elements"))?;
    }
    Ok(())
}

/// A request that is leaked or dropped: the scope's end completes the operation.
fn leaked_and_dropped(bench: &Bench) -> Result<(), String> {
    let (length, last) = (9 * bench.chunk + 1, bench.size() - 1);
    for leaks in [true, false] {
        let theirs = bytes(60 + usize::from(leaks), length);
        let mut buffer = plain(bench, &if bench.rank() == last { theirs.clone() } else { vec![0; length] })?;
        let mut settled = buffer.settle_mut().map_err(text)?;
        scope(|scope| {
            let request = bench.ranks.immediate_broadcast_into(scope, last as i32, &mut settled)?;
            if leaks {
                std::mem::forget(request);
            } else {
                drop(request);
            }
            Ok::<(), Error>(())
        })
        .map_err(text)?;
        bench.check(buffer.to_vec().map_err(text)? == theirs, || format!("ibcast, leaked: {leaks}"))?;
    }
    Ok(())
}

/// Buffers that the operations have: back with the result; after a drop kept until the
/// operation is done; after a leak for good.
fn given(bench: &Bench) -> Result<(), String> {
    let (rank, size, length) = (bench.rank(), bench.size(), 6 * bench.chunk + 3);
    let elements = |seed: usize| if rank == 0 { bytes(seed, length) } else { vec![0; length] };
    let request = bench.ranks.immediate_broadcast(0, plain(bench, &elements(70))?).map_err(text)?;
    let (buffer, result) = request.wait();
    result.map_err(text)?;
    bench.check(buffer.to_vec().map_err(text)? == bytes(70, length), || "a buffer given".to_owned())?;
    let request = bench.ranks.immediate_all_reduce(buffer, Reduction::Max).map_err(text)?;
    let (buffer, result) = request.wait();
    result.map_err(text)?;
    bench.check(buffer.to_vec().map_err(text)? == bytes(70, length), || "a maximum of equals".to_owned())?;
    if size == 1 {
        return Ok(());
    }
    // The first rank sends late: the last one's receive is under way when its request goes.
    let last = size - 1;
    if rank == last {
        for leaks in [false, true] {
            let target = plain(bench, &vec![0; length])?;
            let at = target.ptr();
            let request = bench.ranks.immediate_receive(0, 8, target).map_err(text)?;
            if leaks {
                std::mem::forget(request);
            } else {
                drop(request);
            }
            let mut others = Vec::new();
            for _ in 0..8 {
                others.push(plain(bench, &vec![0xee; length])?);
            }
            let reused = others.iter().any(|other| other.ptr() == at);
            bench.check(!reused, || {
                format!("memory of an operation under way was given out, leaked: {leaks}")
            })?;
            // Lets the first rank send; its message comes after what was dropped.
            let go = plain(bench, &[1])?;
            bench.ranks.send(0, 9, &go.settle().map_err(text)?).map_err(text)?;
            let mut marker = plain(bench, &[0])?;
            let mut settled = marker.settle_mut().map_err(text)?;
            bench.ranks.receive_into(0, 8, &mut settled).map_err(text)?;
            for other in &others {
                let untouched = other.to_vec().map_err(text)?.iter().all(|&byte| byte == 0xee);
                bench.check(untouched, || "an operation wrote another buffer".to_owned())?;
            }
        }
    } else if rank == 0 {
        for _ in 0..2 {
            let mut go = plain(bench, &[0])?;
            bench.ranks.receive_into(last as i32, 9, &mut go.settle_mut().map_err(text)?).map_err(text)?;
            let sent = plain(bench, &bytes(71, length))?;
            let request = bench.ranks.immediate_send_owned(last as i32, 8, sent).map_err(text)?;
            let (sent, result) = request.wait();
            result.map_err(text)?;
            bench.check(sent.to_vec().map_err(text)? == bytes(71, length), || "what was given".to_owned())?;
            let marker = plain(bench, &[2])?;
            bench.ranks.send(last as i32, 8, &marker.settle().map_err(text)?).map_err(text)?;
        }
    }
    Ok(())
}

/// Work that is queued when the operation begins is done before it reads, and the host
/// does not wait for it.
fn after_a_stream(bench: &Bench) -> Result<(), String> {
    let (rank, length) = (bench.rank(), 2 * bench.chunk + 9);
    let stream = bench.gpu.stream().map_err(text)?;
    let token = DriverToken::at_entry();
    let mut buffer = plain(bench, &vec![0; length])?;
    if rank == 0 {
        if let Some(simulated) = &bench.simulated {
            simulated.kernel(stream.stream(), 3_000_000, &token);
        }
        // SAFETY: the buffer's own memory; the operation comes after the stream.
        unsafe { bench.gpu.driver().fill(buffer.ptr(), 0x5a, length, stream.stream(), &token) }
            .map_err(text)?;
    }
    let waited = scope(|scope| {
        let lent = buffer.after_mut(&stream).map_err(text)?;
        let request = bench.ranks.immediate_broadcast_into(scope, 0, lent).map_err(text)?;
        let waited = match &bench.simulated {
            Some(_) => bench.gpu.driver().stream_query(stream.stream(), &token).map_err(text)?,
            None => false,
        };
        request.wait().map_err(text)?;
        Ok::<bool, String>(waited)
    })?;
    bench.check(rank > 0 || !waited, || "the host waited for the stream".to_owned())?;
    let elements = buffer.to_vec().map_err(text)?;
    bench.check(elements.iter().all(|&byte| byte == 0x5a), || "a broadcast came before its stream".to_owned())
}

/// A rank that waits in a blocking operation takes those under way further: the last one
/// needs the broadcast before it sends what the others wait for.
fn beside_blocking(bench: &Bench) -> Result<(), String> {
    let (rank, size, length) = (bench.rank(), bench.size(), 7 * bench.chunk + 2);
    if size == 1 {
        return Ok(());
    }
    let last = size - 1;
    let mut spread = plain(bench, &if rank == 0 { bytes(80, length) } else { vec![0; length] })?;
    let mut short = plain(bench, &[5, 6, 7])?;
    let mut settled = spread.settle_mut().map_err(text)?;
    scope(|scope| {
        let request = bench.ranks.immediate_broadcast_into(scope, 0, &mut settled).map_err(text)?;
        if rank == last {
            request.wait().map_err(text)?;
            let word = short.settle().map_err(text)?;
            for to in 0..last {
                bench.ranks.send(to as i32, 11, &word).map_err(text)?;
            }
        } else {
            let mut word = short.settle_mut().map_err(text)?;
            bench.ranks.receive_into(last as i32, 11, &mut word).map_err(text)?;
            request.wait().map_err(text)?;
        }
        // And a blocking collective with one under way that nobody waits for.
        let mut all = bench.gpu.alloc::<u8>(64 * size, &bench.stream).map_err(text)?;
        let mine = plain(bench, &[rank as u8; 64])?;
        let mut target = all.settle_mut().map_err(text)?;
        bench.ranks.all_gather_into(&mine.settle().map_err(text)?, &mut target).map_err(text)?;
        let right =
            all.to_vec().map_err(text)?.iter().enumerate().all(|(at, &byte)| byte as usize == at / 64);
        bench.check(right, || "an allgather beside an ibcast".to_owned())
    })?;
    bench.check(spread.to_vec().map_err(text)? == bytes(80, length), || {
        "an ibcast beside a receive".to_owned()
    })
}

/// Counts that differ: the rank with its cause, the others with its rank, and all go on.
fn refused(bench: &Bench) -> Result<(), String> {
    let (last, length) = (bench.size() - 1, 4 * bench.chunk);
    let mine = length - usize::from(bench.rank() == last);
    let mut buffer = plain(bench, &vec![0; mine])?;
    let mut settled = buffer.settle_mut().map_err(text)?;
    let result = scope(|scope| bench.ranks.immediate_broadcast_into(scope, 0, &mut settled)?.wait());
    let named = if bench.rank() == last {
        matches!(&result, Err(Error::Counts { rank, other: 0, .. }) if *rank == last as i32)
    } else {
        matches!(&result, Err(Error::Peer { rank, what: Failure::Length, .. }) if *rank == last as i32)
    };
    bench.check(named, || format!("an ibcast to a shorter buffer: {result:?}"))?;
    let result =
        scope(|scope| bench.ranks.immediate_all_reduce_in_place(scope, &mut settled, Reduction::Sum)?.wait());
    let named = matches!(&result, Err(Error::Counts { rank, other: 0, .. }) if *rank == last as i32);
    bench.check(named, || format!("an iallreduce of different counts: {result:?}"))?;
    let size = bench.ranks.size();
    let result = scope(|scope| bench.ranks.immediate_broadcast_into(scope, size, &mut settled).map(drop));
    bench.check(matches!(result, Err(Error::NoSuchRank { .. })), || format!("no such root: {result:?}"))?;
    broadcast(bench, 0, length)
}

/// A kernel that the driver refuses to launch, where ranks reduce by kernels.
fn kernels_that_fail(bench: &Bench) -> Result<(), String> {
    let Some(simulated) = bench.simulated.as_ref().filter(|_| bench.ranks.reduces_on_device()) else {
        return Ok(());
    };
    let last = bench.size() - 1;
    let mut buffer = plain(bench, &vec![1; 5 * bench.chunk])?;
    let mut settled = buffer.settle_mut().map_err(text)?;
    if bench.rank() == last {
        simulated.fail_next(Call::Launch, 1, 701);
    }
    let result =
        scope(|scope| bench.ranks.immediate_all_reduce_in_place(scope, &mut settled, Reduction::Sum)?.wait());
    simulated.fail_never();
    let named = if bench.rank() == last {
        matches!(&result, Err(Error::Driver { source, .. }) if source.code == 701)
    } else {
        matches!(&result, Err(Error::Peer { rank, what: Failure::Driver, .. }) if *rank == last as i32)
    };
    bench.check(named, || format!("an iallreduce without a kernel: {result:?}"))?;
    reduce::<u32>(bench, 100)
}
