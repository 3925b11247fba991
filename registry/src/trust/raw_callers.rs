//! Who changes mappings past libc's entries: the program's io_urings, for which the
//! kernel makes the calls, and loaded objects with system call instructions of their
//! own: the Go runtime, rustix, liburing, sanitizers,
//! whatever has libc linked into it.
//!
//! An object is one if somewhere in its code a `syscall` instruction follows a
//! load of the number of such a call into the accumulator, as compilers and the
//! Go assembler write it, or if it holds the C function that takes the number as
//! an argument. Bytes that only look like this make an object suspicious without
//! need, which costs time and nothing else (two of the 1,100 libraries of a Debian
//! machine). Code that computes its numbers in another way, or is made at run time,
//! is not found: it must call `notify_unmapped`.
//!
//! The kernel says which files' code is mapped, and copies it for us. The loader is
//! not asked: a forked child would wait for a lock of the loader's that no thread of
//! its own holds.

use super::instructions::{BEFORE, BEHIND, raw_call};
use super::own_rings;
use crate::maps::{self, Mapping};
use std::fs::{self, DirEntry, File};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::{fmt, io};

/// What in the process may change mappings past libc.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RawCaller {
    /// An object that makes system calls of its own.
    Object {
        /// The file it was loaded from.
        object: String,
        /// Where in the file the instruction stands.
        offset: usize,
        /// The number that is loaded; `None` where the caller passes it.
        number: Option<u32>,
    },
    /// An io_uring of the program's: the kernel makes calls for it
    /// (`IORING_OP_MADVISE`, io_uring_enter(2)).
    Ring {
        /// Its descriptor; `None` where it is in another thread's table, or has none.
        fd: Option<i32>,
    },
}

impl fmt::Display for RawCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RawCaller::Object { object, offset, number: Some(number) } => {
                write!(f, "{object} makes system call {number} itself (at {offset:#x})")
            }
            RawCaller::Object { object, offset, number: None } => {
                write!(f, "{object} has a syscall function of its own (at {offset:#x})")
            }
            RawCaller::Ring { fd: Some(fd) } => {
                write!(f, "descriptor {fd} is an io_uring, which may be told to madvise")
            }
            RawCaller::Ring { fd: None } => {
                f.write_str("there is an io_uring without a descriptor here, which may be told to madvise")
            }
        }
    }
}

/// Objects whose instructions stand behind entries that we watch, besides our C
/// library: the loader (see `loader.rs` of the hooks), and UCX's hooks on the same
/// entries.
const WATCHED_OTHERWISE: [&str; 2] = ["ld-linux-", "libucm.so"];
const C_LIBRARY: &str = "libc.so.";

/// Code that is copied at a time.
const CHUNK: usize = 256 << 10;

/// What has been looked at, and what was found.
pub(crate) struct Scan {
    /// Addresses and files: another object may come to an address later.
    known: Vec<(Range<usize>, String)>,
    pub(crate) found: Vec<RawCaller>,
}

impl Scan {
    pub(crate) const fn new() -> Scan {
        Scan { known: Vec::new(), found: Vec::new() }
    }

