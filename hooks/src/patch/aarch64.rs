//! aarch64: instructions of 4 bytes, so no jump ever covers a boundary.
//!
//! A `b` to the trampoline (within 128 MiB) takes the place of the first
//! instruction, behind a `bti c` where there is one: that is what indirect calls
//! must land on. Caches are cleaned after our own stores (`dc cvau`, `ic ivau`);
//! the kernel does it for `/proc/thread-self/mem`.
//!
//! While other threads run it, only a nop or a branch may become a branch (Arm ARM
//! B2.2.5, concurrent modification and execution of instructions). glibc's system
//! calls partly begin with a nop. Whatever else is replaced beside other threads
//! is reported as such: processors fetch aligned words whole, and UCX, Open MPI
//! and libfabric count on it, but nobody has promised it. Install early.

use super::{Patch, Prologue, Refusal, overlay};
use crate::report::{Function, Why};
use core::arch::asm;

/// How far from libc the trampolines may lie: `b` reaches 128 MiB.
pub(super) const REACH: usize = 120 << 20;

const BTI_C: u32 = 0xd503_245f;
const PACIASP: u32 = 0xd503_233f;
const PACIBSP: u32 = 0xd503_237f;
const NOP: u32 = 0xd503_201f;
const B: u32 = 0x1400_0000;
const LDR_X16_PC: u32 = 0x5800_0010;
const BR_X16: u32 = 0xd61f_0200;
const BRK: u32 = 0xd420_0000;

/// # Safety
/// 8 bytes at `at` are readable and lie in one cache line.
pub(super) unsafe fn load_word(at: usize) -> u64 {
    let word;
    // SAFETY: a load of readable memory.
    unsafe {
        asm!("ldr {}, [{}]", out(reg) word, in(reg) at, options(nostack, readonly, preserves_flags));
    }
    word
}

/// # Safety
/// 4 bytes at `at` are readable text.
unsafe fn load_instruction(at: usize) -> u32 {
    let word: u32;
    // SAFETY: a load of readable memory.
    unsafe {
        asm!("ldr {:w}, [{}]", out(reg) word, in(reg) at, options(nostack, readonly, preserves_flags));
    }
    word
}

/// Stores `new` over `old`, unless something else stands there.
///
/// # Safety
/// 8 writable bytes at a multiple of 8.
pub(super) unsafe fn replace_word(at: usize, old: u64, new: u64) -> bool {
    let mut found: u64;
    // SAFETY: an exclusive pair on aligned memory: one store for every other core.
    unsafe {
        asm!(
            "2: ldaxr {found}, [{at}]",
            "cmp {found}, {old}",
            "b.ne 3f",
            "stlxr {failed:w}, {new}, [{at}]",
            "cbnz {failed:w}, 2b",
            "3:",
            at = in(reg) at, old = in(reg) old, new = in(reg) new,
            found = out(reg) found, failed = out(reg) _,
            options(nostack)
        );
    }
    code_was_written(at, size_of::<u64>());
    found == old
}

/// Makes instruction fetches see what was stored to `at..at + len`.
pub(super) fn code_was_written(at: usize, len: usize) {
    let types: usize;
    // SAFETY: reading CTR_EL0; the maintenance instructions take any address that
    // is mapped, which the caller's range is, and change no contents.
    unsafe {
        asm!("mrs {}, ctr_el0", out(reg) types, options(nomem, nostack, preserves_flags));
        // Log2 of the line sizes, in words of 4 bytes: DminLine and IminLine.
        let (data, code) = (4 << (types >> 16 & 0xf), 4 << (types & 0xf));
        for line in (at & !(data - 1)..at + len).step_by(data) {
            asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags));
        }
        asm!("dsb ish", options(nostack, preserves_flags));
        for line in (at & !(code - 1)..at + len).step_by(code) {
            asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags));
        }
        asm!("dsb ish", "isb", options(nostack, preserves_flags));
    }
}

/// `ldr x16, [word]; br x16`.
pub(super) fn jump_through(at: usize, word: usize) -> [u8; 16] {
    let distance = (word.wrapping_sub(at) >> 2) as u32 & 0x7_ffff;
    let mut code = [0; 16];
    let instructions = [LDR_X16_PC | distance << 5, BR_X16, BRK, BRK];
    for (to, from) in code.iter_mut().zip(instructions.iter().flat_map(|one| one.to_le_bytes())) {
        *to = from;
    }
    code
}

/// # Safety
/// `entry` is the entry of a function in a loaded object.
pub(super) unsafe fn jump_target(entry: usize, _: &Prologue) -> Option<usize> {
    // SAFETY: the first instructions of a function, or of padding behind it.
    let at = |index: usize| unsafe { load_instruction(entry + 4 * index) };
    let first = (at(0) == BTI_C) as usize;
    decode_jump(entry + 4 * first, [0, 1, 2, 3, 4].map(|index| at(first + index)))
}

