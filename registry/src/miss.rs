//! A `get` that the cache cannot answer at once.
//!
//! Under the lock: apply events, look again, make room (`room.rs`), reserve. Without
//! it: the backend. Under the lock again: publish, unless an event touched the range
//! since it was reserved; then the backend may have pinned pages that are gone,
//! and the registration is made anew. One that is made often enough is handed to its caller, and to
//! nobody else.

use crate::access::Access;
use crate::backend::{BackendError, MemoryKey, Unlocked};
use crate::builder::Events;
use crate::cache::{Done, Graves, Published, Terms, Ticket};
use crate::clock;
use crate::error::GetError;
use crate::range::PageRange;
use crate::regions::{self, Held, Wanted};
use crate::registry::Inner;
use crate::room;
use crate::trust::Begun;
use crate::{diagnose, told, trust};
use pinyard_trace::Kind;
use pinyard_worker::log;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A few microseconds, in ticks.
const BRIEF: u64 = 10_000;

/// Registrations of one `get`. That the mapping changed during the last does not count: it is for the
/// caller alone.
const ATTEMPTS: u32 = 16;

thread_local! {
    /// The thread is inside a backend's call: it must not wait for another's.
    static IN_BACKEND: Cell<bool> = const { Cell::new(false) };
}

/// What to try: alone, or together with what it overlaps.
pub(crate) struct Attempt {
    /// The pages to register: the buffer's own, or what they were grown to.
    pub(crate) pages: PageRange,
    pub(crate) merge: bool,
    squeezed: bool,
    spoiled: u32,
    /// Counted as a miss.
    missed: bool,
}

/// Why there is no registration.
enum Failure {
    Refused(BackendError),
    Panicked(Box<dyn Any + Send>),
}

pub(crate) enum Step {
    Served(Held),
    /// Once the backend has taken the graves back.
    Register(Ticket),
    Again,
}

#[cold]
pub(crate) fn get(inner: &Inner, wanted: Wanted) -> Result<Held, Box<GetError>> {
    let pages = wanted.bytes.pages().map_err(|error| Box::new(error.into()))?;
    trust::settle();
    let mut unlocked = Unlocked::at_entry();
    let pages_to_try = inner.coarsen.grow(pages);
    let mut attempt =
        Attempt { pages: pages_to_try, merge: true, squeezed: false, spoiled: 0, missed: false };
    loop {
        let answer = try_once(inner, wanted, pages, &mut attempt, &mut unlocked);
        if let Some(held) = answer.inspect_err(|error| told::refused(inner.backend.name(), error))? {
            return Ok(held);
        }
    }
}

/// `None`: something has changed, to be tried again.
#[inline(never)] // not part of the loop, which would carry all that it uses from round to round
fn try_once(
    inner: &Inner,
    wanted: Wanted,
    pages: PageRange,
    attempt: &mut Attempt,
    unlocked: &mut Unlocked,
) -> Result<Option<Held>, Box<GetError>> {
    let uncached = inner.events == Events::Hooks && !pinyard_hooks::verify();
    if uncached {
        // Changes go unseen: nothing that is cached can be trusted.
        inner.cache.lock(unlocked).flush();
    }
    let mut graves = Graves::default();
    let mut ticket = match reserve(inner, wanted, pages, attempt, &mut graves, unlocked)? {
        Step::Served(held) => return Ok(Some(held)),
        Step::Again => return Ok(None),
        Step::Register(ticket) => ticket,
    };
    if !graves.list.is_empty() {
        inner.deregister(&mut graves, unlocked);
        for grave in &graves.list {
            // They are buried after the registration, for which nobody shall wait.
            regions::set_gone(inner.cache.slot(grave.slot));
        }
    }
    let began = ticket.is_timed.then(clock::ticks);
    // Not the closure's answer: that would be copied twice, each time before its parts
    // have reached the cache.
    let (mut begun, mut key, mut failure) = (Begun::default(), MemoryKey::default(), None);
    let answer = catch_unwind(AssertUnwindSafe(|| {
        begun = inner.trust.begin(ticket.range);
        match register(inner, &ticket, unlocked) {
            Ok(made) => key = made,
            Err(error) => failure = Some(Failure::Refused(error)),
        }
    }));
    if let Err(panic) = answer {
        failure = Some(Failure::Panicked(panic));
    }
    let took = began.map(|began| clock::ticks().wrapping_sub(began));
    let Begun { untrusted, watched, of_files } = begun;
    (ticket.watched, ticket.of_files) = (watched, of_files);
    let mut locked = inner.cache.lock(unlocked);
    let done = locked.buried(graves);
    locked.writer.registering.add(took);
    if let Some(began) = began {
        locked.writer.now = began;
    }
    if let Some(failure) = failure {
        let unlocked = locked.unlock();
        return not_registered(inner, wanted, pages, attempt, ticket, failure, done, unlocked);
    }
    // A patcher that came meanwhile may have kept events from us. Of one that writes
    // past mprotect the epoch does not tell: the next miss finds it, or this one after a
    // call that was long. What is not timed follows short calls (`times.rs`).
    let unseen = inner.events == Events::Hooks
        && !(pinyard_hooks::is_sealed()
            && (took.is_none_or(|took| took < BRIEF) || pinyard_hooks::untouched()));
    let terms = Terms {
        is_kept: !(uncached || unseen || untrusted.is_some()),
        is_last: attempt.spoiled + 1 >= ATTEMPTS,
    };
    let published = locked.publish(ticket, key, wanted, terms);
    let needs_pages = locked.writer.needs_pages();
    let unlocked = locked.unlock();
    inner.changed.notify_all();
    inner.wake_reaper(needs_pages);
    drop(done);
    match published {
        Published::Cached(held) => Ok(Some(held)),
        Published::Redundant(held) => {
            inner.bury(unlocked);
            Ok(Some(held))
        }
        Published::Spoiled => {
            spoiled(inner, pages, attempt, unlocked);
            Ok(None)
        }
    }
}

