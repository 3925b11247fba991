//! x86-64: instructions of different lengths.
//!
//! A jump to the trampoline takes 5 bytes. Where the first instruction is at least
//! as long (glibc's `mov eax, number`), it takes that instruction's place. Where
//! it is shorter, a thread may stand behind it, inside the 5 bytes: then a 2-byte
//! jump takes its place, to a 5-byte one in the padding between functions, which
//! nobody runs. An entry that begins with `endbr64` keeps it, and what follows is
//! the first instruction. What is not recognised is not touched.

use super::{Patch, Prologue, Refusal, overlay};
use crate::libc_functions;
use crate::report::{Function, Why};
use core::arch::asm;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How far from libc the trampolines may lie: `jmp rel32` reaches 2 GiB.
pub(super) const REACH: usize = 1 << 30;

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
const NEAR: usize = 5;
const SHORT: usize = 2;
/// What one store changes.
const WORD: usize = 8;
/// Functions start at multiples of this; the gaps before are padding.
const ALIGNMENT: usize = 16;

/// The padding that each function's short jump uses, 0 for none.
static PADS: [AtomicUsize; Function::COUNT] = [const { AtomicUsize::new(0) }; Function::COUNT];

/// # Safety
/// 8 bytes at `at` are readable and lie in one cache line.
pub(super) unsafe fn load_word(at: usize) -> u64 {
    let word;
    // SAFETY: a load of readable memory.
    unsafe {
        asm!("mov {}, qword ptr [{}]", out(reg) word, in(reg) at, options(nostack, readonly, preserves_flags));
    }
    word
}

/// Stores `new` over `old`, unless something else stands there.
///
/// # Safety
/// 8 writable bytes of one cache line.
pub(super) unsafe fn replace_word(at: usize, old: u64, new: u64) -> bool {
    let found: u64;
    // SAFETY: a locked instruction within a cache line is one store for every
    // other core, aligned or not.
    unsafe {
        asm!("lock cmpxchg qword ptr [{}], {}", in(reg) at, in(reg) new, inout("rax") old => found, options(nostack));
    }
    found == old
}

/// Instruction caches follow stores on x86-64.
pub(super) fn code_was_written(_: usize, _: usize) {}

/// `jmp [word]`.
pub(super) fn jump_through(at: usize, word: usize) -> [u8; 16] {
    let [a, b, c, d] = (word.wrapping_sub(at + 6) as u32).to_le_bytes();
    [0xff, 0x25, a, b, c, d, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc]
}

/// Where the first instruction is.
fn first_instruction(entry: usize, code: &Prologue) -> usize {
    if code.starts_with(&ENDBR64) { entry + ENDBR64.len() } else { entry }
}

/// # Safety
/// `code` was found at `entry`, the entry of a function in a loaded object.
pub(super) unsafe fn jump_target(entry: usize, code: &Prologue) -> Option<usize> {
    let at = first_instruction(entry, code);
    let target = decode_jump(at, code.get(at - entry..)?)?;
    if matches!(code.get(at - entry), Some(0xeb)) {
        // A short jump, as ours: on to what stands in the padding.
        // SAFETY: within 129 bytes of a function of libc lies its text.
        let bytes: [u8; NEAR] = core::array::from_fn(|index| unsafe { load_byte(target + index) });
        return decode_jump(target, &bytes).or(Some(target));
    }
    Some(target)
}

/// Known shapes: near and short `jmp`; Open MPI's and libfabric's `movabs r11;
/// jmp r11`; UCX's `movabs rax; jmp rax`; `jmp [rip + 0]`.
fn decode_jump(at: usize, code: &[u8]) -> Option<usize> {
    let word = |from: usize| -> Option<usize> {
        Some(u64::from_le_bytes(code.get(from..from + 8)?.try_into().ok()?) as usize)
    };
    match code {
        [0xe9, a, b, c, d, ..] => {
            let distance = i32::from_le_bytes([*a, *b, *c, *d]) as isize;
            Some(at.wrapping_add(NEAR).wrapping_add_signed(distance))
        }
        [0xeb, distance, ..] => Some(at.wrapping_add(SHORT).wrapping_add_signed(*distance as i8 as isize)),
        [0x49, 0xbb, _, _, _, _, _, _, _, _, 0x41, 0xff, 0xe3, ..] => word(2),
        [0x48, 0xb8, _, _, _, _, _, _, _, _, 0xff, 0xe0, ..] => word(2),
        [0xff, 0x25, 0, 0, 0, 0, ..] => word(6),
        _ => None,
    }
}

