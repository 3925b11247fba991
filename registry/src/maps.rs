//! The process's mappings, as `/proc/self/maps` lists them (proc_pid_maps(5)): about a
//! microsecond each.
//!
//! `/proc/self` is the process's first thread. Once that has ended by pthread_exit(3) its files
//! have no line and no error; those of `/proc/thread-self` are the calling thread's.

use crate::range::PageRange;
use std::io::{Error, Result};
use std::ops::Range;

/// The file, and the one that is read where the first thread has ended.
pub const PATHS: [&str; 2] = ["/proc/self/maps", "/proc/thread-self/maps"];

/// The text of the file.
///
/// # Errors
/// Those of open(2) and read(2): in a sandbox without `/proc`, with `RLIMIT_NOFILE` reached. A text
/// without a line is an error.
pub fn read() -> Result<String> {
    let mut empty = Error::other("/proc/self/maps and /proc/thread-self/maps have no line");
    for path in PATHS {
        match std::fs::read_to_string(path) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => return Ok(text),
            Err(error) => empty = error,
        }
    }
    Err(empty)
}

/// How many mappings of io_urings the text has. The kernel makes two for each ring
/// (io_uring_setup(2), `IORING_FEAT_SINGLE_MMAP`), and joins none.
pub(crate) fn of_io_urings(text: &str) -> usize {
    text.lines().filter(|line| line.ends_with(" anon_inode:[io_uring]")).count()
}

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping<'m> {
    /// Its addresses.
    pub range: Range<usize>,
    /// May be written to.
    pub is_writable: bool,
    /// May be executed.
    pub is_code: bool,
    /// Its changes are seen by others (`MAP_SHARED`).
    pub is_shared: bool,
    /// Its pages come from a file: one with an inode, as those of a memfd.
    pub is_of_a_file: bool,
    /// Bytes into the file at which it begins; 0 without a file.
    pub offset: usize,
    /// Its file's path; empty for memory without a file and for what the kernel names
    /// itself (`[heap]`, `[vdso]`).
    pub path: &'m str,
}

impl<'m> Mapping<'m> {
    pub(crate) fn pages(&self) -> PageRange {
        PageRange { start: self.range.start, end: self.range.end }
    }

    /// Of a line: `start-end permissions offset device inode path`.
    fn of_line(line: &'m str) -> Option<Mapping<'m>> {
        let hex = |text| usize::from_str_radix(text, 16).ok();
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let &[_read, write, execute, shared] = fields.next()?.as_bytes() else { return None };
        let offset = hex(fields.next()?)?;
        let inode = fields.nth(1)?;
        Some(Mapping {
            range: hex(start)?..hex(end)?,
            is_writable: write == b'w',
            is_code: execute == b'x',
            is_shared: shared == b's',
            is_of_a_file: inode != "0",
            offset,
            // A path may have spaces; no field before it has a slash.
            path: line.find('/').and_then(|at| line.get(at..)).unwrap_or_default(),
        })
    }
}

/// The mappings of a text of the file, in the order of their addresses; a line that is
/// torn is left out.
///
/// ```
/// let maps = pinyard_registry::maps::read()?;
/// let on_stack = 0u8;
/// let at = &raw const on_stack as usize;
/// let stack = pinyard_registry::maps::mappings(&maps).find(|mapping| mapping.range.contains(&at));
/// assert!(stack.is_some_and(|stack| stack.is_writable && !stack.is_of_a_file));
/// # std::io::Result::Ok(())
/// ```
pub fn mappings(text: &str) -> impl Iterator<Item = Mapping<'_>> {
    text.lines().filter_map(Mapping::of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_line_is_read() {
        let text = "\
            7f00-7f10 r-xp 00026000 fe:00 1234      /opt/a name/libc.so.6\n\
            7f20-7f30 rw-s 00000000 00:01 77        /memfd:words (deleted)\n\
            7f40-7f50 ---p 00000000 00:00 0 \n\
            7f60-7f70 r-xp 00000000 00:00 0         [vdso]\n\
            7f80-7f9";
        let code = Mapping {
            range: 0x7f00..0x7f10,
            is_writable: false,
            is_code: true,
            is_shared: false,
            is_of_a_file: true,
            offset: 0x26000,
            path: "/opt/a name/libc.so.6",
        };
        let none = Mapping { is_code: false, is_of_a_file: false, offset: 0, path: "", ..code.clone() };
        let wanted = [
            code.clone(),
            Mapping {
                range: 0x7f20..0x7f30,
                is_writable: true,
                is_shared: true,
                is_of_a_file: true,
                path: "/memfd:words (deleted)",
                ..none.clone()
            },
            Mapping { range: 0x7f40..0x7f50, ..none.clone() },
            Mapping { range: 0x7f60..0x7f70, is_code: true, ..none },
        ];
        assert_eq!(mappings(text).collect::<Vec<_>>(), wanted);
    }
}
