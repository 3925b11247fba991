//! What ranks tell each other beside the data, so that one that fails, or does something else,
//! leaves none of the others waiting.

use crate::called::{Called, Part, odd};
use crate::communicator::DeviceCommunicator;
use crate::error::Error;

/// The words of which all ranks learn the largest: an answer, and a rank's part twice, so that
/// the largest is also the least where all have the same.
pub(crate) fn words(answer: u64, Part { called, bytes }: Part) -> [u64; 5] {
    [answer, called, !called, bytes, !bytes]
}

/// Whether all ranks had the same part.
pub(crate) fn are_the_same([_, called, not_called, bytes, not_bytes]: [u64; 5]) -> bool {
    called == !not_called && bytes == !not_bytes
}

impl DeviceCommunicator {
    /// After a collective: all succeed, or all fail, each with its own cause or with the
    /// rank of one that failed. What a rank's buffer was read for is over.
    pub(super) fn agree<R>(&self, called: impl Into<Called>, mine: Result<R, Error>) -> Result<R, Error> {
        self.same(called, 0, mine)
    }

    /// Before a collective: all are in this one, with the same count of bytes, and none has
    /// failed so far. One small MPI_Allreduce, or on one node none; only where ranks differ are
    /// they asked, to say which.
    pub(super) fn same<R>(
        &self,
        called: impl Into<Called>,
        bytes: usize,
        mine: Result<R, Error>,
    ) -> Result<R, Error> {
        let called = called.into();
        if let Some(board) = &self.board {
            let board = &mut board.borrow_mut();
            board.begin(called.with(bytes));
            return self.agree_on_node(board, called.operation, mine);
        }
        let (part, failed) = (called.with(bytes), |error| self.report.mpi(error));
        let largest = self.whole.largest(words(self.report.answer(&mine), part)).map_err(failed)?;
        if are_the_same(largest) {
            return self.report.concluded(called.operation, mine, largest[0]);
        }
        let all = self.whole.gather_all(&part.to_bytes()).map_err(failed)?;
        let parts: Vec<Part> = Part::all(&all).collect();
        let odd = odd(parts.iter().copied()).unwrap_or((self.rank(), part, part));
        Err(self.report.differed(called.operation, mine, largest[0], odd))
    }
}