    /// Looks at the objects that have been loaded since the last time, and tells `loaded`
    /// the addresses of each.
    pub(crate) fn look(&mut self, mut loaded: impl FnMut(Range<usize>)) {
        let (of_own_rings, maps) = own_rings::unchanged(maps::read);
        let memory = File::open("/proc/thread-self/mem");
        let rings = memory.as_ref().ok().map(rings);
        let (Ok(maps), Ok(memory), Some(Ok(rings))) = (maps, memory, rings) else {
            return self.add("some object (maps, mem or fd of /proc/thread-self is not to be had)", 0, None);
        };
        self.look_at_rings(rings, maps::of_io_urings(&maps) > of_own_rings);
        // Of two C libraries, the other belongs to a namespace of its own (dlmopen),
        // where nobody has patched it.
        let ours = object_at(&maps, our_c_library());
        for code in code_of_files(&maps) {
            let known = |(range, path): &(Range<usize>, String)| {
                range.start <= code.range.start && code.range.end <= range.end && path == code.path
            };
            if self.known.iter().any(known) {
                continue;
            }
            self.known.push((code.range.clone(), code.path.to_owned()));
            loaded(object_at(&maps, code.range.start));
            let file = code.path.rsplit('/').next().unwrap_or_default();
            let is_our_c_library = file.starts_with(C_LIBRARY) && ours.contains(&code.range.start);
            if is_our_c_library || WATCHED_OTHERWISE.iter().any(|start| file.starts_with(start)) {
                continue;
            }
            match raw_call_in(&memory, &code.range) {
                Ok(None) => {}
                Ok(Some((at, number))) => self.add(code.path, code.offset + at, number),
                // Unloaded meanwhile, or not for us to read: it may be one.
                Err(_) => self.add(code.path, code.offset, None),
            }
        }
    }

    /// `others`: rings that are not the backend's own; `are_mapped`: there is one at least. One that has been
    /// seen has had its say, also where it is gone by now.
    fn look_at_rings(&mut self, mut others: Vec<Option<i32>>, are_mapped: bool) {
        if are_mapped && others.is_empty() {
            others.push(None);
        }
        others.into_iter().for_each(|fd| self.add_ring(fd));
    }

    fn add_ring(&mut self, fd: Option<i32>) {
        let ring = RawCaller::Ring { fd };
        if !self.found.contains(&ring) {
            self.found.push(ring);
        }
    }

    /// Once for each object.
    fn add(&mut self, object: &str, offset: usize, number: Option<u32>) {
        let is_known =
            |found: &RawCaller| matches!(found, RawCaller::Object { object: known, .. } if known == object);
        if !self.found.iter().any(is_known) {
            self.found.push(RawCaller::Object { object: object.to_owned(), offset, number });
        }
    }
}

