//! Which way a broadcast goes through the chunks of the nodes.
#![allow(unsafe_code)]

use super::chunks::Chunks;
use super::pipeline::Outcome;
use super::relay::{Link, Part};
use crate::calls::{Answer, Comm, Request};
use crate::error::{Error, Failure};
use crate::nodes::Nodes;
use crate::report::Report;
use mpi::topology::Rank;
use pinyard_driver::DevicePtr;

/// What this rank does in one, and the ranks that go between the nodes.
pub(crate) struct Route<'a> {
    pub(crate) part: Part,
    /// Those ranks, if this is one of them.
    between: Option<&'a Comm>,
    /// Which of them sends what the root has.
    sender: Rank,
    /// The rank that goes there for this one's node.
    leader: Rank,
}

impl<'a> Route<'a> {
    /// From `root` to all of `whole` through `chunks`. Where the ranks of a node do not share
    /// them every rank is a node. A rank without `memory` has failed.
    pub(crate) fn new(
        whole: &'a Comm,
        nodes: &'a Nodes,
        chunks: &Chunks,
        root: Rank,
        memory: Option<DevicePtr>,
    ) -> Route<'a> {
        let (between, sender) = if chunks.are_shared() {
            (nodes.leaders.as_ref().filter(|leaders| leaders.size() > 1), nodes.of(root))
        } else {
            (Some(whole), root)
        };
        let link = between.map(|ranks| if ranks.rank() == sender { Link::Sends } else { Link::Receives });
        let part = Part { is_root: whole.rank() == root, memory, link };
        Route { part, between, sender, leader: nodes.rank(nodes.of(whole.rank()), 0) }
    }

    /// Starts the request of a slot that has `bytes`; none where this rank has no link.
    ///
    /// # Safety
    /// The slot has the bytes, and nobody else uses it, until the request is done.
    pub(crate) unsafe fn start(&self, slot: *mut u8, bytes: usize) -> Answer<Option<Request>> {
        // SAFETY: the caller's contract.
        self.between.map(|ranks| unsafe { ranks.start_broadcast(slot, bytes, self.sender) }).transpose()
    }

    /// How the transfer ended: the outer error is MPI's, here or at the rank that goes
    /// between the nodes.
    pub(crate) fn ended(
        &self,
        report: Report,
        operation: &'static str,
        outcome: Outcome,
    ) -> Result<Result<(), Error>, Error> {
        if outcome.is_cut {
            return Err(report.peer(operation, self.leader, Failure::Mpi));
        }
        report.ended(outcome)
    }
}
