//! The operations of a communicator that are under way, or done and not yet asked for.

use crate::calls::progress::Progress;
use crate::error::Error;
use mpi::topology::Rank;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

/// An operation; how many bytes it received.
pub(super) type Work = Pin<Box<dyn Future<Output = Result<usize, Error>>>>;

/// Operations of one key follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Collective,
    Send(Rank, i32),
    Receive(Rank, i32),
}

/// Set when all that MPI must have in order has been handed to it: the next of the key may
/// begin.
#[derive(Clone, Default)]
pub(super) struct Handed(Rc<Cell<bool>>);

impl Handed {
    pub(super) fn over(&self) {
        self.0.set(true);
    }
}

enum State {
    UnderWay(Work),
    /// `None` once it was asked for.
    Done(Option<Result<usize, Error>>),
    /// MPI was finalised before it ended: nobody will know when what it was lent is free.
    Lost,
}

struct Operation {
    id: u64,
    key: Key,
    handed: Handed,
    state: State,
    /// Nobody will ask. What it held goes when it is done.
    dropped: bool,
    /// The buffer of a request that was dropped.
    kept: Option<Box<dyn Any>>,
}

/// Requests and scopes keep it, so operations go on when their communicator is gone, as after
/// a panic.
pub(crate) struct Engine {
    rank: Rank,
    operations: RefCell<Vec<Operation>>,
    under_way: Cell<usize>,
    next: Cell<u64>,
    /// Whether this thread asks it.
    is_known: Cell<bool>,
}

impl Engine {
    /// Of `rank`, for its errors. No thread knows it before its first operation: one that has
    /// none may go to another thread with its communicator, as those of C do.
    pub(crate) fn new(rank: Rank) -> Rc<Engine> {
        Rc::new(Engine {
            rank,
            operations: RefCell::default(),
            under_way: Cell::new(0),
            next: Cell::new(0),
            is_known: Cell::new(false),
        })
    }

    /// Takes `work` as far as it gets at once.
    pub(super) fn submit(self: &Rc<Engine>, key: Key, handed: Handed, work: Work) -> u64 {
        if !self.is_known.replace(true) {
            let progress: Weak<dyn Progress> = Rc::downgrade(&(self.clone() as Rc<dyn Progress>));
            crate::calls::progress::register(progress);
        }
        let id = self.next.get();
        self.next.set(id + 1);
        let state = State::UnderWay(work);
        let operation = Operation { id, key, handed, state, dropped: false, kept: None };
        self.operations.borrow_mut().push(operation);
        self.under_way.set(self.under_way.get() + 1);
        self.advance();
        id
    }

    fn change<R>(&self, id: u64, change: impl FnOnce(&mut Operation) -> R) -> Option<R> {
        let mut operations = self.operations.borrow_mut();
        operations.iter_mut().find(|operation| operation.id == id).map(change)
    }

    /// Its result, if it is done and was not taken before, or is lost.
    pub(super) fn take(&self, id: u64) -> Option<Result<usize, Error>> {
        if self.is_lost(id) {
            return Some(Err(Error::Finalized { rank: self.rank }));
        }
        let result = self.change(id, |operation| match &mut operation.state {
            State::Done(result) => result.take(),
            State::UnderWay(_) | State::Lost => None,
        })??;
        self.operations.borrow_mut().retain(|operation| operation.id != id);
        Some(result)
    }

    /// Whether it never ends: what it was lent stays with it for good.
    pub(super) fn is_lost(&self, id: u64) -> bool {
        self.change(id, |operation| matches!(operation.state, State::Lost)) == Some(true)
    }

    /// Whether MPI and the devices use nothing of what operations were lent.
    pub(crate) fn is_idle(&self) -> bool {
        self.operations.borrow().iter().all(|operation| matches!(operation.state, State::Done(_)))
    }

    pub(super) fn is_under_way(&self, id: u64) -> bool {
        self.change(id, |operation| matches!(operation.state, State::UnderWay(_))) == Some(true)
    }

    /// Nobody will ask for it. `kept` stands until it is done.
    pub(super) fn drop_request(&self, id: u64, kept: Option<Box<dyn Any>>) {
        let kept = self.change(id, |operation| {
            operation.dropped = true;
            operation.kept = kept;
        });
        if kept.is_some() {
            self.forget_done();
        }
    }

