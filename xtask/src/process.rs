//! A command and its processes: their time, their limit, and where they stood when it passed.
#![allow(unsafe_code)]

use std::env;
use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// User and system time of its processes, as far as they were waited for.
    pub(crate) busy: Duration,
    pub(crate) took: Duration,
    /// Where its processes stood, if its limit ended it.
    pub(crate) stacks: Option<String>,
}

/// Those that a thread of [`run`] collects.
static STEPS: Mutex<Vec<i32>> = Mutex::new(Vec::new());

/// Whether the child is a step's first process, or becomes one at this moment.
pub(crate) fn is_step(pid: i32) -> bool {
    STEPS.lock().map_or(true, |steps| steps.contains(&pid))
}

/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(10);

/// SIGINT or SIGTERM came. Relaxed: nothing else is read by its value.
static TOLD_TO_END: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_signal: libc::c_int) {
    TOLD_TO_END.store(true, Relaxed);
}

/// From here on, SIGINT and SIGTERM end the commands that run, and those that follow.
pub(crate) fn end_on_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler stores to an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, end as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

/// `cargo run` put this program's folders before the others (LD_LIBRARY_PATH): a command finds its
/// own libraries.
pub(crate) fn without_own_folders(command: &mut Command) {
    let own = env::current_exe().ok().and_then(|path| Some(path.parent()?.to_owned()));
    if let (Some(folders), Some(own)) = (env::var_os("LD_LIBRARY_PATH"), own) {
        let others: Vec<_> = env::split_paths(&folders).filter(|folder| !folder.starts_with(&own)).collect();
        match env::join_paths(&others) {
            Ok(joined) if !others.is_empty() => command.env("LD_LIBRARY_PATH", joined),
            _ => command.env_remove("LD_LIBRARY_PATH"),
        };
    }
}

/// The MPI whose programs are built, unless the caller's environment names one.
pub(crate) fn with_mpi(command: &mut Command) -> &mut Command {
    command.env("MPICC", env::var_os("MPICC").unwrap_or_else(|| "/usr/bin/mpicc.openmpi".into()))
}

/// Runs `command` with its output in `log`, for at most `limit`. Its processes are a group of
/// their own.
///
/// # Errors
/// What the command needs to start; a signal that ended it ([`end_on_signals`]).
pub(crate) fn run(command: &mut Command, log: &Path, limit: Duration) -> io::Result<Ended> {
    let output = File::create(log)?;
    let errors = output.try_clone()?;
    let began = Instant::now();
    let command = command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    let group = {
        let mut steps = STEPS.lock().map_err(|_| io::Error::other("a thread with a step has panicked"))?;
        let group = command.spawn()?.id() as i32;
        steps.push(group);
        group
    };
    let (ended, end) = channel();
    let waiter = thread::spawn(move || tell_end(group, &ended));
    let mut stacks = None;
    let until = began + limit;
    let mut told = Err(RecvTimeoutError::Timeout);
    while told == Err(RecvTimeoutError::Timeout) && Instant::now() < until && !TOLD_TO_END.load(Relaxed) {
        let rest = until.saturating_duration_since(Instant::now());
        told = end.recv_timeout(rest.min(Duration::from_millis(200)));
    }
    if told == Err(RecvTimeoutError::Timeout) {
        let members = family(group);
        stacks = Some(members.iter().map(|&pid| stack(pid)).collect());
        signal(&members, libc::SIGTERM);
        told = end.recv_timeout(GRACE);
        // Those that have lost their parent by now are not in the family any more.
        signal(&members, libc::SIGKILL);
        signal(&family(group), libc::SIGKILL);
        told = told.or_else(|_| end.recv_timeout(GRACE));
    }
    let lost = || io::Error::other("the thread that waits for the command has ended");
    let (status, busy) = told.map_err(|_| lost())?.map_err(io::Error::other)?;
    waiter.join().map_err(|_| lost())?;
    // Its output is none to judge.
    if TOLD_TO_END.load(Relaxed) {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "told to end by a signal"));
    }
    Ok(Ended { status, busy, took: began.elapsed(), stacks })
}

fn tell_end(child: i32, ended: &Sender<Result<(ExitStatus, Duration), String>>) {
    let end = collected(child);
    if let Ok(mut steps) = STEPS.lock() {
        steps.retain(|&step| step != child);
    }
    // Nobody receives once the limit and its grace have passed.
    let _ = ended.send(end);
}

