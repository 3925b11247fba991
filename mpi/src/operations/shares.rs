//! Gather, Scatter, Allgather and Alltoall of device buffers: every rank's share.
#![allow(unsafe_code)] // names device memory to copies and requests that are waited for

use super::traffic::Traffic;
use super::{Memory, extent};
use crate::buffers::{Place, Settled, SettledMut};
use crate::called::Called;
use crate::calls::{Answer, Comm, Request, Rooted};
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::paths::{Path, run};
use bytemuck::Pod;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::DevicePtr;

const GATHER: &str = "MPI_Gather of device memory";
const SCATTER: &str = "MPI_Scatter of device memory";
const ALLGATHER: &str = "MPI_Allgather of device memory";
const ALLTOALL: &str = "MPI_Alltoall of device memory";
/// A share's piece that is worth a message.
pub(crate) const WORTH: usize = 64 << 10;

/// A buffer and its elements.
pub(crate) type Whole<'b> = (Place<'b>, usize);

/// What a rank sends and receives, share by share.
#[derive(Clone, Copy)]
pub(crate) struct Shares {
    what: Rooted,
    from: Option<Memory>,
    to: Option<Memory>,
    /// Of one share.
    pub(crate) bytes: usize,
    rank: Rank,
    size: usize,
}

impl Shares {
    /// How many this rank sends and receives, and the most that any does of both.
    fn counts(&self) -> [usize; 3] {
        let Shares { what, rank, size, .. } = *self;
        let at = |root: Rank| if root == rank { size } else { 0 };
        match what {
            Rooted::Gather(root) => [1, at(root), 1 + size],
            Rooted::Scatter(root) => [at(root), 1, 1 + size],
            Rooted::AllGather => [1, size, 1 + size],
            Rooted::AllToAll => [size, size, 2 * size],
        }
    }

    /// Bytes of the longer buffer.
    fn longer(&self) -> usize {
        self.from.iter().chain(&self.to).map(|memory| memory.bytes).max().unwrap_or(0)
    }

    /// As `operation`.
    pub(crate) fn called(&self, operation: &'static str) -> Called {
        let root = match self.what {
            Rooted::Gather(root) | Rooted::Scatter(root) => Some(root),
            Rooted::AllGather | Rooted::AllToAll => None,
        };
        Called::of(operation, root)
    }

    pub(crate) fn traffic(&self) -> Traffic {
        Traffic::of_shares(self.what, self.from, self.to, self.bytes, (self.rank, self.size))
    }

    /// Bytes that a slot needs, and those of a share's piece; the same at every rank, however long
    /// its ring is.
    pub(crate) fn cut(&self, chunk_bytes: usize) -> (usize, usize) {
        let [_, _, most] = self.counts();
        let slot = chunk_bytes.next_multiple_of(4096).max(most * self.bytes.min(WORTH));
        (slot, (slot / most).clamp(1, self.bytes.max(1)))
    }

    /// Bytes of a slot that so long pieces of all shares take, which may be less than it has.
    pub(crate) fn needs(&self, piece: usize) -> usize {
        let [_, _, most] = self.counts();
        most * piece
    }

    /// Device memory, its place in the slot, and bytes, of so many shares' pieces.
    fn copies(
        &self,
        memory: Option<Memory>,
        (shares, first): (usize, usize),
        (start, length): (usize, usize),
    ) -> impl Iterator<Item = (DevicePtr, usize, usize)> + use<> {
        let bytes = self.bytes;
        let places = memory.into_iter().flat_map(move |memory| (0..shares).map(move |share| (memory, share)));
        places
            .map(move |(memory, share)| (memory.byte(share * bytes + start), first + share * length, length))
    }

    /// The copies to the slot of piece `number`.
    pub(crate) fn loads(
        &self,
        piece: usize,
        number: usize,
    ) -> impl Iterator<Item = (DevicePtr, usize, usize)> + use<> {
        let [sends, ..] = self.counts();
        self.copies(self.from, (sends, 0), extent(self.bytes, piece, number))
    }

