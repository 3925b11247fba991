//! Why a lookup misses, in words.

use crate::access::Access;
use crate::backend::MemoryKey;
use crate::cache::{Locked, Reason, Retired};
use crate::clock;
use crate::error::RangeError;
use crate::range::{CACHED_LIMIT, PageRange};
use crate::regions;
use pinyard_hooks::map::Map;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

/// Why a buffer is, or is not, served from the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Explanation {
    /// It would be served.
    Hit {
        /// The pages registered.
        registered: PageRange,
        /// Their key.
        key: MemoryKey,
    },
    /// The range names no memory.
    Range(RangeError),
    /// This process is a fork of the one that made the registry.
    Forked,
    /// A thread is registering it at this moment.
    Coming {
        /// The pages that will be registered.
        registered: PageRange,
    },
    /// A registration serves a part of it.
    Partly {
        /// The pages registered.
        registered: PageRange,
        /// The pages asked for.
        wanted: PageRange,
    },
    /// Its registration does not allow the access.
    Access {
        /// The pages registered.
        registered: PageRange,
        /// What the registration allows.
        allowed: Access,
        /// What was asked for and is not allowed.
        missing: Access,
    },
    /// Its registration was taken out.
    Retired {
        /// The pages that were registered.
        registered: PageRange,
        /// Why.
        reason: Retirement,
        /// How long ago, roughly.
        ago: Duration,
    },
    /// Its addresses are above what is cached.
    TooHigh,
    /// It was never registered, or so long ago that the registry has forgotten.
    Unknown,
}

/// Why a registration was taken out of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Retirement {
    /// Its mapping changed, or `invalidate` was called.
    Invalidated,
    /// Everything was: [`flush`](crate::Registry::flush), hooks that a library had
    /// patched over, more wide changes than the hooks can note.
    Flushed,
    /// A registration that covers more took its place.
    Merged,
    /// To stay within the limits.
    Evicted,
}

impl fmt::Display for Retirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Retirement::Invalidated => "its mapping changed, or it was invalidated",
            Retirement::Flushed => "everything was flushed",
            Retirement::Merged => "a registration that covers more took its place",
            Retirement::Evicted => "the budget or the number of regions was used up",
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Explanation::Hit { registered, key } => {
                write!(f, "a hit: registered as {registered}, lkey {}", key.lkey)
            }
            Explanation::Range(error) => error.fmt(f),
            Explanation::Forked => f.write_str("the registry belongs to the parent process"),
            Explanation::Coming { registered } => write!(f, "a thread is registering {registered} now"),
            Explanation::Partly { registered, wanted } => {
                write!(f, "only {registered} of {wanted} is registered in one piece")
            }
            Explanation::Access { registered, allowed, missing } => {
                write!(f, "{registered} is registered for {allowed:?}, which lacks {missing:?}")
            }
            Explanation::Retired { registered, reason, ago } => {
                write!(f, "{registered} was registered until {ago:.1?} ago: {reason}")
            }
            Explanation::TooHigh => {
                write!(f, "addresses above {CACHED_LIMIT:#x} are registered anew each time")
            }
            Explanation::Unknown => f.write_str("not registered"),
        }
    }
}

impl<M: Deref<Target = Map>> Locked<'_, M> {
    /// `tick`: nanoseconds of a tick.
    pub(crate) fn explain(&mut self, pages: PageRange, access: Access, tick: f64) -> Explanation {
        self.drain();
        self.settle(pages);
        if let Some(id) = self.first_in(pages) {
            let slot = self.cache.slot(id);
            let (registered, allowed) = (regions::range_of(slot), regions::access_of(slot));
            return if !registered.contains(pages) {
                Explanation::Partly { registered, wanted: pages }
            } else if !allowed.contains(access) {
                Explanation::Access { registered, allowed, missing: access - allowed }
            } else {
                Explanation::Hit { registered, key: regions::key_of(slot) }
            };
        }
        if let Some(registered) = self.coming(pages) {
            return Explanation::Coming { registered };
        }
        let last = self.writer.retired.iter().rev().find(|retired| retired.range.overlaps(pages));
        match last {
            Some(&Retired { range, reason, at }) => Explanation::Retired {
                registered: range,
                reason: match reason {
                    Reason::Invalidated => Retirement::Invalidated,
                    Reason::Flushed => Retirement::Flushed,
                    Reason::Merged => Retirement::Merged,
                    Reason::Evicted => Retirement::Evicted,
                },
                ago: Duration::from_nanos((clock::ticks().saturating_sub(at) as f64 * tick) as u64),
            },
            None if pages.end > CACHED_LIMIT => Explanation::TooHigh,
            None => Explanation::Unknown,
        }
    }
}
