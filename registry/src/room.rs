//! How a miss gets the room that it needs: what is only cached makes way, and where
//! that does not do, the other registries of the same budget are asked.

use crate::backend::Unlocked;
use crate::budget::GivenWay;
use crate::cache::{Graves, Locked, NoRoom};
use crate::error::{GetError, Holdings, Memlock};
use crate::machine;
use crate::miss::{Attempt, Step, is_in_backend};
use crate::range::PageRange;
use crate::regions::Wanted;
use crate::registry::Inner;
use pinyard_hooks::{MAX_COMING, MapPlace};
use std::time::Duration;

/// How often a thread that waits for others' burials looks.
const BURIAL_POLL: Duration = Duration::from_millis(1);

/// Under the lock, after a look whether what is wanted is there: reserves what the
/// registration needs. `vacant`: nothing overlaps `pages`.
#[inline]
pub(crate) fn reserve<'a>(
    inner: &'a Inner,
    wanted: Wanted,
    pages: PageRange,
    attempt: &Attempt,
    vacant: bool,
    graves: &mut Graves,
    mut locked: Locked<'a, MapPlace>,
) -> Result<Step, Box<GetError>> {
    let geometry = &inner.cache.geometry;
    let fits = pages.len() <= geometry.max_region_bytes && pages.len() <= geometry.budget.bytes();
    let mut no_room = None;
    // Nothing to merge with: there is room, or some of what is cached makes way at once.
    if fits && vacant && attempt.pages == pages {
        loop {
            let why = match locked.begin(pages, wanted.access, true, graves) {
                Ok(ticket) => return Ok(Step::Register(ticket)),
                Err(why) => why,
            };
            let has_made_way = !graves.list.is_empty();
            no_room = Some(why);
            if has_made_way || no_room == Some(NoRoom::Coming) || !locked.take_graves(graves) {
                break;
            }
        }
    }
    reserve_among_others(inner, wanted, pages, attempt, (vacant, no_room), graves, locked)
}

/// As `reserve`, where that found no room, or more than `pages` is to be reserved.
#[inline(never)]
fn reserve_among_others<'a>(
    inner: &'a Inner,
    wanted: Wanted,
    pages: PageRange,
    attempt: &Attempt,
    (mut vacant, mut found): (bool, Option<NoRoom>),
    graves: &mut Graves,
    mut locked: Locked<'a, MapPlace>,
) -> Result<Step, Box<GetError>> {
    let limit = inner.cache.geometry.max_region_bytes;
    if pages.len() > limit {
        drop(locked);
        // The program's code may say it: not for under the lock.
        return Err(Box::new(GetError::TooLong { range: pages, backend: inner.backend.name(), limit }));
    }
    if pages.len() > inner.cache.geometry.budget.bytes() {
        // Nothing that could be given back would make it fit.
        return Err(refusal(inner, NoRoom::Bytes, pages, locked.unlock()));
    }
    let (mut whole, mut merge) = (attempt.pages, attempt.merge);
    if whole.len() > limit {
        whole = pages;
    }
    vacant &= whole == pages;
    loop {
        vacant = vacant || !locked.settle(whole);
        let (range, access) =
            if merge && !vacant { locked.merged(whole, wanted.access) } else { (whole, wanted.access) };
        let begun = match found.take() {
            Some(no_room) => Err(no_room),
            None => locked.begin(range, access, vacant, graves),
        };
        let no_room = match begun {
            Ok(ticket) => return Ok(Step::Register(ticket)),
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
            locked = inner.take_back(std::mem::take(graves), locked.unlock());
            vacant = false;
            continue;
        }
        let retired = no_room != NoRoom::Coming && locked.make_room();
        *graves = locked.graves();
        if graves.list.is_empty() && !retired {
            if locked.makes_room() && !is_in_backend() {
                inner.changed.wait(&mut locked.writer);
                return Ok(Step::Again);
            }
            let buried = locked.writer.counters.deregistrations;
            let unlocked = locked.unlock();
            let again = bury_and_wait(inner, unlocked, PageRange::ALL, buried)
                || no_room == NoRoom::Bytes && (others_made_room(inner) || has_room(inner, range));
            return if again { Ok(Step::Again) } else { Err(refusal(inner, no_room, pages, unlocked)) };
        }
    }
}

/// Buries, and waits for those who are at it in `range`: not for others, whose backend may wait for this
/// thread. Whether anything was buried, by anyone, since the count of deregistrations was `before`.
pub(crate) fn bury_and_wait(inner: &Inner, unlocked: &mut Unlocked, range: PageRange, before: u64) -> bool {
    inner.bury(unlocked);
    let mut locked = inner.cache.lock(unlocked);
    while locked.is_burying(range) && !is_in_backend() {
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
        GivenWay::Soon if !is_in_backend() => {
            std::thread::sleep(Duration::from_micros(200));
            true
        }
        GivenWay::Soon | GivenWay::Nothing => false,
    }
}

/// Whether it fits by now: another registry may have given back what was missing before it
/// was asked, and then it has nothing to give.
fn has_room(inner: &Inner, range: PageRange) -> bool {
    let budget = &inner.cache.geometry.budget;
    budget.pinned().saturating_add(range.len()) <= budget.bytes()
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
            memlock: Memlock(machine::memlock_limit()),
        },
        NoRoom::Regions => {
            GetError::TooManyRegions { range, backend: inner.backend.name(), limit: geometry.regions }
        }
        NoRoom::Coming => GetError::TooManyUnderWay { range, limit: MAX_COMING },
    })
}
