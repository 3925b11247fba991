//! The ranges that userfaultfd watches, of all registries of the process.

use crate::of_process::OfProcess;
use crate::range::PageRange;
use crate::told;
use parking_lot::Mutex;
use pinyard_hooks::{Why, userfaultfd};
use std::collections::BTreeMap;

/// Where a mapping cannot be watched whole, a range may cut it in three; the kernel allows
/// 65,530 of them (`vm.max_map_count`) and the program needs its own.
const MOST: usize = 16_384;
/// The kernel looks at every page when it stops watching. A larger mapping is watched for good, in bytes.
const KEPT: usize = 64 << 20;

struct Ranges {
    /// By start and end: the registrations of each.
    counts: BTreeMap<(usize, usize), usize>,
    /// No range has been longer.
    longest: usize,
}

impl Ranges {
    /// One registration of `range` less. Whether it was the last.
    fn take_out(&mut self, range: PageRange) -> bool {
        let range = (range.start, range.end);
        let Some(count) = self.counts.get_mut(&range) else { return false };
        *count -= 1;
        let was_last = *count == 0;
        if was_last {
            self.counts.remove(&range);
        }
        was_last
    }

    /// Whether a range has a page of `span`.
    fn have_any_in(&self, span: PageRange) -> bool {
        let first = span.start.saturating_sub(self.longest);
        self.counts.range((first, 0)..(span.end, 0)).any(|(&(_, end), _)| span.start < end)
    }
}

pub(super) struct Watched(Mutex<Ranges>);

/// A child has none: userfaultfd does not come along.
pub(super) static WATCHED: OfProcess<Watched> =
    OfProcess::new(|| Watched(Mutex::new(Ranges { counts: BTreeMap::new(), longest: 0 })));

impl Watched {
    /// Starts to watch `range`, before its pages are pinned: all of the mappings that it lies in, so that
    /// none is cut. mremap(2) refuses a range that is more than one mapping.
    pub(super) fn begin(&self, range: PageRange, span: PageRange) -> Result<(), Why> {
        userfaultfd::start().inspect_err(told::unwatched)?;
        let mut ranges = self.0.lock();
        if ranges.counts.len() >= MOST {
            return Err(Why { call: "16,384 ranges are watched, as many as mappings allow", errno: 0 });
        }
        userfaultfd::watch(span.start..span.end).or_else(|_| userfaultfd::watch(range.start..range.end))?;
        ranges.longest = ranges.longest.max(range.len());
        *ranges.counts.entry((range.start, range.end)).or_default() += 1;
        Ok(())
    }

    /// One registration of `range` has ended. The kernel goes on watching while
    /// others overlap it; a needless event costs its caller time, nothing else.
    pub(super) fn end(&self, range: PageRange, span: impl FnOnce() -> PageRange) {
        if !self.0.lock().take_out(range) {
            return;
        }
        // By now others may lie there. Asked without the lock.
        let span = span();
        if span.len() > KEPT {
            return;
        }
        let ranges = self.0.lock();
        if !ranges.have_any_in(span) {
            userfaultfd::unwatch(span.start..span.end);
        }
    }
}