/// Known shapes: `b`; `ldr x, .+8; br x`; and `movz`, three `movk`, `br`.
fn decode_jump(at: usize, code: [u32; 5]) -> Option<usize> {
    let [first, second, third, fourth, fifth] = code;
    let branches_to = |instruction: u32, register: u32| instruction == 0xd61f_0000 | register << 5;
    let register = first & 0x1f;
    if first >> 26 == B >> 26 {
        let words = ((first << 6) as i32 >> 6) as isize;
        return Some(at.wrapping_add_signed(words * 4));
    }
    if first & !0x1f == 0x5800_0040 && branches_to(second, register) {
        return Some(third as usize | (fourth as usize) << 32);
    }
    let moves = [first, second, third, fourth];
    if first & 0xff80_001f == 0xd280_0000 | register && branches_to(fifth, register) {
        let mut target = 0;
        for (index, one) in moves.into_iter().enumerate() {
            if index > 0 && one & 0xff80_001f != 0xf280_0000 | register {
                return None;
            }
            target |= ((one >> 5 & 0xffff) as usize) << (16 * (one >> 21 & 3));
        }
        return Some(target);
    }
    None
}

/// # Safety
/// As [`jump_target`]; `target` as `put_in`'s.
pub(super) unsafe fn plan(_: Function, entry: usize, target: usize, _: bool) -> Result<Patch, Refusal> {
    let never = |call| Err(Refusal::Never(Why { call, errno: 0 }));
    // SAFETY: passed on to the caller.
    let first = unsafe { load_instruction(entry) };
    if first == PACIASP || first == PACIBSP {
        return never(
            "not patched: the entry begins with paciasp, which is its landing pad and cannot be kept",
        );
    }
    let at = if first == BTI_C { entry + 4 } else { entry };
    let distance = target.wrapping_sub(at) as isize;
    if !(-(1 << 27)..1 << 27).contains(&distance) {
        return never("not patched: the trampoline page is out of reach of this entry");
    }
    // SAFETY: the function's own text.
    let replaced = unsafe { load_instruction(at) };
    let jump = B | (distance >> 2) as u32 & 0x3ff_ffff;
    let word_at = at & !7;
    // SAFETY: an aligned word of the function's text.
    let old = unsafe { load_word(word_at) };
    let promised = replaced == NOP || replaced >> 26 == B >> 26;
    Ok(Patch { word_at, old, new: overlay(old, at - word_at, &jump.to_le_bytes()), promised })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    const PAGE: usize = crate::PAGE_SIZE;
    const MOV_W0_7: u32 = 0x5280_00e0;
    const MOV_W0_9: u32 = 0x5280_0120;
    const RET: u32 = 0xd65f_03c0;

    /// A page of code with `function` at byte 64 and one that returns 9 at 256.
    fn page_with(function: &[u32]) -> (usize, usize) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh page, filled before it becomes executable.
        unsafe {
            let base = sys::mmap(0, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags).unwrap();
            let put = |at: usize, code: &[u32]| {
                ((base + at) as *mut u32).copy_from_nonoverlapping(code.as_ptr(), code.len());
            };
            put(64, function);
            put(256, &[MOV_W0_9, RET]);
            sys::mprotect(base, PAGE, libc::PROT_READ | libc::PROT_EXEC).unwrap();
            code_was_written(base, PAGE);
            (base + 64, base + 256)
        }
    }

    #[test]
    fn the_first_instruction_is_replaced_behind_a_landing_pad() {
        let functions = [
            &[MOV_W0_7, RET][..],
            &[NOP, MOV_W0_7, RET],
            &[BTI_C, MOV_W0_7, RET],
            &[BTI_C, NOP, MOV_W0_7, RET],
        ];
        for function in functions {
            let (entry, target) = page_with(function);
            // SAFETY: code of the test's own, which takes no arguments.
            unsafe {
                let call = core::mem::transmute::<usize, extern "C" fn() -> i32>(entry);
                assert_eq!(call(), 7);
                let patch = plan(Function::Munmap, entry, target, false).ok().unwrap();
                assert_eq!(patch.promised, function.contains(&NOP));
                super::super::apply(&patch).unwrap();
                assert_eq!(jump_target(entry, &super::super::prologue(entry)), Some(target));
                assert_eq!(call(), 9);
                assert_eq!(load_instruction(entry) == BTI_C, function.contains(&BTI_C));
            }
        }
    }

    #[test]
    fn what_is_not_safe_is_refused() {
        let (entry, target) = page_with(&[PACIASP, MOV_W0_7, RET]);
        // SAFETY: code of the test's own.
        unsafe {
            assert!(matches!(plan(Function::Brk, entry, target, true), Err(Refusal::Never(_))));
            let (entry, target) = page_with(&[MOV_W0_7, RET]);
            assert!(matches!(plan(Function::Brk, entry, target + (1 << 28), true), Err(Refusal::Never(_))));
        }
    }

    #[test]
    fn jumps_of_every_known_patcher_are_decoded() {
        let at = 0x7f00_0000_1000;
        assert_eq!(decode_jump(at, [B | 0x3ff_ffff, 0, 0, 0, 0]), Some(at - 4));
        let literal = [0x5800_0051, 0xd61f_0220, 0x0403_0201, 0x0807_0605, 0]; // ldr x17, .+8; br x17
        assert_eq!(decode_jump(at, literal), Some(0x0807_0605_0403_0201));
        // movz x15, 1; movk x15, 2, lsl 16; movk x15, 3, lsl 32; movk x15, 4, lsl 48; br x15
        let moves = [0xd280_002f, 0xf2a0_004f, 0xf2c0_006f, 0xf2e0_008f, 0xd61f_01e0];
        assert_eq!(decode_jump(at, moves), Some(0x0004_0003_0002_0001));
        assert_eq!(decode_jump(at, [MOV_W0_7, RET, 0, 0, 0]), None);
    }
}
