//! Which process a trace is of.

use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// The process, and the moment at which its clock stands at 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Process {
    /// The node's name.
    pub host: String,
    /// The process's number there.
    pub pid: u32,
    /// Its rank in the job's world, if a launcher told (the variables of Open MPI, PMIx, PMI
    /// and Slurm).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The program's file name.
    #[serde(default)]
    pub program: String,
    /// Nanoseconds since 1970 at which the clock of its events, CLOCK_MONOTONIC, stood at
    /// 0: what lines up ranks of several nodes, as well as their clocks agree.
    pub wall_ns: u64,
}

/// Launchers' names for the rank, the surest first: Slurm sets its own in a batch script
/// as well, which is no rank.
const RANKS: [&str; 5] =
    ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID"];

impl Process {
    /// This one, its clock beginning now.
    pub(crate) fn this() -> Process {
        let rank = RANKS.iter().find_map(|name| std::env::var(name).ok()?.parse().ok());
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        // `/proc/self/exe` is gone once the first thread has ended.
        let exe = std::fs::read_link("/proc/thread-self/exe").ok();
        let program = exe.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let wall_ns = now_since_1970();
        Process {
            host: host.trim().to_owned(),
            pid: std::process::id(),
            rank,
            program: program.unwrap_or_default(),
            wall_ns,
        }
    }

    /// What its files are called: `node-r3-4711`, `node-4711`.
    pub(crate) fn file_stem(&self) -> String {
        let safe = |letter: char| {
            if letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-') { letter } else { '_' }
        };
        let host: String = self.host.chars().take(64).map(safe).collect();
        let host = if host.is_empty() || host.starts_with('.') { format!("node{host}") } else { host };
        match self.rank {
            Some(rank) => format!("{host}-r{rank}-{}", self.pid),
            None => format!("{host}-{}", self.pid),
        }
    }
}

pub(crate) fn now_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_stays_in_its_folder() {
        let of = |host: &str, rank| Process { host: host.to_owned(), pid: 7, rank, ..Process::default() };
        assert_eq!(of("n1.cluster", Some(3)).file_stem(), "n1.cluster-r3-7");
        assert_eq!(of("../../etc", None).file_stem(), "node.._.._etc-7");
        assert_eq!(of("a b/<c>", None).file_stem(), "a_b__c_-7");
        assert_eq!(of("", None).file_stem(), "node-7");
    }
}
