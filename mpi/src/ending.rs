//! The end of a communicator. Its rank tells the others on their board, where there is one, so that
//! none waits for it in a collective. Where ranks open each other's slabs it then waits until all have
//! ended theirs: the slabs may go then.

use crate::buffers::Gpu;
use crate::called::{Called, END};
use crate::calls::progress::complete;
use crate::calls::{Answer, Comm, Idle};
use crate::immediate::{Engine, largest};
use crate::paths::{Answers, Board, Imports};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long the others may take before this rank says that it waits for them.
const SOON: Duration = Duration::from_secs(1);

/// What is left of a communicator that its rank has dropped.
pub(crate) struct Ending {
    pub(crate) whole: Rc<Comm>,
    /// Where there is no board: no other collective is on it.
    pub(crate) answers: Rc<Comm>,
    pub(crate) engine: Rc<Engine>,
    pub(crate) imports: Rc<Imports>,
    pub(crate) gpu: Gpu,
    pub(crate) board: Option<Board>,
    pub(crate) has_ipc: bool,
    /// Whether all slabs of others were closed, once that was tried and the others were told.
    pub(crate) closed: Option<bool>,
}

thread_local! {
    /// The ends of the communicators of a [`run`](crate::run()), which waits for none of them before
    /// it knows how the program has ended.
    static HELD: RefCell<Option<Vec<Ending>>> = const { RefCell::new(None) };
}

impl Ending {
    /// Now, or at the end of the `run` that this thread is in: a rank that fails there has to say
    /// why before others know that it ends. A rank that panics tells the others, and waits for none.
    pub(crate) fn take_place(self) {
        let mut left = Some(self);
        let _ = HELD.try_with(|held| {
            if let Some(held) = &mut *held.borrow_mut() {
                held.extend(left.take());
            }
        });
        let Some(mut ending) = left else { return };
        ending.tell();
        if !std::thread::panicking() {
            ending.finish();
        }
    }

    /// Tells the others, unless operations that do not block are under way: others may wait for
    /// these, and what they read stays open. Does not wait.
    fn tell(&mut self) {
        if self.closed.is_none() && self.engine.is_idle() {
            self.closed = Some(self.imports.close(&DriverToken::at_entry()));
            self.post();
        }
    }

    fn post(&self) {
        if let Some(board) = &self.board {
            board.begin(Called::from(END).with(0));
            board.answer(self.answer(), false);
        }
    }

    /// More than 0 where another rank's slab could not be closed.
    fn answer(&self) -> u64 {
        u64::from(self.closed != Some(true))
    }

    /// Whether nothing is left to wait for, the others' slabs released where there was something.
    fn is_over(&mut self) -> bool {
        if self.closed.is_none() {
            return false;
        }
        if !self.has_ipc {
            return true;
        }
        let worst = self.board.as_mut().and_then(|board| match board.answers() {
            Some(Answers { odd: None, worst, .. }) => Some(worst),
            _ => None,
        });
        if worst == Some(0) {
            self.imports.release(&DriverToken::at_entry());
        }
        worst.is_some()
    }

    /// Waits for the others.
    fn finish(mut self) {
        self.engine.finish_all();
        self.tell();
        // After MPI_Finalize nobody knows about the others.
        if self.closed.is_none() || !self.has_ipc || mpi::is_finalized() {
            return;
        }
        let rank = self.whole.rank();
        let mut wait = Wait { began: Instant::now(), rank, warned: false };
        let worst = match self.board.take() {
            Some(board) => Ok(self.on_board(board, &mut wait)),
            None => self.by_messages(&mut wait),
        };
        match worst {
            Ok(0) => self.imports.release(&DriverToken::at_entry()),
            Ok(_) => tracing::warn!(rank, "exported slabs stay: a rank could not close them"),
            Err(error) => tracing::warn!(%error, "exported slabs stay"),
        }
    }

