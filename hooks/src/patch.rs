//! Replacing the first bytes of a libc function while other threads run it.
//!
//! The new bytes are a 5-byte `jmp rel32` to a page of trampolines within 2 GiB,
//! stored with one aligned 8-byte atomic store, followed by a membarrier that
//! serialises every thread's instruction stream. Longer patches (the 13 bytes of
//! `movabs r11; jmp r11`) crash a thread that returns from its system call into
//! the middle of them; with 5 bytes no return address lies inside.
#![allow(unsafe_code)]

use crate::report::{ModuleName, Owner, Why};
use crate::sys;

const PAGE: usize = crate::PAGE_SIZE;
const TRAMPOLINE: usize = 16;

/// The first 16 bytes of a function.
pub(crate) type Prologue = [u8; 16];

/// Reads the entry of a function.
///
/// # Safety
/// `entry` is the address of a function in a loaded object.
pub(crate) unsafe fn prologue(entry: usize) -> Prologue {
    // SAFETY: text is readable, and glibc aligns functions to 16 bytes, so 16
    // bytes from an entry never leave the function's own padding.
    let (low, high) = unsafe { (load_word(entry), load_word(entry + 8)) };
    let mut code = [0; 16];
    for (byte, value) in code.iter_mut().zip(low.to_le_bytes().into_iter().chain(high.to_le_bytes())) {
        *byte = value;
    }
    code
}

/// One aligned 8-byte load of text. An instruction of its own, because text is
/// not memory that the language knows, nor any sanitizer.
///
/// # Safety
/// `at` is a multiple of 8 in readable text.
pub(crate) unsafe fn load_word(at: usize) -> u64 {
    let word;
    // SAFETY: an aligned load of readable memory, which x86-64 makes atomic.
    unsafe {
        core::arch::asm!("mov {}, qword ptr [{}]", out(reg) word, in(reg) at, options(nostack, readonly, preserves_flags));
    }
    word
}

/// Where a jump at the start of `code` (found at `entry`) leads. Known shapes:
/// ours and UCX's near `jmp rel32`; Open MPI's and libfabric's `movabs r11;
/// jmp r11`; UCX's `movabs rax; jmp rax`; `jmp [rip + 0]`.
pub(crate) fn jump_target(entry: usize, code: &Prologue) -> Option<usize> {
    let word = |at: usize| -> Option<usize> {
        Some(u64::from_le_bytes(code.get(at..at + 8)?.try_into().ok()?) as usize)
    };
    match code {
        [0xe9, a, b, c, d, ..] => {
            Some(entry.wrapping_add(5).wrapping_add_signed(i32::from_le_bytes([*a, *b, *c, *d]) as isize))
        }
        [0x49, 0xbb, .., 0x41, 0xff, 0xe3, _, _, _] => word(2),
        [0x48, 0xb8, .., 0xff, 0xe0, _, _, _, _] => word(2),
        [0xff, 0x25, 0, 0, 0, 0, ..] => word(6),
        _ => None,
    }
}

/// Whose code a call of the function at `entry` reaches.
pub(crate) fn owner(entry: usize, code: &Prologue) -> Owner {
    match jump_target(entry, code) {
        None => Owner::Libc,
        Some(target) => Owner::Module(module_of(target)),
    }
}

