//! System calls that no hook can see: the instruction itself, no libc function.
//!
//! Everything in pinyard that must change a mapping without telling itself goes
//! through here. Errors are returned as a negative errno, as the kernel does.
#![allow(unsafe_code)]

use core::arch::asm;

/// What follows each of pinyard's own system call instructions, for those who look
/// for others': on x86-64 a no-op with this displacement (bytes `0f 1f 80`, then the
/// number, low byte first), on aarch64 two moves of its halves to nowhere.
pub const MARK: u32 = 0x7069_6e79;

/// A system call with six arguments. Returns the kernel's result: an errno is
/// -1 to -4095.
///
/// # Safety
/// The arguments must satisfy what the call `number` demands of memory and
/// descriptors (see its man page, section 2).
#[cfg(not(miri))]
#[inline(always)]
pub unsafe fn syscall6(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the x86-64 Linux convention: number in rax, arguments in rdi,
    // rsi, rdx, r10, r8, r9, result in rax; rcx and r11 are clobbered, the stack
    // is not used. What the call does to memory is the caller's contract.
    unsafe {
        asm!(
            "syscall",
            "nop dword ptr [rax + {mark}]",
            mark = const MARK,
            inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the aarch64 Linux convention: number in x8, arguments in x0 to x5,
    // result in x0; nothing else is clobbered. Otherwise as above.
    unsafe {
        asm!(
            "svc 0",
            "movz xzr, {low}",
            "movz xzr, {high}, lsl 16",
            low = const MARK & 0xffff,
            high = const MARK >> 16,
            in("x8") number,
            inlateout("x0") args[0] as isize => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5],
            options(nostack)
        );
    }
    result
}

/// Under Miri, which interprets no instruction: memory of the heap, zeroed by the whole, for new
/// mappings, which stay; the kernel has no other call.
///
/// # Safety
/// As of the one above.
#[cfg(miri)]
pub unsafe fn syscall6(number: usize, args: [usize; 6]) -> isize {
    if number as libc::c_long != libc::SYS_mmap || args[3] as i32 & libc::MAP_FIXED != 0 {
        return -libc::ENOSYS as isize;
    }
    // SAFETY: calloc has no preconditions.
    let start = unsafe { libc::calloc(1, args[1] + crate::PAGE_SIZE) }.expose_provenance();
    start.next_multiple_of(crate::PAGE_SIZE) as isize
}

/// `Ok` of a non-negative result, `Err` of the errno otherwise.
#[inline]
fn checked(result: isize) -> Result<usize, i32> {
    if (-4095..0).contains(&result) { Err(-result as i32) } else { Ok(result as usize) }
}

/// mmap(2), unseen by hooks. For memory that is registered:
/// [`map_to_register`](crate::map_to_register).
///
/// # Safety
/// As mmap(2): with `MAP_FIXED` the caller owns what lies in the range.
pub unsafe fn mmap(addr: usize, len: usize, prot: i32, flags: i32) -> Result<usize, i32> {
    let args = [addr, len, prot as usize, flags as usize, usize::MAX, 0];
    // SAFETY: passed on to the caller.
    checked(unsafe { syscall6(libc::SYS_mmap as usize, args) })
}

/// munmap(2), unseen by hooks.
///
/// # Safety
/// The caller owns the range and nothing refers to it any more.
pub unsafe fn munmap(addr: usize, len: usize) -> Result<(), i32> {
    // SAFETY: passed on to the caller.
    checked(unsafe { syscall6(libc::SYS_munmap as usize, [addr, len, 0, 0, 0, 0]) }).map(drop)
}

/// mremap(2) that may move the mapping, unseen by hooks.
///
/// # Safety
/// The caller owns the mapping of `len` bytes, and nothing refers to its addresses.
pub unsafe fn mremap(addr: usize, len: usize, new_len: usize) -> Result<usize, i32> {
    let args = [addr, len, new_len, libc::MREMAP_MAYMOVE as usize, 0, 0];
    // SAFETY: passed on to the caller.
    checked(unsafe { syscall6(libc::SYS_mremap as usize, args) })
}

/// mprotect(2).
///
/// # Safety
/// Code and data in the range tolerate the new protection.
pub unsafe fn mprotect(addr: usize, len: usize, prot: i32) -> Result<(), i32> {
    let args = [addr, len, prot as usize, 0, 0, 0];
    // SAFETY: passed on to the caller.
    checked(unsafe { syscall6(libc::SYS_mprotect as usize, args) }).map(drop)
}

/// madvise(2), unseen by hooks.
///
/// # Safety
/// The caller owns the range; advice that drops pages loses their contents.
pub unsafe fn madvise(addr: usize, len: usize, advice: i32) -> Result<(), i32> {
    let args = [addr, len, advice as usize, 0, 0, 0];
    // SAFETY: passed on to the caller.
    checked(unsafe { syscall6(libc::SYS_madvise as usize, args) }).map(drop)
}

/// The calling thread's errno, behind a function of libc's.
#[cfg(not(loom))]
pub(crate) fn errno() -> i32 {
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Nanoseconds of CLOCK_MONOTONIC.
#[cfg(not(loom))]
pub(crate) fn now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(not(loom))]
pub(crate) fn time(nanoseconds: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (nanoseconds / 1_000_000_000) as i64,
        tv_nsec: (nanoseconds % 1_000_000_000) as i64,
    }
}

/// futex(2) of this process, for `most` nanoseconds where it waits. What it answers matters to nobody:
/// whoever sleeps looks again.
#[cfg(not(loom))]
pub(crate) fn futex(word: &core::sync::atomic::AtomicU32, operation: i32, value: u32, most: Option<u64>) {
    let operation = (operation | libc::FUTEX_PRIVATE_FLAG) as usize;
    let most = most.map(time);
    let most = most.as_ref().map_or(0, |most| (&raw const *most).addr());
    let args = [word.as_ptr().addr(), operation, value as usize, most, 0, 0];
    // SAFETY: the kernel reads the word and the time, which outlive the call, and writes nothing.
    unsafe { syscall6(libc::SYS_futex as usize, args) };
}

/// mlock(2) over whole pages.
pub fn mlock(addr: usize, len: usize) -> Result<(), i32> {
    // SAFETY: locking reads the range into memory and changes no contents; the
    // kernel checks the address.
    checked(unsafe { syscall6(libc::SYS_mlock as usize, [addr, len, 0, 0, 0, 0]) }).map(drop)
}

/// munlock(2) over whole pages.
pub fn munlock(addr: usize, len: usize) -> Result<(), i32> {
    // SAFETY: unlocking changes no contents; the kernel checks the address.
    checked(unsafe { syscall6(libc::SYS_munlock as usize, [addr, len, 0, 0, 0, 0]) }).map(drop)
}

/// Registers for, then issues, a membarrier that serialises the instruction
/// stream of every thread of this process (membarrier(2), `SYNC_CORE`).
pub(crate) fn serialise_instruction_streams() -> Result<(), i32> {
    const REGISTER_SYNC_CORE: usize = 1 << 6;
    const SYNC_CORE: usize = 1 << 5;
    for command in [REGISTER_SYNC_CORE, SYNC_CORE] {
        // SAFETY: membarrier touches no memory of ours.
        checked(unsafe { syscall6(libc::SYS_membarrier as usize, [command, 0, 0, 0, 0, 0]) })?;
    }
    Ok(())
}
