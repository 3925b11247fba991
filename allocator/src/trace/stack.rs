//! Where a thread is: return addresses, without names until somebody reads them.
#![allow(unsafe_code)] // gettid(2)

use std::cell::Cell;
use std::ffi::c_void;

/// Frames that are kept, ours at the top included.
pub(crate) const DEPTH: usize = 24;

/// Return addresses, innermost first; zeros behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stack(pub(crate) [u64; DEPTH]);

impl Stack {
    pub(crate) const NONE: Stack = Stack([0; DEPTH]);

    /// The caller's. Walks the unwind tables: a few microseconds; allocates nothing
    /// after the first time, and takes no lock but the unwinder's own.
    #[cold]
    pub(crate) fn here() -> Stack {
        let mut frames = [0; DEPTH];
        let mut count = 0;
        backtrace::trace(|frame| {
            frames[count] = frame.ip() as u64;
            count += 1;
            count < DEPTH
        });
        Stack(frames)
    }

    /// Names, with files and lines where the program has them; the frames of the pool
    /// itself at the top left out.
    pub(crate) fn names(&self) -> Vec<String> {
        let frames = self.0.iter().take_while(|&&at| at != 0);
        let mut names: Vec<String> = Vec::new();
        for &at in frames {
            let before = names.len();
            backtrace::resolve(at as *mut c_void, |symbol| {
                let name = symbol.name().map_or_else(|| format!("{at:#x}"), |name| format!("{name:#}"));
                names.push(match (symbol.filename(), symbol.lineno()) {
                    (Some(file), Some(line)) => format!("{name} at {}:{line}", file.display()),
                    _ => name,
                });
            });
            if names.len() == before {
                names.push(format!("{at:#x}"));
            }
        }
        // With what the standard library has between them and the caller.
        const OURS: [&str; 6] =
            ["pinyard_allocator::", "<pinyard_allocator::", "backtrace::", "core::", "<core::", "alloc::"];
        let ours = |name: &&String| OURS.iter().any(|prefix| name.starts_with(prefix));
        let skipped = names.iter().take_while(ours).count();
        // All of them ours: better than nothing.
        if skipped < names.len() {
            names.drain(..skipped);
        }
        names
    }
}

/// The thread's number, as the kernel has it; asked for once per thread.
pub(crate) fn thread_number() -> u32 {
    thread_local!(static NUMBER: Cell<u32> = const { Cell::new(0) });
    // A thread that is ending asks again.
    NUMBER.try_with(Cell::get).ok().filter(|&number| number != 0).unwrap_or_else(|| {
        // SAFETY: gettid(2) has no conditions.
        let number = unsafe { libc::gettid() } as u32;
        let _ = NUMBER.try_with(|cell| cell.set(number));
        number
    })
}
