//! Gatherv, Scatterv, Allgatherv and Alltoallv of device buffers.

use super::Partition;
use super::traffic::Traffic;
use crate::buffers::{Settled, SettledMut};
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use bytemuck::Pod;
use mpi::topology::Rank;

const GATHER: &str = "MPI_Gatherv of device memory";
const SCATTER: &str = "MPI_Scatterv of device memory";
const ALLGATHER: &str = "MPI_Allgatherv of device memory";
const ALLTOALL: &str = "MPI_Alltoallv of device memory";

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
        let mut traffic = Traffic::new(self.size());
        let mut own = self.own(mine.place());
        traffic.send_to::<T>(root, mine.place(), mine.len());
        if self.rank() == root {
            own = own.and(match all {
                Some((all, parts)) => self.receive_parts(GATHER, &mut traffic, all, parts),
                None => Err(self.wrong(GATHER, "the root gives no buffer".to_owned())),
            });
        }
        self.traffic(GATHER, traffic, own)
    }

    /// Each rank's part of `all`, which the root alone gives, in its `mine`. Collective.
    pub fn scatter_varcount_into<T: Pod>(
        &self,
        root: Rank,
        all: Option<(&Settled<'_, T>, &Partition)>,
        mine: &mut SettledMut<'_, T>,
    ) -> Result<(), Error> {
        self.ready(&[root])?;
        let mut traffic = Traffic::new(self.size());
        let mut own = self.own(mine.place());
        traffic.receive_from::<T>(root, mine.place(), mine.len());
        if self.rank() == root {
            own = own.and(match all {
                Some((all, parts)) => self.send_parts(SCATTER, &mut traffic, all, parts),
                None => Err(self.wrong(SCATTER, "the root gives no buffer".to_owned())),
            });
        }
        self.traffic(SCATTER, traffic, own)
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
        let mut traffic = Traffic::new(self.size());
        let mut own = self.own(mine.place());
        traffic.send_to_all::<T>(mine.place(), mine.len());
        own = own.and_then(|()| self.receive_parts(ALLGATHER, &mut traffic, all, parts));
        self.traffic(ALLGATHER, traffic, own)
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
        let mut traffic = Traffic::new(self.size());
        let own = self.send_parts(ALLTOALL, &mut traffic, mine, sent);
        let own = own.and_then(|()| self.receive_parts(ALLTOALL, &mut traffic, theirs, received));
        self.traffic(ALLTOALL, traffic, own)
    }

    fn wrong(&self, operation: &'static str, text: String) -> Error {
        Error::Partition { operation, rank: self.rank(), text }
    }

    fn send_parts<T: Pod>(
        &self,
        operation: &'static str,
        traffic: &mut Traffic,
        buffer: &Settled<'_, T>,
        parts: &Partition,
    ) -> Result<(), Error> {
        if let Some(fault) = parts.fault(self.size() as usize, buffer.len(), false) {
            return Err(self.wrong(operation, format!("of what is sent, {fault}")));
        }
        traffic.send_each::<T>(buffer.place(), buffer.len(), parts.parts());
        self.own(buffer.place())
    }

    fn receive_parts<T: Pod>(
        &self,
        operation: &'static str,
        traffic: &mut Traffic,
        buffer: &SettledMut<'_, T>,
        parts: &Partition,
    ) -> Result<(), Error> {
        if let Some(fault) = parts.fault(self.size() as usize, buffer.len(), true) {
            return Err(self.wrong(operation, format!("of what is received, {fault}")));
        }
        traffic.receive_each::<T>(buffer.place(), buffer.len(), parts.parts());
        self.own(buffer.place())
    }
}
