//! The machine that the figures are of.

use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    /// Runnable programs, averaged over the last minute of the run.
    load: String,
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

impl Machine {
    pub(crate) fn here() -> Machine {
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
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Machine { cpu, cores, kernel, load } = self;
        write!(f, "Machine: {cpu}, {cores} cores, Linux {kernel}, load {load} at the end.")
    }
}
