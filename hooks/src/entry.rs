//! What runs in place of libc's functions.
//!
//! Between entry and the real call nothing here allocates, locks, logs, touches
//! a thread-local or makes another system call; after it, only errno is written,
//! and only where the real call failed, as the replaced function would. All
//! functions are safe in a signal handler. No arithmetic can panic.
//!
//! The real call is the system call itself, or the function that another
//! patcher had put there before us (see `install.rs`).
#![allow(unsafe_code)]

use crate::effect::{self, Ranges};
use crate::monitor::{Ticket, after, before, change_file};
use crate::report::Function;
use crate::sys::syscall6;
use crate::{entry_break, entry_shared, fresh, loader, plain, refused, settled, text};
use core::sync::atomic::{AtomicUsize, Ordering::Acquire};

/// The hook that another patcher had installed, per function; 0 for none.
pub(crate) static NEXT: [AtomicUsize; Function::COUNT] = [const { AtomicUsize::new(0) }; Function::COUNT];

/// The replacement's address for `function`.
pub(crate) fn replacement(function: Function) -> usize {
    match function {
        Function::Munmap => munmap as *const () as usize,
        Function::Mmap => mmap as *const () as usize,
        Function::Mremap => mremap as *const () as usize,
        Function::Madvise => madvise as *const () as usize,
        Function::Brk => entry_break::brk as *const () as usize,
        Function::Sbrk => entry_break::sbrk as *const () as usize,
        Function::Shmdt => shmdt as *const () as usize,
        Function::ProcessMadvise => process_madvise as *const () as usize,
        Function::Mprotect => mprotect as *const () as usize,
        Function::Syscall => syscall as *const () as usize,
        Function::Shmat
        | Function::RemapFilePages
        | Function::Ftruncate
        | Function::Truncate
        | Function::Fallocate => entry_shared::replacement(function),
        Function::DlDebugState => loader::state_changed as *const () as usize,
    }
}

#[inline(always)]
pub(crate) fn bracketed(ranges: Ranges, change: impl FnOnce() -> isize) -> isize {
    let [first, second] = ranges;
    let ticket = before(first.0, first.1);
    before(second.0, second.1);
    let result = change();
    after(ticket, first.0, first.1);
    after(ticket, second.0, second.1);
    result
}

/// Turns the kernel's result into libc's: -1 and errno.
pub(crate) extern "C" fn to_libc(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        // SAFETY: glibc's `__errno_location` returns the calling thread's errno,
        // which lives as long as the thread. It is static TLS of libc: no lazy
        // allocation. The replaced function writes it at the same point.
        unsafe { *libc::__errno_location() = -result as i32 };
        return -1;
    }
    result
}

/// The real call: the earlier hook where there is one, else the kernel; neither for what
/// only the self-test asks for (`refused.rs`).
#[inline(always)]
pub(crate) unsafe fn real(function: Function, number: libc::c_long, args: [usize; 6]) -> isize {
    type Six = extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;
    // Acquire: pairs with the Release store in `install.rs`.
    let next = NEXT[function as usize].load(Acquire);
    if let Some(errno) = refused::errno(function, &args, next) {
        return to_libc(-(errno as isize));
    }
    if next == 0 {
        // SAFETY: the caller of the hooked function vouches for its arguments.
        return to_libc(unsafe { syscall6(number as usize, args) });
    }
    // SAFETY: `next` is the decoded target of a jump that stood at this
    // function's entry, so it takes this function's arguments; up to six integer
    // arguments travel in registers, and a callee ignores those it does not have.
    let next = unsafe { core::mem::transmute::<usize, Six>(next) };
    let [a, b, c, d, e, f] = args;
    next(a, b, c, d, e, f)
}

extern "C" fn munmap(addr: usize, len: usize) -> isize {
    bracketed(effect::munmap(addr, len), || {
        // SAFETY: the arguments are the caller's, unchanged.
        unsafe { real(Function::Munmap, libc::SYS_munmap, [addr, len, 0, 0, 0, 0]) }
    })
}

