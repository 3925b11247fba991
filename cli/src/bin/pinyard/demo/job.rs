//! One row's MPI job: started in a process group of its own, watched, and ended
//! by its id if it overruns or the user interrupts.

use super::mpi::Mpirun;
use super::{Refusal, STOP, rows};
use pinyard_cli::demo::RankReport;
use pinyard_cli::place;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How often the job is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Nothing moving for this long is a hang.
const PATIENCE: Duration = Duration::from_secs(3);
/// What starting, stopping and a watchdog's report may take beyond the rounds.
const OVERHEAD: Duration = Duration::from_secs(25);
/// What a job gets between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);

/// A job to run.
pub(crate) struct Job<'a> {
    pub(crate) mpirun: &'a Mpirun,
    pub(crate) program: PathBuf,
    pub(crate) spec: &'a rows::Spec,
    /// A folder of its own for reports and progress; made here.
    pub(crate) folder: &'a Path,
    pub(crate) ranks: u32,
    pub(crate) rounds: u64,
    pub(crate) seconds: u64,
}

/// What is left of a job.
pub(crate) struct Ended {
    pub(crate) how: How,
    /// A report per rank, `None` where the rank left none.
    pub(crate) reports: Vec<Option<RankReport>>,
    /// The last lines that the job printed.
    pub(crate) last_words: String,
    pub(crate) elapsed: Duration,
}

/// How a job ended.
pub(crate) enum How {
    ByItself(ExitStatus),
    Overran(Duration),
    Interrupted,
}

/// Runs `job`; calls `advanced` with rank 0's rounds now and then.
pub(crate) fn run(job: &Job<'_>, advanced: impl Fn(u64)) -> Result<Ended, Refusal> {
    let failed = |call: &str, error| Refusal::new(format!("{call}: {error}"), "");
    place::new_folder(job.folder).map_err(|error| failed("mkdir(temporary folder)", error))?;
    let output_path = job.folder.join("output");
    let output = place::new_file(&output_path).map_err(|error| failed("open(temporary file)", error))?;
    let errors = output.try_clone().map_err(|error| failed("dup", error))?;
    let mut command = job.mpirun.command(job.ranks, &job.program);
    command
        .args(["--cache", job.spec.cache])
        .args(["--rounds", &job.rounds.to_string()])
        .args(["--seconds", &job.seconds.to_string()])
        .args(["--watchdog", &PATIENCE.as_secs().to_string()])
        .args(["--ranks", &job.ranks.to_string()])
        .arg("--report")
        .arg(job.folder)
        .envs(job.spec.environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .process_group(0);
    let started = Instant::now();
    let mut child =
        command.spawn().map_err(|error| failed(&format!("exec {}", job.mpirun.path.display()), error))?;
    let limit = Duration::from_secs(job.seconds) + PATIENCE + OVERHEAD;
    let how = loop {
        advanced(progress(job.folder));
        if let Some(status) = child.try_wait().map_err(|error| failed("waitpid(mpirun)", error))? {
            break How::ByItself(status);
        }
        if STOP.load(Relaxed) {
            end(&mut child);
            break How::Interrupted;
        }
        if started.elapsed() > limit {
            end(&mut child);
            break How::Overran(limit);
        }
        std::thread::sleep(LOOK);
    };
    advanced(progress(job.folder));
    let reports = (0..job.ranks).map(|rank| report(job.folder, rank)).collect();
    Ok(Ended { how, reports, last_words: last_words(&output_path), elapsed: started.elapsed() })
}

/// Rank 0's completed rounds: the first word of its progress file.
fn progress(folder: &Path) -> u64 {
    let bytes = fs::read(folder.join("rank-0.progress")).unwrap_or_default();
    bytes.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

fn report(folder: &Path, rank: u32) -> Option<RankReport> {
    let text = fs::read(folder.join(format!("rank-{rank}.json"))).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Ends mpirun, which ends its ranks; a rank whose parent has gone ends itself.
pub(crate) fn end(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let started = Instant::now();
    let mut signal = Signal::TERM;
    loop {
        if let Some(group) = group {
            // Fails only where the group is gone, which try_wait finds out.
            let _ = kill_process_group(group, signal);
        }
        while started.elapsed() < GRACE || signal == Signal::KILL {
            match child.try_wait() {
                Ok(None) => std::thread::sleep(LOOK),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        signal = Signal::KILL;
    }
}

/// The end of what the job printed, without frames and blank lines.
fn last_words(output: &Path) -> String {
    const LINES: usize = 6;
    let text = fs::read(output).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| line.chars().any(char::is_alphanumeric)).collect();
    lines.split_at(lines.len().saturating_sub(LINES)).1.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::mpi::Kind;
    use std::os::unix::process::ExitStatusExt;

    /// Runs a shell script in place of mpirun.
    fn run_script(script: &str, seconds: u64) -> (Ended, Vec<u64>) {
        let folder = tempfile::tempdir().unwrap();
        let mpirun = folder.path().join("mpirun");
        let script =
            format!("#!/bin/sh\nwhile [ \"$1\" != --report ]; do shift; done; cd \"$2\"\n{script}\n");
        // Written by another process: a file that this one had open for writing
        // cannot be run while a fork of another test still has it open.
        let write = "printf %s \"$2\" > \"$1\"; chmod 755 \"$1\"";
        let mut writer = std::process::Command::new("/bin/sh");
        writer.args(["-c", write, "sh"]).arg(&mpirun).arg(script);
        assert!(writer.status().unwrap().success());
        let mpirun = Mpirun { path: mpirun, kind: Kind::OpenMpi, version: String::new() };
        let job = Job {
            mpirun: &mpirun,
            program: PathBuf::from("unused"),
            spec: &rows::ALL[0],
            folder: &folder.path().join("row"),
            ranks: 2,
            rounds: 10,
            seconds,
        };
        let seen = std::cell::RefCell::new(Vec::new());
        let ended = run(&job, |rounds| seen.borrow_mut().push(rounds)).unwrap();
        (ended, seen.into_inner())
    }

    #[test]
    fn progress_output_and_status_come_back() {
        let (ended, seen) = run_script(
            "printf '\\007\\000\\000\\000\\000\\000\\000\\000' > rank-0.progress; sleep 0.2; echo ------; \
             echo 'no slots' >&2; echo '{' > rank-1.json; exit 3",
            1,
        );
        assert!(matches!(ended.how, How::ByItself(status) if status.code() == Some(3)));
        assert_eq!(seen.last(), Some(&7));
        assert_eq!(ended.last_words, "no slots");
        assert!(ended.reports.iter().all(Option::is_none), "half a report is none");
    }

    #[test]
    fn the_whole_group_is_ended_even_if_it_ignores_sigterm() {
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "trap '' TERM; echo; while :; do sleep 0.1; done"])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut ready = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let started = Instant::now();
        end(&mut child);
        assert!(started.elapsed() >= GRACE, "SIGTERM came first");
        let status = child.try_wait().unwrap().expect("it was waited for");
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));
    }
}
