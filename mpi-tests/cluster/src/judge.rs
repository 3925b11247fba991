//! What is seen through a registration, and what must be.

use crate::memory::{Change, LEN};

/// What the owner writes first, what it writes after the change, what is written to it, and
/// what a forked child writes to its copy.
pub(crate) const OLD: u8 = b'A';
pub(crate) const NEW: u8 = b'B';
pub(crate) const SENT: u8 = b'W';
pub(crate) const CHILDS: u8 = b'C';

pub(crate) fn count(bytes: &[u8], byte: u8) -> u64 {
    bytes.iter().filter(|&&other| other == byte).count() as u64
}

/// The pages that the device uses.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Sees {
    Old,
    New,
}

/// One transfer: of the bytes that it read, those from before and from after the change; of
/// those that it wrote, those that arrived.
pub(crate) struct Moved {
    pub(crate) write: bool,
    pub(crate) old: u64,
    pub(crate) new: u64,
    pub(crate) arrived: u64,
}

impl Moved {
    fn sees(&self) -> Option<Sees> {
        let all = LEN as u64;
        match self {
            Moved { write: false, old: 0, new, .. } if *new == all => Some(Sees::New),
            Moved { write: false, old, new: 0, .. } if *old == all => Some(Sees::Old),
            Moved { write: true, arrived: 0, .. } => Some(Sees::Old),
            Moved { write: true, arrived, .. } if *arrived == all => Some(Sees::New),
            _ => None,
        }
    }

    fn text(&self) -> String {
        match (self.write, self.sees()) {
            (_, None) => {
                format!("a mixture: {} old, {} new, {} arrived", self.old, self.new, self.arrived)
            }
            (false, Some(Sees::Old)) => "reads the bytes before the change".to_owned(),
            (false, Some(Sees::New)) => "reads the bytes after the change".to_owned(),
            (true, Some(Sees::Old)) => "what it writes goes to pages that are gone".to_owned(),
            (true, Some(Sees::New)) => "what it writes arrives".to_owned(),
        }
    }
}

/// Counts what was right.
#[derive(Default)]
pub(crate) struct Tally {
    passed: u32,
    failed: u32,
}

impl Tally {
    pub(crate) fn report(&mut self, right: bool, what: &str, seen: &str) {
        println!("{} {what}: {seen}", if right { "ok     " } else { "FAILED " });
        *(if right { &mut self.passed } else { &mut self.failed }) += 1;
    }

    /// `cache` shows `expected` after a change that puts other pages there.
    pub(crate) fn judge(&mut self, cache: &str, change: Change, moved: &Moved, expected: Sees) {
        let expected = match (change, moved.write) {
            // The bytes are the old ones, and what is sent arrives.
            (Change::Nothing, false) => Sees::Old,
            // The kernel gives the child the copies of what is pinned.
            (Change::Nothing, true) | (Change::Fork, _) => Sees::New,
            _ => expected,
        };
        let operation = if moved.write { "RDMA write" } else { "RDMA read" };
        let what = format!("{cache}, {}, {operation}", change.name());
        self.report(moved.sees() == Some(expected), &what, &moved.text());
    }

    /// The last line, and whether all was right.
    pub(crate) fn end(self) -> Result<(), Box<dyn std::error::Error>> {
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 { Ok(()) } else { Err("stale registrations".into()) }
    }
}
