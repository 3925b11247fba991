//! Processes that outlive their starter, as daemons do: they become children of this process
//! (PR_SET_CHILD_SUBREAPER, prctl(2)), which collects them and their time.
#![allow(unsafe_code)]

use crate::process::{collected, is_step};
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Collects them until it is asked for their time.
pub(crate) struct Orphans {
    is_over: Arc<AtomicBool>,
    micros: Arc<AtomicU64>,
    collector: JoinHandle<()>,
}

impl Orphans {
    /// # Errors
    /// What prctl(2) says.
    pub(crate) fn adopt() -> Result<Orphans, String> {
        // SAFETY: a system call that takes integers.
        if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } != 0 {
            return Err(format!("prctl(PR_SET_CHILD_SUBREAPER): {}", io::Error::last_os_error()));
        }
        let (is_over, micros) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (over, sum) = (is_over.clone(), micros.clone());
        let collector = thread::spawn(move || {
            // Soon: scripts wait until the process they ended is gone.
            while !over.load(Acquire) {
                collect(&sum);
                thread::sleep(Duration::from_millis(50));
            }
            collect(&sum);
        });
        Ok(Orphans { is_over, micros, collector })
    }

    /// User and system time of those that have ended so far.
    pub(crate) fn busy(&self) -> Duration {
        Duration::from_micros(self.micros.load(Acquire))
    }

    /// User and system time of those that have ended, and the command lines of those that go on.
    pub(crate) fn end(self) -> (Duration, Vec<String>) {
        self.is_over.store(true, Release);
        // A collector that has panicked has lost time alone.
        let _ = self.collector.join();
        let alive = children().into_iter().map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            format!("{pid} {}", String::from_utf8_lossy(&line).replace('\0', " ").trim())
        });
        (Duration::from_micros(self.micros.load(Acquire)), alive.collect())
    }
}

fn collect(sum: &AtomicU64) {
    for pid in children().into_iter().filter(|&pid| !is_step(pid)) {
        let is_dead = fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
        if is_dead && let Ok((_, busy)) = collected(pid) {
            sum.fetch_add(busy.as_micros() as u64, Release);
        }
    }
}

/// Of all threads of this process, as any of them may have adopted (proc_pid_task(5)).
fn children() -> Vec<i32> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
        .collect()
}
