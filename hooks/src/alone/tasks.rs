//! The threads of this process, as the kernel lists them.

use crate::sys;
use core::fmt::Write;
use core::sync::atomic::{AtomicI32, Ordering::*};

/// The process that [`note_process`] was called in.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// The names of pinyard's threads. A thread with another name counts as the program's, and keeps the process.
const NAMES: [&[u8]; 8] = [
    b"pinyard-reaper",
    b"pinyard-fences",
    b"pinyard-device",
    b"pinyard-trace",
    b"pinyard-watch",
    b"pinyard-serve",
    b"pinyard-end",
    b"pinyard-list",
];
/// `PF_IO_WORKER` and, from Linux 6.4 on, `PF_USER_WORKER`: a thread that the kernel runs for an io_uring, or for a
/// virtual machine.
const KERNELS: u64 = 0x10 | 0x4000;

fn process() -> i32 {
    // SAFETY: no preconditions.
    unsafe { libc::getpid() }
}

pub(super) fn note_process() {
    PROCESS.store(process(), SeqCst);
}

pub(super) fn is_the_process_that_looks() -> bool {
    PROCESS.load(SeqCst) == process()
}

/// Whether the calling thread is the process's first.
pub(super) fn is_first() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() == process() }
}

/// Whether the process's first thread has ended: what it executes is not known any more (proc_pid_exe(5)). Takes
/// no descriptor.
pub(super) fn first_has_ended() -> bool {
    let mut path = [0; 8];
    // SAFETY: a path, and a buffer of this length.
    let read = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr(), path.len()) };
    read < 0 && sys::errno() == libc::ENOENT && count() > 0
}

/// How many threads there are, an ended first one among them; 0 where nobody says. Takes no descriptor.
pub(super) fn count() -> u64 {
    // SAFETY: a path; all-zero is a valid stat buffer, and stat fills it.
    unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        let known = libc::stat(c"/proc/self/task".as_ptr(), &raw mut stat) == 0;
        // `.` and `..` are links as well.
        if known { (stat.st_nlink as u64).saturating_sub(2) } else { 0 }
    }
}

/// A path or a number, as text.
struct Text {
    bytes: [u8; 48],
    length: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        // The last byte stays 0.
        let room = self.bytes.len() - 1;
        let place = self
            .bytes
            .get_mut(self.length..self.length + text.len())
            .filter(|_| self.length + text.len() <= room);
        place.ok_or(core::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length += text.len();
        Ok(())
    }
}

/// Reads `/proc/self/task/TID/stat`, as much of it as there is room for.
fn stat(thread: i32, text: &mut [u8]) -> Option<&[u8]> {
    let mut path = Text { bytes: [0; 48], length: 0 };
    write!(path, "/proc/self/task/{thread}/stat").ok()?;
    // SAFETY: a path with its end, and a buffer of this length.
    unsafe {
        let file = libc::open(path.bytes.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return None;
        }
        let read = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        text.get(..usize::try_from(read).ok()?)
    }
}

/// What a thread's text says (proc_pid_stat(5)): it is the kernel's (`false`), or has one of our names. The
/// name is in parentheses, and may have more of them; the state follows, and the flags six fields on. One that has
/// ended may have made another that is not listed: nobody can say whose it was.
fn may_be_ours(stat: &[u8]) -> Option<bool> {
    let open = stat.iter().position(|byte| *byte == b'(')?;
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = stat.get(close + 2..)?.split(|byte| *byte == b' ');
    if matches!(fields.next()?, b"Z" | b"X") {
        return None;
    }
    let flags: u64 = core::str::from_utf8(fields.nth(5)?).ok()?.parse().ok()?;
    let name = stat.get(open + 1..close)?;
    if flags & KERNELS != 0 { Some(false) } else { NAMES.contains(&name).then_some(true) }
}

/// Whether the thread is none of the program's.
fn is_ours(thread: i32) -> bool {
    let mut text = [0; 512];
    match stat(thread, &mut text).and_then(may_be_ours) {
        // SAFETY: takes a number.
        Some(true) => unsafe {
            let policy = libc::sched_getscheduler(thread);
            policy >= 0 && policy & libc::SCHED_RESET_ON_FORK != 0
        },
        Some(false) => true,
        None => false,
    }
}

/// Whether no thread but an ended first one is the program's. A thread that makes one which is not listed is itself
/// listed, and lives, has ended or is gone: each time the answer is no.
///
/// Opens files: by a thread that has a table of descriptors of its own, with nothing in it.
pub(super) fn are_ours() -> bool {
    let before = count();
    let mut entries = [0_u64; 512];
    let mut listed = 0;
    // SAFETY: a path, and a buffer of this length, aligned as the entries are.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let folder = libc::open(c"/proc/self/task".as_ptr(), flags);
        if folder < 0 {
            return false;
        }
        let ours = loop {
            let read =
                libc::syscall(libc::SYS_getdents64, folder, entries.as_mut_ptr(), size_of_val(&entries));
            match usize::try_from(read) {
                Ok(0) => break true,
                Ok(length) => {
                    let bytes = core::slice::from_raw_parts(entries.as_ptr().cast::<u8>(), length);
                    listed += threads_in(bytes).count() as u64;
                    if !threads_in(bytes).all(|thread| thread == process() || is_ours(thread)) {
                        break false;
                    }
                }
                Err(_) => break false,
            }
        };
        libc::close(folder);
        ours && listed == before && listed == count()
    }
}

/// The numbers in what getdents64(2) wrote: in each entry its length is at byte 16, its name at byte 19.
fn threads_in(mut entries: &[u8]) -> impl Iterator<Item = i32> {
    core::iter::from_fn(move || {
        loop {
            let length = u16::from_ne_bytes(entries.get(16..18)?.try_into().ok()?);
            let (entry, rest) = entries.split_at_checked(usize::from(length))?;
            entries = rest;
            let name = entry.get(19..)?.split(|byte| *byte == 0).next()?;
            let number = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
            if number.is_some() {
                return number;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn a_thread_is_known_by_its_text() {
        let of = |name: &str, state, flags| {
            may_be_ours(format!("7 ({name}) {state} 1 1 1 0 -1 {flags} 9 0 0 0").as_bytes())
        };
        assert_eq!(of("pinyard-reaper", "S", 4_194_368), Some(true));
        assert_eq!(of("a) Z 1", "S", 64), None, "the program's");
        assert_eq!(of("pinyard", "S", 64), None);
        assert_eq!(of("pinyard-player", "S", 64), None);
        assert_eq!(of("pinyard-reaper", "Z", 64), None, "what it has made meanwhile?");
        assert_eq!(of("iou-sqp-7", "S", 0x40_0050), Some(false));
        assert_eq!(of("iou-sqp-7", "S", 0x40_0040), None, "only the kernel's are");
        assert_eq!(may_be_ours(b""), None);
    }

    #[test]
    fn a_thread_that_one_of_ours_makes_is_the_programs() {
        let this = || {
            // SAFETY: no preconditions.
            is_ours(unsafe { libc::gettid() })
        };
        assert!(!this() && !are_ours() && !first_has_ended());
        let ours = move || {
            super::super::begin(Some(c"pinyard-end"));
            // Where a sandbox refuses the flag, nothing is ours.
            let refused = !this();
            (refused, std::thread::spawn(this).join().unwrap())
        };
        let (refused, made_by_it) = std::thread::spawn(ours).join().unwrap();
        assert!(!refused && !made_by_it);
    }
}
