//! What a communicator does with settled buffers.

mod agreement;
mod broadcast;
mod chain;
mod links;
mod node_first;
mod on_device;
mod on_node;
mod partition;
mod parts;
mod reduce;
mod shares;
mod traced;
mod traffic;
mod varcount;
mod window;

pub(crate) use self::agreement::{Wants, are_the_same, words};
pub(crate) use self::links::{Lengths, Link, Links, Tags, is_worth};
pub(crate) use self::node_first::{NodeFirst, Share, reduces_nodes_first};
pub(crate) use self::on_device::{Work, reduces_on_device};
pub use self::partition::Partition;
pub(crate) use self::reduce::work;
pub use self::reduce::{Number, Reduction};
use self::shares::WORTH;
pub(crate) use self::shares::{Shares, Whole};
pub(crate) use self::traffic::{Told, Traffic};
pub(crate) use self::varcount::Parted;
pub use self::window::{
    Epoch, EpochMemory, Got, Lock, LockWindow, Locked, LockedAll, Own, Sent, Window, WindowMemory,
};

use crate::buffers::Place;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::paths::Path;
use mpi::topology::Rank;
use pinyard_driver::DevicePtr;

/// Device memory of a settled buffer.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) at: DevicePtr,
    pub(crate) bytes: usize,
    /// Start and bytes of its slab; none without bytes.
    pub(crate) slab: Option<(DevicePtr, usize)>,
}

impl Memory {
    /// No bytes, nowhere.
    pub(crate) const NONE: Memory = Memory { at: DevicePtr(0), bytes: 0, slab: None };

    pub(crate) fn of<T>(place: Place<'_>, elements: usize) -> Memory {
        Memory { at: place.ptr, bytes: elements * size_of::<T>(), slab: place.slab }
    }

    /// So many of its bytes, or all where it has fewer.
    pub(crate) fn first(self, bytes: u64) -> Memory {
        Memory { bytes: self.bytes.min(bytes as usize), ..self }
    }

    /// Where byte `offset` lies.
    pub(crate) fn byte(&self, offset: usize) -> DevicePtr {
        DevicePtr(self.at.0 + offset as u64)
    }

    pub(crate) fn host(self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.at.0 as usize)
    }
}

/// Bytes of one piece of a transfer of `bytes`: an eighth, so that a pipeline has
/// something to overlap, but not so short that MPI's cost per message shows, and no more
/// than a chunk.
pub(crate) fn piece(bytes: usize, chunk: usize) -> usize {
    const LEAST: usize = 128 << 10;
    bytes.div_ceil(8).next_multiple_of(4096).clamp(LEAST.min(chunk), chunk)
}

/// The bytes of piece `number`.
pub(crate) fn extent(bytes: usize, piece: usize, number: usize) -> (usize, usize) {
    let start = number * piece;
    (start, piece.min(bytes - start))
}

impl DeviceCommunicator {
    /// What must hold before any message: else the ranks would not know of each other.
    pub(crate) fn ready(&self, peers: &[Rank]) -> Result<(), Error> {
        let (rank, size) = (self.rank(), self.size());
        if mpi::is_finalized() {
            return Err(Error::Finalized { rank });
        }
        match peers.iter().find(|&&wanted| wanted < 0 || wanted >= size) {
            Some(&wanted) => Err(Error::NoSuchRank { rank, wanted, size }),
            None => Ok(()),
        }
    }

    /// Whether the buffer is of this communicator's device. On the direct path MPI takes
    /// any device's.
    pub(crate) fn own(&self, place: Place<'_>) -> Result<(), Error> {
        if self.plan.path == Path::Direct || place.slab.is_none() || place.gpu.is(&self.gpu) {
            return Ok(());
        }
        let (buffer, communicator) = (place.gpu.to_string(), self.gpu.to_string());
        Err(Error::OtherDevice { rank: self.rank(), buffer, communicator })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_byte_once_and_are_no_longer_than_a_chunk() {
        for chunk in [4096, 1 << 20] {
            for bytes in [1, 4095, 4096, 4097, 100_000, (1 << 20) + 1, 9 << 20] {
                let piece = piece(bytes, chunk);
                assert!(piece <= chunk);
                let mut next = 0;
                for number in 0..bytes.div_ceil(piece) {
                    let (start, length) = extent(bytes, piece, number);
                    assert!(start == next && length > 0);
                    next += length;
                }
                assert_eq!(next, bytes);
            }
        }
        assert_eq!(piece(64 << 20, 1 << 20), 1 << 20);
        assert_eq!(piece(1 << 20, 1 << 20), 128 << 10);
    }
}