    fn forget_done(&self) {
        let mut operations = self.operations.borrow_mut();
        let gone: Vec<Operation> = operations
            .extract_if(.., |operation| operation.dropped && matches!(operation.state, State::Done(_)))
            .collect();
        // A buffer's drop may do anything.
        drop(operations);
        for operation in gone {
            if let State::Done(Some(Err(error))) = operation.state {
                tracing::warn!(%error, "an operation whose request was dropped has failed");
            }
        }
    }

    /// Until none is under way.
    pub(crate) fn finish_all(&self) {
        while self.is_busy() {
            crate::calls::progress::of_others();
        }
    }

    /// Whether the next operation of `key` may begin: what MPI must have in order before it has
    /// been handed over.
    fn is_free(&self, key: Key) -> bool {
        let is_before = |operation: &Operation| {
            operation.key == key && matches!(operation.state, State::UnderWay(_)) && !operation.handed.0.get()
        };
        !self.operations.borrow().iter().any(is_before)
    }

    /// The operation behind those of its key that were submitted, without a place among them: for
    /// a call that blocks. No thread knows the engine from this, so a communicator whose operations
    /// all block may go to another thread, as those of C do.
    pub(super) async fn behind(&self, key: Key, work: Work) -> Result<usize, Error> {
        poll_fn(|_| if self.is_free(key) { Poll::Ready(()) } else { Poll::Pending }).await;
        work.await
    }

    /// MPI is gone: what was under way never ends, and nobody waits for it.
    fn lose_all(&self, operations: &mut [Operation]) {
        for operation in operations {
            if matches!(operation.state, State::UnderWay(_)) {
                // Its requests may not be waited for any more.
                std::mem::forget(std::mem::replace(&mut operation.state, State::Lost));
            }
        }
        self.under_way.set(0);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Nobody is left to take further what has not ended, and the other ranks may never come:
        // its requests, chunks and buffers stay as they are for good.
        for operation in self.operations.take() {
            if !matches!(operation.state, State::Done(_)) {
                std::mem::forget(operation);
            }
        }
    }
}

impl Progress for Engine {
    fn is_busy(&self) -> bool {
        self.under_way.get() > 0
    }

