//! What an `svc` instruction's number is. Instructions are words, so a look back finds what loads it.

use super::number::Number;
use pinyard_hooks::sys::MARK;

/// `svc 0`
pub(super) const SYSTEM_CALL: [u8; 4] = 0xd400_0001_u32.to_le_bytes();
/// How far before the instruction the number is looked for.
pub(super) const BEFORE: usize = 48;

/// `movz xzr, low; movz xzr, high, lsl 16`: the mark of pinyard's own instructions, behind them.
pub(super) fn own() -> Vec<u8> {
    let halves = [0xd280_001f | (MARK & 0xffff) << 5, 0xd2a0_001f | MARK >> 16 << 5];
    halves.iter().flat_map(|half| half.to_le_bytes()).collect()
}

/// What the last instruction in `BEFORE` bytes does that writes register 8.
pub(super) fn number(text: &[u8], at: usize) -> Option<Number> {
    let (_, words) = text.get(at.saturating_sub(BEFORE)..at)?.as_rchunks::<4>();
    let last = words.iter().rev().find_map(|word| written(u32::from_le_bytes(*word)));
    Some(last.unwrap_or(Number::Computed))
}

/// What the instruction writes to register 8, if it does by one of these forms.
fn written(word: u32) -> Option<Number> {
    // `movz w8, imm`, `movz x8, imm`
    if word & 0x7fe0_001f == 0x5280_0008 {
        return Some(Number::Is(word >> 5 & 0xffff));
    }
    // `mov w8, wN`, `mov x8, xN`; `uxtw x8, wN`; `sxtw x8, wN`
    let moved = match (word & 0x7fe0_ffff, word & 0xffff_fc1f) {
        (0x2a00_03e8, _) => Some(word >> 16 & 31),
        (_, 0xd340_7c08 | 0x9340_7c08) => Some(word >> 5 & 31),
        _ => None,
    };
    if let Some(from) = moved {
        // As on x86-64: compilers keep constants in other registers.
        return Some(if matches!(from, 0 | 1 | 3) { Number::Passed } else { Number::Computed });
    }
    // `ldr x8, [sp, …]`, `ldr w8, [sp, …]`, `ldrsw x8, [sp, …]`, and by the frame pointer: a variable.
    let loads = matches!(word & 0xffc0_001f, 0xf940_0008 | 0xb940_0008 | 0xb980_0008);
    (loads && matches!(word >> 5 & 31, 29 | 31)).then_some(Number::Passed)
}

#[cfg(test)]
mod tests {
    use super::super::raw_call as raw_call_from;
    use super::*;

    fn raw_call(text: &[u8]) -> Option<(usize, Option<u32>)> {
        raw_call_from(text, 0)
    }

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn what_compilers_write_is_found() {
        // mov x8, #215; mov x0, x1; svc 0
        assert_eq!(raw_call(&code(&[0xd280_1ae8, 0xaa01_03e0, 0xd400_0001])), Some((8, Some(215))));
        assert_eq!(raw_call(&code(&[0x5280_1ae8, 0xd400_0001])), Some((4, Some(215))));
        let glibc = [0xd503_201f, 0x2a00_03e8, 0xaa01_03e0, 0xaa02_03e1, 0xd400_0001];
        assert_eq!(raw_call(&code(&glibc)), Some((16, None)));
        // mov x8, x0; mov x0, x1; svc 0
        assert_eq!(raw_call(&code(&[0xaa00_03e8, 0xaa01_03e0, 0xd400_0001])), Some((8, None)));
        // ldr x8, [sp, 24]; ldr x0, [sp, 16]; svc 0
        assert_eq!(raw_call(&code(&[0xf940_0fe8, 0xf940_0be0, 0xd400_0001])), Some((8, None)));
    }

    #[test]
    fn other_calls_and_our_own_are_passed_over() {
        assert_eq!(raw_call(&code(&[0xd280_0808, 0xd400_0001])), None); // write
        assert_eq!(raw_call(&code(&[0xaa13_03e8, 0xd400_0001])), None); // mov x8, x19
        let call = code(&[0xd280_1ae8, 0xd400_0001]);
        assert_eq!(raw_call(&[&call[..], &own()].concat()), None);
    }
}
