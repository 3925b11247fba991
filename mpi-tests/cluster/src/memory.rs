//! The owner's buffer, and the ways in which a program changes what is mapped there.
#![allow(unsafe_code, clippy::disallowed_methods)]

use crate::judge::CHILDS;
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
    /// The child writes to its copy and stays; then the parent writes.
    Fork,
}

impl Change {
    pub(crate) const ALL: [Change; 5] =
        [Change::Nothing, Change::UnmapAndMap, Change::DontNeed, Change::MoveAndMap, Change::Fork];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Change::Nothing => "nothing",
            Change::UnmapAndMap => "munmap, mmap",
            Change::DontNeed => "MADV_DONTNEED",
            Change::MoveAndMap => "mremap, mmap",
            Change::Fork => "fork, both write",
        }
    }
}

pub(crate) struct Buffer {
    moved: bool,
    child: Option<Child>,
}

impl Buffer {
    pub(crate) fn map() -> Result<Buffer> {
        map_at(AT)?;
        Ok(Buffer { moved: false, child: None })
    }

    pub(crate) fn at(&self) -> usize {
        AT
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped and this process's own. A device may write at any time before
        // the peer has answered; it is looked at only then.
        unsafe { std::slice::from_raw_parts_mut(AT as *mut u8, LEN) }
    }

    /// Does it; the child of a [`Change::Fork`] ends with the buffer.
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
                // By number: UCX 1.13's hook of mremap has no parameter for the target.
                // SAFETY: as above; nothing of ours is mapped elsewhere.
                let moved = unsafe { libc::syscall(libc::SYS_mremap, AT, LEN, LEN, flags, ELSEWHERE) };
                if moved == -1 {
                    return Err(Error::last_os_error());
                }
                self.moved = true;
                map_at(AT)
            }
            Change::Fork => {
                self.child = Some(Child::that_writes()?);
                Ok(())
            }
        }
    }
}

/// A process that has written over its copy of the buffer, and waits to be ended.
struct Child(libc::pid_t);

impl Child {
    fn that_writes() -> Result<Child> {
        let mut pipe = [0; 2];
        // SAFETY: fills two ints.
        done(unsafe { libc::pipe(pipe.as_mut_ptr()) })?;
        // SAFETY: the child calls nothing but memset, write and pause.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the child's own copy, of which nobody else knows.
            unsafe {
                std::slice::from_raw_parts_mut(AT as *mut u8, LEN).fill(CHILDS);
                libc::write(pipe[1], [0u8].as_ptr().cast(), 1);
                loop {
                    libc::pause();
                }
            }
        }
        let mut byte = [0u8];
        // SAFETY: this process's own descriptors, and a byte to fill.
        let read = unsafe {
            libc::close(pipe[1]);
            let read = if child > 0 { libc::read(pipe[0], byte.as_mut_ptr().cast(), 1) } else { -1 };
            libc::close(pipe[0]);
            read
        };
        let child = if child > 0 { Child(child) } else { return Err(Error::last_os_error()) };
        if read == 1 { Ok(child) } else { Err(Error::other("the child died before it had written")) }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of this process's, which has not been waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
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