/// The length of the first instruction, of those that functions of libc, and
/// patchers' jumps, start with.
fn instruction_length(code: &[u8]) -> Option<usize> {
    match code {
        [0x50..=0x57, ..] => Some(1),                                          // push
        [0x41, 0x50..=0x57, ..] | [0xeb, ..] => Some(2),                       // push r8-r15; jmp short
        [0x31 | 0x33 | 0x84 | 0x85 | 0x89 | 0x8b, 0xc0..=0xff, ..] => Some(2), // xor, test, mov
        [0x40..=0x4f, 0x31 | 0x33 | 0x84 | 0x85 | 0x89 | 0x8b, 0xc0..=0xff, ..] => Some(3),
        [0x83, 0xc0..=0xff, ..] => Some(3), // add, sub, and, cmp of r32, imm8
        [0x40..=0x4f, 0x83, 0xc0..=0xff, ..] => Some(4),
        [0xb8..=0xbf, ..] | [0xe9, ..] => Some(NEAR), // mov r32, imm32; jmp
        [0xff, 0x25, ..] => Some(6),                  // jmp [rip + disp32]
        // The same of imm32, and test
        [0x81, 0xc0..=0xff, ..] | [0xf7, 0xc0..=0xc7, ..] => Some(6),
        [0x40..=0x4f, 0x81, 0xc0..=0xff, ..] | [0x40..=0x4f, 0xf7, 0xc0..=0xc7, ..] => Some(7),
        [0x80 | 0x83, 0x3d, ..] => Some(7), // cmp [rip + disp32], imm8
        [0x48 | 0x49, 0xb8..=0xbf, ..] => Some(10), // movabs
        _ => None,
    }
}

fn never<T>(call: &'static str) -> Result<T, Refusal> {
    Err(Refusal::Never(Why { call, errno: 0 }))
}

/// # Safety
/// As [`jump_target`]; `target` as `put_in`'s.
pub(super) unsafe fn plan(
    function: Function,
    entry: usize,
    target: usize,
    alone: bool,
) -> Result<Patch, Refusal> {
    if !entry.is_multiple_of(ALIGNMENT) {
        return never("not patched: the entry is not 16-byte aligned");
    }
    // SAFETY: passed on to the caller.
    let code = unsafe { super::prologue(entry) };
    let at = first_instruction(entry, &code);
    if code.get(at - entry) == Some(&0xc3) {
        // An empty function: nobody runs what follows its `ret`. Behind an endbr64 no
        // aligned word holds a near jump; the padding that follows does.
        let pad = entry + WORD;
        let is_ours = at != entry && PADS[function as usize].load(Relaxed) == pad;
        // SAFETY: up to the next aligned address lies the function or its padding.
        if is_ours || unsafe { is_padding(at + 1, entry + ALIGNMENT) } {
            if at == entry {
                return near(at, target);
            }
            // SAFETY: as above.
            return unsafe { through(function, at, pad, target) };
        }
    }
    let Some(length) = instruction_length(code.get(at - entry..).unwrap_or_default()) else {
        return never("not patched: the entry's first instruction is not one that is known");
    };
    // A near jump behind an endbr64 crosses an 8-byte boundary: one store only
    // under a lock, so the short one is preferred there.
    if length >= NEAR && at == entry {
        return near(at, target);
    }
    // SAFETY: passed on to the caller.
    if let Some(jump) = unsafe { jump_in_padding(function, at, &code, at - entry) } {
        return near(jump, target);
    }
    // SAFETY: passed on to the caller.
    let pad = if length >= SHORT { unsafe { pad(function, entry, at) } } else { None };
    if let Some(pad) = pad {
        // SAFETY: padding within reach.
        return unsafe { through(function, at, pad, target) };
    }
    if length >= NEAR || alone {
        return near(at, target);
    }
    Err(Refusal::OtherThreads(Why {
        call: "not patched: an instruction boundary lies in the entry's first 5 bytes, no padding is within \
               reach, and other threads run; install earlier",
        errno: 0,
    }))
}

/// A short jump at `at` to the padding at `pad`, which gets a near one.
///
/// # Safety
/// As [`fill_pad`]; `pad` is within reach of a short jump.
unsafe fn through(function: Function, at: usize, pad: usize, target: usize) -> Result<Patch, Refusal> {
    // SAFETY: padding, which nobody runs but through the jump made next.
    unsafe { fill_pad(pad, target) }.map_err(Refusal::Never)?;
    PADS[function as usize].store(pad, Relaxed);
    let distance = pad.wrapping_sub(at + SHORT) as u8;
    Ok(patch(at, &[0xeb, distance]))
}

