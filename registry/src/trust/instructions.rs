//! System call instructions in machine code, and the numbers that they are made with.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod number;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
use memchr::memmem::Finder;
use number::Number;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

/// Calls that take pages away, or have a kernel copy pinned ones (`mprotect`, before Linux 5.19), or make a ring
/// that does either. `brk` is left out: a break that others move under malloc's feet would break more than this.
const NUMBERS: [libc::c_long; 13] = [
    libc::SYS_io_uring_setup,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mprotect,
    libc::SYS_shmat,
    libc::SYS_shmdt,
    libc::SYS_remap_file_pages,
    libc::SYS_ftruncate,
    libc::SYS_truncate,
    libc::SYS_fallocate,
    libc::SYS_process_madvise,
];

/// How far before the instruction its number is looked for.
pub(super) const BEFORE: usize = arch::BEFORE;
/// The instruction and, behind it, the mark of pinyard's own.
pub(super) const BEHIND: usize = 16;

/// The first system call in `text`, from `from` on, that may change a mapping and is not ours: where
/// it is, and its number unless the caller passes it.
pub(super) fn raw_call(text: &[u8], from: usize) -> Option<(usize, Option<u32>)> {
    let own = arch::own();
    let calls = Finder::new(&arch::SYSTEM_CALL);
    calls.find_iter(text).filter(|at| *at >= from).find_map(|at| {
        if text.get(at + arch::SYSTEM_CALL.len()..)?.starts_with(&own) {
            return None;
        }
        match arch::number(text, at)? {
            Number::Is(number) => NUMBERS.contains(&libc::c_long::from(number)).then_some((at, Some(number))),
            Number::Passed => Some((at, None)),
            Number::Computed => None,
        }
    })
}
