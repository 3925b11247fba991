//! Lines on the standard error, for operators.

use crate::settings::{Level, settings};
use std::fmt;
use std::io::Write;

/// Which rank of a job this is, as the common launchers say.
fn rank() -> Option<u64> {
    let variables = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"];
    variables.into_iter().find_map(|variable| std::env::var(variable).ok()?.parse().ok())
}

/// Writes a line where `PINYARD_LOG` asks for its level, with one write.
pub(crate) fn say(level: Level, text: fmt::Arguments<'_>) {
    if settings().log < level {
        return;
    }
    let who = rank().map_or(String::new(), |rank| format!("rank {rank}, "));
    let line = format!("pinyard: {who}pid {}: {text}\n", std::process::id());
    // Nowhere to say that it cannot be said.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
