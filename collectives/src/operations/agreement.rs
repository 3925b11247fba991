//! What ranks tell each other beside the data, so that one that fails leaves none of the
//! others waiting.

use crate::communicator::DeviceCommunicator;
use crate::error::{Error, Failure};
use crate::words::words;
use mpi::topology::Rank;

/// Failure and rank in one word: 0 where there is none.
pub(crate) fn word(failure: Option<Failure>, rank: Rank) -> u64 {
    failure.map_or(0, |failure| u64::from(failure.number()) << 32 | rank as u64)
}

impl DeviceCommunicator {
    /// After a collective: all succeed, or all fail, each with its own cause or with the
    /// rank of one that failed. What a rank's buffer was read for is over.
    pub(super) fn agree(&self, operation: &'static str, mine: Result<(), Error>) -> Result<(), Error> {
        if let Some(board) = &self.board {
            return self.agree_on_node(&mut board.borrow_mut(), operation, mine);
        }
        let failure = mine.as_ref().err().map(Error::failure);
        let [worst] = self.whole.largest([word(failure, self.rank())]).map_err(|error| self.mpi(error))?;
        mine?;
        self.told(operation, worst)
    }

    /// The failure of another rank that a word tells of.
    pub(super) fn told(&self, operation: &'static str, worst: u64) -> Result<(), Error> {
        if worst == 0 {
            return Ok(());
        }
        let what = Failure::of((worst >> 32) as u32);
        Err(Error::Peer { operation, rank: worst as u32 as Rank, seen_by: self.rank(), what })
    }

    /// What an answer to a sender says.
    pub(super) fn answer(&self, mine: &Result<(), Error>) -> u64 {
        word(mine.as_ref().err().map(Error::failure), self.rank())
    }

    /// Before a collective: all have the same count of bytes, and none has failed so far.
    /// One small MPI_Allreduce; only where counts differ are they gathered, to say whose.
    pub(super) fn same(
        &self,
        operation: &'static str,
        bytes: usize,
        mine: Result<(), Error>,
    ) -> Result<(), Error> {
        let (bytes, rank) = (bytes as u64, self.rank());
        let failure = word(mine.as_ref().err().map(Error::failure), rank);
        let [most, least, worst] =
            self.whole.largest([bytes, !bytes, failure]).map_err(|error| self.mpi(error))?;
        mine?;
        self.told(operation, worst)?;
        if most == !least {
            return Ok(());
        }
        let all = self.whole.gather_all(&bytes.to_le_bytes()).map_err(|error| self.mpi(error))?;
        let mut counts = words(&all);
        let first = counts.next().unwrap_or(bytes);
        let differs = counts.enumerate().find(|&(_, count)| count != first);
        let (at, count) = differs.unwrap_or((0, first));
        Err(Error::Counts { operation, rank: at as Rank + 1, bytes: count, other: 0, other_bytes: first })
    }
}
