//! Lines on the standard error, for operators.

use crate::settings::{Level, settings};
use std::fmt;

/// Which rank of a job this is, as the common launchers say.
fn rank() -> Option<u64> {
    let variables = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"];
    variables.into_iter().find_map(|variable| std::env::var(variable).ok()?.parse().ok())
}

/// What variables and paths say is others' words: no terminal obeys them, and a line stays one.
fn in_a_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => line.extend(letter.escape_default()),
            false => line.push(letter),
        }
    }
    line
}

/// Writes a line where `PINYARD_LOG` asks for its level, with one write.
pub(crate) fn say(level: Level, text: fmt::Arguments<'_>) {
    if settings().log < level {
        return;
    }
    let who = rank().map_or(String::new(), |rank| format!("rank {rank}, "));
    pinyard_worker::say(format_args!("{who}pid {}: {}", std::process::id(), in_a_line(&text.to_string())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_others_makes_a_line_of_its_own() {
        assert_eq!(in_a_line("a\u{1b}[31m\nb\u{9b}é"), "a\\u{1b}[31m\\nb\\u{9b}é");
    }
}
