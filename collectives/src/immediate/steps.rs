//! What futures wait for: MPI requests, and events of the device.
#![allow(unsafe_code)] // gives MPI the addresses of boxes that stand until it is done

use crate::calls::{Answer, Comm, Request, Rooted};
use crate::paths::Ring;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::DriverError;
use std::future::poll_fn;
use std::task::Poll;

/// Until the request is done: the bytes of a message, 0 of others.
pub(super) async fn done(mut request: Request) -> Answer<usize> {
    poll_fn(|_| match request.test() {
        Ok(None) => Poll::Pending,
        Ok(Some(bytes)) => Poll::Ready(Ok(bytes)),
        Err(error) => Poll::Ready(Err(error)),
    })
    .await
}

/// Until the slot's last mark has passed.
pub(super) async fn passed(ring: &Ring, slot: usize) -> Result<(), DriverError> {
    poll_fn(|_| match ring.has_ended(slot, &DriverToken::at_entry()) {
        Ok(false) => Poll::Pending,
        Ok(true) => Poll::Ready(Ok(())),
        Err(error) => Poll::Ready(Err(error)),
    })
    .await
}

/// The largest of each word of all ranks (MPI_Iallreduce).
pub(super) async fn largest<const N: usize>(ranks: &Comm, mine: [u64; N]) -> Answer<[u64; N]> {
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
