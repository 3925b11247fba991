//! What a rank does where others have to come first.

use super::{Comm, progress};
use std::time::{Duration, Instant};

/// Turns between two calls of MPI's: a look at shared memory takes nanoseconds.
const TURNS: u32 = 64;
/// After so long the others are late, and a core is worth more than what a sleep adds.
const LONG: Duration = Duration::from_millis(2);
const SLEEP: Duration = Duration::from_micros(50);

/// How long it has waited.
#[derive(Default)]
pub(crate) struct Idle {
    turns: u32,
    since: Option<Instant>,
}

impl Idle {
    /// Something was done: the wait begins anew.
    pub(crate) fn end(&mut self) {
        *self = Idle::default();
    }

    /// A turn without anything to do. The others may need this rank's MPI for what they do
    /// before, or its core.
    pub(crate) fn turn(&mut self, ranks: &Comm) {
        self.turns += 1;
        if self.turns < TURNS {
            std::hint::spin_loop();
            return;
        }
        self.turns = 0;
        ranks.progress();
        if progress::is_wanted() {
            progress::of_others();
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() < LONG {
            std::thread::yield_now();
        } else {
            std::thread::sleep(SLEEP);
        }
    }
}
