//! Gatherv, Scatterv, Allgatherv and Alltoallv that do not block.

use super::engine::{Handed, Key, Work};
use super::lent::{Lent, Receiving, Sending};
use super::parts;
use super::request::Request;
use super::scope::Scope;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::operations::{Parted, Partition, Traffic};
use crate::paths::Path;
use bytemuck::Pod;
use mpi::topology::Rank;

const GATHER: &str = "MPI_Igatherv of device memory";
const SCATTER: &str = "MPI_Iscatterv of device memory";
const ALLGATHER: &str = "MPI_Iallgatherv of device memory";
const ALLTOALL: &str = "MPI_Ialltoallv of device memory";

/// Collective, as [`immediate_broadcast_into`](DeviceCommunicator::immediate_broadcast_into).
/// The partitions are read when it begins, and not lent.
impl DeviceCommunicator {
    /// [`gather_varcount_into`](DeviceCommunicator::gather_varcount_into) that does not block:
    /// `all` is the root's, and what other ranks give there is not used.
    pub fn immediate_gather_varcount_into<'scope, T: Pod>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        root: Rank,
        mine: impl Sending<'scope, T>,
        all: Option<(impl Receiving<'scope, T>, &Partition)>,
    ) -> Result<Request<'scope, ()>, Error> {
        self.ready(&[root])?;
        let (mine, all) = (mine.lent(), all.map(|(all, parts)| (all.lent(), parts)));
        let described = self.gathered::<T>(GATHER, root, mine.whole(), all.as_ref().map(parted));
        let id = self.begin_parts(GATHER, described, [Some(mine), all.map(|(all, _)| all)]);
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    /// [`scatter_varcount_into`](DeviceCommunicator::scatter_varcount_into) that does not
    /// block: `all` is the root's, and what other ranks give there is not used.
    pub fn immediate_scatter_varcount_into<'scope, T: Pod>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        root: Rank,
        all: Option<(impl Sending<'scope, T>, &Partition)>,
        mine: impl Receiving<'scope, T>,
    ) -> Result<Request<'scope, ()>, Error> {
        self.ready(&[root])?;
        let (all, mine) = (all.map(|(all, parts)| (all.lent(), parts)), mine.lent());
        let described = self.scattered::<T>(SCATTER, root, all.as_ref().map(parted), mine.whole());
        let id = self.begin_parts(SCATTER, described, [all.map(|(all, _)| all), Some(mine)]);
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    /// [`all_gather_varcount_into`](DeviceCommunicator::all_gather_varcount_into) that does
    /// not block.
    pub fn immediate_all_gather_varcount_into<'scope, T: Pod>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        mine: impl Sending<'scope, T>,
        all: impl Receiving<'scope, T>,
        parts: &Partition,
    ) -> Result<Request<'scope, ()>, Error> {
        self.ready(&[])?;
        let (mine, all) = (mine.lent(), all.lent());
        let described = self.all_gathered::<T>(ALLGATHER, mine.whole(), (all.whole(), parts));
        let id = self.begin_parts(ALLGATHER, described, [Some(mine), Some(all)]);
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    /// [`all_to_all_varcount_into`](DeviceCommunicator::all_to_all_varcount_into) that does
    /// not block.
    pub fn immediate_all_to_all_varcount_into<'scope, T: Pod>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        mine: impl Sending<'scope, T>,
        sent: &Partition,
        theirs: impl Receiving<'scope, T>,
        received: &Partition,
    ) -> Result<Request<'scope, ()>, Error> {
        self.ready(&[])?;
        let (mine, theirs) = (mine.lent(), theirs.lent());
        let described = self.exchanged::<T>(ALLTOALL, (mine.whole(), sent), (theirs.whole(), received));
        let id = self.begin_parts(ALLTOALL, described, [Some(mine), Some(theirs)]);
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    fn begin_parts(
        &self,
        operation: &'static str,
        (traffic, own): (Traffic, Result<(), Error>),
        lent: [Option<Lent<'_>>; 2],
    ) -> u64 {
        let marks = lent.map(|lent| lent.and_then(|lent| lent.marks));
        let (desk, handed) = (self.desk.clone(), Handed::default());
        let work: Work = if self.plan.path == Path::Direct {
            Box::pin(parts::directly(desk, handed.clone(), operation, traffic, marks, own))
        } else {
            Box::pin(parts::carried(desk, operation, traffic, marks, own))
        };
        self.engine.submit(Key::Collective, handed, work)
    }
}

fn parted<'b>((lent, parts): &(Lent<'b>, &'b Partition)) -> Parted<'b> {
    (lent.whole(), parts)
}
