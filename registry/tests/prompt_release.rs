//! Invariant 5: what the program gave up is unpinned soon, although nobody calls, and
//! whoever waits for nothing spends nothing.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Fault, Faulty, IoUring};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Threads that do nothing but sleep as long as the reaper does, one on each processor that
/// this process may use: how late they wake is how late any thread may.
struct Controls {
    /// The latest of each since it was last asked, in microseconds.
    late: Vec<AtomicU64>,
    /// How often each has woken.
    woken: Vec<AtomicU64>,
    stop: AtomicBool,
}

impl Controls {
    const PERIOD: Duration = Duration::from_millis(25);

    fn run(&self, number: usize, processor: usize) {
        confine(&[processor]);
        let mut due = Instant::now();
        while !self.stop.load(SeqCst) {
            due = Instant::now().max(due) + Self::PERIOD;
            std::thread::park_timeout(Self::PERIOD);
            let late = Instant::now().saturating_duration_since(due);
            self.late[number].fetch_max(late.as_micros() as u64, SeqCst);
            self.woken[number].fetch_add(1, SeqCst);
        }
    }

    /// Waits until each has woken once more; the latest since the last time.
    fn latest(&self) -> Duration {
        let before: Vec<_> = self.woken.iter().map(|woken| woken.load(SeqCst)).collect();
        eventually(|| self.woken.iter().zip(&before).all(|(woken, before)| woken.load(SeqCst) > *before));
        let latest = self.late.iter().map(|late| late.swap(0, SeqCst)).max();
        Duration::from_micros(latest.unwrap())
    }
}

/// The processors that this thread may use.
fn processors() -> Vec<usize> {
    // SAFETY: fills the set, which is plain bits; its macros stay within it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|&number| libc::CPU_ISSET(number, &set)).collect()
    }
}

/// This thread, and those that it begins, run on these alone.
fn confine(processors: &[usize]) {
    // SAFETY: as above; the set is read.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        processors.iter().for_each(|&number| libc::CPU_SET(number, &mut set));
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
    }
}

/// Invariant 5: without any further call the pages of an unmapped region are
/// unpinned within 100 ms. Every turn counts but those in which the machine let a thread
/// that only sleeps wake late, too.
#[test]
fn the_reaper_unpins_what_was_unmapped() {
    const PROMISE: Duration = Duration::from_millis(100);
    const ON_TIME: Duration = Duration::from_millis(5);
    const TURNS: usize = 20;
    if !is_child() {
        return passes(in_child("the_reaper_unpins_what_was_unmapped"));
    }
    let processors: Vec<usize> = processors().into_iter().take(2).collect();
    confine(&processors);
    let zeros = || processors.iter().map(|_| AtomicU64::new(0)).collect();
    let controls = Controls { late: zeros(), woken: zeros(), stop: AtomicBool::new(false) };
    // When it was deregistered; not asked of the registry, which would retire what was
    // unmapped to answer.
    let gone = Arc::new(Mutex::new(None));
    let at = gone.clone();
    let ring = Faulty::over(IoUring::new(16).unwrap()).deregistering(move |_| {
        let at = at.clone();
        Some(Fault::RunAfter(Arc::new(move |_| *at.lock().unwrap() = Some(Instant::now()))))
    });
    let registry = registry_over(ring);
    let turn = |phase: u64| {
        let pages = Pages::new(16);
        drop(read(&registry, &pages));
        assert_eq!(registry.stats().pinned_bytes, pages.len as u64);
        // The reaper looks when it is woken by a registration, and then by its own clock.
        std::thread::sleep(Duration::from_millis(phase));
        controls.latest();
        let began = Instant::now();
        pages.unmap();
        eventually(|| gone.lock().unwrap().is_some());
        let took = gone.lock().unwrap().take().unwrap() - began;
        let late = controls.latest();
        eventually(|| registry.stats().pinned_bytes == 0 && registry.stats().graveyard == 0);
        (took, late)
    };
    std::thread::scope(|scope| {
        let _stop = Finally(&controls.stop);
        for (number, &processor) in processors.iter().enumerate() {
            let controls = &controls;
            scope.spawn(move || controls.run(number, processor));
        }
        let mut counted = 0;
        for number in 0..3 * TURNS {
            let (took, late) = turn(7 * number as u64 % 25);
            if late <= ON_TIME {
                assert!(took <= PROMISE, "turn {number}: unpinned after {took:?}, a sleeper {late:?} late");
                counted += 1;
            }
            if counted == TURNS {
                break;
            }
        }
        if counted == 0 {
            eprintln!("skipped: in no turn did a thread that only sleeps wake on time");
        }
    });
}

/// A registry that holds nothing sleeps for good; one that holds regions looks 40 times a
/// second whether they have changed, which costs less than a hundredth of a processor.
#[test]
fn at_rest_no_processor_time_goes() {
    if !is_child() {
        return passes(in_child("at_rest_no_processor_time_goes"));
    }
    let spent = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: fills the struct.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let registry = registry_over(Device::new().backend());
    let pages: Vec<Pages> = (0..1000).map(|_| Pages::new(1)).collect();
    let hold = || pages.iter().for_each(|pages| drop(read(&registry, pages)));
    let rest = |empty: bool| {
        hold();
        if empty {
            registry.flush().unwrap();
        }
        eventually(|| registry.stats().graveyard == 0);
        std::thread::sleep(Duration::from_millis(200));
        let before = spent();
        std::thread::sleep(Duration::from_secs(1));
        spent() - before
    };
    let (full, empty) = (rest(false), rest(true));
    assert!(empty < Duration::from_millis(1), "with nothing registered: {empty:?} in a second");
    assert!(full < Duration::from_millis(10), "with 1000 regions: {full:?} in a second");
}
