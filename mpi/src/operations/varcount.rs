//! Gatherv, Scatterv, Allgatherv and Alltoallv of device buffers.

use super::traffic::Traffic;
use super::{Partition, Whole};
use crate::buffers::{Settled, SettledMut};
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use bytemuck::Pod;
use mpi::topology::Rank;

const GATHER: &str = "MPI_Gatherv of device memory";
const SCATTER: &str = "MPI_Scatterv of device memory";
const ALLGATHER: &str = "MPI_Allgatherv of device memory";
const ALLTOALL: &str = "MPI_Alltoallv of device memory";
const NOTHING: &str = "the root gives no buffer";

/// A buffer and its parts.
pub(crate) type Parted<'b> = (Whole<'b>, &'b Partition);

impl DeviceCommunicator {
    /// Carries it out. Where the node has a board the ranks meet there first: one that ends its
    /// communicator, or is in another operation, is seen there and nowhere else.
    fn varcount(
        &self,
        operation: &'static str,
        traffic: Traffic,
        own: Result<(), Error>,
    ) -> Result<(), Error> {
        let own = if self.board.is_some() { Ok(self.same(operation, 0, own)?) } else { own };
        self.traffic(operation, traffic, own)
    }
}

/// A count that the other rank does not have is [`Error::Counts`] at the rank that
/// receives, and [`Error::Peer`] at the others. Every rank is told before anything moves,
/// on `ipc` when all has.
impl DeviceCommunicator {
    /// Every rank's `mine`, of whichever length, in its part of `all` at the root, which
    /// alone gives one. Collective.
    pub fn gather_varcount_into<T: Pod>(
        &self,
        root: Rank,
        mine: &Settled<'_, T>,
        all: Option<(&mut SettledMut<'_, T>, &Partition)>,
    ) -> Result<(), Error> {
        self.ready(&[root])?;
        let all = all.map(|(all, parts)| ((all.place(), all.len()), parts));
        let (traffic, own) = self.gathered::<T>(GATHER, root, (mine.place(), mine.len()), all);
        self.varcount(GATHER, traffic, own)
    }

    /// Each rank's part of `all`, which the root alone gives, in its `mine`. Collective.
    pub fn scatter_varcount_into<T: Pod>(
        &self,
        root: Rank,
        all: Option<(&Settled<'_, T>, &Partition)>,
        mine: &mut SettledMut<'_, T>,
    ) -> Result<(), Error> {
        self.ready(&[root])?;
        let all = all.map(|(all, parts)| ((all.place(), all.len()), parts));
        let (traffic, own) = self.scattered::<T>(SCATTER, root, all, (mine.place(), mine.len()));
        self.varcount(SCATTER, traffic, own)
    }

    /// Every rank's `mine`, of whichever length, in its part of every rank's `all`.
    /// Collective.
    pub fn all_gather_varcount_into<T: Pod>(
        &self,
        mine: &Settled<'_, T>,
        all: &mut SettledMut<'_, T>,
        parts: &Partition,
    ) -> Result<(), Error> {
        self.ready(&[])?;
        let (mine, all) = ((mine.place(), mine.len()), (all.place(), all.len()));
        let (traffic, own) = self.all_gathered::<T>(ALLGATHER, mine, (all, parts));
        self.varcount(ALLGATHER, traffic, own)
    }

    /// Part `n` of `mine` to rank `n`, which has it in its part of this rank of `theirs`.
    /// Collective.
    pub fn all_to_all_varcount_into<T: Pod>(
        &self,
        mine: &Settled<'_, T>,
        sent: &Partition,
        theirs: &mut SettledMut<'_, T>,
        received: &Partition,
    ) -> Result<(), Error> {
        self.ready(&[])?;
        let (mine, theirs) = ((mine.place(), mine.len()), (theirs.place(), theirs.len()));
        let (traffic, own) = self.exchanged::<T>(ALLTOALL, (mine, sent), (theirs, received));
        self.varcount(ALLTOALL, traffic, own)
    }
}

/// What each of them sends and receives at this rank, and what is wrong with it.
impl DeviceCommunicator {
    pub(crate) fn gathered<T: Pod>(
        &self,
        operation: &'static str,
        root: Rank,
        mine: Whole<'_>,
        all: Option<Parted<'_>>,
    ) -> (Traffic, Result<(), Error>) {
        let (mut traffic, mut own) = (Traffic::new(self.size()), self.own(mine.0));
        traffic.send_to::<T>(root, mine);
        if self.rank() == root {
            let parts = all.ok_or_else(|| self.wrong(operation, NOTHING.to_owned()));
            let parts = parts.and_then(|all| self.receive_parts::<T>(operation, &mut traffic, all));
            own = own.and(parts);
        }
        (traffic, own)
    }

    pub(crate) fn scattered<T: Pod>(
        &self,
        operation: &'static str,
        root: Rank,
        all: Option<Parted<'_>>,
        mine: Whole<'_>,
    ) -> (Traffic, Result<(), Error>) {
        let (mut traffic, mut own) = (Traffic::new(self.size()), self.own(mine.0));
        traffic.receive_from::<T>(root, mine);
        if self.rank() == root {
            let parts = all.ok_or_else(|| self.wrong(operation, NOTHING.to_owned()));
            let parts = parts.and_then(|all| self.send_parts::<T>(operation, &mut traffic, all));
            own = own.and(parts);
        }
        (traffic, own)
    }

    pub(crate) fn all_gathered<T: Pod>(
        &self,
        operation: &'static str,
        mine: Whole<'_>,
        all: Parted<'_>,
    ) -> (Traffic, Result<(), Error>) {
        let (mut traffic, own) = (Traffic::new(self.size()), self.own(mine.0));
        traffic.send_to_all::<T>(mine);
        let own = own.and_then(|()| self.receive_parts::<T>(operation, &mut traffic, all));
        (traffic, own)
    }

    pub(crate) fn exchanged<T: Pod>(
        &self,
        operation: &'static str,
        mine: Parted<'_>,
        theirs: Parted<'_>,
    ) -> (Traffic, Result<(), Error>) {
        let mut traffic = Traffic::new(self.size());
        let own = self.send_parts::<T>(operation, &mut traffic, mine);
        let own = own.and_then(|()| self.receive_parts::<T>(operation, &mut traffic, theirs));
        (traffic, own)
    }

    fn wrong(&self, operation: &'static str, text: String) -> Error {
        Error::Partition { operation, rank: self.rank(), text }
    }

    fn send_parts<T: Pod>(
        &self,
        operation: &'static str,
        traffic: &mut Traffic,
        (whole, parts): Parted<'_>,
    ) -> Result<(), Error> {
        if let Some(fault) = parts.fault(self.size() as usize, whole.1, false) {
            return Err(self.wrong(operation, format!("of what is sent, {fault}")));
        }
        traffic.send_each::<T>(whole, parts.parts());
        self.own(whole.0)
    }

    fn receive_parts<T: Pod>(
        &self,
        operation: &'static str,
        traffic: &mut Traffic,
        (whole, parts): Parted<'_>,
    ) -> Result<(), Error> {
        if let Some(fault) = parts.fault(self.size() as usize, whole.1, true) {
            return Err(self.wrong(operation, format!("of what is received, {fault}")));
        }
        traffic.receive_each::<T>(whole, parts.parts());
        self.own(whole.0)
    }
}
