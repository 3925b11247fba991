//! The chain of a broadcast that blocks: its messages, one after the other. See `links.rs`.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::Memory;
use super::broadcast::BCAST;
use super::links::{Lengths, Link, Links, Tags};
use crate::calls::Request;
use crate::communicator::{DeviceCommunicator, State};
use crate::error::Error;
use crate::paths::{MESSAGE, Ring};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;

impl DeviceCommunicator {
    /// The bytes of the rank at `root` to all of this node. A rank without memory of its own, or
    /// whose MPI fails, takes part to the end, and a rank behind that reads from it is told. Nobody
    /// changes its memory, or uses what is written there, before the ranks have agreed.
    pub(super) fn chain(
        &self,
        state: &mut State,
        root: Rank,
        memory: Option<Memory>,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<(), Error> {
        let node = &self.nodes.here;
        let links = Links::of(node.rank(), root, self.nodes.beside());
        let lengths = Lengths { bytes, chunk: self.plan.chunk_bytes };
        let tags = Tags::of(state.chains);
        state.chains = state.chains.wrapping_add(1);
        let State { ring, messages, imports, .. } = state;
        let mut link = Link::new((imports, self.report), BCAST, (self.rank(), memory), lengths, token);
        introduce(self, messages, links, &mut link, (tags.places, token));
        for step in link.steps() {
            if link.is_piece(step) {
                if let Some(before) = links.before {
                    match node.receive_word(before, tags.pieces) {
                        Ok(told) => link.hear(told),
                        Err(error) => link.lost(error),
                    }
                }
                // SAFETY: settled memory, ours and that of the ranks beside this one, which nobody
                // uses until all have agreed; waited for below.
                unsafe { link.queue(ring, step, token) };
            }
            if let (Some(done), Some(behind)) = (step.checked_sub(1), links.behind) {
                if link.copies() {
                    link.ended(ring.wait(done, token));
                }
                if let Err(error) = node.send_word(link.answer(), behind, tags.pieces) {
                    link.lost(error);
                }
            }
        }
        // After a failure copies may be under way.
        let ended = ring.wait_all(token).map_err(|error| self.report.driver(error));
        link.done().and(ended)
    }
}

/// Tells the rank before where this one's memory is, and learns it of the one behind; where that
/// cannot be opened, tells it where the bytes are to be had.
fn introduce(
    ranks: &DeviceCommunicator,
    messages: &mut Ring,
    links: Links,
    link: &mut Link<'_>,
    (tag, token): (i32, &DriverToken),
) {
    let node = &ranks.nodes.here;
    let (at_out, at_in) = (messages.slot(0), messages.slot(1));
    // SAFETY: slot 1 is a message long, and used by nobody else before the wait.
    let receive = |from| unsafe { node.start_receive(at_in, MESSAGE, from, tag) };
    // SAFETY: slot 0 is a message long, and not written before the wait.
    let send = |to| unsafe { node.start_send(at_out, MESSAGE, to, tag) };
    let asks = link.asks();
    link.tell(messages.bytes(0, MESSAGE));
    let comes = links.behind.map(receive);
    let goes = links.before.map(send);
    let came = comes.map(|comes| comes.and_then(Request::wait));
    if let Some(Err(error)) = goes.map(|goes| goes.and_then(Request::wait)) {
        link.lost(error);
    }
    let asking = match came {
        None => false,
        Some(Ok(())) => link.meet(messages.bytes(1, MESSAGE), token),
        // It may.
        Some(Err(error)) => {
            link.lost(error);
            true
        }
    };
    if let Some(before) = links.before.filter(|_| asks) {
        match receive(before).and_then(Request::wait) {
            Ok(()) => link.find(messages.bytes(1, MESSAGE), token),
            Err(error) => link.lost(error),
        }
    }
    if let Some(behind) = links.behind.filter(|_| asking) {
        link.tell(messages.bytes(0, MESSAGE));
        if let Err(error) = send(behind).and_then(Request::wait) {
            link.lost(error);
        }
    }
}
