//! A `get` that the cache cannot answer at once.
//!
//! Under the lock: apply events, look again, make room, reserve. Without it: the
//! backend. Under the lock again: publish, unless an event touched the range
//! since it was reserved; then the backend may have pinned pages that are gone,
//! and the registration is made anew.

use crate::access::Access;
use crate::backend::{BackendError, MemoryKey, Unlocked};
use crate::budget::GivenWay;
use crate::builder::Events;
use crate::cache::{Graves, NoRoom, Published, Ticket};
use crate::clock;
use crate::error::{GetError, Holdings, Memlock};
use crate::range::PageRange;
use crate::regions::{self, Held, Wanted};
use crate::registry::Inner;
use crate::trust::Begun;
use crate::{diagnose, limits, trust};
use pinyard_hooks::MAX_COMING;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

/// A few microseconds, in ticks.
const BRIEF: u64 = 10_000;

/// How often a thread that waits for others' burials looks.
const BURIAL_POLL: Duration = Duration::from_millis(1);

/// Registrations of one `get` that the mapping may spoil before it gives up.
const ATTEMPTS: u32 = 16;

thread_local! {
    /// The thread is inside a backend's call: it must not wait for another's.
    static IN_BACKEND: Cell<bool> = const { Cell::new(false) };
}

/// What to try: alone, or together with what it overlaps.
struct Attempt {
    /// The pages to register: the buffer's own, or what they were grown to.
    pages: PageRange,
    merge: bool,
    squeezed: bool,
    spoiled: u32,
}

enum Step {
    Served(Held),
    /// Once the backend has taken the graves back.
    Register(Ticket, Graves),
    Again,
}

#[cold]
pub(crate) fn get(inner: &Inner, wanted: Wanted) -> Result<Held, Box<GetError>> {
    let pages = wanted.bytes.pages().map_err(|error| Box::new(error.into()))?;
    trust::settle();
    let mut unlocked = Unlocked::at_entry();
    let mut attempt = Attempt { pages: inner.coarsen.grow(pages), merge: true, squeezed: false, spoiled: 0 };
    let mut missed = false;
    loop {
        let uncached = inner.events == Events::Hooks && !pinyard_hooks::verify();
        if uncached {
            // Changes go unseen: nothing that is cached can be trusted.
            inner.cache.lock(&mut unlocked).flush();
        }
        let (mut ticket, mut graves) =
            match reserve(inner, wanted, pages, &attempt, &mut missed, &mut unlocked)? {
                Step::Served(held) => return Ok(held),
                Step::Again => continue,
                Step::Register(ticket, graves) => (ticket, graves),
            };
        let began = match graves.list.is_empty() {
            true => clock::ticks(),
            false => inner.deregister(&mut graves, &unlocked),
        };
        for grave in &graves.list {
            // They are buried after the registration, for which nobody shall wait.
            regions::set_gone(inner.cache.slot(grave.slot));
        }
        let mut begun = Begun::default();
        let answer = catch_unwind(AssertUnwindSafe(|| {
            begun = inner.trust.begin(ticket.range);
            register(inner, &ticket, &unlocked)
        }));
        let took = clock::ticks().wrapping_sub(began);
        let Begun { untrusted, watched } = begun;
        ticket.watched = watched;
        if watched && !matches!(answer, Ok(Ok(_))) {
            inner.trust.end(ticket.range);
        }
        let mut locked = inner.cache.lock(&mut unlocked);
        let mut done = locked.buried(graves);
        locked.writer.registering.add(took);
        locked.writer.now = began;
        match answer {
            Ok(Ok(key)) => {
                // A patcher that came meanwhile may have kept events from us. One that
                // writes past mprotect, in less time than this, is found by the next miss.
                let unseen = inner.events == Events::Hooks
                    && !(pinyard_hooks::is_sealed() && (took < BRIEF || pinyard_hooks::untouched()));
                let published =
                    locked.publish(ticket, key, wanted, uncached || unseen || untrusted.is_some());
                let spoiled = matches!(published, Published::Spoiled);
                locked.writer.counters.retries += spoiled as u64;
                drop(locked);
                inner.changed.notify_all();
                inner.wake_reaper();
                drop(done);
                match published {
                    Published::Cached(held) => return Ok(held),
                    Published::Redundant(held) => {
                        inner.bury(&mut unlocked);
                        return Ok(held);
                    }
                    Published::Spoiled => {
                        inner.bury(&mut unlocked);
                        attempt.pages = pages;
                        attempt.merge = false;
                        attempt.spoiled += 1;
                        if attempt.spoiled == ATTEMPTS {
                            return Err(Box::new(GetError::Unstable { range: pages, attempts: ATTEMPTS }));
                        }
                    }
                }
            }
            Ok(Err(error)) => {
                let merged = ticket.range != pages || ticket.access != wanted.access;
                done.append(&mut locked.abandon(ticket));
                let pinned = locked.writer.pinned;
                // What is only cached may be using up the backend's own limits.
                let squeeze = error.is_exhaustion() && !attempt.squeezed;
                let buried = locked.writer.counters.deregistrations;
                if squeeze {
                    while locked.make_room() {}
                }
                drop(locked);
                inner.changed.notify_all();
                drop(done);
                if squeeze && bury_and_wait(inner, &mut unlocked, buried) {
                    attempt.squeezed = true;
                } else if merged && (attempt.merge || attempt.pages != pages) {
                    // First without what it was grown to, then without what it overlaps.
                    attempt.merge &= attempt.pages != pages;
                    attempt.pages = pages;
                } else {
                    return Err(Box::new(diagnose::explain(pages, wanted.access, pinned, error)));
                }
            }
            Err(panic) => {
                // A custom backend's own bug: nothing may wait for this ticket.
                done.append(&mut locked.abandon(ticket));
                drop(locked);
                inner.changed.notify_all();
                drop(done);
                resume_unwind(panic);
            }
        }
    }
}