extern "C" fn mmap(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> isize {
    let args = [addr, len, prot as usize, flags as usize, fd as isize as usize, offset as usize];
    let map = || {
        bracketed(effect::mmap(addr, len, flags), || {
            // SAFETY: the arguments are the caller's, unchanged.
            unsafe { real(Function::Mmap, libc::SYS_mmap, args) }
        })
    };
    let fixed = (flags & libc::MAP_FIXED != 0).then_some(addr);
    let at = plain::mapping(!plain::is_plain_mapping(flags), fixed, len, map);
    fresh::mapped(at, effect::length(len, flags))
}

/// mremap is variadic in C; its fifth argument is in r8 whether given or not,
/// and only looked at with `MREMAP_FIXED`.
extern "C" fn mremap(old: usize, old_len: usize, len: usize, flags: i32, new: usize) -> isize {
    let remap = || {
        bracketed(effect::mremap(old, old_len, len, flags, new), || {
            let args = [old, old_len, len, flags as usize, new, 0];
            // SAFETY: the arguments are the caller's, unchanged.
            unsafe { real(Function::Mremap, libc::SYS_mremap, args) }
        })
    };
    let fixed = (flags & libc::MREMAP_FIXED != 0).then_some(new);
    let at = plain::mapping(!plain::is_plain(old, old_len), fixed, len, remap);
    fresh::remapped(at, old, old_len, len)
}

extern "C" fn madvise(addr: usize, len: usize, advice: i32) -> isize {
    let advise = || {
        bracketed(effect::madvise(addr, len, advice), || {
            // SAFETY: the arguments are the caller's, unchanged.
            unsafe { real(Function::Madvise, libc::SYS_madvise, [addr, len, advice as usize, 0, 0, 0]) }
        })
    };
    if effect::reaches_other_mappings(advice) { change_file(advise) } else { advise() }
}

extern "C" fn shmdt(addr: usize) -> isize {
    bracketed(effect::shmdt(addr), || {
        // SAFETY: the argument is the caller's, unchanged.
        unsafe { real(Function::Shmdt, libc::SYS_shmdt, [addr, 0, 0, 0, 0, 0]) }
    })
}

extern "C" fn process_madvise(pidfd: i32, ranges: usize, count: usize, advice: i32, flags: u32) -> isize {
    let args = [pidfd as isize as usize, ranges, count, advice as usize, flags as usize, 0];
    bracketed_iovecs(ranges, count, advice, || {
        // SAFETY: the arguments are the caller's, unchanged.
        unsafe { real(Function::ProcessMadvise, libc::SYS_process_madvise, args) }
    })
}

extern "C" fn mprotect(addr: usize, len: usize, prot: i32) -> isize {
    // SAFETY: the arguments are the caller's, unchanged.
    let change =
        || unsafe { real(Function::Mprotect, libc::SYS_mprotect, [addr, len, prot as usize, 0, 0, 0]) };
    if text::touches(addr, len) {
        return text::bracketed(addr, len, prot & libc::PROT_WRITE != 0, change);
    }
    if effect::copies_when_writable_again(prot) {
        return bracketed(effect::munmap(addr, len), change);
    }
    change()
}

/// The process meant may be another one; finding out would take a system call,
/// so its ranges are published as if they were ours. Iovecs that cannot be read
/// end the program here, where the kernel would answer EFAULT.
#[inline(always)]
fn bracketed_iovecs(ranges: usize, count: usize, advice: i32, change: impl FnOnce() -> isize) -> isize {
    /// Above this the kernel refuses the call (`UIO_MAXIOV`).
    const MOST: usize = 1024;
    let drops = effect::drops_pages(advice) && ranges != 0 && count <= MOST;
    let iovecs: &[libc::iovec] = if drops {
        // SAFETY: process_madvise(2) requires `count` readable iovecs at
        // `ranges`; the kernel reads the same memory in a moment.
        unsafe { core::slice::from_raw_parts(ranges as *const libc::iovec, count) }
    } else {
        &[]
    };
    // Afterwards the iovecs may be gone with the pages that they lie in: what lies
    // between the first and the last of them is published, if anything is.
    let mut ticket: Option<Ticket> = None;
    let (mut first, mut end) = (usize::MAX, 0);
    for iovec in iovecs {
        let (start, len) = (iovec.iov_base.addr(), iovec.iov_len);
        let begun = before(start, len);
        ticket.get_or_insert(begun);
        first = first.min(start);
        end = end.max(start.saturating_add(len));
    }
    let advise = || {
        let result = change();
        if let Some(ticket) = ticket {
            after(ticket, first, end.saturating_sub(first));
        }
        result
    };
    if drops && effect::reaches_other_mappings(advice) { change_file(advise) } else { advise() }
}

/// `syscall(number, ...)` for the numbers that change mappings.
extern "C" fn syscall_that_changes_a_mapping(
    number: isize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let change = || {
        let next = NEXT[Function::Syscall as usize].load(Acquire);
        if next == 0 {
            // SAFETY: the arguments are the caller's, unchanged.
            return to_libc(unsafe { syscall6(number as usize, [a, b, c, d, e, f]) });
        }
        // SAFETY: the decoded target of a jump that stood at the entry of
        // `syscall`; the arguments are the caller's, unchanged.
        unsafe {
            let next = core::mem::transmute::<usize, unsafe extern "C" fn(isize, ...) -> isize>(next);
            next(number, a, b, c, d, e, f)
        }
    };
    // The kernel takes 32 bits of it.
    let ranges = match libc::c_long::from(number as i32) {
        libc::SYS_munmap => effect::munmap(a, b),
        libc::SYS_mmap => {
            let fixed = (d as i32 & libc::MAP_FIXED != 0).then_some(a);
            let map = || bracketed(effect::mmap(a, b, d as i32), change);
            let at = plain::mapping(!plain::is_plain_mapping(d as i32), fixed, b, map);
            return fresh::mapped(at, effect::length(b, d as i32));
        }
        libc::SYS_mremap => {
            let fixed = (d as i32 & libc::MREMAP_FIXED != 0).then_some(e);
            let remap = || bracketed(effect::mremap(a, b, c, d as i32, e), change);
            let at = plain::mapping(!plain::is_plain(a, b), fixed, c, remap);
            return fresh::remapped(at, a, b, c);
        }
        libc::SYS_madvise if effect::reaches_other_mappings(c as i32) => {
            return change_file(|| bracketed(effect::madvise(a, b, c as i32), change));
        }
        libc::SYS_madvise => effect::madvise(a, b, c as i32),
        libc::SYS_io_uring_setup => {
            let ring = change();
            // SAFETY: the third word of `struct io_uring_params`, which the kernel has just written there for
            // the caller to read.
            let flags = || unsafe { (b as *const u32).add(2).read_unaligned() };
            if ring >= 0 && effect::is_a_hidden_ring(flags()) {
                settled::ring_hidden();
            }
            // What it is told to do, no entry sees: somebody has to look.
            settled::objects_loaded();
            return ring;
        }
        libc::SYS_brk => {
            let current = entry_break::current_break();
            let now = bracketed(effect::brk(a, current), change);
            fresh::grown(current, now as usize);
            return now;
        }
        libc::SYS_shmdt => effect::shmdt(a),
        libc::SYS_shmat => {
            let at = bracketed(effect::shmat(b, c as i32), change);
            settled::objects_loaded();
            return fresh::attached(at);
        }
        libc::SYS_remap_file_pages => effect::munmap(a, b),
        libc::SYS_ftruncate | libc::SYS_truncate => return change_file(change),
        libc::SYS_fallocate if effect::only_allocates(b as i32) => return change(),
        libc::SYS_fallocate => return change_file(change),
        libc::SYS_process_madvise => return bracketed_iovecs(b, c, d as i32, change),
        libc::SYS_mprotect if text::touches(a, b) => {
            return text::bracketed(a, b, c as i32 & libc::PROT_WRITE != 0, change);
        }
        libc::SYS_mprotect if effect::copies_when_writable_again(c as i32) => effect::munmap(a, b),
        _ => return change(),
    };
    bracketed(ranges, change)
}

/// `syscall(2)`'s wrapper. The kernel takes 32 bits of the number. Every one that cannot change a mapping takes the
/// path that libc's takes, with no stack frame of ours: calls that return twice
/// or on another stack (clone, vfork) work as before.
///
/// # Safety
/// As libc's `syscall`: only ever reached by a jump from its entry.
#[unsafe(naked)]
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "cmp edi, {mmap}",
        "je 2f",
        "cmp edi, {munmap}",
        "je 2f",
        "cmp edi, {brk}",
        "je 2f",
        "cmp edi, {mremap}",
        "je 2f",
        "cmp edi, {madvise}",
        "je 2f",
        "cmp edi, {shmdt}",
        "je 2f",
        "cmp edi, {process_madvise}",
        "je 2f",
        "cmp edi, {shmat}",
        "je 2f",
        "cmp edi, {remap_file_pages}",
        "je 2f",
        "cmp edi, {ftruncate}",
        "je 2f",
        "cmp edi, {truncate}",
        "je 2f",
        "cmp edi, {fallocate}",
        "je 2f",
        "cmp edi, {mprotect}",
        "je 2f",
        "cmp edi, {io_uring_setup}",
        "je 2f",
        "mov r11, qword ptr [rip + {next} + {nth}]",
        "test r11, r11",
        "jne 4f",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "nop dword ptr [rax + {mark}]",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "2: jmp {slow}",
        "3: mov rdi, rax",
        "jmp {to_libc}",
        // Whoever was here before us, with the caller's registers and stack.
        "4: jmp r11",
        next = sym NEXT,
        mark = const crate::sys::MARK,
        nth = const Function::Syscall as usize * size_of::<usize>(),
        mmap = const libc::SYS_mmap,
        munmap = const libc::SYS_munmap,
        brk = const libc::SYS_brk,
        mremap = const libc::SYS_mremap,
        madvise = const libc::SYS_madvise,
        shmdt = const libc::SYS_shmdt,
        process_madvise = const libc::SYS_process_madvise,
        shmat = const libc::SYS_shmat,
        remap_file_pages = const libc::SYS_remap_file_pages,
        ftruncate = const libc::SYS_ftruncate,
        truncate = const libc::SYS_truncate,
        fallocate = const libc::SYS_fallocate,
        mprotect = const libc::SYS_mprotect,
        io_uring_setup = const libc::SYS_io_uring_setup,
        slow = sym syscall_that_changes_a_mapping,
        to_libc = sym to_libc,
    );
}

