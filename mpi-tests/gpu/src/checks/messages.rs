//! Send, receive and both at once, between neighbours, pairs, and with oneself.

use super::{Form, lengths};
use crate::bench::{Bench, MARGIN, text};
use pinyard_mpi::{Error, Failure, Path, scope};

/// Of an exchange at ranks of even numbers, and at those of odd ones.
const PAIRS: [[Form; 2]; 3] =
    [[Form::Blocking, Form::Blocking], [Form::Immediate, Form::Immediate], [Form::Blocking, Form::Immediate]];

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    for length in lengths(bench.chunk) {
        for forms in PAIRS {
            for distance in 0..bench.size() {
                around(bench, forms, distance, length, length)?;
            }
            // Other counts one way than the other.
            around(bench, forms, 1, length, 2 * bench.chunk + 100)?;
        }
        one_way(bench, length)?;
    }
    if bench.size() == 1 {
        return Ok(());
    }
    shorter(bench)?;
    longer(bench)
}

fn elements(rank: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + rank * 31 + length) as u8).collect()
}

/// Every rank sends to the one `distance` on; ranks of odd numbers another count, and in another
/// form.
fn around(bench: &Bench, forms: [Form; 2], distance: usize, even: usize, odd: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
    let count = |rank: usize| if rank.is_multiple_of(2) { even } else { odd };
    let sent = elements(rank, count(rank));
    let outgoing = bench.buffer(&sent)?;
    let mut incoming = bench.buffer(&vec![0u8; count(from)])?;
    let settled = outgoing.settle().map_err(text)?;
    let settled = settled.slice(MARGIN..MARGIN + sent.len());
    let mut target = incoming.settle_mut().map_err(text)?;
    let mut target = target.slice_mut(MARGIN..MARGIN + count(from));
    let (ranks, to, source) = (&bench.ranks, to as i32, from as i32);
    let received = match forms[rank % 2] {
        Form::Blocking => ranks.exchange(to, &settled, source, &mut target, 5),
        Form::Immediate => {
            scope(|scope| ranks.immediate_exchange(scope, to, &settled, source, &mut target, 5)?.wait())
        }
    };
    let received = received.map_err(text)?;
    bench
        .check(received == count(from), || format!("{received} elements came, {} were sent", count(from)))?;
    bench.holds(&incoming, &elements(from, count(from)), || {
        format!("exchange of {even} and {odd} over {distance}, {forms:?}")
    })?;
    bench.holds(&outgoing, &sent, || "what was sent".to_owned())
}

/// From the first rank to the last, with a tag for each length, and back.
fn one_way(bench: &Bench, length: usize) -> Result<(), String> {
    let (rank, last) = (bench.rank(), bench.size() - 1);
    if last == 0 {
        // To itself a rank sends and receives at once: `around`.
        return Ok(());
    }
    let tag = 100 + (length % 1000) as i32;
    for (from, to) in [(0, last), (last, 0)] {
        if rank == from {
            let sent = bench.buffer(&elements(from, length))?;
            let settled = sent.settle().map_err(text)?;
            bench.ranks.send(to as i32, tag, &settled.slice(MARGIN..MARGIN + length)).map_err(text)?;
        } else if rank == to {
            let mut target = bench.buffer(&vec![0u8; length])?;
            let mut settled = target.settle_mut().map_err(text)?;
            let mut inner = settled.slice_mut(MARGIN..MARGIN + length);
            bench.ranks.receive_into(from as i32, tag, &mut inner).map_err(text)?;
            bench.holds(&target, &elements(from, length), || format!("send of {length}"))?;
        }
    }
    Ok(())
}

/// A message may be shorter than the buffer: the rest stays.
fn shorter(bench: &Bench) -> Result<(), String> {
    let (rank, last) = (bench.rank(), bench.size() - 1);
    for length in [10, 5 * bench.chunk] {
        if rank == 0 {
            let sent = bench.buffer(&elements(0, length))?;
            bench
                .ranks
                .send(last as i32, 1, &sent.settle().map_err(text)?.slice(MARGIN..MARGIN + length))
                .map_err(text)?;
        } else if rank == last {
            let before = vec![9u8; 2 * length];
            let mut target = bench.buffer(&before)?;
            let mut settled = target.settle_mut().map_err(text)?;
            let mut inner = settled.slice_mut(MARGIN..MARGIN + 2 * length);
            let count = bench.ranks.receive_into(0, 1, &mut inner).map_err(text)?;
            let expected: Vec<u8> = elements(0, length).into_iter().chain(vec![9; length]).collect();
            bench.check(count == length, || format!("{count} of {length} elements came"))?;
            bench.holds(&target, &expected, || format!("a message of {length} in twice the room"))?;
        }
    }
    Ok(())
}

/// A message that is too long is an error of the receiver's, and the next one is whole.
/// On the direct path it is MPI's truncation, after which MPI promises nothing.
fn longer(bench: &Bench) -> Result<(), String> {
    let (rank, last) = (bench.rank(), bench.size() - 1);
    if bench.ranks.plan().path == Path::Direct {
        return Ok(());
    }
    for length in [1000, 5 * bench.chunk] {
        if rank == 0 {
            let sent = bench.buffer(&elements(0, length))?;
            let settled = sent.settle().map_err(text)?;
            let result = bench.ranks.send(last as i32, 1, &settled.slice(MARGIN..MARGIN + length));
            // One that does not fit the first message is answered.
            let as_it_should = if length > 2000 {
                matches!(&result, Err(Error::Peer { rank, what: Failure::Length, .. }) if *rank == last as i32)
            } else {
                result.is_ok()
            };
            bench.check(as_it_should, || format!("a receiver's failure: {result:?}"))?;
        } else if rank == last {
            let mut target = bench.buffer(&vec![0u8; length - 1])?;
            let mut settled = target.settle_mut().map_err(text)?;
            let mut inner = settled.slice_mut(MARGIN..MARGIN + length - 1);
            let refused = bench.ranks.receive_into(0, 1, &mut inner);
            let named = matches!(&refused, Err(Error::Counts { rank, bytes, other: 0, other_bytes, .. })
                if *rank == last as i32 && *bytes == length as u64 - 1 && *other_bytes == length as u64);
            bench.check(named, || format!("a message of {length} in one less: {refused:?}"))?;
            bench.holds(&target, &vec![0u8; length - 1], || "a refused message's buffer".to_owned())?;
        }
    }
    one_way(bench, 2 * bench.chunk)
}