fn module_of(address: usize) -> ModuleName {
    let mut info = libc::Dl_info {
        dli_fname: core::ptr::null(),
        dli_fbase: core::ptr::null_mut(),
        dli_sname: core::ptr::null(),
        dli_saddr: core::ptr::null_mut(),
    };
    // SAFETY: dladdr only compares the address and fills `info`.
    let found = unsafe { libc::dladdr(address as *const _, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return ModuleName::from_path(b"unknown code");
    }
    // SAFETY: a non-null dli_fname is the loader's own NUL-terminated string,
    // which lives as long as the object is loaded; it is copied at once.
    ModuleName::from_path(unsafe { core::ffi::CStr::from_ptr(info.dli_fname) }.to_bytes())
}

/// Whether a 5-byte patch at the start of `code` would cover an instruction
/// boundary. glibc's system-call wrappers start with `mov eax, imm32`: 5 bytes.
/// What follows a `ret` is never run.
pub(crate) fn covers_boundary(code: &Prologue) -> bool {
    !matches!(code[0], 0xb8 | 0xe9 | 0xc3)
}

/// The page of trampolines near libc: slot i jumps to any address.
pub(crate) struct Trampolines {
    base: usize,
}

impl Trampolines {
    /// Maps the page within reach of `entry`, writes one `jmp [rip + 2]` per
    /// target, and makes it executable. Never unmapped again: a thread may be
    /// on it at any time.
    pub(crate) fn map_near(entry: usize, targets: &[usize]) -> Result<Trampolines, Why> {
        const STEP: usize = 1 << 20;
        const REACH: usize = 1 << 30;
        debug_assert!(targets.len() * TRAMPOLINE <= PAGE);
        let near = entry & !(STEP - 1);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let candidates = (1..REACH / STEP)
            .flat_map(|step| [near.wrapping_sub(step * STEP), near.wrapping_add(step * STEP)]);
        let mut errno = 0;
        for at in candidates {
            // SAFETY: MAP_FIXED_NOREPLACE takes only a page that nobody has.
            match unsafe { sys::mmap(at, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags) } {
                Ok(base) if base == at => return Trampolines { base }.fill(targets),
                // A kernel older than 4.17 ignores the flag and maps elsewhere.
                Ok(elsewhere) => {
                    // SAFETY: the page was mapped just now and nobody knows it.
                    let _ = unsafe { sys::munmap(elsewhere, PAGE) };
                }
                Err(code) => errno = code,
            }
        }
        Err(Why { call: "mmap(trampoline page within 1 GiB of libc, MAP_FIXED_NOREPLACE)", errno })
    }

    fn fill(self, targets: &[usize]) -> Result<Trampolines, Why> {
        for (index, target) in targets.iter().enumerate() {
            let at = self.slot(index);
            // SAFETY: the slot lies in the page that was mapped writable for it,
            // 16-byte aligned; nobody else knows the page yet.
            unsafe {
                (at as *mut [u8; 8]).write([0xff, 0x25, 2, 0, 0, 0, 0x90, 0x90]);
                ((at + 8) as *mut usize).write(*target);
            }
        }
        // SAFETY: the page holds only the code just written.
        unsafe { sys::mprotect(self.base, PAGE, libc::PROT_READ | libc::PROT_EXEC) }
            .map_err(|errno| Why { call: "mprotect(trampoline page, PROT_EXEC)", errno })?;
        Ok(self)
    }

    /// The address of trampoline `index`.
    pub(crate) fn slot(&self, index: usize) -> usize {
        self.base + index * TRAMPOLINE
    }
}

/// The first 8 bytes of an entry that jumps to `target`, keeping the 3 bytes
/// behind the jump. `None` where the target is out of reach.
pub(crate) fn jump_word(entry: usize, code: &Prologue, target: usize) -> Option<u64> {
    let distance = i32::try_from(target.wrapping_sub(entry.wrapping_add(5)) as isize).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some(u64::from_le_bytes([0xe9, a, b, c, d, code[5], code[6], code[7]]))
}

/// The first 8 bytes of `code` as one word.
pub(crate) fn first_word(code: &Prologue) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *code;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// Stores `word` over the first 8 bytes at `entry`.
///
/// # Safety
/// `entry` is the entry of a libc function, `word` a whole instruction sequence
/// for any thread that enters it, and the bytes past a boundary in the old code
/// are unchanged or unreachable.
pub(crate) unsafe fn store(entry: usize, word: u64) -> Result<(), Why> {
    if !entry.is_multiple_of(8) {
        return Err(Why { call: "store of the jump: the entry is not 8-byte aligned", errno: 0 });
    }
    let page = entry & !(PAGE - 1);
    let executable = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: the page stays readable and executable for threads that run in it.
    match unsafe { sys::mprotect(page, PAGE, executable | libc::PROT_WRITE) } {
        Ok(()) => {
            // SAFETY: mapped, writable and 8-byte aligned, as checked above. xchg
            // with memory is locked: one atomic store for every other core.
            unsafe {
                core::arch::asm!("xchg qword ptr [{}], {}", in(reg) entry, inout(reg) word => _, options(nostack, preserves_flags));
            }
            // SAFETY: back to what text had before.
            unsafe { sys::mprotect(page, PAGE, executable) }
                .map_err(|errno| Why { call: "mprotect(libc text, PROT_READ | PROT_EXEC)", errno })?;
        }
        Err(errno) => write_through_proc(entry, word).map_err(|_| Why {
            call: "mprotect(libc text, PROT_WRITE | PROT_EXEC), and /proc/self/mem refused too",
            errno,
        })?,
    }
    sys::serialise_instruction_streams()
        .map_err(|errno| Why { call: "membarrier(PRIVATE_EXPEDITED_SYNC_CORE)", errno })
}

/// Where writable text is denied: the kernel's own copy of one aligned word.
fn write_through_proc(entry: usize, word: u64) -> Result<(), ()> {
    // SAFETY: a constant path; the descriptor is closed below.
    let fd = unsafe { libc::open(c"/proc/self/mem".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(());
    }
    // SAFETY: 8 bytes from a local; the kernel checks the target.
    let written = unsafe { libc::pwrite(fd, (&raw const word).cast(), 8, entry as libc::off_t) };
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
    if written == 8 { Ok(()) } else { Err(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_of_every_known_patcher_are_decoded() {
        let entry = 0x7f00_0000_1000;
        let mut code: Prologue = [0xcc; 16];
        let word = jump_word(entry, &code, 0x7f00_0100_0000).unwrap();
        code[..8].copy_from_slice(&word.to_le_bytes());
        assert_eq!(jump_target(entry, &code), Some(0x7f00_0100_0000));
        let open_mpi = [0x49, 0xbb, 8, 7, 6, 5, 4, 3, 2, 1, 0x41, 0xff, 0xe3, 0, 0, 0];
        assert_eq!(jump_target(entry, &open_mpi), Some(0x0102_0304_0506_0708));
        let ucx = [0x48, 0xb8, 8, 7, 6, 5, 4, 3, 2, 1, 0xff, 0xe0, 0, 0, 0, 0];
        assert_eq!(jump_target(entry, &ucx), Some(0x0102_0304_0506_0708));
        let plain = [0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05, 0x48, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(jump_target(entry, &plain), None);
        assert!(!covers_boundary(&plain));
    }

    #[test]
    fn a_target_out_of_reach_is_refused() {
        assert_eq!(jump_word(0x7f00_0000_0000, &[0; 16], 0x5500_0000_0000), None);
    }
}
