//! Whether a thread of a pool rests: asked of the kernel, which no other work on the machine
//! changes. A thread that is seldom seen awake may be one that gets no processor.
#![allow(dead_code)]

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A thread of this process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Thread(PathBuf);

impl Thread {
    /// Those of this name, which a thread takes when it first runs.
    pub(crate) fn all(name: &str) -> Vec<Thread> {
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
        let named =
            |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|text| text.trim() == name);
        tasks.filter(named).map(Thread).collect()
    }

    /// How often it has gone to sleep.
    pub(crate) fn sleeps(&self) -> u64 {
        let status = fs::read_to_string(self.0.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse().ok()).expect("the kernel counts them")
    }

    /// Whether it waits in futex(2) without a timeout, whose place is the fourth argument.
    /// One that was woken and has not run yet does not.
    pub(crate) fn sleeps_for_good(&self) -> bool {
        let call = fs::read_to_string(self.0.join("syscall")).unwrap();
        let words: Vec<_> = call.split_whitespace().collect();
        words[0] == libc::SYS_futex.to_string() && words[4] == "0x0"
    }

    /// How long `sleeps` sleeps took: at least that, from the end of the first one's.
    pub(crate) fn time_of(&self, sleeps: u64) -> Duration {
        let (first, began) = (self.sleeps(), Instant::now());
        while self.sleeps() < first + sleeps {
            assert!(began.elapsed() < Duration::from_secs(60), "it has not slept {sleeps} times in 60 s");
            std::thread::sleep(Duration::from_millis(1));
        }
        began.elapsed()
    }
}
