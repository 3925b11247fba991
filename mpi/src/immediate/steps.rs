//! What futures wait for: MPI requests, and events of the device.
#![allow(unsafe_code)] // gives MPI the addresses of boxes that stand until it is done

use crate::calls::progress::is_wanted;
use crate::calls::{Answer, Comm, Request, Rooted};
use crate::paths::Ring;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::DriverError;
use std::future::poll_fn;
use std::mem::replace;
use std::pin::pin;
use std::task::Poll;

/// Both to their ends, neither behind the other.
pub(super) async fn both<A: Future, B: Future>(one: A, other: B) -> (A::Output, B::Output) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (Poll::Pending, Poll::Pending);
    poll_fn(|context| {
        if first.is_pending() {
            first = one.as_mut().poll(context);
        }
        if second.is_pending() {
            second = other.as_mut().poll(context);
        }
        match (replace(&mut first, Poll::Pending), replace(&mut second, Poll::Pending)) {
            (Poll::Ready(one), Poll::Ready(other)) => Poll::Ready((one, other)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}

/// Until the request is done: the bytes of a message, 0 of others.
pub(super) async fn done(mut request: Request) -> Answer<usize> {
    poll_fn(|_| match request.test() {
        Ok(None) => Poll::Pending,
        Ok(Some(bytes)) => Poll::Ready(Ok(bytes)),
        Err(error) => Poll::Ready(Err(error)),
    })
    .await
}

/// Until the slot's last mark has passed. Where no operation that does not block is under way the
/// call is one that blocks, and the host waits: copies need nothing of other ranks.
pub(super) async fn passed(ring: &Ring, slot: usize) -> Result<(), DriverError> {
    if !is_wanted() {
        return ring.wait(slot, &DriverToken::at_entry());
    }
    poll_fn(|_| match ring.has_ended(slot, &DriverToken::at_entry()) {
        Ok(false) => Poll::Pending,
        Ok(true) => Poll::Ready(Ok(())),
        Err(error) => Poll::Ready(Err(error)),
    })
    .await
}

/// The largest of each word of all ranks (MPI_Iallreduce).
pub(crate) async fn largest<const N: usize>(ranks: &Comm, mine: [u64; N]) -> Answer<[u64; N]> {
    let mut words = Box::new((mine, [0; N]));
    let (mine, all) = &mut *words;
    // SAFETY: the box stands behind the future until the request is done: it is dropped
    // after it.
    let request = unsafe { ranks.start_largest(mine, all) }?;
    done(request).await?;
    Ok(words.1)
}

/// As many bytes of each rank, in their order (MPI_Iallgather).
pub(super) async fn gather(ranks: &Comm, mine: &[u8]) -> Answer<Vec<u8>> {
    shares(ranks, Rooted::AllGather, mine, mine.len()).await
}

/// What each rank has for this one, as many bytes of each (MPI_Ialltoall).
pub(super) async fn swap(ranks: &Comm, theirs: &[u8]) -> Answer<Vec<u8>> {
    shares(ranks, Rooted::AllToAll, theirs, theirs.len() / ranks.size() as usize).await
}

/// `count` bytes of each rank, in their order.
async fn shares(ranks: &Comm, what: Rooted, mine: &[u8], count: usize) -> Answer<Vec<u8>> {
    let (mine, mut all) = (mine.to_vec(), vec![0; count * ranks.size() as usize]);
    let (from, to) = (mine.as_ptr(), all.as_mut_ptr());
    // SAFETY: the heap's memory stands behind the future until the request is done: it is dropped
    // after it.
    let request = unsafe { ranks.start_shares(what, from, to, count) }?;
    done(request).await?;
    Ok(all)
}

/// A word to another rank.
pub(super) async fn send_word(ranks: &Comm, word: u64, to: Rank, tag: i32) -> Answer<()> {
    let bytes = Box::new(word.to_le_bytes());
    // SAFETY: as above.
    let request = unsafe { ranks.start_send(bytes.as_ptr(), bytes.len(), to, tag) }?;
    done(request).await.map(drop)
}

/// A word of another rank.
pub(super) async fn receive_word(ranks: &Comm, from: Rank, tag: i32) -> Answer<u64> {
    let mut bytes = Box::new([0; 8]);
    // SAFETY: as above.
    let request = unsafe { ranks.start_receive(bytes.as_mut_ptr(), bytes.len(), from, tag) }?;
    done(request).await?;
    Ok(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::task::{Context, Waker};

    #[test]
    fn of_both_neither_waits_for_the_other() {
        for is_first in [true, false] {
            let (ends, asked) = ([Cell::new(false), Cell::new(false)], [Cell::new(0), Cell::new(0)]);
            let gate = |number: usize| {
                let (end, asked) = (&ends[number], &asked[number]);
                poll_fn(move |_| {
                    asked.set(asked.get() + 1);
                    if end.get() { Poll::Ready(number) } else { Poll::Pending }
                })
            };
            let mut work = pin!(both(gate(0), gate(1)));
            let mut context = Context::from_waker(Waker::noop());
            let (early, late) = if is_first { (0, 1) } else { (1, 0) };
            assert!(work.as_mut().poll(&mut context).is_pending());
            assert_eq!((asked[0].get(), asked[1].get()), (1, 1));
            ends[early].set(true);
            assert!(work.as_mut().poll(&mut context).is_pending());
            // The one that has ended is asked no more.
            assert!(work.as_mut().poll(&mut context).is_pending());
            assert_eq!((asked[early].get(), asked[late].get()), (2, 3));
            ends[late].set(true);
            assert_eq!(work.as_mut().poll(&mut context), Poll::Ready((0, 1)));
        }
    }
}
