//! What ranks tell each other beside the data, so that one that fails leaves none of the
//! others waiting.

use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::words::words;
use mpi::topology::Rank;

impl DeviceCommunicator {
    /// After a collective: all succeed, or all fail, each with its own cause or with the
    /// rank of one that failed. What a rank's buffer was read for is over.
    pub(super) fn agree<R>(&self, operation: &'static str, mine: Result<R, Error>) -> Result<R, Error> {
        if let Some(board) = &self.board {
            return self.agree_on_node(&mut board.borrow_mut(), operation, mine);
        }
        let [worst] =
            self.whole.largest([self.report.answer(&mine)]).map_err(|error| self.report.mpi(error))?;
        let mine = mine?;
        self.report.told(operation, worst).map(|()| mine)
    }

    /// Before a collective: all have the same count of bytes, and none has failed so far.
    /// One small MPI_Allreduce; only where counts differ are they gathered, to say whose.
    pub(super) fn same(
        &self,
        operation: &'static str,
        bytes: usize,
        mine: Result<(), Error>,
    ) -> Result<(), Error> {
        let (bytes, failure) = (bytes as u64, self.report.answer(&mine));
        let [most, least, worst] =
            self.whole.largest([bytes, !bytes, failure]).map_err(|error| self.report.mpi(error))?;
        mine?;
        self.report.told(operation, worst)?;
        if most == !least {
            return Ok(());
        }
        let all = self.whole.gather_all(&bytes.to_le_bytes()).map_err(|error| self.report.mpi(error))?;
        let mut counts = words(&all);
        let first = counts.next().unwrap_or(bytes);
        let differs = counts.enumerate().find(|&(_, count)| count != first);
        let (at, count) = differs.unwrap_or((0, first));
        Err(Error::Counts { operation, rank: at as Rank + 1, bytes: count, other: 0, other_bytes: first })
    }
}
