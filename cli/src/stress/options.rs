//! What a run is asked to do: the same options for the command and for the ranks.

use crate::stress::operation::Operation;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Options of a run that every rank must know.
#[derive(Args, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// End the run after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub time: u64,
    /// End the run after this many steps, if the time allows them [default: no such limit]
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// What the sequence of operations, sizes, buffers and changes is drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Longest message; lengths are drawn evenly over their logarithm, from 1 byte (K, M: KiB, MiB)
    #[arg(long, value_name = "BYTES", default_value = "4M", value_parser = bytes)]
    pub max_bytes: u64,
    /// Operations of the mix
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "bcast,allreduce,sendrecv,put,get"
    )]
    pub operations: Vec<Operation>,
    /// Who registers memory
    #[arg(long, value_enum, default_value_t = Backend::Auto)]
    pub backend: Backend,
    /// RDMA device of the backend verbs, such as mlx5_0 [default: the first that works]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Bytes that each rank's registry may pin [default: the registry's own, see `pinyard info`]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub budget: Option<u64>,
    /// A rank in which nothing moves for this many seconds hangs: it says in what, and ends
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub patience: u64,
    /// What to break on purpose
    #[arg(long, value_enum)]
    pub fault: Option<Fault>,
    /// When [default: half of the time]
    #[arg(long, value_name = "SECONDS", requires = "fault")]
    pub fault_after: Option<u64>,
    /// Which rank kill-rank kills [default: the last]
    #[arg(long, value_name = "RANK", requires = "fault")]
    pub fault_rank: Option<u32>,
    /// What the fault memlock lowers RLIMIT_MEMLOCK to
    #[arg(long, value_name = "BYTES", default_value = "256K", value_parser = bytes)]
    pub memlock: u64,
    /// Flip a byte of what the last rank receives in this step: the check must notice
    #[arg(long, value_name = "STEP", hide = true)]
    pub corrupt: Option<u64>,
    /// Tell the registry of no change: the check must see stale pages
    #[arg(long, hide = true)]
    pub without_hooks: bool,
}

/// Where a rank's files go. In the command, a folder of its own.
#[derive(Args, Clone, Debug, Default)]
pub struct Outputs {
    /// Write the whole record as one JSON document
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots, complete in one file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Who registers memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Backend {
    /// verbs where a device works, else io_uring, else mlock; the report says which and why
    Auto,
    /// An RDMA device, by RDMA that the rank does with itself
    Verbs,
    /// Fixed buffers of io_uring: the kernel pins, no device is needed
    IoUring,
    /// Keeps pages resident; no device looks at them, so stale pages go unseen
    Mlock,
}

/// What is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// A rank gets SIGKILL: the launcher must end the others, and the report name it
    KillRank,
    /// RLIMIT_MEMLOCK is lowered in every rank: refusals must name it, and the run go on
    Memlock,
    /// A thread of every rank publishes changes of the widest ranges without end
    Flood,
    /// Somebody outside cuts the network for a while: the stall must be seen, and the run go on
    Link,
}

impl Options {
    /// When the fault is due.
    pub fn fault_time(&self) -> Duration {
        Duration::from_secs_f64(self.fault_after.map_or(self.time as f64 / 2.0, |after| after as f64))
    }

    /// The rank that a fault of one rank is for.
    pub fn victim(&self, ranks: u32) -> u32 {
        self.fault_rank.unwrap_or(ranks.saturating_sub(1))
    }

    /// As a command line.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut put = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                arguments.extend([format!("--{name}"), value]);
            }
        };
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        put("time", number(Some(self.time)));
        put("steps", number(self.steps));
        put("seed", number(Some(self.seed)));
        put("max-bytes", number(Some(self.max_bytes)));
        put("operations", Some(self.operations.iter().map(word).collect::<Vec<_>>().join(",")));
        put("backend", Some(word(&self.backend)));
        put("device", self.device.clone());
        put("budget", number(self.budget));
        put("patience", number(Some(self.patience)));
        put("fault", self.fault.as_ref().map(word));
        put("fault-after", number(self.fault_after));
        put("fault-rank", self.fault_rank.map(|rank| rank.to_string()));
        put("memlock", number(Some(self.memlock)));
        put("corrupt", number(self.corrupt));
        if self.without_hooks {
            arguments.push("--without-hooks".to_owned());
        }
        arguments
    }
}

/// A value's word on the command line.
pub fn word<V: ValueEnum>(value: &V) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// A number of bytes, at least 1, with K, M or G for powers of 1024.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|error| format!("{error}; such as 65536, 64K or 4M"))?;
    number.checked_mul(1 << shift).filter(|&bytes| bytes > 0).ok_or_else(|| "must be 1 or more".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn the_ranks_get_what_the_command_got() {
        for line in [
            vec!["x"],
            vec!["x", "--seed", "7", "--max-bytes", "64K", "--operations", "put,get", "--without-hooks"],
            vec!["x", "--fault", "kill-rank", "--fault-rank", "2", "--backend", "io_uring", "--steps", "9"],
            vec!["x", "--fault", "memlock", "--fault-after", "3", "--memlock", "1M", "--corrupt", "8"],
        ] {
            let given = Line::parse_from(&line).options;
            let handed_on = std::iter::once("x".to_owned()).chain(given.arguments());
            assert_eq!(Line::parse_from(handed_on).options, given, "{line:?}");
        }
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("4M"), Ok(4 << 20));
        assert_eq!(bytes("17"), Ok(17));
        assert!(bytes("0").is_err() && bytes("K").is_err() && bytes("-1").is_err());
        assert!(bytes("99999999999G").is_err());
    }
}
