//! What ranks tell each other beside the data, so that one that fails, or does something else,
//! leaves none of the others waiting.

use crate::called::{Called, Part, odd};
use crate::calls::progress::is_wanted;
use crate::communicator::DeviceCommunicator;
use crate::ending::close_spares;
use crate::error::Error;

/// The words of which all ranks learn the largest: an answer, a rank's part twice, so that the
/// largest is also the least where all have the same, and what it wants of all.
pub(crate) fn words(answer: u64, Part { called, bytes }: Part, wants: Wants) -> [u64; 8] {
    let [closing, busy, closed] = [wants.closing, wants.is_busy, wants.is_closed].map(u64::from);
    [answer, called, !called, bytes, !bytes, closing, busy, closed]
}

/// What one rank is enough for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wants {
    /// All close what they have open.
    closing: bool,
    /// It has operations under way that do not block, which others may wait for: no rank sits in a
    /// collective of MPI's that blocks.
    pub(super) is_busy: bool,
    /// It has memory in the operation that others cannot open.
    pub(super) is_closed: bool,
}

impl Wants {
    /// Nothing, where it `is_closed` or not.
    pub(crate) fn closed(is_closed: bool) -> Wants {
        Wants { is_closed, ..Wants::default() }
    }
}

/// Whether all ranks had the same part.
pub(crate) fn are_the_same([_, called, not_called, bytes, not_bytes, ..]: [u64; 8]) -> bool {
    called == !not_called && bytes == !not_bytes
}

impl DeviceCommunicator {
    /// After a collective: all succeed, or all fail, each with its own cause or with the
    /// rank of one that failed. What a rank's buffer was read for is over.
    pub(super) fn agree<R>(&self, called: impl Into<Called>, mine: Result<R, Error>) -> Result<R, Error> {
        self.told(called.into(), 0, false, mine).0
    }

    /// Before a collective: all are in this one, with the same count of bytes, and none has
    /// failed so far. One small reduction to all, or on one node none; only where ranks differ are
    /// they asked, to say which.
    pub(super) fn same<R>(
        &self,
        called: impl Into<Called>,
        bytes: usize,
        mine: Result<R, Error>,
    ) -> Result<R, Error> {
        self.same_and_wants(called, bytes, false, mine).map(|(mine, _)| mine)
    }

    /// The same, and what ranks want: where they were not asked, one is busy. `is_closed` is this
    /// rank's.
    pub(super) fn same_and_wants<R>(
        &self,
        called: impl Into<Called>,
        bytes: usize,
        is_closed: bool,
        mine: Result<R, Error>,
    ) -> Result<(R, Wants), Error> {
        let (mine, wants) = self.told(called.into(), bytes, is_closed, mine);
        if wants.closing {
            self.close_spares();
        }
        mine.map(|mine| (mine, wants))
    }

    /// The same as [`same`](DeviceCommunicator::same) where the plan says so: for what costs no such
    /// step otherwise.
    pub(super) fn checked<R>(
        &self,
        called: impl Into<Called>,
        bytes: usize,
        mine: Result<R, Error>,
    ) -> Result<Result<R, Error>, Error> {
        if self.plan.checks { self.same(called, bytes, mine).map(Ok) } else { Ok(mine) }
    }

    /// And what ranks want.
    fn told<R>(
        &self,
        called: Called,
        bytes: usize,
        is_closed: bool,
        mine: Result<R, Error>,
    ) -> (Result<R, Error>, Wants) {
        let part = called.with(bytes);
        if let Some(board) = &self.board {
            let board = &mut board.borrow_mut();
            board.begin(part);
            let (mine, closing) = self.agree_on_node(board, called.operation, mine);
            return (mine, Wants { closing, is_busy: true, is_closed });
        }
        let wants = Wants { closing: self.wants_closing(), is_busy: is_wanted(), is_closed };
        let words = words(self.report.answer(&mine), part, wants);
        let largest = match self.whole.largest(words) {
            Ok(largest) => largest,
            Err(error) => return (Err(self.report.mpi(error)), Wants::default()),
        };
        let [worst, .., closing, busy, closed] = largest;
        let wants = Wants { closing: closing > 0, is_busy: busy > 0, is_closed: closed > 0 };
        if are_the_same(largest) {
            return (self.report.concluded(called.operation, mine, worst), wants);
        }
        let all = self.whole.gather_all(&part.to_bytes()).map_err(|error| self.report.mpi(error));
        let differs = all.map(|all| {
            let parts: Vec<Part> = Part::all(&all).collect();
            let odd = odd(parts.iter().copied()).unwrap_or((self.rank(), part, part));
            self.report.differed(called.operation, mine, worst, odd)
        });
        (Err(differs.unwrap_or_else(|error| error)), wants)
    }

    /// Whether so much of this rank's memory was exported that what is unused has to go.
    pub(super) fn wants_closing(&self) -> bool {
        self.plan.path.has_ipc() && self.gpu.exports().are_too_many()
    }

    /// See [`close_spares`].
    pub(super) fn close_spares(&self) {
        close_spares(&self.whole, &self.engine, &self.desk.imports, &self.gpu);
    }
}
