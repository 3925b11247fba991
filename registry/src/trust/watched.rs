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
        let is_last = |ranges: &mut Ranges| {
            let count = ranges.counts.get_mut(&(range.start, range.end))?;
            *count -= 1;
            (*count == 0).then(|| ranges.counts.remove(&(range.start, range.end)))
        };
        if is_last(&mut self.0.lock()).is_none() {
            return;
        }
        // By now others may lie there. Asked without the lock.
        let span = span();
        if span.len() > KEPT {
            return;
        }
        let ranges = self.0.lock();
        let first = span.start.saturating_sub(ranges.longest);
        let mut near = ranges.counts.range((first, 0)..(span.end, 0));
        if !near.any(|(&(_, end), _)| span.start < end) {
            userfaultfd::unwatch(span.start..span.end);
        }
    }
}
