//! Which loaded objects change mappings with system call instructions of their
//! own, where no entry sees them: the Go runtime, rustix, liburing, sanitizers,
//! whatever has libc linked into it.
//!
//! An object is one if somewhere in its code a `syscall` instruction follows a
//! load of the number of such a call into the accumulator, as compilers and the
//! Go assembler write it, or if it holds the C function that takes the number as
//! an argument. Bytes that only look like this make an object suspicious without
//! need, which costs time and nothing else (two of the 1,100 libraries of a Debian
//! machine). Code that computes its numbers in another way, or is made at run time,
//! is not found: it must call `notify_unmapped`.
#![allow(unsafe_code)]

use memchr::memmem::Finder;
use pinyard_hooks::PAGE_SIZE;
use pinyard_hooks::sys::MARK;
use std::ffi::CStr;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

/// An object whose own system calls may change mappings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawCaller {
    /// The file it was loaded from.
    pub object: String,
    /// Where in the object the instruction stands, from its load address.
    pub offset: usize,
    /// The number that is loaded; `None` where the caller passes it.
    pub number: Option<u32>,
}

impl fmt::Display for RawCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => {
                write!(f, "{} makes system call {number} itself (at {:#x})", self.object, self.offset)
            }
            None => write!(f, "{} has a syscall function of its own (at {:#x})", self.object, self.offset),
        }
    }
}

/// Calls that take pages away. `brk` is left out: a break that others move
/// under malloc's feet would break more than this.
const NUMBERS: [libc::c_long; 11] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_shmat,
    libc::SYS_shmdt,
    libc::SYS_remap_file_pages,
    libc::SYS_ftruncate,
    libc::SYS_truncate,
    libc::SYS_fallocate,
    libc::SYS_process_madvise,
];

/// Objects whose instructions stand behind entries that we watch: libc itself,
/// the loader (see `loader.rs` of the hooks), and UCX's hooks on the same entries.
const WATCHED_OTHERWISE: [&[u8]; 3] = [b"libc.so.", b"ld-linux-", b"libucm.so"];

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// How far before the instruction the number is looked for.
const REACH: usize = 48;
/// `mov rax, rdi; mov rdi, rsi; mov rsi, rdx; mov rdx, rcx`: the start of every
/// C library's own `syscall`.
const TAKES_THE_NUMBER: [u8; 12] = [0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca];

/// What has been looked at, and what was found.
pub(crate) struct Scan {
    /// Load addresses and names: another object may come to an address later.
    known: Vec<(usize, Vec<u8>)>,
    /// The code of objects that the loader has listed.
    listed: Vec<Range<usize>>,
    pub(crate) found: Vec<RawCaller>,
}

impl Scan {
    pub(crate) const fn new() -> Scan {
        Scan { known: Vec::new(), listed: Vec::new(), found: Vec::new() }
    }

    /// Looks at the objects that have been loaded since the last time.
    pub(crate) fn look(&mut self) {
        extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, scan: *mut libc::c_void) -> i32 {
            // SAFETY: the loader's record, valid during the call, in which it keeps
            // every object loaded; `scan` is the borrow below.
            unsafe { (*scan.cast::<Scan>()).look_at(&*info) };
            0
        }
        // SAFETY: `each` uses the pointer as what it is, during this call only. It
        // does not unwind: no index of it is out of bounds.
        unsafe { libc::dl_iterate_phdr(Some(each), std::ptr::from_mut(self).cast()) };
        self.look_elsewhere();
    }

    /// Code of files that the loader does not list here: objects of other
    /// namespaces (dlmopen), with a C library of their own whose entries nobody has
    /// patched. They may be unloaded meanwhile: the kernel copies them for us.
    fn look_elsewhere(&mut self) {
        let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
        let Ok(memory) = File::open("/proc/self/mem") else { return };
        for (code, path) in maps.lines().filter_map(code_of_file) {
            let listed = self.listed.iter().any(|known| known.contains(&code.start));
            let name = path.as_bytes();
            if listed || self.known.iter().any(|(at, of)| *at == code.start && of == name) {
                continue;
            }
            self.known.push((code.start, name.to_owned()));
            let mut text = vec![0; code.len()];
            if memory.read_exact_at(&mut text, code.start as u64).is_ok()
                && let Some((offset, number)) = raw_call(&text)
            {
                let object = format!("{path}, in another namespace,");
                self.found.push(RawCaller { object, offset, number });
            }
        }
    }

    /// # Safety
    /// `info` is a loader's record of an object that stays loaded meanwhile.
    unsafe fn look_at(&mut self, info: &libc::dl_phdr_info) {
        // SAFETY: NUL-terminated, or null for some loaders' main program.
        let name = unsafe { if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) } };
        let base = info.dlpi_addr as usize;
        if self.known.iter().any(|(at, of)| *at == base && of == name.to_bytes()) {
            return;
        }
        self.known.push((base, name.to_bytes().to_owned()));
        // SAFETY: the object's program headers, in its own memory.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let code = headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0);
        self.listed.extend(code.clone().map(|header| {
            let start = base + header.p_vaddr as usize;
            start & !(PAGE_SIZE - 1)..start + header.p_memsz as usize
        }));
        let file = name.to_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        if WATCHED_OTHERWISE.iter().any(|start| file.starts_with(start)) {
            return;
        }
        for header in code.filter(|header| header.p_flags & libc::PF_R != 0) {
            let offset = header.p_vaddr as usize;
            // SAFETY: a loaded, readable segment. Whoever patches code meanwhile
            // changes single words of it; any value is fine here.
            let text =
                unsafe { std::slice::from_raw_parts((base + offset) as *const u8, header.p_memsz as usize) };
            if let Some((at, number)) = raw_call(text) {
                self.found.push(RawCaller { object: object_name(name), offset: offset + at, number });
                return;
            }
        }
    }
}