    /// The copies from the slot of piece `number`.
    pub(crate) fn stores(
        &self,
        piece: usize,
        number: usize,
    ) -> impl Iterator<Item = (DevicePtr, usize, usize)> + use<> {
        let [sends, receives, _] = self.counts();
        self.copies(self.to, (receives, sends * piece), extent(self.bytes, piece, number))
    }

    /// Starts piece `number` in the slot at `at`.
    ///
    /// # Safety
    /// The slot stands until the request is done, and nobody uses it.
    pub(crate) unsafe fn start(
        &self,
        ranks: &Comm,
        piece: usize,
        number: usize,
        at: *mut u8,
    ) -> Answer<Request> {
        let [sends, ..] = self.counts();
        let (_, length) = extent(self.bytes, piece, number);
        // SAFETY: the caller's contract; the shares' pieces fit the slot (`cut`).
        unsafe { ranks.start_shares(self.what, at, at.wrapping_add(sends * piece), length) }
    }

    /// Gives MPI the pointers.
    ///
    /// # Safety
    /// MPI takes them (the plan). The memory stands until the request is done, what is sent
    /// unwritten, and what is received is nobody's.
    pub(crate) unsafe fn start_directly(&self, ranks: &Comm) -> Answer<Request> {
        let pointer = |memory: Option<Memory>| memory.map_or(std::ptr::null_mut(), Memory::host);
        // SAFETY: the caller's contract; the buffers have the shares (`divided`).
        unsafe { ranks.start_shares(self.what, pointer(self.from), pointer(self.to), self.bytes) }
    }
}

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
        let (from, to) = (Some((mine.place(), mine.len())), all.map(|all| (all.place(), all.len())));
        self.shares::<T>(GATHER, Rooted::Gather(root), from, to)
    }

    /// Each rank's share of `all`, which the root alone gives, in its `mine`. Collective.
    pub fn scatter_into<T: Pod>(
        &self,
        root: Rank,
        all: Option<&Settled<'_, T>>,
        mine: &mut SettledMut<'_, T>,
    ) -> Result<(), Error> {
        self.ready(&[root])?;
        let (from, to) = (all.map(|all| (all.place(), all.len())), Some((mine.place(), mine.len())));
        self.shares::<T>(SCATTER, Rooted::Scatter(root), from, to)
    }

    /// Every rank's `mine`, one after the other, in every rank's `all`. Collective.
    pub fn all_gather_into<T: Pod>(
        &self,
        mine: &Settled<'_, T>,
        all: &mut SettledMut<'_, T>,
    ) -> Result<(), Error> {
        self.ready(&[])?;
        let (from, to) = (Some((mine.place(), mine.len())), Some((all.place(), all.len())));
        self.shares::<T>(ALLGATHER, Rooted::AllGather, from, to)
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
        self.shares::<T>(ALLTOALL, Rooted::AllToAll, from, to)
    }

    /// What this rank sends and receives, and whether its buffers have the shares that they need.
    pub(crate) fn divided<T: Pod>(
        &self,
        operation: &'static str,
        what: Rooted,
        from: Option<Whole<'_>>,
        to: Option<Whole<'_>>,
    ) -> (Shares, Result<(), Error>) {
        let (rank, size) = (self.rank(), self.size() as usize);
        let (from, to) = match what {
            Rooted::Gather(root) if root != rank => (from, None),
            Rooted::Scatter(root) if root != rank => (None, to),
            _ => (from, to),
        };
        let elements = |buffer: Option<Whole<'_>>| buffer.map_or(0, |(_, elements)| elements);
        let share = match what {
            Rooted::Gather(_) | Rooted::AllGather => elements(from),
            Rooted::Scatter(_) => elements(to),
            Rooted::AllToAll => elements(from) / size,
        };
        let mut own = Ok(());
        for (place, _) in from.iter().chain(&to) {
            own = own.and(self.own(*place));
        }
        let longer = |buffer| match elements(buffer) {
            elements if elements == share * size => Ok(()),
            elements => Err(Error::Share { operation, rank, elements, size: size as Rank }),
        };
        own = own.and_then(|()| match what {
            Rooted::Gather(root) if root == rank => longer(to),
            Rooted::Scatter(root) if root == rank => longer(from),
            Rooted::Gather(_) | Rooted::Scatter(_) => Ok(()),
            Rooted::AllGather => longer(to),
            Rooted::AllToAll => longer(from).and(longer(to)),
        });
        let memory =
            |buffer: Option<Whole<'_>>| buffer.map(|(place, elements)| Memory::of::<T>(place, elements));
        let bytes = share * size_of::<T>();
        if self.plan.path == Path::Direct && bytes > i32::MAX as usize {
            own = own.and(Err(Error::TooLong { rank, bytes }));
        }
        (Shares { what, from: memory(from), to: memory(to), bytes, rank, size }, own)
    }

    fn shares<T: Pod>(
        &self,
        operation: &'static str,
        what: Rooted,
        from: Option<Whole<'_>>,
        to: Option<Whole<'_>>,
    ) -> Result<(), Error> {
        let (shares, mut own) = self.divided::<T>(operation, what, from, to);
        let _call = self.traced(operation, shares.longer());
        let bytes = shares.bytes;
        if self.plan.path == Path::Direct {
            self.same(shares.called(operation), bytes, own)?;
            // SAFETY: settled memory, borrowed for the call and as long as MPI needs it, of which
            // MPI takes the addresses (the plan).
            let request = unsafe { shares.start_directly(&self.whole) };
            return request.and_then(|request| request.wait()).map_err(|error| self.report.mpi(error));
        }
        if self.plan.path == Path::Ipc {
            self.same(shares.called(operation), bytes, own)?;
            return self.traffic(operation, shares.traffic(), Ok(()));
        }
        let token = DriverToken::at_entry();
        let ring = &mut self.state.borrow_mut().ring;
        let (slot, piece) = shares.cut(self.plan.chunk_bytes);
        own = own.and(ring.grow(slot).map_err(|source| self.report.staging(source)));
        self.same(shares.called(operation), bytes, own)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: settled memory of these bytes, borrowed until the caller returns; the shares'
        // pieces fit a slot.
        let outcome = unsafe {
            run(
                ring,
                bytes.div_ceil(piece),
                &token,
                |number, copy| {
                    shares.loads(piece, number).for_each(|(from, at, bytes)| copy(from, at, bytes))
                },
                |number, slot| Ok([Some(shares.start(&self.whole, piece, number, slot)?), None]),
                |number, copy| shares.stores(piece, number).for_each(|(to, at, bytes)| copy(to, at, bytes)),
            )
        };
        let mine = self.report.ended(outcome)?;
        self.agree(operation, mine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_byte_of_every_share_once_and_fit_a_slot() {
        const KINDS: [Rooted; 4] =
            [Rooted::Gather(1), Rooted::Scatter(1), Rooted::AllGather, Rooted::AllToAll];
        for (what, rank, size) in KINDS.iter().flat_map(|&what| [(what, 1, 3), (what, 0, 3), (what, 1, 60)]) {
            for (bytes, chunk) in [(1, 4096), (5000, 4096), (70_000, 4096), (5000, 1 << 20)] {
                let memory = |at: u64| Some(Memory { at: DevicePtr(at), bytes: size * bytes, slab: None });
                let shares = Shares { what, from: memory(0), to: memory(1 << 30), bytes, rank, size };
                let ([sends, receives, _], (slot, piece)) = (shares.counts(), shares.cut(chunk));
                let (mut loaded, mut stored) = (vec![0; sends * bytes], vec![0; receives * bytes]);
                for number in 0..bytes.div_ceil(piece) {
                    for (from, at, length) in shares.loads(piece, number) {
                        assert!(at + length <= sends * piece);
                        loaded[from.0 as usize..][..length].iter_mut().for_each(|times| *times += 1);
                    }
                    for (to, at, length) in shares.stores(piece, number) {
                        assert!(at >= sends * piece && at + length <= slot);
                        stored[to.0 as usize - (1 << 30)..][..length]
                            .iter_mut()
                            .for_each(|times| *times += 1);
                    }
                }
                let once = loaded.iter().chain(&stored).all(|&times| times == 1);
                assert!(once, "{what:?} of {bytes} at rank {rank} of {size}, chunks of {chunk}");
            }
        }
    }
}
