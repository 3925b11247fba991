//! The ranks' job: started in a process group of its own, watched, and ended by its id
//! if it overruns or the user interrupts.

use super::show::Show;
use crate::demo::job::end;
use crate::demo::mpi::Mpirun;
use crate::demo::{Refusal, STOP};
use pinyard_cli::place;
use pinyard_cli::stress::Options;
use pinyard_cli::stress::progress::{Progress, Word};
use pinyard_cli::stress::record::Launcher;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How often the job is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// What starting, stopping and a rank's own limit may take beyond time and patience.
const OVERHEAD: Duration = Duration::from_secs(30);
/// What the ranks get to be gone once their launcher is.
const GONE: Duration = Duration::from_secs(5);

/// A run to start.
pub(crate) struct Job<'a> {
    /// None for a rank alone.
    pub(crate) mpirun: Option<Mpirun>,
    pub(crate) program: PathBuf,
    /// For the ranks' files; made by the caller.
    pub(crate) folder: &'a Path,
    pub(crate) ranks: u32,
    pub(crate) options: &'a Options,
    /// For mpirun.
    pub(crate) arguments: &'a [String],
}

impl Job<'_> {
    fn command(&self) -> Command {
        let mut command = match &self.mpirun {
            None => Command::new(&self.program),
            Some(mpirun) if self.arguments.is_empty() => mpirun.command(self.ranks, &self.program),
            Some(mpirun) => {
                let mut command = mpirun.bare();
                command.args(self.arguments).arg("-n").arg(self.ranks.to_string()).arg(&self.program);
                command
            }
        };
        command.args(self.options.arguments()).arg("--launched").arg("--folder").arg(self.folder);
        command
    }
}

/// Runs the job to its end.
pub(crate) fn run(job: &Job<'_>) -> Result<Launcher, Refusal> {
    let failed = |call: &str, error| Refusal::new(format!("{call}: {error}"), "");
    let output_path = job.folder.join("output");
    let output = place::new_file(&output_path).map_err(|error| failed("open(output of the ranks)", error))?;
    let errors = output.try_clone().map_err(|error| failed("dup", error))?;
    let mut command = job.command();
    command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    let line = line(&command);
    let name = match &job.mpirun {
        Some(mpirun) => format!("{} {}", mpirun.kind.name(), mpirun.version),
        None => "the rank".to_owned(),
    };
    let started = Instant::now();
    let mut child = command
        .spawn()
        .map_err(|error| failed(&format!("exec {}", command.get_program().display()), error))?;
    let under =
        job.mpirun.as_ref().map_or_else(|| ", without a launcher".to_owned(), |_| format!(" under {name}"));
    let show = Show::new(job, &under);
    let limit = Duration::from_secs(job.options.time + job.options.patience) + OVERHEAD;
    let mut status = None;
    while status.is_none() && started.elapsed() < limit && !STOP.load(Relaxed) {
        std::thread::sleep(LOOK);
        show.look(job.folder, job.ranks);
        status = child.try_wait().map_err(|error| failed("waitpid", error))?;
    }
    if status.is_none() {
        end(&mut child);
    }
    drop(show);
    let ending = status.map_or_else(|| "was ended".to_owned(), words);
    Ok(Launcher {
        command: line,
        name,
        status: ending,
        success: status.is_some_and(|status| status.success()),
        overran: status.is_none() && !STOP.load(Relaxed),
        left_behind: left_behind(job),
        last_words: if status.is_some_and(|status| status.success()) {
            String::new()
        } else {
            causes(&fs::read(&output_path).unwrap_or_default())
        },
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// What the job printed that tells why it ended: the first lines that speak of an error,
/// and the last ones; no frames of stacks, no rules.
fn causes(output: &[u8]) -> String {
    const EACH: usize = 4;
    const SIGNS: [&str; 8] = ["error", "fail", "fatal", "assert", "abort", "timed out", "timeout", "killed"];
    let text = String::from_utf8_lossy(output);
    let is_frame = |line: &str| line.contains("(+0x") || line.contains("[0x");
    let says = |line: &&str| line.chars().any(char::is_alphanumeric) && !is_frame(line);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(says).collect();
    let is_cause = |line: &str| {
        let line = line.to_ascii_lowercase();
        SIGNS.iter().any(|sign| line.contains(sign))
    };
    let mut kept: Vec<&str> = Vec::new();
    let last = lines.len().saturating_sub(EACH);
    let first = lines[..last].iter().filter(|line| is_cause(line)).take(EACH);
    for line in first.chain(&lines[last..]) {
        if !kept.contains(line) {
            kept.push(line);
        }
    }
    kept.join("\n")
}

/// A command line, as a shell takes it.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted = words.map(|word| {
        let word = word.to_string_lossy();
        let plain = |c: char| c.is_alphanumeric() || "-_=./,:+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// The ranks on this machine that are still there some time after their launcher ended.
fn left_behind(job: &Job<'_>) -> Vec<u64> {
    let ours = |pid: &u64| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let folder = job.folder.as_os_str().as_encoded_bytes();
        line.split(|&byte| byte == 0).any(|word| word == folder)
    };
    let pids: Vec<u64> = (0..job.ranks).map(|rank| Progress::read(job.folder, rank).get(Word::Pid)).collect();
    let started = Instant::now();
    loop {
        let left: Vec<u64> = pids.iter().copied().filter(|pid| *pid != 0 && ours(pid)).collect();
        if left.is_empty() || started.elapsed() > GONE {
            return left;
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_found_before_a_stack_and_the_launchers_talk() {
        let frames = "[node1:00512] [26] /lib/libc.so.6(__libc_start_main+0x85)[0x7f4bb9ec5305]\n".repeat(9);
        let output = format!("hello\nucx: endpoint timeout\n-----\n{frames}a\nb\nc\nd\n");
        assert_eq!(causes(output.as_bytes()), "ucx: endpoint timeout\na\nb\nc\nd");
        assert_eq!(causes(b""), "");
        assert_eq!(causes(b"killed\n"), "killed");
    }

    #[test]
    fn a_command_line_can_be_copied() {
        let mut command = Command::new("mpirun");
        command.args(["-n", "4", "a b", "it's", ""]);
        assert_eq!(line(&command), "mpirun -n 4 'a b' 'it'\\''s' ''");
    }
}