/// The near jump, not of ours, that the entry's short jump leads to: a second copy
/// of pinyard has taken the padding. It is one instruction and is replaced as one;
/// the entry stays.
///
/// # Safety
/// As [`plan`]; `code` from `offset` on was found at `at`.
unsafe fn jump_in_padding(function: Function, at: usize, code: &Prologue, offset: usize) -> Option<usize> {
    let code = code.get(offset..)?;
    let landing = if code.first() == Some(&0xeb) { decode_jump(at, code)? } else { return None };
    let in_one_word = landing % 8 + NEAR <= 8;
    // SAFETY: within 129 bytes of a function of libc lies its text.
    let is_near = in_one_word && unsafe { load_byte(landing) } == 0xe9;
    (is_near && PADS[function as usize].load(Relaxed) != landing).then_some(landing)
}

fn near(at: usize, target: usize) -> Result<Patch, Refusal> {
    match jump(at, target) {
        Some(bytes) => Ok(patch(at, &bytes)),
        None => never("not patched: the trampoline page is out of reach of this entry"),
    }
}

fn jump(at: usize, target: usize) -> Option<[u8; NEAR]> {
    let distance = i32::try_from(target.wrapping_sub(at.wrapping_add(NEAR)) as isize).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some([0xe9, a, b, c, d])
}

/// `bytes` at `at` as the change of one word: the aligned one where they fit.
fn patch(at: usize, bytes: &[u8]) -> Patch {
    let word_at = if at % 8 + bytes.len() <= 8 { at & !7 } else { at };
    // SAFETY: `at` is at most 4 bytes into a 16-byte aligned entry, or a jump that
    // lies in one aligned word near it: 8 bytes of libc's text, one cache line.
    let old = unsafe { load_word(word_at) };
    Patch { word_at, old, new: overlay(old, at - word_at, bytes), promised: true }
}

/// The last 5 bytes of padding that a short jump at `at` reaches: behind the
/// function's end, or before its entry.
///
/// # Safety
/// As [`plan`].
unsafe fn pad(function: Function, entry: usize, at: usize) -> Option<usize> {
    let known = PADS[function as usize].load(Relaxed);
    if known != 0 {
        return Some(known);
    }
    let reachable = |pad: usize| i8::try_from(pad.wrapping_sub(at + SHORT) as isize).is_ok();
    let behind = libc_functions::end_of(function, entry).and_then(|end| {
        let next = end.next_multiple_of(ALIGNMENT);
        // SAFETY: up to the next aligned address lies libc's text.
        (next - end >= NEAR && unsafe { is_padding(end, next) }).then_some(next - NEAR)
    });
    // What comes before is only known to end where it returns.
    let before = || {
        // SAFETY: before an entry of libc that is not its first lies its text.
        (NEAR..ALIGNMENT).find_map(|gap| unsafe {
            (load_byte(entry - gap - 1) == 0xc3 && is_padding(entry - gap, entry)).then_some(entry - NEAR)
        })
    };
    behind.filter(|&pad| reachable(pad)).or_else(before).filter(|&pad| reachable(pad))
}

/// Makes the padding jump to `target`. Its 5 bytes lie in one aligned word; if they are a jump already, it changes at once.
///
/// # Safety
/// `pad` is padding, or was.
unsafe fn fill_pad(pad: usize, target: usize) -> Result<(), Why> {
    let Some(bytes) = jump(pad, target) else {
        return Err(Why {
            call: "not patched: the trampoline page is out of reach of the padding",
            errno: 0,
        });
    };
    let patch = patch(pad, &bytes);
    // SAFETY: nobody runs padding; a jump of ours is replaced as a whole.
    if patch.old == patch.new { Ok(()) } else { unsafe { super::apply(&patch) } }
}

/// Whether `from..to` is filled with instructions that do nothing.
///
/// # Safety
/// The range, and 8 bytes behind it, are readable text.
unsafe fn is_padding(from: usize, to: usize) -> bool {
    let mut at = from;
    while at < to {
        let start = at;
        // SAFETY: the caller's range.
        unsafe {
            while matches!(load_byte(at), 0x66 | 0x2e) && at - start < 10 {
                at += 1;
            }
            at += match [load_byte(at), load_byte(at + 1), load_byte(at + 2)] {
                [0x90 | 0xcc, ..] => 1,
                [0x0f, 0x1f, 0x00] => 3,
                [0x0f, 0x1f, 0x40] => 4,
                [0x0f, 0x1f, 0x44] => 5,
                [0x0f, 0x1f, 0x80] => 7,
                [0x0f, 0x1f, 0x84] => 8,
                _ => return false,
            };
        }
    }
    at == to
}

/// # Safety
/// `at` is readable text.
unsafe fn load_byte(at: usize) -> u8 {
    let byte;
    // SAFETY: a load of readable memory.
    unsafe {
        asm!("mov {}, byte ptr [{}]", out(reg_byte) byte, in(reg) at, options(nostack, readonly, preserves_flags));
    }
    byte
}

#[cfg(all(test, not(loom)))]
#[path = "x86_64_compared.rs"]
mod compared;
#[cfg(test)]
#[path = "x86_64_tests.rs"]
mod tests;
