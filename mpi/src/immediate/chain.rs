//! The chain of a broadcast that does not block: as the blocking one (`operations/links.rs`), on
//! the desk's own communicator of the node. Collectives of this kind follow each other, and each
//! ends when all ranks have agreed, so messages of one chain are never taken for the next one's.
#![allow(unsafe_code)] // names device memory to copies that have ended when it is done

use super::desk::Desk;
use super::slots::Slots;
use super::steps::{done, passed, receive_word, send_word};
use crate::calls::{Answer, Request};
use crate::error::Error;
use crate::operations::{Lengths, Link, Links, Memory, Tags};
use crate::paths::MESSAGE;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;

/// The bytes of `root` to all of this node. A rank without memory of its own, or whose MPI fails,
/// takes part to the end, and a rank behind that reads from it is told. Nobody changes its memory, or
/// uses what is written there, before the ranks have agreed.
pub(super) async fn chain(
    desk: &Desk,
    operation: &'static str,
    slots: &mut Slots,
    root: Rank,
    memory: Option<Memory>,
    bytes: usize,
) -> Result<(), Error> {
    let node = &desk.nodes.here;
    let links = Links::of(node.rank(), desk.nodes.place(root), desk.nodes.beside());
    let lengths = Lengths { bytes, chunk: desk.plan.chunk_bytes };
    let tags = Tags::of(desk.chains.get());
    desk.chains.set(desk.chains.get().wrapping_add(1));
    let (here, own) = ((&*desk.imports, desk.report), (desk.rank(), memory));
    let mut link = Link::new(here, operation, own, lengths, &DriverToken::at_entry());
    introduce(desk, slots, links, &mut link, tags.places).await;
    for step in link.steps() {
        if link.is_piece(step) {
            if let Some(before) = links.before {
                match receive_word(node, before, tags.pieces).await {
                    Ok(told) => link.hear(told),
                    Err(error) => link.lost(error),
                }
            }
            if let Some(ring) = slots.ring() {
                // SAFETY: lent memory, ours and that of the ranks beside this one, which stands and
                // is nobody's until all have agreed; waited for below.
                unsafe { link.queue(ring, step, &DriverToken::at_entry()) };
            }
        }
        if let (Some(done), Some(behind)) = (step.checked_sub(1), links.behind) {
            if let Some(ring) = slots.ring().filter(|_| link.copies()) {
                link.ended(passed(ring, done).await);
            }
            if let Err(error) = send_word(node, link.answer(), behind, tags.pieces).await {
                link.lost(error);
            }
        }
    }
    // After a failure copies may be under way.
    let ended = match slots.ring() {
        Some(ring) => desk.across(ring, Ok(())).await,
        None => Ok(()),
    };
    link.done().and(ended)
}

/// Tells the rank before where this one's memory is, and learns it of the one behind; where that
/// cannot be opened, tells it where the bytes are to be had.
async fn introduce(desk: &Desk, slots: &mut Slots, links: Links, link: &mut Link<'_>, tag: i32) {
    let node = &desk.nodes.here;
    let [at_out, at_in] = [0, 1].map(|number| slots.message(number).as_mut_ptr());
    // SAFETY: a message's bytes, used by nobody else before the request is done.
    let receive = |from| unsafe { node.start_receive(at_in, MESSAGE, from, tag) };
    // SAFETY: a message's bytes, not written before the request is done.
    let send = |to| unsafe { node.start_send(at_out, MESSAGE, to, tag) };
    let asks = link.asks();
    link.tell(slots.message(0));
    let comes = links.behind.map(receive);
    let goes = links.before.map(send);
    let asking = match ended(comes).await {
        None => false,
        Some(Ok(_)) => link.meet(slots.message(1), &DriverToken::at_entry()),
        // It may.
        Some(Err(error)) => {
            link.lost(error);
            true
        }
    };
    if let Some(Err(error)) = ended(goes).await {
        link.lost(error);
    }
    if let Some(before) = links.before.filter(|_| asks) {
        match ended(Some(receive(before))).await {
            Some(Err(error)) => link.lost(error),
            _ => link.find(slots.message(1), &DriverToken::at_entry()),
        }
    }
    if let Some(behind) = links.behind.filter(|_| asking) {
        link.tell(slots.message(0));
        if let Some(Err(error)) = ended(Some(send(behind))).await {
            link.lost(error);
        }
    }
}

async fn ended(started: Option<Answer<Request>>) -> Option<Answer<usize>> {
    match started? {
        Ok(request) => Some(done(request).await),
        Err(error) => Some(Err(error)),
    }
}