/// Under the lock: serve, wait, or reserve what the registration needs.
fn reserve(
    inner: &Inner,
    wanted: Wanted,
    pages: PageRange,
    attempt: &Attempt,
    missed: &mut bool,
    unlocked: &mut Unlocked,
) -> Result<Step, Box<GetError>> {
    let mut locked = inner.cache.lock(unlocked);
    locked.drain();
    let mut vacant = !locked.settle(pages);
    if !vacant && let Some(held) = locked.find_settled(wanted) {
        // After a miss of this `get` the reference is not a hit.
        locked.writer.counters.hits += !*missed as u64;
        return Ok(Step::Served(held));
    }
    if !*missed {
        *missed = true;
        locked.writer.counters.misses += 1;
    }
    if locked.is_coming(pages, wanted.access) && !IN_BACKEND.get() {
        inner.changed.wait(&mut locked.writer);
        return Ok(Step::Again);
    }
    let limit = inner.cache.geometry.max_region_bytes;
    if pages.len() > limit {
        return Err(Box::new(GetError::TooLong { range: pages, backend: inner.backend.name(), limit }));
    }
    if pages.len() > inner.cache.geometry.budget.bytes() {
        // Nothing that could be given back would make it fit.
        drop(locked);
        return Err(refusal(inner, NoRoom::Bytes, pages, unlocked));
    }
    let (mut whole, mut merge) = (attempt.pages, attempt.merge);
    if whole.len() > limit {
        whole = pages;
    }
    vacant &= whole == pages;
    let mut graves = Graves::default();
    loop {
        vacant = vacant || !locked.settle(whole);
        let (range, access) =
            if merge && !vacant { locked.merged(whole, wanted.access) } else { (whole, wanted.access) };
        let no_room = match locked.begin(range, access, vacant, &mut graves) {
            Ok(ticket) => return Ok(Step::Register(ticket, graves)),
            // Alone it may fit, and takes the place of what it overlaps.
            Err(NoRoom::Bytes) if range != pages => {
                merge &= whole != pages;
                whole = pages;
                continue;
            }
            Err(no_room) => no_room,
        };
        if !graves.list.is_empty() {
            // They do not leave room enough: retired regions count until the backend
            // has let them go.
            drop(locked);
            locked = inner.take_back(std::mem::take(&mut graves), unlocked);
            vacant = false;
            continue;
        }
        let retired = no_room != NoRoom::Coming && locked.make_room();
        graves = locked.graves();
        if graves.list.is_empty() && !retired {
            if locked.makes_room() && !IN_BACKEND.get() {
                inner.changed.wait(&mut locked.writer);
                return Ok(Step::Again);
            }
            let buried = locked.writer.counters.deregistrations;
            drop(locked);
            let again =
                bury_and_wait(inner, unlocked, buried) || no_room == NoRoom::Bytes && others_made_room(inner);
            return if again { Ok(Step::Again) } else { Err(refusal(inner, no_room, pages, unlocked)) };
        }
    }
}

/// Buries, and waits for those who are at it. Whether anything was buried, by
/// anyone, since the count of deregistrations was `before`.
pub(crate) fn bury_and_wait(inner: &Inner, unlocked: &mut Unlocked, before: u64) -> bool {
    inner.bury(unlocked);
    let mut locked = inner.cache.lock(unlocked);
    while locked.is_burying() && !IN_BACKEND.get() {
        // Nobody is woken by a thread that goes on to register in their place.
        inner.changed.wait_for(&mut locked.writer, BURIAL_POLL);
    }
    locked.writer.counters.deregistrations != before
}

/// Whether another registry of the same budget gave something back, or is about
/// to; then this one waits a little, since nobody will wake it.
fn others_made_room(inner: &Inner) -> bool {
    match inner.cache.geometry.budget.ask_others(std::ptr::from_ref(inner).cast()) {
        GivenWay::Now => true,
        GivenWay::Soon if !IN_BACKEND.get() => {
            std::thread::sleep(Duration::from_micros(200));
            true
        }
        GivenWay::Soon | GivenWay::Nothing => false,
    }
}

/// Asks every registry of the budget what it holds: not for under the lock.
fn refusal(inner: &Inner, no_room: NoRoom, range: PageRange, _unlocked: &Unlocked) -> Box<GetError> {
    let geometry = &inner.cache.geometry;
    Box::new(match no_room {
        NoRoom::Bytes => GetError::Budget {
            range,
            budget: geometry.budget.bytes(),
            pinned: geometry.budget.pinned(),
            remedy: geometry.budget.remedy(),
            holdings: Holdings(geometry.budget.holdings()),
            memlock: Memlock(limits::memlock_limit()),
        },
        NoRoom::Regions => {
            GetError::TooManyRegions { range, backend: inner.backend.name(), limit: geometry.regions }
        }
        NoRoom::Coming => GetError::TooManyUnderWay { range, limit: MAX_COMING },
    })
}

/// Without the lock: the backend pins.
fn register(inner: &Inner, ticket: &Ticket, unlocked: &Unlocked) -> Result<MemoryKey, BackendError> {
    // After `begin` watched the range, before a page is pinned: a hook that
    // passed its filter too early for the first publishes again after its change.
    pinyard_hooks::begin_registration();
    in_backend(|| inner.backend.register(ticket.range, effective(ticket.access), unlocked))
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

/// Remote writes and atomics need local write access (ibv_reg_mr(3)).
fn effective(access: Access) -> Access {
    if access.writes() { access | Access::LOCAL_WRITE } else { access }
}
