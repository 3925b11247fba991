//! What was done wrong with a block, and by whom.

use super::ledger::{Life, Note, Past};
use std::fmt;

/// Where a block was allocated, freed or misused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The thread, as the kernel numbers it.
    pub thread: u32,
    /// Nanoseconds since the pool was made.
    pub time_ns: u64,
    /// Functions on the stack, innermost first; empty where none was kept.
    pub stack: Vec<String>,
}

impl fmt::Display for Place {
    /// Who and when, and a line for each frame.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by thread {} at {:.6} s", self.thread, self.time_ns as f64 / 1e9)?;
        self.stack.iter().try_for_each(|frame| write!(f, "\n    {frame}"))
    }
}

impl From<&Note> for Place {
    fn from(note: &Note) -> Place {
        Place { thread: note.thread, time_ns: note.time_ns, stack: note.stack.names() }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offence {
    /// Freed, and had been freed.
    DoubleFree,
    /// Freed as a block of another length; it stays in use.
    WrongSize {
        /// Bytes that it was allocated with.
        allocated: u64,
        /// Bytes that it was said to have.
        given: u64,
    },
    /// No block of the pool, or (in a pool that is not watched) one freed before.
    Foreign,
    /// Within a block in use, not its beginning.
    Inside {
        /// Where that begins.
        block: u64,
    },
    /// Written after it was freed.
    UseAfterFree {
        /// The first byte that was, from the block's beginning.
        offset: u64,
        /// What was found there.
        found: u8,
    },
}

/// A misuse of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Misuse {
    /// What was done.
    pub offence: Offence,
    /// The address that was passed, or where the block begins.
    pub address: u64,
    /// `cuStreamGetId` of the block's stream, if the block is known.
    pub stream: Option<u64>,
    /// Where the block was allocated, if the pool was watched then.
    pub allocated: Option<Place>,
    /// Where it was freed, likewise.
    pub freed: Option<Place>,
    /// Where the misuse was, or (of a write) was noticed.
    pub noticed: Place,
}

impl Misuse {
    pub(crate) fn new(offence: Offence, address: u64, noticed: &Note) -> Misuse {
        Misuse { offence, address, stream: None, allocated: None, freed: None, noticed: noticed.into() }
    }

    pub(crate) fn of_life(mut self, life: Option<&Life>) -> Misuse {
        self.stream = life.map(|life| life.stream);
        self.allocated = life.map(|life| Place::from(&life.allocated));
        self
    }

    pub(crate) fn of_past(self, past: &Past) -> Misuse {
        let freed = Some(Place::from(&past.freed));
        Misuse { freed, ..self.of_life(Some(&past.life)) }
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.address;
        match self.offence {
            Offence::DoubleFree => write!(f, "double free of the block at {at:#x}")?,
            Offence::WrongSize { allocated, given } => {
                write!(f, "the block at {at:#x} has {allocated} bytes and was freed as one of {given}")?;
            }
            Offence::Foreign => write!(f, "{at:#x} is no block of this pool that is in use")?,
            Offence::Inside { block } => {
                write!(f, "{at:#x} lies in the block at {block:#x}, not at its beginning")?
            }
            Offence::UseAfterFree { offset, found } => {
                write!(
                    f,
                    "byte {offset} of the block at {at:#x} was written after it was freed: {found:#04x}"
                )?;
            }
        }
        if let Some(stream) = self.stream {
            write!(f, "; of stream {stream}")?;
        }
        let noticed = ("noticed", Some(&self.noticed));
        for (what, place) in [("allocated", self.allocated.as_ref()), ("freed", self.freed.as_ref()), noticed]
        {
            if let Some(place) = place {
                write!(f, "\n{what} {place}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Misuse {}
