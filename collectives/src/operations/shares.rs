//! Gather, Scatter, Allgather and Alltoall of device buffers: every rank's share.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::parts::Traffic;
use super::{Memory, extent};
use crate::buffers::{Place, Settled, SettledMut};
use crate::calls::Rooted;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::paths::{Path, run};
use bytemuck::Pod;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;

const GATHER: &str = "MPI_Gather of device memory";
const SCATTER: &str = "MPI_Scatter of device memory";
const ALLGATHER: &str = "MPI_Allgather of device memory";
const ALLTOALL: &str = "MPI_Alltoall of device memory";
/// A share's piece that is worth a message.
pub(crate) const WORTH: usize = 64 << 10;

impl DeviceCommunicator {
    /// Every rank's `mine`, one after the other, in `all` at the root, which alone gives
    /// one. Collective.
    pub fn gather_into<T: Pod>(
        &self,
        root: Rank,
        mine: &Settled<'_, T>,
        all: Option<&mut SettledMut<'_, T>>,
    ) -> Result<(), Error> {
        self.ready(&[root])?;
        let to = all.filter(|_| self.rank() == root).map(|all| (all.place(), all.len()));
        let needed = if self.rank() == root { mine.len() * self.size() as usize } else { 0 };
        self.shares::<T>(
            GATHER,
            Rooted::Gather(root),
            Some((mine.place(), mine.len())),
            to,
            mine.len(),
            needed,
        )
    }

    /// Each rank's share of `all`, which the root alone gives, in its `mine`. Collective.
    pub fn scatter_into<T: Pod>(
        &self,
        root: Rank,
        all: Option<&Settled<'_, T>>,
        mine: &mut SettledMut<'_, T>,
    ) -> Result<(), Error> {
        self.ready(&[root])?;
        let from = all.filter(|_| self.rank() == root).map(|all| (all.place(), all.len()));
        let needed = if self.rank() == root { mine.len() * self.size() as usize } else { 0 };
        let to = Some((mine.place(), mine.len()));
        self.shares::<T>(SCATTER, Rooted::Scatter(root), from, to, mine.len(), needed)
    }

    /// Every rank's `mine`, one after the other, in every rank's `all`. Collective.
    pub fn all_gather_into<T: Pod>(
        &self,
        mine: &Settled<'_, T>,
        all: &mut SettledMut<'_, T>,
    ) -> Result<(), Error> {
        self.ready(&[])?;
        let (from, to) = (Some((mine.place(), mine.len())), Some((all.place(), all.len())));
        let needed = mine.len() * self.size() as usize;
        self.shares::<T>(ALLGATHER, Rooted::AllGather, from, to, mine.len(), needed)
    }

    /// Share `n` of `mine` to rank `n`, which has it in its `theirs` at this rank's place.
    /// Collective.
    pub fn all_to_all_into<T: Pod>(
        &self,
        mine: &Settled<'_, T>,
        theirs: &mut SettledMut<'_, T>,
    ) -> Result<(), Error> {
        self.ready(&[])?;
        let (from, to) = (Some((mine.place(), mine.len())), Some((theirs.place(), theirs.len())));
        let size = self.size() as usize;
        let share = mine.len() / size;
        self.shares::<T>(ALLTOALL, Rooted::AllToAll, from, to, share, share * size)
    }

