//! Exchanges that meet plain sends and receives, or other numbers of exchanges: the two legs of
//! an exchange are independent, as of two threads. Each check has a name, which is printed when it
//! hangs.

use super::{FORMS, Form};
use crate::bench::{Bench, MARGIN, text, watched};
use pinyard_mpi::{DeviceBuf, Error, scope};

const TAG: i32 = 41;

pub(crate) fn all(bench: &Bench) -> Result<(), String> {
    if bench.size() == 1 {
        return Ok(());
    }
    // Within the first message, in a few pieces, and in more than there are chunks.
    for length in [1000, 2 * bench.chunk + 1, 11 * bench.chunk + 5] {
        for form in FORMS {
            let named = |what: &str| format!("{what}, {length} bytes, {form:?}");
            watched(&bench.ranks, named("an exchange with a rank that sends, then receives"), || {
                with_a_send(bench, form, length)
            })?;
            watched(&bench.ranks, named("an exchange around ranks that receive, then send"), || {
                around(bench, form, length)
            })?;
            watched(
                &bench.ranks,
                named("a line of ranks, of which those at the ends exchange once"),
                || line(bench, form, length),
            )?;
            watched(&bench.ranks, named("an exchange behind a send that its peer takes later"), || {
                behind_a_send(bench, form, length)
            })?;
        }
    }
    Ok(())
}

fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 13 + seed * 37 + length) as u8).collect()
}

fn send(bench: &Bench, to: usize, buffer: &DeviceBuf<u8>) -> Result<(), String> {
    let settled = buffer.settle().map_err(text)?;
    let inner = settled.slice(MARGIN..buffer.len() - MARGIN);
    bench.ranks.send(to as i32, TAG, &inner).map_err(text)
}

fn receive(bench: &Bench, from: usize, buffer: &mut DeviceBuf<u8>) -> Result<usize, String> {
    let end = buffer.len() - MARGIN;
    let mut settled = buffer.settle_mut().map_err(text)?;
    bench.ranks.receive_into(from as i32, TAG, &mut settled.slice_mut(MARGIN..end)).map_err(text)
}

/// In either form; how many bytes came.
fn exchange(
    bench: &Bench,
    form: Form,
    (to, sent): (usize, &DeviceBuf<u8>),
    (from, received): (usize, &mut DeviceBuf<u8>),
) -> Result<usize, String> {
    let ends = [sent.len() - MARGIN, received.len() - MARGIN];
    let settled = sent.settle().map_err(text)?;
    let out = settled.slice(MARGIN..ends[0]);
    let mut settled = received.settle_mut().map_err(text)?;
    let mut into = settled.slice_mut(MARGIN..ends[1]);
    let (ranks, to, from) = (&bench.ranks, to as i32, from as i32);
    let came: Result<usize, Error> = match form {
        Form::Blocking => ranks.exchange(to, &out, from, &mut into, TAG),
        Form::Immediate => {
            scope(|scope| ranks.immediate_exchange(scope, to, &out, from, &mut into, TAG)?.wait())
        }
    };
    came.map_err(text)
}

/// The first rank sends and then receives; the last one exchanges.
fn with_a_send(bench: &Bench, form: Form, length: usize) -> Result<(), String> {
    let (rank, last) = (bench.rank(), bench.size() - 1);
    if rank > 0 && rank < last {
        return Ok(());
    }
    let peer = last - rank;
    let sent = bench.buffer(&bytes(rank, length))?;
    let mut received = bench.buffer(&vec![0; length])?;
    let came = if rank == 0 {
        send(bench, peer, &sent)?;
        receive(bench, peer, &mut received)?
    } else {
        exchange(bench, form, (peer, &sent), (peer, &mut received))?
    };
    bench.check(came == length, || format!("{came} of {length} bytes came"))?;
    bench.holds(&received, &bytes(peer, length), || "an exchange with a send".to_owned())
}

/// The first rank exchanges with the one behind it and the last one; the others receive what they
/// send on.
fn around(bench: &Bench, form: Form, length: usize) -> Result<(), String> {
    let (rank, size) = (bench.rank(), bench.size());
    let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
    let sent = bench.buffer(&bytes(0, length))?;
    let mut received = bench.buffer(&vec![0; length])?;
    let came = if rank == 0 {
        exchange(bench, form, (to, &sent), (from, &mut received))?
    } else {
        let came = receive(bench, from, &mut received)?;
        send(bench, to, &received)?;
        came
    };
    bench.check(came == length, || format!("{came} of {length} bytes came"))?;
    bench.holds(&received, &bytes(0, length), || "what went around all ranks".to_owned())
}

/// A halo with open ends: the ranks in the middle exchange with the one behind, then with the one
/// before; those at the ends with their one neighbour.
fn line(bench: &Bench, form: Form, length: usize) -> Result<(), String> {
    let (rank, last) = (bench.rank(), bench.size() - 1);
    let sent = bench.buffer(&bytes(rank, length))?;
    let mut halos = [bench.buffer(&vec![0; length])?, bench.buffer(&vec![0; length])?];
    let [left, right] = &mut halos;
    if rank == 0 {
        exchange(bench, form, (1, &sent), (1, right))?;
    } else if rank == last {
        exchange(bench, form, (last - 1, &sent), (last - 1, left))?;
    } else {
        exchange(bench, form, (rank + 1, &sent), (rank - 1, left))?;
        exchange(bench, form, (rank - 1, &sent), (rank + 1, right))?;
    }
    let [left, right] = &halos;
    if rank > 0 {
        bench.holds(left, &bytes(rank - 1, length), || "the halo of the rank before".to_owned())?;
    }
    if rank < last {
        bench.holds(right, &bytes(rank + 1, length), || "the halo of the rank behind".to_owned())?;
    }
    Ok(())
}

/// The first rank's exchange comes behind a send of the same tag that does not block, which the
/// last one receives when its own send has ended: what the exchange receives.
fn behind_a_send(bench: &Bench, form: Form, length: usize) -> Result<(), String> {
    let (rank, last) = (bench.rank(), bench.size() - 1);
    if rank > 0 && rank < last {
        return Ok(());
    }
    let peer = last - rank;
    let (first, second) = (bench.buffer(&bytes(rank, length))?, bench.buffer(&bytes(rank + 7, length))?);
    let mut received = bench.buffer(&vec![0; length])?;
    if rank == 0 {
        let settled = first.settle().map_err(text)?;
        let inner = settled.slice(MARGIN..MARGIN + length);
        scope(|scope| {
            let before = bench.ranks.immediate_send(scope, peer as i32, TAG, &inner).map_err(text)?;
            exchange(bench, form, (peer, &second), (peer, &mut received))?;
            before.wait().map_err(text)
        })?;
        return bench.holds(&received, &bytes(last, length), || "behind a send".to_owned());
    }
    send(bench, 0, &first)?;
    for seed in [0, 7] {
        receive(bench, 0, &mut received)?;
        bench.holds(&received, &bytes(seed, length), || format!("message {seed} of two"))?;
    }
    Ok(())
}
