//! Rows that change private pages through libc's functions.
#![allow(unsafe_code, clippy::disallowed_methods)]

use crate::judge::{Judge, Outcome, Verdict, skipped};
use crate::memory::{Memory, PAGE, READ_WRITE, attach};
use crate::raw;

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const MADV_DONTNEED_LOCKED: i32 = 24;

/// Two registered pages, `change`d, and pages at the same addresses afterwards.
pub(crate) fn changed(judge: &mut Judge, change: impl FnOnce(Memory) -> Outcome) -> Outcome<Verdict> {
    let memory = Memory::private(2)?;
    judge.before(memory.at, memory.len)?;
    change(memory)?;
    judge.after(memory.at, memory.len)
}

fn zero(result: i32, call: &str) -> Outcome {
    if result == 0 { Ok(()) } else { skipped(call) }
}

pub(crate) fn munmap(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        // SAFETY: the row's own pages.
        zero(unsafe { libc::munmap(memory.pointer(), memory.len) }, "munmap")?;
        memory.map_again().map(drop)
    })
}

pub(crate) fn munmap_part(judge: &mut Judge) -> Outcome<Verdict> {
    let whole = Memory::private(4)?;
    let hole = whole.part(1, 2);
    judge.before_at(whole.at, whole.len, hole.at)?;
    // SAFETY: the row's own pages.
    zero(unsafe { libc::munmap(hole.pointer(), hole.len) }, "munmap")?;
    hole.map_again()?;
    judge.after_at(whole.at, whole.len, hole.at)
}

pub(crate) fn mmap_over(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        let flags = ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: replaces the row's own pages.
        let at = unsafe { libc::mmap(memory.pointer(), memory.len, READ_WRITE, flags, -1, 0) };
        if at == memory.pointer() { Ok(()) } else { skipped("mmap(MAP_FIXED)") }
    })
}

fn mremap(from: Memory, len: usize, flags: i32, to: usize) -> Outcome<usize> {
    // SAFETY: the row's own pages, moved over pages of its own or to new ones.
    let at = unsafe { libc::mremap(from.pointer(), from.len, len, flags, to) };
    if at == libc::MAP_FAILED { skipped("mremap") } else { Ok(at as usize) }
}

/// Grows where it cannot: the page behind it is taken.
pub(crate) fn mremap_move(judge: &mut Judge) -> Outcome<Verdict> {
    let whole = Memory::private(3)?;
    let memory = whole.part(0, 2);
    judge.before(memory.at, memory.len)?;
    if mremap(memory, 4 * PAGE, libc::MREMAP_MAYMOVE, 0)? == memory.at {
        return Err(Verdict::Skipped("mremap grew in place".to_owned()));
    }
    memory.map_again()?;
    judge.after(memory.at, memory.len)
}

pub(crate) fn mremap_shrink(judge: &mut Judge) -> Outcome<Verdict> {
    let whole = Memory::private(4)?;
    let tail = whole.part(2, 2);
    judge.before_at(whole.at, whole.len, tail.at)?;
    mremap(whole, 2 * PAGE, 0, 0)?;
    tail.map_again()?;
    judge.after_at(whole.at, whole.len, tail.at)
}

const MOVE_TO: i32 = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;

pub(crate) fn mremap_fixed_source(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        mremap(memory, memory.len, MOVE_TO, Memory::private(2)?.at)?;
        memory.map_again().map(drop)
    })
}

pub(crate) fn mremap_fixed_target(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| mremap(Memory::private(2)?, memory.len, MOVE_TO, memory.at).map(drop))
}

pub(crate) fn mremap_dontunmap(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        mremap(memory, memory.len, libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP, 0).map(drop)
    })
}

fn advise(judge: &mut Judge, advice: i32) -> Outcome<Verdict> {
    changed(judge, |memory| {
        // SAFETY: the row's own pages.
        zero(unsafe { libc::madvise(memory.pointer(), memory.len, advice) }, "madvise")
    })
}

pub(crate) fn dontneed(judge: &mut Judge) -> Outcome<Verdict> {
    advise(judge, libc::MADV_DONTNEED)
}

pub(crate) fn dontneed_locked(judge: &mut Judge) -> Outcome<Verdict> {
    advise(judge, MADV_DONTNEED_LOCKED)
}

pub(crate) fn free(judge: &mut Judge) -> Outcome<Verdict> {
    advise(judge, libc::MADV_FREE)
}

const MADV_GUARD_INSTALL: i32 = 102;
const MADV_GUARD_REMOVE: i32 = 103;

/// Linux 6.13 and later.
pub(crate) fn guard(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        for advice in [MADV_GUARD_INSTALL, MADV_GUARD_REMOVE] {
            // SAFETY: the row's own pages, accessible again in a moment.
            let answer = unsafe { libc::madvise(memory.pointer(), memory.len, advice) };
            zero(answer, "madvise(MADV_GUARD_INSTALL)")?;
        }
        Ok(())
    })
}

