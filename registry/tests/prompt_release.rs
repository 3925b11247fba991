//! Invariant 5: what the program gave up is unpinned soon, although nobody calls, and
//! whoever waits for nothing spends nothing.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Fault, Faulty, IoUring};
use pinyard_registry::{Access, Registry};
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
    /// Fewer prove nothing.
    const ENOUGH: usize = 5;
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
        if counted < ENOUGH {
            eprintln!(
                "skipped: in {counted} of {} turns did a thread that only sleeps wake on time",
                3 * TURNS
            );
        }
    });
}

/// The reaper's thread.
struct Reaper(libc::pid_t);

impl Reaper {
    /// Of a process with one registry; a thread takes its name when it first runs.
    fn find() -> Reaper {
        let mut found = None;
        eventually(|| {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap());
            let named = |task: &std::fs::DirEntry| {
                std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "pinyard-reaper\n")
            };
            found = tasks.into_iter().find(named).map(|task| task.file_name());
            found.is_some()
        });
        Reaper(found.unwrap().to_str().unwrap().parse().unwrap())
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/self/task/{}/{file}", self.0)).unwrap()
    }

    /// How often it has given up the processor by itself.
    fn sleeps(&self) -> u64 {
        let status = self.read("status");
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse().unwrap()
    }

    /// Whether it waits in futex(2) without a timeout, whose place is the fourth argument.
    fn sleeps_for_good(&self) -> bool {
        let call = self.read("syscall");
        let words: Vec<_> = call.split_whitespace().collect();
        words[0] == libc::SYS_futex.to_string() && words[4] == "0x0"
    }

    /// Processor time that it has used.
    fn spent(&self) -> Duration {
        // The kernel's MAKE_THREAD_CPUCLOCK(tid, CPUCLOCK_SCHED), as pthread_getcpuclockid(3)
        // makes it.
        let clock = !self.0 << 3 | 6;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: fills the struct.
        assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut time) }, 0);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }
}

/// A registry that holds nothing sleeps for good; one that holds regions looks every 25 ms
/// whether they have changed. A look costs less than a hundredth of that.
#[test]
fn at_rest_no_processor_time_goes() {
    const LOOKS: u32 = 40;
    if !is_child() {
        return passes(in_child("at_rest_no_processor_time_goes"));
    }
    let registry = registry_over(Device::new().backend());
    let pages: Vec<Pages> = (0..1000).map(|_| Pages::new(1)).collect();
    pages.iter().for_each(|pages| drop(read(&registry, pages)));
    let reaper = Reaper::find();
    // The first looks also prepare the next misses.
    let looks = |count: u64| {
        let before = reaper.sleeps();
        eventually(|| reaper.sleeps() >= before + count);
    };
    looks(8);
    let (before, began) = (reaper.spent(), Instant::now());
    looks(u64::from(LOOKS));
    let (spent, took) = (reaper.spent() - before, began.elapsed());
    assert!(spent < LOOKS * Duration::from_micros(250), "{spent:?} in {LOOKS} looks at 1000 regions");
    // A few sleeps may be of another kind, as for a lock. On a slow machine they last longer.
    assert!(took >= (LOOKS - 10) * Duration::from_millis(25), "{LOOKS} looks within {took:?}");
    registry.flush().unwrap();
    eventually(|| reaper.sleeps_for_good());
    // A child: no other thread registers anything, and nothing wakes it.
    let before = reaper.sleeps();
    looks_at_other_things(&registry);
    assert!(reaper.sleeps_for_good() && reaper.sleeps() == before, "it woke with nothing registered");
}

/// What does not concern the reaper of a registry that holds nothing.
fn looks_at_other_things(registry: &Registry) {
    let pages = Pages::new(1);
    for _ in 0..1000 {
        pages.advise(libc::MADV_DONTNEED);
        assert!(registry.lookup(&pages, Access::LOCAL_READ).is_none());
    }
}
