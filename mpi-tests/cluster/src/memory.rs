//! The owner's buffer, and the ways in which a program changes what is mapped there.
#![allow(unsafe_code, clippy::disallowed_methods)]

use std::io::{Error, Result};

pub(crate) const LEN: usize = 256 << 10;
/// Where the kernel places nothing by itself, so that the addresses come back.
const AT: usize = 0x2000_0000_0000;
const ELSEWHERE: usize = AT + 16 * LEN;

#[derive(Clone, Copy)]
pub(crate) enum Change {
    Nothing,
    UnmapAndMap,
    DontNeed,
    MoveAndMap,
}

impl Change {
    pub(crate) const ALL: [Change; 4] =
        [Change::Nothing, Change::UnmapAndMap, Change::DontNeed, Change::MoveAndMap];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Change::Nothing => "nothing",
            Change::UnmapAndMap => "munmap, mmap",
            Change::DontNeed => "MADV_DONTNEED",
            Change::MoveAndMap => "mremap, mmap",
        }
    }
}

pub(crate) struct Buffer {
    moved: bool,
}

impl Buffer {
    pub(crate) fn map() -> Result<Buffer> {
        map_at(AT)?;
        Ok(Buffer { moved: false })
    }

    pub(crate) fn at(&self) -> usize {
        AT
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped and this process's own. A device may write at any time before
        // the peer has answered; it is looked at only then.
        unsafe { std::slice::from_raw_parts_mut(AT as *mut u8, LEN) }
    }

    pub(crate) fn change(&mut self, change: Change) -> Result<()> {
        match change {
            Change::Nothing => Ok(()),
            Change::UnmapAndMap => {
                // SAFETY: this process's own mapping; no reference into it is alive.
                done(unsafe { libc::munmap(AT as *mut _, LEN) })?;
                map_at(AT)
            }
            // SAFETY: as above.
            Change::DontNeed => done(unsafe { libc::madvise(AT as *mut _, LEN, libc::MADV_DONTNEED) }),
            Change::MoveAndMap => {
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                // SAFETY: as above; nothing of ours is mapped elsewhere.
                let moved = unsafe { libc::mremap(AT as *mut _, LEN, LEN, flags, ELSEWHERE as *mut u8) };
                if moved == libc::MAP_FAILED {
                    return Err(Error::last_os_error());
                }
                self.moved = true;
                map_at(AT)
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: this process's own mappings; no reference into them is alive.
        unsafe {
            libc::munmap(AT as *mut _, LEN);
            if self.moved {
                libc::munmap(ELSEWHERE as *mut _, LEN);
            }
        }
    }
}

fn map_at(at: usize) -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: fresh pages; nothing that is mapped is replaced.
    let mapped = unsafe { libc::mmap(at as *mut _, LEN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if mapped == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(()) }
}

fn done(answer: i32) -> Result<()> {
    if answer == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}
