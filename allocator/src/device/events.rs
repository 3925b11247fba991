//! The events that show how far a stream has come which has no word of its own.
//!
//! Their lock borrows the token, as the pool's do: no driver is called under it. Whoever
//! polls one stream's events must not wait for a thread that the driver holds up in a call
//! for that stream (its queue is full, say): its memory may be elsewhere.

use crate::source::DriverToken;
use parking_lot::{Mutex, MutexGuard};
use pinyard_driver::{Driver, DriverError, Event, Stream};
use std::collections::VecDeque;

#[derive(Default)]
pub(super) struct Events(Mutex<Book>);

#[derive(Default)]
struct Book {
    /// By value, ascending.
    pending: VecDeque<(u64, Event)>,
    spare: Vec<Event>,
}

impl Events {
    fn lock<'a>(&'a self, _: &'a mut DriverToken) -> MutexGuard<'a, Book> {
        self.0.lock()
    }

    /// One that nobody waits for.
    pub(super) fn take(&self, driver: &dyn Driver, token: &mut DriverToken) -> Result<Event, DriverError> {
        let spare = self.lock(token).spare.pop();
        spare.map_or_else(|| driver.event_create(token), Ok)
    }

    pub(super) fn put_back(&self, event: Event, token: &mut DriverToken) {
        self.lock(token).spare.push(event);
    }

    /// `event` was recorded after all others, and passes for `value`.
    pub(super) fn recorded(&self, value: u64, event: Event, token: &mut DriverToken) {
        self.lock(token).pending.push_back((value, event));
    }

    /// Asks them, the oldest first, and tells each value that has passed.
    pub(super) fn poll(
        &self,
        driver: &dyn Driver,
        token: &mut DriverToken,
        mut passed: impl FnMut(u64),
    ) -> Result<(), DriverError> {
        loop {
            let Some(oldest) = self.lock(token).pending.front().copied() else { return Ok(()) };
            let (value, event) = oldest;
            if !driver.event_query(event, token)? {
                return Ok(());
            }
            let mut book = self.lock(token);
            // Unless another thread had the same answer: then the event may be in use again,
            // and the answer was of that use.
            if book.pending.front() == Some(&oldest) {
                book.pending.pop_front();
                book.spare.push(event);
                passed(value);
            }
        }
    }

    /// Lets later work of `waiter` wait until `value` has passed. If it passes meanwhile and
    /// the event is recorded anew, the wait is longer than it need be, and as sound: a wait
    /// is for work that the device has already, so no two streams wait for each other.
    pub(super) fn hold(
        &self,
        waiter: Stream,
        value: u64,
        driver: &dyn Driver,
        token: &mut DriverToken,
    ) -> Result<(), DriverError> {
        let book = self.lock(token);
        let at = book.pending.iter().find(|&&(pending, _)| pending >= value).copied();
        drop(book);
        // No event left: it has passed.
        at.map_or(Ok(()), |(_, event)| driver.stream_wait_event(waiter, event, token))
    }

    /// To destroy them.
    pub(super) fn take_all(&self, token: &mut DriverToken) -> impl Iterator<Item = Event> + use<> {
        let book = std::mem::take(&mut *self.lock(token));
        book.spare.into_iter().chain(book.pending.into_iter().map(|(_, event)| event))
    }
}
