//! Tests that need a process of their own run themselves again as a child.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

const CHILD: &str = "PINYARD_TEST_CHILD";
/// Seconds after which a child that hangs is killed by its own alarm.
const PATIENCE: u32 = 60;

/// Runs the test `name` of this file again, as a child that takes its other branch.
pub fn in_child(name: &str) -> Output {
    in_child_with(name, &[])
}

/// As `in_child`, with variables more.
pub fn in_child_with(name: &str, variables: &[(&str, &OsStr)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    command.envs(variables.iter().copied()).output().unwrap()
}

pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The child's test ran to its end; what it skipped is said here.
pub fn passes(output: Output) {
    let text = text(&output);
    text.lines().filter(|line| line.starts_with("skipped: ")).for_each(|line| eprintln!("{line}"));
    assert!(output.status.success() && text.contains("1 passed"), "{:?}: {text}", output.status);
}

/// The child left in its own way, with this status, and was not killed.
pub fn exits_with(output: Output, code: i32) {
    let status = output.status;
    assert_eq!((status.code(), status.signal()), (Some(code), None), "{}", text(&output));
}

/// Kills this process by SIGALRM if it still runs a minute from now: a hang
/// becomes a failure.
pub fn or_be_killed() {
    // SAFETY: alarm has no preconditions; the default action ends the process.
    unsafe { libc::alarm(PATIENCE) };
}

/// Runs `work` in a forked child and returns its status. The child ends with
/// `_exit`, 0 where `work` returns true, and is killed if it hangs.
pub fn forked(work: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child uses only what `work` uses and ends with _exit; the
    // callers' work is what a forked child of a threaded program may do.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::alarm(PATIENCE / 4);
            libc::_exit(if work() { 0 } else { 1 });
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        status
    }
}
