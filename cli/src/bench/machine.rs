//! The machine that figures are of.

use serde::{Deserialize, Serialize};

/// What a reader has to know of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name, as in /proc/cpuinfo.
    pub cpu: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// Runnable programs, averaged over the last minute of the run.
    pub load: String,
}

/// Processors that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

impl Machine {
    /// This one; what /proc does not tell is `unknown`.
    pub fn here() -> Machine {
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let word = |text: String, index| text.split_whitespace().nth(index).unwrap_or("unknown").to_owned();
        Machine {
            cpu: model.unwrap_or("unknown").to_owned(),
            cores: cores(),
            kernel: word(read("/proc/version"), 2),
            load: word(read("/proc/loadavg"), 0),
        }
    }

    /// Whether times measured on both can be compared at all.
    pub fn is_like(&self, other: &Machine) -> bool {
        (&self.cpu, self.cores) == (&other.cpu, other.cores)
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Machine { cpu, cores, kernel, load } = self;
        write!(f, "{cpu}, {cores} cores, Linux {kernel}, load {load} at the end")
    }
}
