//! userfaultfd lets the changing call return before the range of its event is
//! known. A `get` right after the call must not be served from the cache all the
//! same, round after round, beside threads that get and change other ranges.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]

use pinyard_hooks::{sys, userfaultfd};
use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, MECHANISM_VARIABLE, MemoryKey, Registry};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

const PAGE: usize = 4096;
const ROUNDS: u64 = 20_000;

/// Each registration has a number of its own.
fn counting() -> Custom {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let key = || MemoryKey { lkey: NEXT.fetch_add(1, SeqCst), ..MemoryKey::default() };
    Custom::new("counting", move |_, _| Ok(key()), |_, _| Ok(()))
}

/// A page of its own; the second change is one that comes after its event.
fn rounds(registry: &Registry, done: impl Fn(u64) -> bool) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping.
    let at = unsafe { sys::mmap(0, 2 * PAGE, both, flags) }.unwrap();
    let get = || registry.get((at as *const u8, PAGE), Access::LOCAL_READ).unwrap().lkey();
    for round in 0.. {
        if done(round) {
            break;
        }
        let before = get();
        // SAFETY: the thread's own pages, replaced or emptied past libc.
        unsafe {
            if round % 2 == 0 {
                sys::madvise(at, PAGE, libc::MADV_DONTNEED).unwrap();
            } else {
                sys::mmap(at, PAGE, both, flags | libc::MAP_FIXED).unwrap();
            }
        }
        assert_ne!(get(), before, "round {round}: a registration of the old page");
    }
}

#[test]
fn a_get_after_a_raw_change_is_never_served_from_the_cache() {
    // SAFETY: no other thread of this process looks at the environment yet.
    unsafe { std::env::set_var(MECHANISM_VARIABLE, "userfaultfd") };
    let registry = Registry::builder().backend(counting()).build().unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| rounds(&registry, |_| over.load(SeqCst)));
        rounds(&registry, |round| round == ROUNDS);
        over.store(true, SeqCst);
    });
    assert!(userfaultfd::events() >= ROUNDS);
}
