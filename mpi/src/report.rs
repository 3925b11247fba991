//! Errors and answers of one rank: it is named in each.

use crate::called::Part;
use crate::error::{BufferError, Error, Failure, MpiError};
use crate::paths::{Message, Outcome};
use mpi::topology::Rank;
use pinyard_driver::DriverError;

/// A rank that reports what went wrong.
#[derive(Clone, Copy)]
pub(crate) struct Report {
    rank: Rank,
}

/// Failure and rank in one word, which is how ranks tell each other: 0 where there is none.
fn word(failure: Option<Failure>, rank: Rank) -> u64 {
    failure.map_or(0, |failure| u64::from(failure.number()) << 32 | rank as u64)
}

impl Report {
    pub(crate) fn of(rank: Rank) -> Report {
        Report { rank }
    }

    pub(crate) fn mpi(self, source: MpiError) -> Error {
        Error::Mpi { rank: self.rank, source }
    }

    /// The driver refused, or has lost the device's context.
    pub(crate) fn driver(self, source: DriverError) -> Error {
        match source.is_context_lost() {
            true => Error::Context { rank: self.rank, source },
            false => Error::Driver { rank: self.rank, source },
        }
    }

    /// No pinned memory, or a buffer that could not be waited for.
    pub(crate) fn staging(self, source: BufferError) -> Error {
        match source {
            BufferError::Driver(error) => self.driver(error),
            source => Error::Staging { rank: self.rank, source },
        }
    }

    /// Another rank has failed.
    pub(crate) fn peer(self, operation: &'static str, rank: Rank, what: Failure) -> Error {
        Error::Peer { operation, rank, seen_by: self.rank, what }
    }

    /// This rank's `bytes` are not those of `other`.
    pub(crate) fn unequal(self, operation: &'static str, bytes: usize, other: Rank, theirs: u64) -> Error {
        Error::Counts { operation, rank: self.rank, bytes: bytes as u64, other, other_bytes: theirs }
    }

    /// The message in a buffer, whose choice is logged, or an error: the other side does something else.
    pub(crate) fn understood(self, operation: &'static str, buffer: &[u8]) -> Result<Message, Error> {
        let text = "no message of a transfer: do all ranks call the same operations in the same order?";
        let foreign = || Error::Foreign { operation, rank: self.rank, text: text.to_owned() };
        let message = Message::read(buffer).ok_or_else(foreign)?;
        tracing::debug!(rank = self.rank, operation, bytes = message.bytes, way = message.kind.name());
        Ok(message)
    }

    /// The outcome of a transfer in pieces: the outer error is MPI's, which has ended it early.
    pub(crate) fn ended(self, outcome: Outcome) -> Result<Result<(), Error>, Error> {
        match (outcome.mpi, outcome.lost, outcome.device) {
            (Some(error), ..) => Err(self.mpi(error)),
            (None, Some(error), _) => Ok(Err(self.mpi(error))),
            (None, None, Some(error)) => Ok(Err(self.driver(error))),
            (None, None, None) => Ok(Ok(())),
        }
    }

    /// What the others are told of how it went here: of a failure that came from another rank,
    /// that one's.
    pub(crate) fn answer<R>(self, mine: &Result<R, Error>) -> u64 {
        if let Err(Error::Peer { rank, what, .. }) = mine {
            return word(Some(*what), *rank);
        }
        word(mine.as_ref().err().map(Error::failure), self.rank)
    }

    /// After all have told each other: how a collective ended here, and which other rank's
    /// failure was the worst. What a rank heard of another's on the way says less than that.
    pub(crate) fn concluded<R>(
        self,
        operation: &'static str,
        mine: Result<R, Error>,
        worst: u64,
    ) -> Result<R, Error> {
        match mine {
            Err(error) if worst == 0 || !matches!(error, Error::Peer { .. }) => Err(error),
            mine => self.told(operation, worst).and(mine),
        }
    }

    /// The same where the ranks are not in the same collective with the same bytes: `rank` is the
    /// one that differs from the first.
    pub(crate) fn differed<R>(
        self,
        operation: &'static str,
        mine: Result<R, Error>,
        worst: u64,
        (rank, part, first): (Rank, Part, Part),
    ) -> Error {
        match (part.unlike(rank, first, 0), self.concluded(operation, mine, worst)) {
            (None, Err(error)) => error,
            (Some(_), Err(error)) if !matches!(error, Error::Peer { .. }) => error,
            (Some(text), _) => Error::Calls { operation, rank, other: 0, text },
            (None, Ok(_)) => {
                Error::Counts { operation, rank, bytes: part.bytes, other: 0, other_bytes: first.bytes }
            }
        }
    }

    /// What another rank's answer says.
    pub(crate) fn told(self, operation: &'static str, answer: u64) -> Result<(), Error> {
        if answer == 0 {
            return Ok(());
        }
        Err(self.peer(operation, answer as u32 as Rank, Failure::of((answer >> 32) as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_the_rank_that_failed_and_its_failure() {
        let finalized: Result<(), Error> = Err(Error::Finalized { rank: 70_000 });
        let told = Report::of(3).told("MPI_Bcast", Report::of(70_000).answer(&finalized)).unwrap_err();
        let expected = "MPI_Bcast: rank 70000 failed, seen by rank 3: it says no more";
        assert_eq!(told.to_string(), expected);
        assert!(Report::of(3).told("MPI_Bcast", Report::of(5).answer(&Ok(()))).is_ok());
        let passed_on: Result<(), Error> = Err(Report::of(3).peer("MPI_Bcast", 2, Failure::Driver));
        let word = Report::of(3).answer(&passed_on);
        // What the rank itself says goes before what was heard of it.
        let heard: Result<(), Error> = Err(Report::of(4).peer("MPI_Bcast", 2, Failure::Other));
        assert!(Report::of(3).answer(&heard) < word);
        let concluded = Report::of(4).concluded("MPI_Bcast", heard, word);
        assert!(matches!(concluded, Err(Error::Peer { rank: 2, what: Failure::Driver, .. })));
        let told = Report::of(4).told("MPI_Bcast", word);
        assert!(matches!(told, Err(Error::Peer { rank: 2, seen_by: 4, what: Failure::Driver, .. })));
    }
}