/// wait4(2): the status of a child, and the time of it and of all that it waited for.
pub(crate) fn collected(child: i32) -> Result<(ExitStatus, Duration), String> {
    // SAFETY: all-zero is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    loop {
        // SAFETY: both are written by the kernel, and live longer than the call.
        if unsafe { libc::wait4(child, &raw mut status, 0, &raw mut usage) } == child {
            return Ok((ExitStatus::from_raw(status), time(usage.ru_utime) + time(usage.ru_stime)));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(format!("wait4({child}): {error}"));
        }
    }
}

fn time(value: libc::timeval) -> Duration {
    Duration::from_secs(value.tv_sec.unsigned_abs()) + Duration::from_micros(value.tv_usec.unsigned_abs())
}

/// Processes of the group, and the children of these, in whatever groups.
fn family(group: i32) -> Vec<i32> {
    // comm may hold anything: the fields begin behind its last parenthesis (proc_pid_stat(5)).
    let fields = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(1);
        let parent: i32 = fields.next()?.parse().ok()?;
        let group: i32 = fields.next()?.parse().ok()?;
        Some((pid, parent, group))
    };
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<(i32, i32, i32)> = pids.filter_map(fields).collect();
    let mut members: Vec<i32> =
        all.iter().filter(|process| process.2 == group).map(|process| process.0).collect();
    let mut next = 0;
    while let Some(&member) = members.get(next) {
        let children = all.iter().filter(|process| process.1 == member).map(|process| process.0);
        let new: Vec<i32> = children.filter(|child| !members.contains(child)).collect();
        members.extend(new);
        next += 1;
    }
    members
}

fn signal(pids: &[i32], number: i32) {
    for &pid in pids {
        // SAFETY: a system call that takes two integers.
        unsafe { libc::kill(pid, number) };
    }
}

/// The command line, and where each thread waits: proc_pid_wchan(5), proc_pid_syscall(5), and the
/// kernel's stack where it may be read.
fn stack(pid: i32) -> String {
    let read =
        |path: &str| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " ")).ok();
    let mut text = format!("{pid} {}\n", read(&format!("/proc/{pid}/cmdline")).unwrap_or_default().trim());
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for thread in threads {
        let of = |file: &str| read(&format!("{}/{file}", thread.path().display())).unwrap_or_default();
        let (name, wchan, syscall) = (of("comm"), of("wchan"), of("syscall"));
        // Writing to a String does not fail.
        let _ = writeln!(text, "    {}: {} {}", name.trim(), wchan.trim(), syscall.trim());
        for line in of("stack").lines() {
            let _ = writeln!(text, "        {line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bash(script: &str, limit: u64) -> (Ended, String) {
        let log = std::env::temp_dir().join(format!("xtask-{}-{}", std::process::id(), script.len()));
        let ended = run(Command::new("bash").args(["-c", script]), &log, Duration::from_secs(limit)).unwrap();
        let text = fs::read_to_string(&log).unwrap();
        fs::remove_file(&log).unwrap();
        (ended, text)
    }

    #[test]
    fn status_output_and_time_are_told() {
        let (ended, text) =
            bash("echo out; echo err >&2; for ((i = 0; i < 300000; i++)); do :; done; exit 3", 600);
        assert_eq!(ended.status.code(), Some(3));
        assert_eq!(text, "out\nerr\n");
        assert!(ended.busy > Duration::ZERO && ended.stacks.is_none());
    }

    #[test]
    fn a_limit_shows_where_each_process_stands_and_ends_them_all() {
        // One that ignores SIGTERM, in a session of its own.
        let script = "setsid bash -c 'trap \"\" TERM; echo $$; while :; do sleep 1000; done' & wait";
        let (ended, text) = bash(script, 1);
        let stacks = ended.stacks.unwrap();
        assert!(stacks.contains("sleep 1000"), "{stacks}");
        assert!(!ended.status.success());
        let pid: i32 = text.trim().parse().unwrap();
        for _ in 0..600 {
            // Gone, or a zombie that init has not collected.
            match fs::read_to_string(format!("/proc/{pid}/stat")) {
                Err(_) => return,
                Ok(stat) if stat.contains(") Z ") => return,
                Ok(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
        panic!("{pid} goes on");
    }
}
