//! The chain of a broadcast that blocks: its messages, one after the other. See `links.rs`.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::Memory;
use super::broadcast::BCAST;
use super::links::{Lengths, Link, Links};
use crate::calls::Request;
use crate::communicator::{DeviceCommunicator, State};
use crate::error::Error;
use crate::paths::{MESSAGE, Ring};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;

const TAG: i32 = 0;

impl DeviceCommunicator {
    /// The bytes of the rank at `root` to all of this node. A rank without memory of its own
    /// has failed: it takes part, and a rank behind that reads from it is told. The outer error is MPI's. Nobody changes its
    /// memory, or uses what is written there, before the ranks have agreed.
    pub(super) fn chain(
        &self,
        state: &mut State,
        root: Rank,
        memory: Option<Memory>,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<Result<(), Error>, Error> {
        let result = self.along(state, root, memory, bytes, token);
        // After MPI's failure copies may be under way.
        let ended = state.ring.wait_all(token).map_err(|error| self.report.driver(error));
        result.map(|mine| mine.and(ended))
    }

    fn along(
        &self,
        state: &mut State,
        root: Rank,
        memory: Option<Memory>,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<Result<(), Error>, Error> {
        let node = &self.nodes.here;
        let failed = |error| self.report.mpi(error);
        let links = Links::of(node.rank(), root, node.size());
        let lengths = Lengths { bytes, chunk: self.plan.chunk_bytes };
        let State { ring, messages, imports, .. } = state;
        let mut link = Link::new((imports, self.report), BCAST, (self.rank(), memory), lengths, token);
        introduce(self, messages, links, &mut link, token)?;
        for step in link.steps() {
            if link.is_piece(step) {
                if let Some(before) = links.before {
                    link.hear(node.receive_word(before, TAG).map_err(failed)?);
                }
                // SAFETY: settled memory, ours and that of the ranks beside this one, which nobody
                // uses until all have agreed; waited for in `chain`.
                unsafe { link.queue(ring, step, token) };
            }
            if let (Some(done), Some(behind)) = (step.checked_sub(1), links.behind) {
                if link.copies() {
                    link.ended(ring.wait(done, token));
                }
                node.send_word(link.answer(), behind, TAG).map_err(failed)?;
            }
        }
        Ok(link.done())
    }
}

/// Tells the rank before where this one's memory is, and learns it of the one behind; where that
/// cannot be opened, tells it where the bytes are to be had.
fn introduce(
    ranks: &DeviceCommunicator,
    messages: &mut Ring,
    links: Links,
    link: &mut Link<'_>,
    token: &DriverToken,
) -> Result<(), Error> {
    let node = &ranks.nodes.here;
    let failed = |error| ranks.report.mpi(error);
    let (at_out, at_in) = (messages.slot(0), messages.slot(1));
    // SAFETY: slot 1 is a message long, and used by nobody else before the wait.
    let receive = |from| unsafe { node.start_receive(at_in, MESSAGE, from, TAG) };
    // SAFETY: slot 0 is a message long, and not written before the wait.
    let send = |to| unsafe { node.start_send(at_out, MESSAGE, to, TAG) };
    link.tell(messages.bytes(0, MESSAGE));
    let comes = links.behind.map(receive).transpose().map_err(failed)?;
    let goes = links.before.map(send).transpose().map_err(failed)?;
    comes.map(Request::wait).transpose().map_err(failed)?;
    goes.map(Request::wait).transpose().map_err(failed)?;
    let mut asking = None;
    if let Some(behind) = links.behind {
        asking = link.meet(messages.bytes(1, MESSAGE), token)?.then_some(behind);
    }
    if let Some(before) = links.before.filter(|_| link.asks()) {
        receive(before).and_then(Request::wait).map_err(failed)?;
        link.find(messages.bytes(1, MESSAGE), token)?;
    }
    if let Some(behind) = asking {
        link.tell(messages.bytes(0, MESSAGE));
        send(behind).and_then(Request::wait).map_err(failed)?;
    }
    Ok(())
}
