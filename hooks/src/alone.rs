//! The end of a process whose program has no thread left.
//!
//! A process lives as long as one of its threads, and glibc ends it by exit(3) when the last that it made
//! ends (pthread_exit(3)). Threads of pinyard's would keep it for ever, with all signals blocked. So they
//! count themselves; and once the process's first thread has ended, one more looks ten times a second
//! whether they are the only ones left. A first thread that tells of its end costs nothing until then. Where
//! it does not tell, since the library was loaded by another thread or before a fork, the look is once a
//! second.
#![allow(unsafe_code)]

use crate::thread_end::at_thread_end;
use crate::{fork, sys, threads};
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering::*};

/// Between two looks, in nanoseconds: while the first thread lives, and afterwards.
const LOOKS: [u64; 2] = [1_000_000_000, 100_000_000];

/// Threads of pinyard's that run, and above them [`this_process`].
static OURS: AtomicU64 = AtomicU64::new(0);
/// [`this_process`] where its first thread tells of its end, where it has ended, and where a thread looks.
static TELLS: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);
/// The `pthread_t` of the thread that tells.
static FIRST: AtomicU64 = AtomicU64::new(0);
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

const COUNT: u64 = u32::MAX as u64;

/// Which process of those that were forked this is, in the upper half; not 0.
fn this_process() -> u64 {
    (u64::from(fork::generation()) + 1) << 32
}

fn ours() -> u64 {
    let ours = OURS.load(SeqCst);
    if ours & !COUNT == this_process() { ours & COUNT } else { 0 }
}

/// A thread of pinyard's counts itself for as long as it keeps this. It begins with it: a thread that is
/// not counted yet is taken for one of the program's.
#[derive(Debug)]
pub struct OwnThread(());

impl OwnThread {
    /// The calling thread is pinyard's.
    pub fn begin() -> OwnThread {
        let own = OwnThread::counted();
        if !tells() || ENDED.load(SeqCst) == this_process() {
            start_looking();
        }
        own
    }

    fn counted() -> OwnThread {
        let process = this_process();
        let more = |ours: u64| Some(if ours & !COUNT == process { ours + 1 } else { process | 1 });
        let _ = OURS.fetch_update(SeqCst, SeqCst, more);
        OwnThread(())
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        OURS.fetch_sub(1, SeqCst);
    }
}

/// The calling thread is asked to tell of its end, if it is the process's first. Before a thread of pinyard's is
/// made.
pub fn ask_first_thread() {
    if is_first() {
        ask();
    }
}

fn is_first() -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::gettid() == libc::getpid() }
}

fn ask() {
    if at_thread_end(ends) {
        // SAFETY: no preconditions.
        FIRST.store(unsafe { libc::pthread_self() }, SeqCst);
        TELLS.store(this_process(), SeqCst);
    }
}

/// Of a thread, at its end.
fn ends() {
    if !is_first() {
        return;
    }
    ENDED.store(this_process(), SeqCst);
    // SeqCst: either a thread that begins sees this, or it is counted here.
    if ours() > 0 {
        start_looking();
    }
}

/// This library is loaded, as a rule by the first thread: by its stack, since loading makes no system call. That
/// stack begins below what the kernel put there for the program, and all other mappings are further away than
/// [`NEAR`].
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn loaded() {
        let here = 0_u8;
        // SAFETY: takes a number.
        let of_first = if cfg!(miri) { 0 } else { (unsafe { libc::getauxval(libc::AT_RANDOM) }) as usize };
        if of_first.wrapping_sub((&raw const here).addr()) < NEAR {
            ask();
        }
    }
    loaded
};

/// Half of what the kernel leaves between the first thread's stack and its next mapping (`mmap_base`), in bytes.
const NEAR: usize = 64 << 20;

