//! Lines on the standard error, for operators.

use crate::settings::{Level, settings};
use std::fmt;
use std::io::Write;

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
    let line = format!("pinyard: {who}pid {}: {}\n", std::process::id(), in_a_line(&text.to_string()));
    // Nowhere to say that it cannot be said.
    without_sigpipe(|| {
        let _ = std::io::stderr().write_all(line.as_bytes());
    });
}

/// Writes to a pipe or a socket that nobody reads any more, without the signal that would end the
/// program: it is blocked, and taken back if this thread's own write has raised it (pthread_sigmask(3),
/// sigtimedwait(2)).
fn without_sigpipe(write: impl FnOnce()) {
    // SAFETY: a set of signals is valid when it is zeroed, and sigemptyset initialises it.
    let (mut pipe, mut before, mut pending) = unsafe { core::mem::zeroed::<[libc::sigset_t; 3]>() }.into();
    // SAFETY: sets of this function, and this thread's own mask.
    let was_pending = unsafe {
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigemptyset(&raw mut pending);
        libc::sigpending(&raw mut pending);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
        libc::sigismember(&raw const pending, libc::SIGPIPE) == 1
    };
    write();
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above; no information about the signal is asked for.
    unsafe {
        if !was_pending {
            libc::sigtimedwait(&raw const pipe, core::ptr::null_mut(), &raw const now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_others_makes_a_line_of_its_own() {
        assert_eq!(in_a_line("a\u{1b}[31m\nb\u{9b}é"), "a\\u{1b}[31m\\nb\\u{9b}é");
    }
}