/// The addresses and the file of a line of `/proc/self/maps`, if it is code.
fn code_of_file(line: &str) -> Option<(Range<usize>, &str)> {
    let (addresses, rest) = line.split_once(' ')?;
    let (start, end) = addresses.split_once('-')?;
    let path = rest.get(rest.find('/')?..)?;
    let is_code = rest.as_bytes().get(2) == Some(&b'x');
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    is_code.then_some((range, path))
}

fn object_name(name: &CStr) -> String {
    if name.is_empty() {
        let program = std::env::current_exe().unwrap_or_else(|_| "the program".into());
        return String::from_utf8_lossy(program.as_os_str().as_bytes()).into_owned();
    }
    name.to_string_lossy().into_owned()
}

/// The first system call in `text` that may change a mapping and is not ours.
fn raw_call(text: &[u8]) -> Option<(usize, Option<u32>)> {
    let own = [0x0f, 0x1f, 0x80].into_iter().chain(MARK.to_le_bytes()).collect::<Vec<u8>>();
    let calls = Finder::new(&SYSCALL);
    calls.find_iter(text).find_map(|at| {
        let (before, behind) = text.split_at_checked(at)?;
        if behind.get(SYSCALL.len()..).is_some_and(|rest| rest.starts_with(&own)) {
            return None;
        }
        let before = before.get(before.len().saturating_sub(REACH)..)?;
        if before.windows(TAKES_THE_NUMBER.len()).any(|window| window == TAKES_THE_NUMBER) {
            return Some((at, None));
        }
        number_loaded(before).map(|number| (at, Some(number)))
    })
}

/// The last constant that `code` loads into the accumulator, if it is one of ours:
/// `mov eax, imm32` (`b8`), `mov rax, imm32` (`c7 c0`) or `push imm8; pop rax`.
fn number_loaded(code: &[u8]) -> Option<u32> {
    let last = (0..code.len()).rev().find_map(|at| match code.get(at..)? {
        [0xb8, a, b, 0, 0, ..] | [0xc7, 0xc0, a, b, 0, 0, ..] => {
            Some(u32::from(u16::from_le_bytes([*a, *b])))
        }
        [0x6a, number @ 0..=0x7f, 0x58, ..] => Some(u32::from(*number)),
        _ => None,
    })?;
    NUMBERS.contains(&libc::c_long::from(last)).then_some(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_compilers_write_is_found() {
        let munmap = [0xb8, 0x0b, 0, 0, 0, 0x48, 0x89, 0xdf, 0x0f, 0x05, 0xc3];
        assert_eq!(raw_call(&munmap), Some((8, Some(11))));
        let go = [0x48, 0xc7, 0xc0, 0x1c, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(raw_call(&go), Some((7, Some(28))));
        let small = [0x6a, 0x19, 0x58, 0x0f, 0x05];
        assert_eq!(raw_call(&small), Some((3, Some(25))));
        let musl = [&TAKES_THE_NUMBER[..], &[0x4d, 0x89, 0xc2, 0x4d, 0x89, 0xc8], &SYSCALL].concat();
        assert_eq!(raw_call(&musl), Some((18, None)));
    }

    #[test]
    fn only_code_of_files_is_looked_at() {
        let code = "7f00-7f10 r-xp 00026000 fe:00 1234      /usr/lib/libc.so.6";
        assert_eq!(code_of_file(code), Some((0x7f00..0x7f10, "/usr/lib/libc.so.6")));
        assert_eq!(code_of_file("7f00-7f10 r--p 00000000 fe:00 1234 /usr/lib/libc.so.6"), None);
        assert_eq!(code_of_file("7f00-7f10 r-xp 00000000 00:00 0    [vdso]"), None);
    }

    #[test]
    fn other_calls_and_our_own_are_passed_over() {
        let write = [0xb8, 1, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(raw_call(&write), None);
        let mut ours = vec![0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x1f, 0x80];
        ours.extend(MARK.to_le_bytes());
        assert_eq!(raw_call(&ours), None);
        ours.pop();
        assert_eq!(raw_call(&ours), Some((5, Some(11))));
    }
}
