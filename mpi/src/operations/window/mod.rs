//! One-sided Put and Get on windows: memory of every rank that the others write and read.
//!
//! ```text
//! fences.rs   all ranks begin and close an epoch together: any memory, on every path
//! locks.rs    a rank locks a part, whose rank takes no part in it: memory that the window has
//! guards.rs   what it may do then
//! held.rs     and how that is carried out
//! memory.rs   which memory it is, and what is put and got
//! ```
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

mod fences;
mod guards;
mod held;
mod locks;
mod memory;

pub use self::fences::{Epoch, Window};
pub use self::guards::{Locked, LockedAll, Own};
pub use self::held::Lock;
pub use self::locks::LockWindow;
pub use self::memory::{EpochMemory, Got, Sent, WindowMemory};

use super::Memory;
use crate::communicator::{DeviceCommunicator, State};
use crate::error::Error;
use crate::paths::{Exported, Path};
use crate::words::{WORD, put_word, word};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::DevicePtr;
use std::ops::Deref;
use std::rc::Rc;

/// What a rank tells of its part of a window.
struct Part {
    bytes: usize,
    place: Exported,
}

impl Part {
    const BYTES: usize = WORD + Exported::BYTES;
}

/// Those of all ranks. While they stand, nobody closes what they are in.
struct Parts {
    parts: Vec<Part>,
    _kept: Rc<()>,
}

impl Deref for Parts {
    type Target = [Part];

    fn deref(&self) -> &[Part] {
        &self.parts
    }
}

/// Whether an operation writes the target's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Put,
    Get,
}

/// One operation.
#[derive(Clone, Copy)]
struct Asked {
    way: Way,
    /// Of this rank.
    own: Memory,
    target: Rank,
    /// In the target's memory, in bytes.
    start: usize,
}

impl DeviceCommunicator {
    /// The parts of all ranks, of which this one's is `own`. All succeed or none.
    fn tell_parts(
        &self,
        operation: &'static str,
        own: Memory,
        mut mine: Result<(), Error>,
    ) -> Result<Parts, Error> {
        let mut exported = Exported::NONE;
        let _kept = self.desk.imports.keep();
        if self.plan.path == Path::Ipc && mine.is_ok() {
            let token = DriverToken::at_entry();
            match self.state.borrow().imports.export(own.at, own.slab, &token) {
                Ok(told) => exported = told,
                Err(error) => mine = Err(self.report.driver(error)),
            }
        } else if self.size() == 1 {
            exported = Exported::of_this_rank(own.at);
        }
        self.agree(operation, mine)?;
        let mut tells = [0; Part::BYTES];
        put_word(&mut tells, 0, own.bytes as u64);
        exported.write(&mut tells[WORD..]);
        let told = self.whole.gather_all(&tells).map_err(|error| self.report.mpi(error))?;
        let read = |told: &[u8]| Part { bytes: word(told, 0) as usize, place: Exported::read(&told[WORD..]) };
        let parts = told.chunks_exact(Part::BYTES).map(read).collect();
        Ok(Parts { parts, _kept })
    }

    /// A window that `operation` makes has memory of one kind at all ranks, a device's or the host's.
    /// Else each has failed. The outer error is MPI's.
    fn of_one_kind(&self, operation: &'static str, on_device: bool) -> Result<Result<(), Error>, Error> {
        let kinds = [u64::from(on_device), u64::from(!on_device)];
        let found = self.whole.largest(kinds).map_err(|error| self.report.mpi(error))?;
        let reason = "some ranks give a device's memory, others the host's".to_owned();
        let mixed = Error::Unsupported { operation, rank: self.rank(), reason };
        Ok(if found == [1, 1] { Err(mixed) } else { Ok(()) })
    }

    /// An operation on elements of `element` bytes of a part; none where it has no bytes.
    fn ask(
        &self,
        parts: &[Part],
        way: Way,
        target: Rank,
        at: usize,
        own: Memory,
        element: usize,
    ) -> Result<Option<Asked>, Error> {
        self.ready(&[target])?;
        // In bytes that every rank told: whatever type it takes them for.
        let element = element.max(1);
        let (count, elements) = (own.bytes / element, parts[target as usize].bytes / element);
        if at.checked_add(count).is_none_or(|end| end > elements) {
            return Err(Error::Range { rank: self.rank(), target, start: at, count, elements });
        }
        Ok((own.bytes > 0).then_some(Asked { way, own, target, start: at * element }))
    }

    /// Copies to and from the other devices, all at a time, and waits.
    ///
    /// # Safety
    /// Nobody uses the targets' memory otherwise, but for other operations on the window; ours is
    /// borrowed.
    unsafe fn copy_asked(
        &self,
        state: &mut State,
        parts: &[Part],
        asked: &[Asked],
        token: &DriverToken,
    ) -> Result<(), Error> {
        let mut queued = Ok(());
        for asked in asked {
            let there = state.imports.find(asked.target, &parts[asked.target as usize].place, token);
            queued = there.and_then(|there| {
                let there = DevicePtr(there.0 + asked.start as u64);
                let (to, from) = match asked.way {
                    Way::Put => (there, asked.own.at),
                    Way::Get => (asked.own.at, there),
                };
                // SAFETY: the target's memory has these bytes (`ask`); the rest is the caller's
                // contract. Waited for below.
                unsafe { state.ring.queue_across(to, from, asked.own.bytes, token) }
            });
            if queued.is_err() {
                break;
            }
        }
        state.ring.wait_stores(token).and(queued).map_err(|error| self.report.driver(error))
    }
}