/// Whether the first thread of this process will. In a child of a fork, another may be the first; without
/// hooks no generation says so.
fn tells() -> bool {
    // SAFETY: sends nothing. The first thread's descriptor of glibc's is the loader's, and stays; in a child
    // that another thread forked, no thread has its number.
    TELLS.load(SeqCst) == this_process() && unsafe { libc::pthread_kill(FIRST.load(SeqCst), 0) } == 0
}

/// Once for a process. Without a thread for it, the next thread of pinyard's tries again.
fn start_looking() {
    let process = this_process();
    let before = LOOKED_AT.load(SeqCst);
    if before != process && LOOKED_AT.compare_exchange(before, process, SeqCst, SeqCst).is_ok() {
        // The usual stack: what exit(3) calls is the program's.
        match threads::create(look, null_mut(), 0) {
            // SAFETY: made above, and nobody joins it.
            Ok(thread) => unsafe { libc::pthread_detach(thread) },
            Err(_) => {
                LOOKED_AT.store(0, SeqCst);
                0
            }
        };
    }
}

extern "C" fn look(_: *mut c_void) -> *mut c_void {
    let own = OwnThread::counted();
    loop {
        let pause = sys::time(LOOKS[usize::from(ENDED.load(SeqCst) == this_process())]);
        // SAFETY: a time of this frame.
        unsafe { libc::nanosleep(&raw const pause, null_mut()) };
        let mut text = [0; 1024];
        let (has_ended, threads) = first_and_threads(stat(&mut text));
        if has_ended {
            ENDED.store(this_process(), SeqCst);
        }
        let ours = ours();
        if has_ended && threads == Some(ours + 1) {
            exit();
        }
        // The last of them: who begins next starts another.
        if ours == 1 {
            LOOKED_AT.store(0, SeqCst);
            drop(own);
            return null_mut();
        }
    }
}

/// `/proc/self/stat`, as much of it as there is room for.
fn stat(text: &mut [u8]) -> &[u8] {
    // SAFETY: a path, and a buffer of this length.
    unsafe {
        let file = libc::open(c"/proc/self/stat".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return &[];
        }
        let read = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        text.get(..usize::try_from(read).unwrap_or(0)).unwrap_or_default()
    }
}

/// Whether the first thread has ended, and how many threads there are, that one among them. `/proc/PID/stat`
/// (proc_pid_stat(5)) gives the state in the field behind the name, which is in parentheses and may have
/// more, and the number seventeen fields on.
fn first_and_threads(stat: &[u8]) -> (bool, Option<u64>) {
    let end = stat.iter().rposition(|byte| *byte == b')').unwrap_or(stat.len());
    let mut fields = stat.get(end..).unwrap_or_default().split(|byte| *byte == b' ').skip(1);
    let has_ended = fields.next() == Some(b"Z");
    let threads = fields.nth(16).and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok());
    (has_ended, threads)
}

/// Takes signals again: they are the program's, as what exit(3) calls is.
fn exit() {
    // SAFETY: an empty set; exit may be called by any thread, and is by one.
    unsafe {
        let mut none: libc::sigset_t = core::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, null_mut());
        libc::exit(0)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn the_fields_are_those_behind_the_last_parenthesis() {
        let of = |name: &str, state, threads| {
            let text = format!("7 ({name}) {state} 1 1 1 0 -1 4 9 0 0 0 0 0 0 0 20 0 {threads} 0 87 0");
            first_and_threads(text.as_bytes())
        };
        assert_eq!(of("a) S 1", "Z", 3), (true, Some(3)));
        assert_eq!(of("a) Z 1", "S", 12), (false, Some(12)));
        assert_eq!(first_and_threads(b""), (false, None));
    }

    #[test]
    fn the_kernels_own_text_has_these_fields() {
        let mut text = [0; 1024];
        let (has_ended, threads) = first_and_threads(stat(&mut text));
        let listed = std::fs::read_dir("/proc/self/task").unwrap().count() as u64;
        // Tests run on other threads, which come and go.
        assert!(!has_ended && threads.is_some_and(|threads| threads.abs_diff(listed) <= 8), "{threads:?}");
    }
}