    /// `share` elements from or for each rank; `needed` are those of the longer buffers.
    fn shares<T: Pod>(
        &self,
        operation: &'static str,
        what: Rooted,
        from: Option<(Place<'_>, usize)>,
        to: Option<(Place<'_>, usize)>,
        share: usize,
        needed: usize,
    ) -> Result<(), Error> {
        let (rank, size) = (self.rank(), self.size() as usize);
        let longer = |buffer: Option<(Place<'_>, usize)>| match buffer.map_or(0, |(_, elements)| elements) {
            elements if elements == needed => Ok(()),
            elements => Err(Error::Share { operation, rank, elements, size: size as Rank }),
        };
        let mine = from.iter().chain(&to).map(|(_, elements)| elements * size_of::<T>()).max();
        let _call = self.traced(operation, mine.unwrap_or(0));
        let mut own = Ok(());
        for (place, _) in from.iter().chain(&to) {
            own = own.and(self.own(*place));
        }
        own = own.and_then(|()| match what {
            Rooted::Gather(root) if root == rank => longer(to),
            Rooted::Scatter(root) if root == rank => longer(from),
            Rooted::Gather(_) | Rooted::Scatter(_) => Ok(()),
            Rooted::AllGather => longer(to),
            Rooted::AllToAll => longer(from).and(longer(to)),
        });
        let bytes = share * size_of::<T>();
        let memory = |buffer: Option<(Place<'_>, usize)>| {
            buffer.map(|(place, elements)| Memory::of::<T>(place, elements))
        };
        let (from, to) = (memory(from), memory(to));
        // How many shares a rank sends and receives, and the most that any does.
        let (sends, receives, most) = match what {
            Rooted::Gather(root) => (1, if root == rank { size } else { 0 }, 1 + size),
            Rooted::Scatter(root) => (if root == rank { size } else { 0 }, 1, 1 + size),
            Rooted::AllGather => (1, size, 1 + size),
            Rooted::AllToAll => (size, size, 2 * size),
        };
        if self.plan.path == Path::Direct {
            if bytes > i32::MAX as usize {
                own = own.and(Err(Error::TooLong { rank, bytes }));
            }
            self.same(operation, bytes, own)?;
            let pointer = |memory: Option<Memory>| memory.map_or(std::ptr::null_mut(), Memory::host);
            // SAFETY: settled memory, borrowed for the call and as long as MPI needs it (checked
            // above), of which MPI takes the addresses (the plan).
            let request = unsafe { self.whole.start_shares(what, pointer(from), pointer(to), bytes) };
            return request.and_then(|request| request.wait()).map_err(|error| self.report.mpi(error));
        }
        if self.plan.path == Path::Ipc {
            self.same(operation, bytes, own)?;
            return self.traffic(operation, Traffic::of_shares(what, from, to, bytes, (rank, size)), Ok(()));
        }
        let token = DriverToken::at_entry();
        let ring = &mut self.state.borrow_mut().ring;
        if let Err(source) = ring.grow(most * bytes.min(WORTH)) {
            own = own.and(Err(Error::Staging { rank, source }));
        }
        self.same(operation, bytes, own)?;
        if bytes == 0 {
            return Ok(());
        }
        // The ring may be longer at one rank than at another: what all can have counts.
        let slot = self.plan.chunk_bytes.next_multiple_of(4096).max(most * bytes.min(WORTH));
        let piece = (slot / most).min(bytes);
        let received = sends * piece;
        // SAFETY: settled memory of these bytes, borrowed until the caller returns; the shares'
        // pieces fit a slot.
        let outcome = unsafe {
            run(
                ring,
                bytes.div_ceil(piece),
                &token,
                |number, copy| {
                    let (start, length) = extent(bytes, piece, number);
                    if let Some(from) = from {
                        for share in 0..sends {
                            copy(from.byte(share * bytes + start), share * length, length);
                        }
                    }
                },
                |number, slot| {
                    let (_, length) = extent(bytes, piece, number);
                    let to = slot.wrapping_add(received);
                    Ok([Some(self.whole.start_shares(what, slot, to, length)?), None])
                },
                |number, copy| {
                    let (start, length) = extent(bytes, piece, number);
                    if let Some(to) = to {
                        for share in 0..receives {
                            copy(to.byte(share * bytes + start), received + share * length, length);
                        }
                    }
                },
            )
        };
        let mine = self.report.ended(outcome)?;
        self.agree(operation, mine)
    }
}