pub(crate) fn guard_raw(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        for advice in [MADV_GUARD_INSTALL, MADV_GUARD_REMOVE] {
            let args = [memory.at, memory.len, advice as usize, 0, 0, 0];
            // SAFETY: as above.
            let answer = unsafe { raw::syscall(libc::SYS_madvise as usize, args) };
            if answer != 0 {
                return Err(Verdict::Skipped(format!("madvise(MADV_GUARD_INSTALL): errno {}", -answer)));
            }
        }
        Ok(())
    })
}

/// The kernel makes the call on behalf of a ring.
pub(crate) fn by_ring(judge: &mut Judge) -> Outcome<Verdict> {
    let Ok(mut ring) = io_uring::IoUring::new(4) else { return skipped("io_uring_setup") };
    changed(judge, |memory| {
        let advise = io_uring::opcode::Madvise::new(memory.pointer(), memory.len as i64, libc::MADV_DONTNEED);
        // SAFETY: the row's own pages; the queue is empty.
        let pushed = unsafe { ring.submission().push(&advise.build()) };
        if pushed.is_err() || ring.submit_and_wait(1).is_err() {
            return skipped("io_uring_enter");
        }
        zero(ring.completion().next().map_or(-1, |done| done.result()), "IORING_OP_MADVISE")
    })
}

pub(crate) fn mprotect(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        for protection in [libc::PROT_NONE, READ_WRITE] {
            // SAFETY: the row's own pages, writable again in a moment.
            zero(unsafe { libc::mprotect(memory.pointer(), memory.len, protection) }, "mprotect")?;
        }
        Ok(())
    })
}

/// How a row calls process_madvise.
type ProcessMadvise = unsafe fn(libc::c_long, *const libc::iovec) -> libc::c_long;

fn process_madvise_with(judge: &mut Judge, call: ProcessMadvise) -> Outcome<Verdict> {
    changed(judge, |memory| {
        let iovec = libc::iovec { iov_base: memory.pointer(), iov_len: memory.len };
        // SAFETY: the row's own pages; the descriptor names this process.
        unsafe {
            let pidfd = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
            if pidfd < 0 {
                return skipped("pidfd_open");
            }
            let advised = call(pidfd, &raw const iovec);
            let failed = std::io::Error::from_raw_os_error((-advised) as i32);
            libc::close(pidfd as i32);
            if advised == memory.len as libc::c_long {
                return Ok(());
            }
            Err(Verdict::Skipped(format!("process_madvise(MADV_DONTNEED) of itself: {failed}")))
        }
    })
}

/// The kernel's answer from libc's: -1 becomes the errno, negative.
fn answer(result: libc::c_long) -> libc::c_long {
    if result == -1 {
        -libc::c_long::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        result
    }
}

pub(crate) fn process_madvise(judge: &mut Judge) -> Outcome<Verdict> {
    type Function = unsafe extern "C" fn(i32, *const libc::iovec, usize, i32, u32) -> libc::c_long;
    // SAFETY: a NUL-terminated name.
    if unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"process_madvise".as_ptr()) }.is_null() {
        return Err(Verdict::Skipped("this libc has no process_madvise".to_owned()));
    }
    process_madvise_with(judge, |pidfd, iovec| {
        // SAFETY: libc's function of this signature, looked for above; the
        // caller's iovec names its own pages.
        unsafe {
            let entry = libc::dlsym(libc::RTLD_DEFAULT, c"process_madvise".as_ptr());
            let call = std::mem::transmute::<*mut libc::c_void, Function>(entry);
            answer(call(pidfd as i32, iovec, 1, libc::MADV_DONTNEED, 0))
        }
    })
}

pub(crate) fn process_madvise_by_number(judge: &mut Judge) -> Outcome<Verdict> {
    process_madvise_with(judge, |pidfd, iovec| {
        // SAFETY: the caller's iovec names its own pages.
        answer(unsafe { libc::syscall(libc::SYS_process_madvise, pidfd, iovec, 1, libc::MADV_DONTNEED, 0) })
    })
}

pub(crate) fn process_madvise_raw(judge: &mut Judge) -> Outcome<Verdict> {
    process_madvise_with(judge, |pidfd, iovec| {
        let args = [pidfd as usize, iovec.addr(), 1, libc::MADV_DONTNEED as usize, 0, 0];
        // SAFETY: the caller's iovec names its own pages.
        unsafe { crate::raw::syscall(libc::SYS_process_madvise as usize, args) as libc::c_long }
    })
}

pub(crate) fn syscall_munmap(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        // SAFETY: the row's own pages.
        let done = unsafe { libc::syscall(libc::SYS_munmap, memory.at, memory.len) };
        zero(done as i32, "syscall(SYS_munmap)")?;
        memory.map_again().map(drop)
    })
}

pub(crate) fn syscall_madvise(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        // SAFETY: the row's own pages.
        let done = unsafe { libc::syscall(libc::SYS_madvise, memory.at, memory.len, libc::MADV_DONTNEED) };
        zero(done as i32, "syscall(SYS_madvise)")
    })
}

pub(crate) fn shmat_over(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| attach(2, memory.at, libc::SHM_REMAP).map(drop))
}
