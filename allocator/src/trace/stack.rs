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
        let addresses = self.0.iter().take_while(|&&at| at != 0);
        let mut frames: Vec<Frame> = Vec::new();
        for &at in addresses {
            let before = frames.len();
            backtrace::resolve(at as *mut c_void, |symbol| {
                let name = symbol.name().map_or_else(|| format!("{at:#x}"), |name| format!("{name:#}"));
                let place = symbol.filename().map(|file| file.display().to_string()).zip(symbol.lineno());
                frames.push(Frame { name, place });
            });
            if frames.len() == before {
                frames.push(Frame { name: format!("{at:#x}"), place: None });
            }
        }
        let skipped = Frame::of_ours(&frames);
        // All of them ours: better than nothing.
        if skipped < frames.len() {
            frames.drain(..skipped);
        }
        frames.into_iter().map(Frame::text).collect()
    }
}

struct Frame {
    name: String,
    /// File and line.
    place: Option<(String, u32)>,
}

impl Frame {
    /// How many at the top are the pool's, with what the standard library has between
    /// them and the caller. An inlined function has its crate's name only with full debug
    /// information, so files tell as well: ours are beside the one of `Stack::here`.
    fn of_ours(frames: &[Frame]) -> usize {
        const OURS: [&str; 6] =
            ["pinyard_allocator::", "<pinyard_allocator::", "backtrace::", "core::", "<core::", "alloc::"];
        let here = frames.iter().position(|frame| frame.file().ends_with(file!()));
        let sources = here.and_then(|at| frames.get(at)?.file().strip_suffix("trace/stack.rs"));
        let ours = |frame: &&Frame| {
            let file = frame.file();
            OURS.iter().any(|prefix| frame.name.starts_with(prefix))
                || file.starts_with("/rustc/")
                || sources.is_some_and(|sources| file.starts_with(sources))
        };
        let first = here.unwrap_or(0);
        first + frames.iter().skip(first).take_while(ours).count()
    }

    fn file(&self) -> &str {
        self.place.as_ref().map_or("", |(file, _)| file)
    }

    fn text(self) -> String {
        match self.place {
            Some((file, line)) => format!("{} at {file}:{line}", self.name),
            None => self.name,
        }
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