    fn advance(&self) {
        // A future that waits within its drop asks from within.
        let Ok(mut operations) = self.operations.try_borrow_mut() else { return };
        if self.is_busy() && mpi::is_finalized() {
            self.lose_all(&mut operations);
            return;
        }
        let mut taken: Vec<Key> = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        let mut ended = false;
        for operation in operations.iter_mut() {
            let State::UnderWay(work) = &mut operation.state else { continue };
            if taken.contains(&operation.key) {
                continue;
            }
            match work.as_mut().poll(&mut context) {
                Poll::Ready(result) => {
                    operation.state = State::Done(Some(result));
                    self.under_way.set(self.under_way.get() - 1);
                    ended |= operation.dropped;
                }
                Poll::Pending if operation.handed.0.get() => {}
                Poll::Pending => taken.push(operation.key),
            }
        }
        drop(operations);
        if ended {
            self.forget_done();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    /// Ready when the cell says so; notes that it was asked.
    fn gate(open: &Rc<Cell<bool>>, asked: &Rc<Cell<usize>>) -> Work {
        let (open, asked) = (open.clone(), asked.clone());
        Box::pin(std::future::poll_fn(move |_| {
            asked.set(asked.get() + 1);
            if open.get() { Poll::Ready(Ok(7)) } else { Poll::Pending }
        }))
    }

    #[test]
    fn operations_of_one_key_follow_each_other_and_others_do_not() {
        let engine = Engine::new(0);
        let [first, second] = [(); 2].map(|()| Rc::new(Cell::new(false)));
        let [asked, later, other] = [(); 3].map(|()| Rc::new(Cell::new(0)));
        let one = engine.submit(Key::Send(1, 2), Handed::default(), gate(&first, &asked));
        let two = engine.submit(Key::Send(1, 2), Handed::default(), gate(&second, &later));
        let three = engine.submit(Key::Receive(1, 2), Handed::default(), gate(&second, &other));
        assert_eq!((asked.get(), later.get(), other.get()), (3, 0, 1));
        first.set(true);
        engine.advance();
        assert!(matches!(engine.take(one), Some(Ok(7))) && engine.take(one).is_none());
        assert!(later.get() == 1 && engine.is_under_way(two) && engine.is_busy());
        second.set(true);
        engine.advance();
        assert!(!engine.is_busy() && engine.take(two).is_some() && engine.take(three).is_some());
    }

    #[test]
    fn one_that_blocks_comes_behind_those_of_its_key_and_not_behind_others() {
        let engine = Engine::new(0);
        let [first, second] = [(); 2].map(|()| Rc::new(Cell::new(false)));
        let [asked, behind, beside] = [(); 3].map(|()| Rc::new(Cell::new(0)));
        engine.submit(Key::Send(1, 2), Handed::default(), gate(&first, &asked));
        let mut waits = pin!(engine.behind(Key::Send(1, 2), gate(&second, &behind)));
        let mut goes = pin!(engine.behind(Key::Receive(1, 2), gate(&second, &beside)));
        let mut context = Context::from_waker(Waker::noop());
        let mut asks = || {
            let _ = (waits.as_mut().poll(&mut context), goes.as_mut().poll(&mut context));
            (behind.get(), beside.get())
        };
        assert_eq!(asks(), (0, 1));
        first.set(true);
        engine.advance();
        assert_eq!(asks(), (1, 2));
    }

    #[test]
    fn what_a_dropped_request_held_goes_when_the_operation_is_done() {
        let engine = Engine::new(0);
        let (open, asked, held) = (Rc::new(Cell::new(false)), Rc::default(), Rc::new(()));
        let id = engine.submit(Key::Collective, Handed::default(), gate(&open, &asked));
        engine.drop_request(id, Some(Box::new(held.clone())));
        engine.advance();
        assert_eq!(Rc::strong_count(&held), 2);
        open.set(true);
        engine.advance();
        assert_eq!((Rc::strong_count(&held), engine.operations.borrow().len()), (1, 0));
    }

    #[test]
    fn no_thread_knows_one_that_has_begun_nothing() {
        let engine = Engine::new(0);
        let (open, asked) = (Rc::new(Cell::new(true)), Rc::default());
        let blocking = engine.behind(Key::Send(1, 2), gate(&open, &asked));
        assert!(matches!(crate::calls::progress::complete(blocking), Ok(7)));
        engine.finish_all();
        assert_eq!(Rc::weak_count(&engine), 0);
        open.set(false);
        for _ in 0..2 {
            engine.submit(Key::Collective, Handed::default(), gate(&open, &asked));
        }
        assert_eq!(Rc::weak_count(&engine), 1);
        // This thread's waits take them further.
        open.set(true);
        crate::calls::progress::of_others();
        assert!(engine.is_idle());
    }

    #[test]
    fn what_has_not_ended_keeps_what_it_was_lent_when_nobody_asks_any_more() {
        let (open, held) = (Rc::new(Cell::new(false)), Rc::new(()));
        for is_lost in [false, true] {
            let engine = Engine::new(0);
            let id = engine.submit(Key::Collective, Handed::default(), gate(&open, &Rc::default()));
            if is_lost {
                engine.lose_all(&mut engine.operations.borrow_mut());
                assert!(matches!(engine.take(id), Some(Err(Error::Finalized { rank: 0 }))));
                assert!(engine.is_lost(id) && !engine.is_busy());
            }
            assert!(!engine.is_idle());
            let before = Rc::strong_count(&held);
            engine.drop_request(id, Some(Box::new(held.clone())));
            drop(engine);
            assert_eq!(Rc::strong_count(&held), before + 1);
        }
        // So do the operations.
        assert_eq!(Rc::strong_count(&open), 3);
    }

    #[test]
    fn what_mpi_orders_itself_does_not_hold_up_the_next() {
        let engine = Engine::new(0);
        let (open, asked, later) = (Rc::new(Cell::new(false)), Rc::default(), Rc::new(Cell::new(0)));
        let handed = Handed::default();
        handed.over();
        engine.submit(Key::Collective, handed, gate(&open, &asked));
        engine.submit(Key::Collective, Handed::default(), gate(&open, &later));
        assert_eq!(later.get(), 1);
    }
}
