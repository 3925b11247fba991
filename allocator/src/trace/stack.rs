//! Where a thread is: return addresses, without names until somebody reads them.

use std::ffi::c_void;

/// Frames that are kept, ours at the top included.
pub(crate) const DEPTH: usize = 24;

/// Return addresses, innermost first; zeros behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stack(pub(crate) [u64; DEPTH]);

impl Stack {
    pub(crate) const NONE: Stack = Stack([0; DEPTH]);

    /// Of so many words, or fewer.
    pub(crate) fn of(words: &[u64]) -> Stack {
        let mut stack = Stack::NONE;
        stack.0.iter_mut().zip(words).for_each(|(frame, &word)| *frame = word);
        stack
    }

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
        let (mut names, mut skipped): (Vec<String>, _) = (Vec::new(), None);
        for &at in frames {
            let before = names.len();
            backtrace::resolve(at as *mut c_void, |symbol| {
                let name = symbol.name().map_or_else(|| format!("{at:#x}"), |name| format!("{name:#}"));
                let file = symbol.filename().map(|file| file.display().to_string()).unwrap_or_default();
                if skipped.is_none() && !is_ours(&name, &file) {
                    skipped = Some(names.len());
                }
                names.push(match symbol.lineno() {
                    Some(line) if !file.is_empty() => format!("{name} at {file}:{line}"),
                    _ => name,
                });
            });
            if names.len() == before {
                skipped.get_or_insert(before);
                names.push(format!("{at:#x}"));
            }
        }
        // All of them ours: better than nothing.
        names.drain(..skipped.unwrap_or(0));
        names
    }
}

/// Whether a frame is the pool's, or of what the libraries have between it and the
/// caller. By its file as well: where only line tables were kept, a function that was
/// inlined has lost its path.
fn is_ours(name: &str, file: &str) -> bool {
    const CRATES: [&str; 6] =
        ["pinyard_allocator::", "<pinyard_allocator::", "backtrace::", "core::", "<core::", "alloc::"];
    const LIBRARIES: [&str; 3] = ["/library/core/src/", "/library/alloc/src/", "/backtrace-0."];
    let sources = file!().trim_end_matches("trace/stack.rs");
    CRATES.iter().any(|path| name.starts_with(path))
        || file.contains(sources)
        || LIBRARIES.iter().any(|path| file.contains(path))
}
