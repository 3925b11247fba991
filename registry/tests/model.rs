//! Random sequences of everything a program does, against a log of what must
//! not be found any more.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, Events, MemoryKey, PageRange, Registry};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
enum Step {
    Get { first: usize, pages: usize, write: bool, keep: bool },
    Change { first: usize, pages: usize },
    Notify { first: usize, pages: usize },
    Invalidate { first: usize, pages: usize },
    DropLease(usize),
    Flush,
}

const WINDOW: usize = 24;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let part = (0..WINDOW - 6, 1..6usize);
    let step = prop_oneof![
        6 => (part.clone(), any::<bool>(), any::<bool>())
            .prop_map(|((first, pages), write, keep)| Step::Get { first, pages, write, keep }),
        2 => part.clone().prop_map(|(first, pages)| Step::Change { first, pages }),
        1 => part.clone().prop_map(|(first, pages)| Step::Notify { first, pages }),
        1 => part.prop_map(|(first, pages)| Step::Invalidate { first, pages }),
        2 => (0..8usize).prop_map(Step::DropLease),
        1 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 1..120)
}

/// What the device did, by key.
#[derive(Default)]
struct Log {
    registered: Vec<(PageRange, Access)>,
    deregistered: Vec<bool>,
    /// Changed since it was registered.
    stale: Vec<bool>,
}

fn registry(log: &Arc<Mutex<Log>>, hooks: Events) -> Registry {
    let (births, deaths) = (log.clone(), log.clone());
    let backend = Custom::new(
        "logging",
        move |range, access| {
            let mut log = births.lock().unwrap();
            log.registered.push((range, access));
            log.deregistered.push(false);
            log.stale.push(false);
            Ok(MemoryKey { lkey: log.registered.len() as u64 - 1, rkey: 0, handle: 0 })
        },
        move |key: MemoryKey, range| {
            let mut log = deaths.lock().unwrap();
            let key = key.lkey as usize;
            assert_eq!(log.registered[key].0, range);
            assert!(!std::mem::replace(&mut log.deregistered[key], true), "deregistered twice");
            Ok(())
        },
    );
    Registry::builder().backend(backend).events(hooks).budget(64 * PAGE).build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_changed_is_never_found_and_what_stands_is(steps in steps()) {
        let log = Arc::new(Mutex::new(Log::default()));
        let registry = registry(&log, Events::Hooks);
        let window = Pages::new(WINDOW);
        let mut held = Vec::new();
        for step in steps {
            let spoil = |first: usize, pages: usize| {
                let (at, len) = window.part(first, pages);
                let changed = PageRange { start: at.addr(), end: at.addr() + len };
                let mut log = log.lock().unwrap();
                let Log { registered, stale, .. } = &mut *log;
                for ((range, _), stale) in registered.iter().zip(stale) {
                    *stale |= range.overlaps(changed);
                }
                (at, len)
            };
            match step {
                Step::Get { first, pages, write, keep } => {
                    let access = if write { Access::LOCAL_WRITE } else { Access::LOCAL_READ };
                    let part = window.part(first, pages);
                    // Everything kept may exceed the budget: then it is refused.
                    let lease = match registry.get(part, access) {
                        Ok(lease) => lease,
                        Err(error) => {
                            let in_use: usize = {
                                let log = log.lock().unwrap();
                                let mut keys: Vec<_> = held.iter().map(|l: &pinyard_registry::Lease| l.lkey()).collect();
                                keys.sort_unstable();
                                keys.dedup();
                                keys.iter().map(|&key| log.registered[key as usize].0.len()).sum()
                            };
                            prop_assert!(in_use + part.1 > 64 * PAGE, "{error} with {in_use} bytes in use");
                            continue;
                        }
                    };
                    let key = lease.lkey() as usize;
                    {
                        let log = log.lock().unwrap();
                        prop_assert!(!log.stale[key] && !log.deregistered[key], "a stale hit");
                        let (range, allowed) = log.registered[key];
                        prop_assert!(range.start <= part.0.addr() && part.0.addr() + part.1 <= range.end);
                        prop_assert!(allowed.contains(access));
                    }
                    let again = registry.get(part, access).unwrap();
                    prop_assert_eq!(again.key(), lease.key(), "what stands is found");
                    drop(again);
                    if keep {
                        held.push(lease);
                    }
                }
                Step::Change { first, pages } => {
                    let (at, len) = spoil(first, pages);
                    // SAFETY: the test's own pages.
                    unsafe { libc::madvise(at as *mut _, len, libc::MADV_DONTNEED) };
                }
                Step::Notify { first, pages } => {
                    let (at, len) = spoil(first, pages);
                    pinyard_hooks::notify_unmapped(at, len);
                }
                Step::Invalidate { first, pages } => registry.invalidate(spoil(first, pages)).unwrap(),
                Step::DropLease(index) => {
                    if index < held.len() {
                        drop(held.swap_remove(index));
                    }
                }
                Step::Flush => {
                    spoil(0, WINDOW);
                    registry.flush().unwrap();
                }
            }
            let log = log.lock().unwrap();
            for lease in &held {
                prop_assert!(!log.deregistered[lease.lkey() as usize], "deregistered under its holder");
            }
        }
        drop(held);
        registry.flush().unwrap();
        prop_assert!(log.lock().unwrap().deregistered.iter().all(|&done| done), "left registered");
        prop_assert_eq!(registry.stats().pinned_bytes, 0);
    }
}
