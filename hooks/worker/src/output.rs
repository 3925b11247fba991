//! Lines and files that pinyard writes on a thread of the program's.
#![allow(unsafe_code)]

use std::fmt;
use std::io::{Write, stderr};
use std::mem::zeroed;
use std::ptr::null_mut;

/// What a write raises, whose default action ends the program: SIGPIPE where nobody reads a pipe or a
/// socket any more, SIGXFSZ where a file has the length of RLIMIT_FSIZE (write(2)).
const RAISED: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// Runs `write`, whose writes fail with EPIPE or EFBIG and raise no signal: SIGPIPE and SIGXFSZ are
/// blocked on this thread meanwhile, and taken back if `write` has raised them (pthread_sigmask(3),
/// sigtimedwait(2)).
///
/// ```
/// use std::io::Write;
/// let (reader, mut writer) = std::io::pipe()?;
/// drop(reader);
/// let failed = pinyard_worker::without_signals(|| writer.write(b"x"));
/// assert_eq!(failed.map_err(|error| error.kind()), Err(std::io::ErrorKind::BrokenPipe));
/// # std::io::Result::Ok(())
/// ```
pub fn without_signals<R>(write: impl FnOnce() -> R) -> R {
    let _blocked = Blocked::now();
    write()
}

/// Writes `pinyard: ` and `text` as a line on the standard error, by one write: several processes may
/// write at once. Where it cannot be written there is nobody to tell.
pub fn say(text: fmt::Arguments<'_>) {
    write_line(&format!("pinyard: {text}"));
}

/// The same without the mark.
pub fn write_line(line: &str) {
    without_signals(|| {
        let _ = stderr().write_all(format!("{line}\n").as_bytes());
    });
}

struct Blocked {
    /// Of [`RAISED`], those that were not pending before.
    ours: libc::sigset_t,
    before: libc::sigset_t,
}

impl Blocked {
    fn now() -> Blocked {
        // SAFETY: all-zero is a valid signal set; the calls fill the sets of this frame, and change this
        // thread's own mask.
        unsafe {
            let [mut raised, mut ours, mut pending, mut before]: [libc::sigset_t; 4] = zeroed();
            if !cfg!(miri) {
                libc::sigemptyset(&raw mut raised);
                libc::sigemptyset(&raw mut ours);
                libc::sigemptyset(&raw mut pending);
                libc::sigpending(&raw mut pending);
                for signal in RAISED {
                    libc::sigaddset(&raw mut raised, signal);
                    if libc::sigismember(&raw const pending, signal) == 0 {
                        libc::sigaddset(&raw mut ours, signal);
                    }
                }
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const raised, &raw mut before);
            }
            Blocked { ours, before }
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if cfg!(miri) {
            return; // it has no signals
        }
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: sets of this value; no information about a signal is asked for.
        unsafe {
            while libc::sigtimedwait(&raw const self.ours, null_mut(), &raw const now) > 0 {}
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// In a child, where both signals have their default action.
    fn child(work: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child uses its own descriptors, and ends at once.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                for signal in RAISED {
                    libc::signal(signal, libc::SIG_DFL);
                }
                libc::_exit(i32::from(!work()));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            status
        }
    }

    fn nobody_reads() -> io::PipeWriter {
        io::pipe().unwrap().1
    }

    #[test]
    fn a_line_that_nobody_reads_ends_nobody() {
        let plain = child(|| nobody_reads().write(b"x").is_ok());
        assert_eq!(plain, libc::SIGPIPE, "without it the child ends");
        assert_eq!(child(|| without_signals(|| nobody_reads().write(b"x")).is_err()), 0);
    }

    #[test]
    fn a_file_of_the_limits_length_ends_nobody() {
        let full = || {
            let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
            // SAFETY: reads the struct; a new file without a name.
            let mut file = unsafe {
                libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
                let fd = libc::memfd_create(c"full".as_ptr(), 0);
                <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd)
            };
            file.write_all(b"xx")
        };
        assert_eq!(child(|| full().is_ok()), libc::SIGXFSZ, "without it the child ends");
        assert_eq!(child(|| without_signals(full).is_err()), 0);
    }

    /// One that was pending before is the program's.
    #[test]
    fn the_programs_own_signal_stays() {
        let status = child(|| {
            let blocked = Blocked::now();
            // SAFETY: to this thread, which has it blocked.
            unsafe { libc::raise(libc::SIGPIPE) };
            without_signals(|| nobody_reads().write(b"x")).unwrap_err();
            // SAFETY: as in `Blocked`.
            unsafe {
                let mut pending: libc::sigset_t = zeroed();
                libc::sigpending(&raw mut pending);
                drop(blocked);
                libc::sigismember(&raw const pending, libc::SIGPIPE) == 1
            }
        });
        assert_eq!(status, 0);
    }
}
