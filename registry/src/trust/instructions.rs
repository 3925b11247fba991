//! System call instructions in machine code, and the numbers that they are made with.

use memchr::memmem::Finder;
use pinyard_hooks::sys::MARK;

/// Calls that take pages away, or make a ring that does. `brk` is left out: a break that
/// others move under malloc's feet would break more than this.
const NUMBERS: [libc::c_long; 12] = [
    libc::SYS_io_uring_setup,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_shmat,
    libc::SYS_shmdt,
    libc::SYS_remap_file_pages,
    libc::SYS_ftruncate,
    libc::SYS_truncate,
    libc::SYS_fallocate,
    libc::SYS_process_madvise,
];

/// How far before the instruction the number is looked for.
pub(super) const BEFORE: usize = 48;
/// The instruction and, behind it, the mark of pinyard's own.
pub(super) const BEHIND: usize = 16;

/// The first system call in `text` that may change a mapping and is not ours: where
/// it is, and its number unless the caller passes it.
pub(super) fn raw_call(text: &[u8]) -> Option<(usize, Option<u32>)> {
    let own = arch::own();
    let calls = Finder::new(&arch::SYSTEM_CALL);
    calls.find_iter(text).find_map(|at| {
        let (before, behind) = text.split_at_checked(at)?;
        let rest = behind.get(arch::SYSTEM_CALL.len()..)?;
        if rest.starts_with(&own) || arch::is_a_number(rest) {
            return None;
        }
        let before = before.get(before.len().saturating_sub(BEFORE)..)?;
        if arch::TAKES_THE_NUMBER.iter().any(|start| before.windows(start.len()).any(|code| code == *start)) {
            return Some((at, None));
        }
        let number = arch::number_loaded(before)?;
        NUMBERS.contains(&libc::c_long::from(number)).then_some((at, Some(number)))
    })
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::MARK;

    pub(super) const SYSTEM_CALL: [u8; 2] = [0x0f, 0x05];
    /// `mov rax, rdi; mov rdi, rsi; mov rsi, rdx; mov rdx, rcx`: the start of every
    /// C library's own `syscall`.
    pub(super) const TAKES_THE_NUMBER: [&[u8]; 1] =
        [&[0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca]];

    pub(super) fn own() -> Vec<u8> {
        [0x0f, 0x1f, 0x80].into_iter().chain(MARK.to_le_bytes()).collect()
    }

    /// Whether the two bytes are the middle of a displacement, and no instruction: a zero
    /// behind them, as in `call [rip + 0x50f48]`, would be `add r/m8, r8`, which nobody
    /// has a use for there.
    pub(super) fn is_a_number(behind: &[u8]) -> bool {
        behind.first() == Some(&0)
    }

    /// The last constant that `code` loads into the accumulator: `mov eax, imm32`
    /// (`b8`), `mov rax, imm32` (`c7 c0`) or `push imm8; pop rax`.
    pub(super) fn number_loaded(code: &[u8]) -> Option<u32> {
        (0..code.len()).rev().find_map(|at| match code.get(at..)? {
            [0xb8, a, b, 0, 0, ..] | [0xc7, 0xc0, a, b, 0, 0, ..] => {
                Some(u32::from(u16::from_le_bytes([*a, *b])))
            }
            [0x6a, number @ 0..=0x7f, 0x58, ..] => Some(u32::from(*number)),
            _ => None,
        })
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use super::MARK;

    /// `svc 0`
    pub(super) const SYSTEM_CALL: [u8; 4] = 0xd400_0001_u32.to_le_bytes();
    /// `mov w8, w0`, `uxtw x8, w0` or `mov x8, x0`, then `mov x0, x1`.
    pub(super) const TAKES_THE_NUMBER: [&[u8]; 3] = [
        &[0xe8, 0x03, 0x00, 0x2a, 0xe0, 0x03, 0x01, 0xaa],
        &[0x08, 0x7c, 0x40, 0xd3, 0xe0, 0x03, 0x01, 0xaa],
        &[0xe8, 0x03, 0x00, 0xaa, 0xe0, 0x03, 0x01, 0xaa],
    ];

    /// `movz xzr, low; movz xzr, high, lsl 16`
    pub(super) fn own() -> Vec<u8> {
        let halves = [0xd280_001f | (MARK & 0xffff) << 5, 0xd2a0_001f | MARK >> 16 << 5];
        halves.iter().flat_map(|half| half.to_le_bytes()).collect()
    }

    /// Instructions are words: a number is in one of them.
    pub(super) fn is_a_number(_: &[u8]) -> bool {
        false
    }

    /// The last `movz w8, imm` or `movz x8, imm`.
    pub(super) fn number_loaded(code: &[u8]) -> Option<u32> {
        let (_, words) = code.as_rchunks::<4>();
        words
            .iter()
            .rev()
            .map(|word| u32::from_le_bytes(*word))
            .find_map(|word| (word & 0x7fe0_001f == 0x5280_0008).then_some(word >> 5 & 0xffff))
    }
}

#[cfg(all(test, target_arch = "x86_64", not(loom)))]
#[path = "instructions_compared.rs"]
mod compared;

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn what_compilers_write_is_found() {
        let munmap = [0xb8, 0x0b, 0, 0, 0, 0x48, 0x89, 0xdf, 0x0f, 0x05, 0xc3];
        assert_eq!(raw_call(&munmap), Some((8, Some(11))));
        let go = [0x48, 0xc7, 0xc0, 0x1c, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(raw_call(&go), Some((7, Some(28))));
        let small = [0x6a, 0x19, 0x58, 0x0f, 0x05];
        assert_eq!(raw_call(&small), Some((3, Some(25))));
        let musl = [arch::TAKES_THE_NUMBER[0], &[0x4d, 0x89, 0xc2, 0x4d, 0x89, 0xc8], &arch::SYSTEM_CALL];
        assert_eq!(raw_call(&musl.concat()), Some((18, None)));
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn what_compilers_write_is_found() {
        let code = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        // mov x8, #215; mov x0, x1; svc 0
        assert_eq!(raw_call(&code(&[0xd280_1ae8, 0xaa01_03e0, 0xd400_0001])), Some((8, Some(215))));
        assert_eq!(raw_call(&code(&[0x5280_1ae8, 0xd400_0001])), Some((4, Some(215))));
        let glibc = [0xd503_201f, 0x2a00_03e8, 0xaa01_03e0, 0xaa02_03e1, 0xd400_0001];
        assert_eq!(raw_call(&code(&glibc)), Some((16, None)));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn other_calls_and_our_own_are_passed_over() {
        let write = [0xb8, 1, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(raw_call(&write), None);
        let mut ours = [&[0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05][..], &arch::own()].concat();
        assert_eq!(raw_call(&ours), None);
        ours.pop();
        assert_eq!(raw_call(&ours), Some((5, Some(11))));
    }

    /// `mov r8d, 25; xor edi, edi; call [rip + 0x50f48]; jmp …`
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_displacement_is_no_call() {
        let code =
            [0x41, 0xb8, 0x19, 0, 0, 0, 0x31, 0xff, 0xff, 0x15, 0x48, 0x0f, 0x05, 0x00, 0xe9, 0xf4, 1, 0, 0];
        assert_eq!(raw_call(&code), None);
        assert_eq!(raw_call(&[&code[..13], &[0xc3]].concat()), Some((11, Some(25))));
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn other_calls_and_our_own_are_passed_over() {
        let code = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(raw_call(&code(&[0xd280_0808, 0xd400_0001])), None); // write
        let call = code(&[0xd280_1ae8, 0xd400_0001]);
        assert_eq!(raw_call(&[&call[..], &arch::own()].concat()), None);
    }
}