/// As above. All arguments are in registers.
///
/// # Safety
/// As above.
#[unsafe(naked)]
#[cfg(target_arch = "aarch64")]
unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "hint 34", // bti c
        "cmp w0, {mmap}",
        "b.eq 2f",
        "cmp w0, {munmap}",
        "b.eq 2f",
        "cmp w0, {brk}",
        "b.eq 2f",
        "cmp w0, {mremap}",
        "b.eq 2f",
        "cmp w0, {madvise}",
        "b.eq 2f",
        "cmp w0, {shmdt}",
        "b.eq 2f",
        "cmp w0, {process_madvise}",
        "b.eq 2f",
        "cmp w0, {shmat}",
        "b.eq 2f",
        "cmp w0, {remap_file_pages}",
        "b.eq 2f",
        "cmp w0, {ftruncate}",
        "b.eq 2f",
        "cmp w0, {truncate}",
        "b.eq 2f",
        "cmp w0, {fallocate}",
        "b.eq 2f",
        "cmp w0, {mprotect}",
        "b.eq 2f",
        "cmp w0, {io_uring_setup}",
        "b.eq 2f",
        "b {other}",
        "2: b {slow}",
        mmap = const libc::SYS_mmap,
        munmap = const libc::SYS_munmap,
        brk = const libc::SYS_brk,
        mremap = const libc::SYS_mremap,
        madvise = const libc::SYS_madvise,
        shmdt = const libc::SYS_shmdt,
        process_madvise = const libc::SYS_process_madvise,
        shmat = const libc::SYS_shmat,
        remap_file_pages = const libc::SYS_remap_file_pages,
        ftruncate = const libc::SYS_ftruncate,
        truncate = const libc::SYS_truncate,
        fallocate = const libc::SYS_fallocate,
        mprotect = const libc::SYS_mprotect,
        io_uring_setup = const libc::SYS_io_uring_setup,
        other = sym crate::passthrough::syscall,
        slow = sym syscall_that_changes_a_mapping,
    );
}
