//! Rows that change shared memory: by address, by file, or from another process.
#![allow(unsafe_code, clippy::disallowed_methods)]

use crate::judge::{Judge, Outcome, Verdict, skipped};
use crate::memory::{Memory, PAGE, attach, grow, memfd};
use std::os::fd::{AsRawFd, OwnedFd};

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// Two registered pages of a memfd, mapped with `flags`, `change`d.
fn mapped(
    judge: &mut Judge,
    flags: i32,
    change: impl FnOnce(&OwnedFd, Memory) -> Outcome,
) -> Outcome<Verdict> {
    let file = memfd(4)?;
    let memory = Memory::of_file(&file, 2, flags)?;
    judge.before(memory.at, memory.len)?;
    change(&file, memory)?;
    judge.after(memory.at, memory.len)
}

fn zero(result: i32, call: &str) -> Outcome {
    if result == 0 { Ok(()) } else { skipped(call) }
}

pub(crate) fn madv_remove(judge: &mut Judge) -> Outcome<Verdict> {
    mapped(judge, libc::MAP_SHARED, |_, memory| {
        // SAFETY: the row's own pages.
        zero(
            unsafe { libc::madvise(memory.pointer(), memory.len, libc::MADV_REMOVE) },
            "madvise(MADV_REMOVE)",
        )
    })
}

pub(crate) fn madv_remove_alias(judge: &mut Judge) -> Outcome<Verdict> {
    mapped(judge, libc::MAP_SHARED, |file, _| {
        let alias = Memory::of_file(file, 2, libc::MAP_SHARED)?;
        // SAFETY: the row's own pages.
        zero(unsafe { libc::madvise(alias.pointer(), alias.len, libc::MADV_REMOVE) }, "madvise(MADV_REMOVE)")
    })
}

pub(crate) fn punch_hole(judge: &mut Judge) -> Outcome<Verdict> {
    mapped(judge, libc::MAP_SHARED, |file, _| {
        // SAFETY: the row's own file.
        zero(unsafe { libc::fallocate(file.as_raw_fd(), PUNCH, 0, 2 * PAGE as i64) }, "fallocate(PUNCH_HOLE)")
    })
}

pub(crate) fn punch_hole_by_number(judge: &mut Judge) -> Outcome<Verdict> {
    mapped(judge, libc::MAP_SHARED, |file, _| {
        // SAFETY: the row's own file.
        let done = unsafe { libc::syscall(libc::SYS_fallocate, file.as_raw_fd(), PUNCH, 0, 2 * PAGE) };
        zero(done as i32, "syscall(SYS_fallocate)")
    })
}

pub(crate) fn punch_hole_raw(judge: &mut Judge) -> Outcome<Verdict> {
    mapped(judge, libc::MAP_SHARED, |file, _| {
        let args = [file.as_raw_fd() as usize, PUNCH as usize, 0, 2 * PAGE, 0, 0];
        // SAFETY: the row's own file.
        zero(unsafe { crate::raw::syscall(libc::SYS_fallocate as usize, args) } as i32, "fallocate")
    })
}

pub(crate) fn punch_hole_elsewhere(judge: &mut Judge) -> Outcome<Verdict> {
    mapped(judge, libc::MAP_SHARED, |file, _| {
        // SAFETY: the child makes one system call and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let args = [file.as_raw_fd() as usize, PUNCH as usize, 0, 2 * PAGE, 0, 0];
                let done = crate::raw::syscall(libc::SYS_fallocate as usize, args);
                libc::_exit(i32::from(done != 0));
            }
            let mut status = 0;
            if child < 0 || libc::waitpid(child, &raw mut status, 0) != child {
                return skipped("fork");
            }
            zero(status, "fallocate in the child")
        }
    })
}

/// Cuts the file to nothing and makes it long again.
fn cut(file: &OwnedFd) -> Outcome {
    // SAFETY: the row's own file.
    zero(unsafe { libc::ftruncate(file.as_raw_fd(), 0) }, "ftruncate")?;
    grow(file, 4)
}

pub(crate) fn ftruncate(judge: &mut Judge) -> Outcome<Verdict> {
    mapped(judge, libc::MAP_SHARED, |file, _| cut(file))
}

pub(crate) fn ftruncate_private(judge: &mut Judge) -> Outcome<Verdict> {
    mapped(judge, libc::MAP_PRIVATE, |file, _| cut(file))
}

pub(crate) fn open_truncating(judge: &mut Judge) -> Outcome<Verdict> {
    mapped(judge, libc::MAP_SHARED, |file, _| {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        std::fs::File::create(&path).map_err(|error| Verdict::Skipped(format!("open({path}): {error}")))?;
        grow(file, 4)
    })
}

/// The second page of the file takes the place of the first.
pub(crate) fn remap_file_pages(judge: &mut Judge) -> Outcome<Verdict> {
    mapped(judge, libc::MAP_SHARED, |_, memory| {
        // SAFETY: the row's own mapping of its own file.
        let done = unsafe { libc::remap_file_pages(memory.pointer(), PAGE, 0, 1, 0) };
        zero(done, "remap_file_pages")
    })
}

pub(crate) fn shmdt(judge: &mut Judge) -> Outcome<Verdict> {
    let memory = attach(2, 0, 0)?;
    judge.before(memory.at, memory.len)?;
    // SAFETY: the row's own segment.
    zero(unsafe { libc::shmdt(memory.pointer()) }, "shmdt")?;
    memory.map_again()?;
    judge.after(memory.at, memory.len)
}