/// Under the lock: serve, wait, or reserve what the registration needs.
#[inline]
fn reserve(
    inner: &Inner,
    wanted: Wanted,
    pages: PageRange,
    attempt: &mut Attempt,
    graves: &mut Graves,
    unlocked: &mut Unlocked,
) -> Result<Step, Box<GetError>> {
    let mut locked = inner.cache.lock(unlocked);
    locked.drain();
    let vacant = !locked.settle(pages);
    if !vacant && let Some(held) = locked.find_settled(wanted) {
        // After a miss of this `get` the reference is not a hit.
        locked.writer.counters.hits += !attempt.missed as u64;
        return Ok(Step::Served(held));
    }
    if !attempt.missed {
        attempt.missed = true;
        locked.writer.counters.misses += 1;
    }
    if locked.is_coming(pages, wanted.access) && !is_in_backend() {
        inner.changed.wait(&mut locked.writer);
        return Ok(Step::Again);
    }
    room::reserve(inner, wanted, pages, attempt, vacant, graves, locked)
}

/// The mapping changed under the registration.
#[cold]
fn spoiled(inner: &Inner, pages: PageRange, attempt: &mut Attempt, unlocked: &mut Unlocked) {
    inner.bury(unlocked);
    attempt.pages = pages;
    attempt.merge = false;
    attempt.spoiled += 1;
    log!(debug, %pages, attempt = attempt.spoiled, "the mapping changed during the registration");
}

/// The backend refused, or panicked: gives back what was reserved, and tries with
/// less, or says why not.
#[cold]
#[allow(clippy::too_many_arguments)] // what `try_once` has at hand
fn not_registered(
    inner: &Inner,
    wanted: Wanted,
    pages: PageRange,
    attempt: &mut Attempt,
    ticket: Ticket,
    failure: Failure,
    done: Done,
    unlocked: &mut Unlocked,
) -> Result<Option<Held>, Box<GetError>> {
    if ticket.watched {
        inner.trust.end(ticket.range);
    }
    let merged = ticket.range != pages || ticket.access != wanted.access;
    let mut locked = inner.cache.lock(unlocked);
    let done = (done, locked.abandon(ticket));
    let pinned = locked.writer.pinned;
    let buried = locked.writer.counters.deregistrations;
    // What is only cached may be using up the backend's own limits.
    let squeeze = !attempt.squeezed && matches!(&failure, Failure::Refused(error) if error.is_exhaustion());
    if squeeze {
        while locked.make_room() {}
    }
    let unlocked = locked.unlock();
    inner.changed.notify_all();
    drop(done);
    let error = match failure {
        Failure::Refused(error) => error,
        // A custom backend's own bug: nothing waits for its ticket any more.
        Failure::Panicked(panic) => resume_unwind(panic),
    };
    if squeeze && room::bury_and_wait(inner, unlocked, PageRange::ALL, buried) {
        attempt.squeezed = true;
    } else if merged && (attempt.merge || attempt.pages != pages) {
        // First without what it was grown to, then without what it overlaps.
        attempt.merge &= attempt.pages != pages;
        attempt.pages = pages;
    } else {
        return Err(Box::new(diagnose::explain(pages, wanted.access, pinned, error)));
    }
    Ok(None)
}

/// Without the lock: the backend pins.
fn register(inner: &Inner, ticket: &Ticket, unlocked: &Unlocked) -> Result<MemoryKey, BackendError> {
    // After `begin` watched the range, before a page is pinned: a hook that
    // passed its filter too early for the first publishes again after its change.
    pinyard_hooks::begin_registration();
    let call = inner.traced.begin();
    let answer = in_backend(|| inner.backend.register(ticket.range, effective(ticket.access), unlocked));
    if let Some(call) = call
        && answer.is_ok()
    {
        call.end(inner.traced, Kind::Register, ticket.range);
    }
    answer
}

/// Marks the thread while it is in a backend's call.
pub(crate) fn in_backend<R>(call: impl FnOnce() -> R) -> R {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            IN_BACKEND.set(self.0);
        }
    }
    let _leave = Leave(IN_BACKEND.replace(true));
    call()
}

/// Whether this thread is inside a backend's function, which a registry has called: it must not wait for
/// another thread, which may wait for that function to return. A pool does not.
pub fn is_in_backend() -> bool {
    IN_BACKEND.get()
}

/// Remote writes and atomics need local write access (ibv_reg_mr(3)).
fn effective(access: Access) -> Access {
    if access.writes() { access | Access::LOCAL_WRITE } else { access }
}
