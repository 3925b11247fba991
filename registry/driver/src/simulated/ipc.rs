//! Device memory that other processes open: the memory is an anonymous file, and a
//! handle says whose, so that the other side finds it as `/proc/PID/fd/N` (proc(5),
//! which lets processes of one user do so). Nothing is left behind by a crash.
#![allow(unsafe_code)]

use pinyard_hooks::sys;
use pinyard_worker::Descriptor;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process;

/// First bytes of a handle of shareable memory.
const MAGIC: [u8; 8] = *b"pinyard\0";
/// Bytes of a page: what a mapping's offset is a multiple of.
const PAGE: usize = 4096;

/// The file behind a device's addresses.
pub(super) struct Arena {
    file: Descriptor,
}

/// An allocation of another process's.
pub(super) struct Import {
    start: usize,
    bytes: usize,
}

impl Import {
    pub(super) fn start(&self) -> usize {
        self.start
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Why a handle was not opened.
pub(super) struct Refusal {
    /// It is this process's own.
    pub(super) own: bool,
    pub(super) reason: String,
}

fn map(bytes: usize, file: RawFd, offset: usize) -> Result<usize, i32> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
    let arguments = [0, bytes, protection as usize, flags as usize, file as usize, offset];
    // SAFETY: a new mapping at an address that the kernel chooses.
    match unsafe { sys::syscall6(libc::SYS_mmap as usize, arguments) } {
        errno @ -4095..=-1 => Err(-errno as i32),
        at => Ok(at as usize),
    }
}

impl Arena {
    /// An empty file of `bytes`, and where it is mapped here. `Err` is an errno.
    pub(super) fn create(bytes: usize) -> Result<(Arena, usize), i32> {
        // SAFETY: a new anonymous file.
        let fd = unsafe { libc::memfd_create(c"simulated device".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(libc::ENOSYS);
        }
        // SAFETY: new, and ours alone.
        let file = Descriptor::new(unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: sets the length of our own file.
        if unsafe { libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) } != 0 {
            return Err(libc::ENOSPC);
        }
        let start = map(bytes, file.as_raw_fd(), 0)?;
        Ok((Arena { file }, start))
    }
}

/// Magic, process, descriptor, offset, bytes; of memory that is not shareable its
/// address in place of the offset, and no magic.
pub(super) fn encode(arena: Option<&Arena>, address: u64, offset: usize, bytes: usize) -> [u8; 64] {
    let words = match arena {
        Some(arena) => {
            let descriptor = arena.file.as_raw_fd() as u64;
            [u64::from_le_bytes(MAGIC), u64::from(process::id()), descriptor, offset as u64, bytes as u64]
        }
        None => [0, 0, 0, address, bytes as u64],
    };
    let mut handle = [0; 64];
    for (place, word) in handle.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    handle
}

fn word(handle: &[u8; 64], number: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&handle[8 * number..8 * number + 8]);
    u64::from_le_bytes(word)
}

/// For messages.
pub(super) fn describe(handle: &[u8; 64]) -> String {
    format!("process {}, offset {:#x}, {} bytes", word(handle, 1), word(handle, 3), word(handle, 4))
}

pub(super) fn open(handle: &[u8; 64]) -> Result<Import, Refusal> {
    let refused = |own: bool, reason: String| Refusal { own, reason };
    if handle[..8] != MAGIC {
        return Err(refused(false, "no handle of shareable memory".to_owned()));
    }
    let (process, descriptor) = (word(handle, 1), word(handle, 2));
    let (offset, bytes) = (word(handle, 3) as usize, word(handle, 4) as usize);
    if process == u64::from(process::id()) {
        return Err(refused(true, "exported by this process: its own address serves".to_owned()));
    }
    let path = format!("/proc/{process}/fd/{descriptor}");
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let file = file.map_err(|error| refused(false, format!("{path}: {error}")))?;
    let start = map(bytes.next_multiple_of(PAGE), file.as_raw_fd(), offset)
        .map_err(|errno| refused(false, format!("mmap({bytes}, {path}): errno {errno}")))?;
    Ok(Import { start, bytes })
}

pub(super) fn close(start: usize, import: Import) {
    // SAFETY: our own mapping, made by `open`; nobody uses it (`ipc_close`'s contract, or
    // the device is gone).
    let _ = unsafe { sys::munmap(start, import.bytes.next_multiple_of(PAGE)) };
}
