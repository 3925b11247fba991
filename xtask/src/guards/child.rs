//! Runs a command in a process group of its own, which is killed after the time limit, or when
//! this program is told to end.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// SIGINT or SIGTERM came. Relaxed: nothing else is read by its value.
static TOLD_TO_END: AtomicBool = AtomicBool::new(false);

/// How long a group may take after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

extern "C" fn end(_signal: libc::c_int) {
    TOLD_TO_END.store(true, Relaxed);
}

/// From here on, SIGINT and SIGTERM end the commands that run, and fail those that follow.
pub(crate) fn end_on_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler stores to an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, end as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

/// The command's status; its output goes to the log.
pub(crate) fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<ExitStatus, String> {
    let of_log = |error| format!("write {}: {error}", log.display());
    let mut file = File::create(log).map_err(of_log)?;
    let (output, errors) = (file.try_clone().map_err(of_log)?, file.try_clone().map_err(of_log)?);
    command.stdout(output).stderr(errors).process_group(0);
    let program = command.get_program().to_owned();
    let of_command = |what: &str, error| format!("{what} {}: {error}", program.display());
    let mut child = command.spawn().map_err(|error| of_command("run", error))?;
    let (mut signal, mut deadline) = (libc::SIGTERM, Instant::now() + limit);
    loop {
        if let Some(status) = child.try_wait().map_err(|error| of_command("wait for", error))? {
            let ended = TOLD_TO_END.load(Relaxed);
            return if ended { Err("told to end by a signal".to_owned()) } else { Ok(status) };
        }
        let ends = signal == libc::SIGTERM && TOLD_TO_END.load(Relaxed);
        if ends || Instant::now() >= deadline {
            writeln!(file, "not ended after {} s: signal {signal}", limit.as_secs()).map_err(of_log)?;
            // SAFETY: the child leads the group. Nobody has waited for it, so its number is not
            // another's.
            unsafe { libc::kill(-(child.id() as libc::pid_t), signal) };
            (signal, deadline) = (libc::SIGKILL, Instant::now() + GRACE);
        }
        sleep(Duration::from_millis(20));
    }
}