/// The io_urings of the process's that are not the backend's own: their numbers, where the calling
/// thread has them. A thread may have a table of descriptors of its own (unshare(2), `CLONE_FILES`): one that was
/// made before `here`, which the calling thread has just opened, lacks that, and one that is made later has what was
/// there.
///
/// # Errors
/// Of open(2), where there is no `/proc`, or RLIMIT_NOFILE is used up.
fn rings(here: &File) -> io::Result<Vec<Option<i32>>> {
    let (number, file) = (here.as_raw_fd(), here.metadata()?);
    let has_it = |descriptors: &Path| {
        fs::metadata(descriptors.join(number.to_string()))
            .is_ok_and(|there| (there.dev(), there.ino()) == (file.dev(), file.ino()))
    };
    let mut others = rings_of(Path::new("/proc/thread-self/fd"))?.into_iter().map(Some).collect::<Vec<_>>();
    others.extend(pinyard_hooks::has_hidden_ring().then_some(None));
    for task in fs::read_dir("/proc/self/task")? {
        let descriptors = task?.path().join("fd");
        if has_it(&descriptors) {
            continue;
        }
        match rings_of(&descriptors) {
            Ok(rings) => others.extend(rings.into_iter().map(|_| None)),
            // It has ended.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(others)
}

/// The numbers of those in `/proc/PID/task/TID/fd` (proc_pid_fd(5)).
fn rings_of(descriptors: &Path) -> io::Result<Vec<i32>> {
    let other = |descriptor: io::Result<DirEntry>| {
        let path = descriptor.ok()?.path();
        let is_ring = fs::read_link(&path).is_ok_and(|to| to == *"anon_inode:[io_uring]");
        let fd = path.file_name()?.to_str()?.parse().ok()?;
        // Closed since, if the kernel does not say which file it is.
        let is_own = || fs::metadata(&path).map_or(true, |file| own_rings::is_own(fd, file.ino()));
        (is_ring && !is_own()).then_some(fd)
    };
    Ok(fs::read_dir(descriptors)?.filter_map(other).collect())
}

/// An address in the C library that this code calls.
fn our_c_library() -> usize {
    libc::__errno_location as *const () as usize
}

/// The addresses of the object that has `address`: its file's mappings, one behind
/// the other, and the memory without a file that follows, its zeroed data.
fn object_at(maps: &str, address: usize) -> Range<usize> {
    let mut object = (0..0, "");
    for Mapping { range, path, .. } in maps::mappings(maps) {
        if path.is_empty() || path != object.1 {
            if object.0.contains(&address) {
                if path.is_empty() && range.start == object.0.end {
                    object.0.end = range.end;
                }
                break;
            }
            object = (range, path);
        } else {
            object.0.end = range.end;
        }
    }
    if object.0.contains(&address) { object.0 } else { 0..0 }
}

/// Code of files, mapped.
fn code_of_files(maps: &str) -> impl Iterator<Item = Mapping<'_>> {
    maps::mappings(maps).filter(|mapping| mapping.is_code && !mapping.path.is_empty())
}

/// Where in `code` the first system call is that [`raw_call`] means.
fn raw_call_in(memory: &File, code: &Range<usize>) -> io::Result<Option<(usize, Option<u32>)>> {
    let mut text = vec![0; CHUNK.min(code.len())];
    let mut start = code.start;
    loop {
        let len = text.len().min(code.end - start);
        let Some(text) = text.get_mut(..len) else { return Ok(None) };
        memory.read_exact_at(text, start as u64)?;
        let is_last = start + len == code.end;
        // What comes before was seen with what is in front of it.
        let from = if start == code.start { 0 } else { BEFORE };
        match raw_call(text, from) {
            // One at the end is looked at again with what follows it.
            Some((at, number)) if is_last || at + BEHIND <= len => {
                return Ok(Some((start - code.start + at, number)));
            }
            _ if is_last => return Ok(None),
            _ => start += len - BEFORE - BEHIND,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
        7f00-7f10 r--p 00000000 fe:00 1234      /usr/lib/libc.so.6\n\
        7f10-7f20 r-xp 00026000 fe:00 1234      /usr/lib/libc.so.6\n\
        7f20-7f30 rw-p 00000000 00:00 0 \n\
        7f30-7f40 r-xp 00026000 fe:00 1234      /usr/lib/libc.so.6\n\
        7f40-7f50 r-xp 00000000 00:00 0         [vdso]";

    #[test]
    fn only_code_of_files_is_looked_at() {
        let code: Vec<_> = code_of_files(MAPS).collect();
        assert_eq!(code.len(), 2);
        assert!(code.iter().all(|code| code.path == "/usr/lib/libc.so.6" && code.offset == 0x26000));
    }

    #[test]
    fn one_c_library_is_ours() {
        assert_eq!(object_at(MAPS, 0x7f15), 0x7f00..0x7f30);
        assert_eq!(object_at(MAPS, 0x7f30), 0x7f30..0x7f50);
        assert_eq!(object_at(MAPS, 0x7f60), 0..0);
        let maps = maps::read().unwrap_or_default();
        assert!(!object_at(&maps, our_c_library()).is_empty());
    }

    #[test]
    fn a_call_across_two_chunks_is_found() {
        use std::io::Write;
        let path = std::env::temp_dir().join(format!("pinyard-chunks-{}", std::process::id()));
        let munmap = [0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05];
        for at in (CHUNK - 64..CHUNK + 8).chain([0, 3 * CHUNK]) {
            let mut code = vec![0x90; 3 * CHUNK + 64];
            code[at..at + munmap.len()].copy_from_slice(&munmap);
            File::create(&path).and_then(|mut file| file.write_all(&code)).unwrap_or_default();
            let found = File::open(&path).and_then(|file| raw_call_in(&file, &(0..code.len())));
            if cfg!(target_arch = "x86_64") {
                assert_eq!(found.ok().flatten(), Some((at + 5, Some(11))), "at {at}");
            }
        }
        std::fs::remove_file(&path).unwrap_or_default();
    }
}
