//! Whether somebody is about to write over libc's entries.
//!
//! Every patcher but one that writes `/proc/thread-self/mem` makes the page writable
//! first, through libc's mprotect. Its hook marks the pages of our entries from
//! before they become writable until after they are not any more, and tells
//! every subscriber to look at both moments. While any is marked nothing counts
//! as seen, so nothing is cached: a change that escapes between the other's
//! store and our next look can make no hit stale.

use crate::monitor::publish_everything;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

const PAGE_SHIFT: u32 = crate::PAGE_SHIFT;

/// First byte and length of the pages that hold our entries; 0 before.
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
/// A bit for each page (page number modulo 64) that is writable.
static WRITABLE: AtomicU64 = AtomicU64::new(0);

/// From now on, text is what lies between these entries.
pub(crate) fn set_range(entries: impl Iterator<Item = usize> + Clone) {
    let page = |at: usize| at >> PAGE_SHIFT << PAGE_SHIFT;
    let first = entries.clone().map(page).min().unwrap_or(0);
    let last = entries.map(page).max().unwrap_or(0);
    START.store(first, Relaxed);
    // Release: pairs with the Acquire in `touches`.
    LEN.store(last - first + crate::PAGE_SIZE, Release);
}

/// Whether nobody has made libc's text writable, as far as its mprotect tells. One
/// load.
pub fn is_sealed() -> bool {
    // SeqCst: pairs with `bracketed`.
    WRITABLE.load(SeqCst) == 0
}

/// In a forked child: whoever was about to write is not there any more.
pub(crate) fn forget_writers() {
    WRITABLE.store(0, SeqCst);
}

/// Whether `addr..addr + len` has a page of ours in it.
#[inline]
pub(crate) fn touches(addr: usize, len: usize) -> bool {
    let (text_len, text) = (LEN.load(Acquire), START.load(Relaxed));
    addr.wrapping_sub(text) < text_len || text.wrapping_sub(addr) < len && text_len != 0
}

/// Makes `change`, an mprotect of text. As everything in a hook: atomics only.
#[inline(never)]
pub(crate) fn bracketed(addr: usize, len: usize, writable: bool, change: impl FnOnce() -> isize) -> isize {
    let pages = bits_of(addr, len);
    // SeqCst: in force before the page is writable, and before anybody is told.
    let before = if writable { WRITABLE.fetch_or(pages, SeqCst) } else { 0 };
    publish_everything();
    let result = change();
    if writable && result != 0 {
        WRITABLE.fetch_and(!(pages & !before), SeqCst);
    } else if !writable && result == 0 {
        WRITABLE.fetch_and(!pages, SeqCst);
    }
    publish_everything();
    result
}

fn bits_of(addr: usize, len: usize) -> u64 {
    if len == 0 {
        return 0;
    }
    let (start, text_len) = (START.load(Relaxed), LEN.load(Relaxed));
    let first = addr.max(start) >> PAGE_SHIFT;
    let last = (addr.saturating_add(len).min(start + text_len) - 1) >> PAGE_SHIFT;
    if last - first >= 63 {
        return u64::MAX;
    }
    (first..=last).fold(0, |bits, page| bits | 1 << (page % 64))
}
