//! The chain of a broadcast that does not block: as the blocking one (`operations/links.rs`), on
//! the desk's own communicator of the node. Collectives of this kind follow each other, and each
//! ends when all ranks have agreed, so messages of one chain are never taken for the next one's.
#![allow(unsafe_code)] // names device memory to copies that have ended when it is done

use super::desk::Desk;
use super::slots::Slots;
use super::steps::{done, passed, receive_word, send_word};
use crate::error::Error;
use crate::operations::{Lengths, Link, Links, Memory};
use crate::paths::MESSAGE;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;

const TAG: i32 = 0;

/// The bytes of `root` to all of this node. A rank without memory of its own has failed: it
/// takes part, and a rank behind that reads from it is told. The outer error is MPI's. Nobody changes its memory, or uses what is
/// written there, before the ranks have agreed.
pub(super) async fn chain(
    desk: &Desk,
    operation: &'static str,
    slots: &mut Slots,
    root: Rank,
    memory: Option<Memory>,
    bytes: usize,
) -> Result<Result<(), Error>, Error> {
    let node = &desk.nodes.here;
    let links = Links::of(node.rank(), desk.nodes.place(root), node.size());
    let lengths = Lengths { bytes, chunk: desk.plan.chunk_bytes };
    let (here, own) = ((&*desk.imports, desk.report), (desk.rank(), memory));
    let mut link = Link::new(here, operation, own, lengths, &DriverToken::at_entry());
    let moved = along(desk, slots, links, &mut link).await;
    // After MPI's failure copies may be under way.
    let ended = match slots.ring() {
        Some(ring) => desk.across(ring, Ok(())).await,
        None => Ok(()),
    };
    moved.map(|()| link.done().and(ended))
}

async fn along(desk: &Desk, slots: &mut Slots, links: Links, link: &mut Link<'_>) -> Result<(), Error> {
    let node = &desk.nodes.here;
    let failed = |error| desk.report.mpi(error);
    introduce(desk, slots, links, link).await?;
    for step in link.steps() {
        if link.is_piece(step) {
            if let Some(before) = links.before {
                link.hear(receive_word(node, before, TAG).await.map_err(failed)?);
            }
            if let Some(ring) = slots.ring() {
                // SAFETY: lent memory, ours and that of the ranks beside this one, which stands and
                // is nobody's until all have agreed; waited for in `chain`.
                unsafe { link.queue(ring, step, &DriverToken::at_entry()) };
            }
        }
        if let (Some(done), Some(behind)) = (step.checked_sub(1), links.behind) {
            if let Some(ring) = slots.ring().filter(|_| link.copies()) {
                link.ended(passed(ring, done).await);
            }
            send_word(node, link.answer(), behind, TAG).await.map_err(failed)?;
        }
    }
    Ok(())
}

/// Tells the rank before where this one's memory is, and learns it of the one behind; where that
/// cannot be opened, tells it where the bytes are to be had.
async fn introduce(desk: &Desk, slots: &mut Slots, links: Links, link: &mut Link<'_>) -> Result<(), Error> {
    let node = &desk.nodes.here;
    let failed = |error| desk.report.mpi(error);
    let [at_out, at_in] = [0, 1].map(|number| slots.message(number).as_mut_ptr());
    // SAFETY: a message's bytes, used by nobody else before the request is done.
    let receive = |from| unsafe { node.start_receive(at_in, MESSAGE, from, TAG) };
    // SAFETY: a message's bytes, not written before the request is done.
    let send = |to| unsafe { node.start_send(at_out, MESSAGE, to, TAG) };
    link.tell(slots.message(0));
    let comes = links.behind.map(receive).transpose().map_err(failed)?;
    let goes = links.before.map(send).transpose().map_err(failed)?;
    let mut asking = None;
    if let (Some(comes), Some(behind)) = (comes, links.behind) {
        done(comes).await.map_err(failed)?;
        asking = link.meet(slots.message(1), &DriverToken::at_entry())?.then_some(behind);
    }
    if let (Some(goes), Some(before)) = (goes, links.before) {
        done(goes).await.map_err(failed)?;
        if link.asks() {
            done(receive(before).map_err(failed)?).await.map_err(failed)?;
            link.find(slots.message(1), &DriverToken::at_entry())?;
        }
    }
    if let Some(behind) = asking {
        link.tell(slots.message(0));
        done(send(behind).map_err(failed)?).await.map_err(failed)?;
    }
    Ok(())
}