    /// The largest answer of all.
    fn on_board(&self, mut board: Board, wait: &mut Wait) -> u64 {
        let part = Called::from(END).with(0);
        let mut idle = Idle::default();
        loop {
            match board.answers() {
                Some(Answers { odd: None, worst, .. }) => return worst,
                // Others were in another operation, which has failed: they know now, and may come.
                Some(Answers { closing, .. }) => {
                    if closing {
                        close_spares(&self.whole, &self.engine, &self.imports, &self.gpu);
                    }
                    board.begin(part);
                    board.answer(self.answer(), false);
                }
                None => {
                    let left = || {
                        let places = 0..self.whole.size();
                        places.filter(|&place| board.begun(place as usize) != Some(part)).collect()
                    };
                    wait.goes_on(left);
                    idle.turn(&self.whole);
                }
            }
        }
    }

    /// The same where the ranks have no board.
    fn by_messages(&self, wait: &mut Wait) -> Answer<u64> {
        let mut work = pin!(largest(&self.answers, [self.answer()]));
        let [worst] = complete(poll_fn(|context| {
            wait.goes_on(Vec::new);
            work.as_mut().poll(context)
        }))?;
        Ok(worst)
    }
}

/// How long a rank has waited for the others.
struct Wait {
    began: Instant,
    rank: Rank,
    warned: bool,
}

impl Wait {
    /// Says once, when it is long, which ranks are waited for: those that are `left`, or all others
    /// where that is not known.
    fn goes_on(&mut self, left: impl FnOnce() -> Vec<Rank>) {
        if !self.warned && self.began.elapsed() > SOON {
            self.warned = true;
            let left: Vec<String> = left().iter().map(Rank::to_string).collect();
            let whom = match &left[..] {
                [] => "the other ranks".to_owned(),
                [one] => format!("rank {one}"),
                left => format!("ranks {}", left.join(", ")),
            };
            let rank = self.rank;
            say(&format!(
                "rank {rank} ends its communicator and waits for {whom} to end theirs, as MPI_Comm_free and \
                 MPI_Finalize do. A rank that fails ends all with MPI_Abort instead, as pinyard_mpi::run does"
            ));
        }
    }
}

/// To the program's log, or where it has none to stderr.
fn say(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{text}");
    } else {
        pinyard_worker::say(format_args!("{text}"));
    }
}

/// From now on communicators of this thread end when [`finish_held`] says so. `false` where they do
/// already.
pub(crate) fn hold() -> bool {
    HELD.with(|held| {
        let held = &mut *held.borrow_mut();
        let is_first = held.is_none();
        held.get_or_insert_default();
        is_first
    })
}

/// Tells the others of the ends that are held, and lets those go that all ranks have told of. Does
/// not wait: a rank that is not here may hold its end of them as well.
pub(crate) fn tell_held() {
    let _ = HELD.try_with(|held| {
        if let Some(held) = &mut *held.borrow_mut() {
            held.iter_mut().for_each(Ending::tell);
            held.retain_mut(|ending| !ending.is_over());
        }
    });
}

/// Waits for the ends that are held, in the order in which the communicators were dropped. All are
/// told of first: other ranks may have dropped theirs in another order.
fn finish_held() {
    let held = HELD.with(|held| held.borrow_mut().as_mut().map(std::mem::take));
    let mut held = held.unwrap_or_default();
    held.iter_mut().for_each(Ending::tell);
    held.into_iter().for_each(Ending::finish);
}

/// From now on communicators end where they are dropped. Those that are held end here, or where the
/// job is about to be ended never.
pub(crate) fn let_go(wait: bool) {
    if wait {
        finish_held();
    }
    std::mem::forget(HELD.with(|held| held.borrow_mut().take()));
}

/// Where one rank wants it, all close the slabs of others that they have open, and then each
/// gives those of its own back that the pool has no use for: a driver must not free what is
/// open. What is in use is opened again by the next operation. Collective, between operations
/// that block; where a rank has others under way, or a window, nothing goes this time.
pub(crate) fn close_spares(whole: &Comm, engine: &Engine, imports: &Imports, gpu: &Gpu) {
    let token = DriverToken::at_entry();
    let closed = engine.is_idle() && !imports.is_kept() && imports.close(&token);
    match whole.largest([u64::from(!closed)]) {
        Ok([0]) => {
            gpu.pool().trim(Duration::ZERO);
            imports.release(&token);
        }
        Ok(_) => tracing::debug!(rank = whole.rank(), "exported slabs stay: a rank uses them"),
        Err(error) => tracing::warn!(%error, "exported slabs stay"),
    }
    gpu.exports().allow_more();
}
