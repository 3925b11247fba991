//! Names as numbers, so that an event is words only.

use parking_lot::Mutex;

/// A name of a backend, a pool, an operation or a path, as a number of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Name(u16);

/// The first is no name.
static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

impl Name {
    /// None.
    pub const NONE: Name = Name(0);

    /// The number of `text`, the same each time. Takes a lock for a moment: to be asked
    /// for once, or where a call takes microseconds. Past 65,535 names it is none.
    pub fn of(text: &'static str) -> Name {
        let mut names = NAMES.lock();
        let at = names.iter().position(|&name| name == text).unwrap_or_else(|| {
            names.push(text);
            names.len() - 1
        });
        Name(u16::try_from(at + 1).unwrap_or(0))
    }

    /// What it stands for; empty of none.
    pub fn text(self) -> &'static str {
        let names = NAMES.lock();
        (self.0 as usize).checked_sub(1).and_then(|at| names.get(at)).copied().unwrap_or("")
    }

    pub(crate) fn number(self) -> u16 {
        self.0
    }

    pub(crate) fn from_number(number: u16) -> Name {
        Name(number)
    }
}
