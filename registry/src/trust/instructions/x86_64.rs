//! What a `syscall` instruction's number is, by a decoder.
//!
//! Nothing says where instructions begin; but decoders that begin at any byte soon agree, since few
//! instructions are long. So several begin before the place, and where most of them come to it, it is an
//! instruction, and no part of an address or of a table.

use super::number::Number;
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use pinyard_hooks::sys::MARK;

pub(super) const SYSTEM_CALL: [u8; 2] = [0x0f, 0x05];
/// How far before the instruction decoders begin: these many bytes, and one less each.
pub(super) const BEFORE: usize = 48;
const DECODERS: usize = 16;
/// What a function may change (the ABI's caller-saved registers), by their numbers.
const SCRATCH: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

/// The mark of pinyard's own instructions, behind them.
pub(super) fn own() -> Vec<u8> {
    [0x0f, 0x1f, 0x80].into_iter().chain(MARK.to_le_bytes()).collect()
}

/// What a register has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Number(u32),
    /// What the function was called with, as a `syscall` function is with the number.
    Argument,
    /// A variable of the function's, as everything is without optimisation.
    Variable,
    Other,
}

/// The registers, by their numbers.
struct Registers {
    values: [Value; 16],
    pushed: Option<u32>,
}

fn number_of(register: Register) -> Option<usize> {
    (register.is_gpr64() || register.is_gpr32()).then(|| register.full_register().number())
}

impl Registers {
    /// At the begin of a function. Of its arguments the first, second and fourth count: compilers keep constants
    /// in the others across loops, as of libgomp's futex(2).
    fn at_entry() -> Registers {
        let mut values = [Value::Other; 16];
        for register in [Register::RDI, Register::RSI, Register::RCX] {
            values[register.number()] = Value::Argument;
        }
        Registers { values, pushed: None }
    }

    fn follow(&mut self, code: &Instruction, factory: &mut InstructionInfoFactory) {
        let pushed = self.pushed.take();
        let operands = code.op_count();
        let constant = (operands > 0).then(|| code.try_immediate(operands - 1).ok()).flatten();
        let (into, from) = (number_of(code.op0_register()), number_of(code.op1_register()));
        match (code.mnemonic(), constant, into) {
            (Mnemonic::Push, Some(number), _) => self.pushed = Some(number as u32),
            (Mnemonic::Pop, _, Some(into)) => self.values[into] = pushed.map_or(Value::Other, Value::Number),
            (Mnemonic::Mov, Some(number), Some(into)) => self.values[into] = Value::Number(number as u32),
            (Mnemonic::Xor, _, Some(into)) if from == Some(into) => self.values[into] = Value::Number(0),
            (Mnemonic::Mov | Mnemonic::Movsxd, _, Some(into)) => {
                let is_variable = code.op1_kind() == OpKind::Memory
                    && matches!(code.memory_base(), Register::RBP | Register::RSP);
                let elsewhere = if is_variable { Value::Variable } else { Value::Other };
                self.values[into] = from.map_or(elsewhere, |from| self.values[from]);
            }
            // What follows is reached from elsewhere, or is another function.
            (Mnemonic::Ret | Mnemonic::Jmp | Mnemonic::Ud2 | Mnemonic::Int3 | Mnemonic::Hlt, ..)
            | (Mnemonic::Endbr64, ..) => *self = Registers::at_entry(),
            (Mnemonic::Call | Mnemonic::Syscall, ..) => {
                SCRATCH.iter().for_each(|register| self.values[*register] = Value::Other);
            }
            _ => {
                for used in factory.info(code).used_registers() {
                    if let Some(register) = number_of(used.register().full_register())
                        && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
                    {
                        self.values[register] = Value::Other;
                    }
                }
            }
        }
    }
}

/// What a decoder that begins at `start` finds in the accumulator at `at`, if an instruction begins there.
fn accumulator(text: &[u8], start: usize, at: usize) -> Option<Value> {
    let code = text.get(start..at + SYSTEM_CALL.len())?;
    let mut decoder = Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE);
    let (mut registers, mut factory) = (Registers::at_entry(), InstructionInfoFactory::new());
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        match instruction.ip() as usize {
            ip if ip == at => return Some(registers.values[Register::RAX.number()]),
            ip if ip > at => return None,
            _ if instruction.is_invalid() => registers = Registers::at_entry(),
            _ => registers.follow(&instruction, &mut factory),
        }
    }
    None
}

/// The number of the instruction at `at`, if one begins there.
pub(super) fn number(text: &[u8], at: usize) -> Option<Number> {
    // A text begins with an instruction.
    let starts = at.checked_sub(BEFORE).map_or(0..1, |first| first..first + DECODERS);
    let decoders = starts.len();
    let values: Vec<Value> = starts.filter_map(|start| accumulator(text, start, at)).collect();
    if values.len() * 2 <= decoders {
        return None;
    }
    let votes = |value: &Value| values.iter().filter(|other| *other == value).count();
    Some(match *values.iter().max_by_key(|value| votes(value))? {
        Value::Number(number) => Number::Is(number),
        Value::Argument | Value::Variable => Number::Passed,
        Value::Other => Number::Computed,
    })
}

#[cfg(all(test, not(loom)))]
#[path = "compared.rs"]
mod compared;

#[cfg(test)]
mod tests {
    use super::super::raw_call as raw_call_from;
    use super::*;

    fn raw_call(text: &[u8]) -> Option<(usize, Option<u32>)> {
        raw_call_from(text, 0)
    }

    #[test]
    fn what_compilers_write_is_found() {
        let munmap = [0xb8, 0x0b, 0, 0, 0, 0x48, 0x89, 0xdf, 0x0f, 0x05, 0xc3];
        assert_eq!(raw_call(&munmap), Some((8, Some(11))));
        let go = [0x48, 0xc7, 0xc0, 0x1c, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(raw_call(&go), Some((7, Some(28))));
        let small = [0x6a, 0x19, 0x58, 0x0f, 0x05];
        assert_eq!(raw_call(&small), Some((3, Some(25))));
        // mov ebx, 11; mov eax, ebx
        let copied = [0xbb, 0x0b, 0, 0, 0, 0x89, 0xd8, 0x0f, 0x05];
        assert_eq!(raw_call(&copied), Some((7, Some(11))));
    }

    /// As gcc and clang write `long f(long number, long a, ...)`, with and without optimisation.
    #[test]
    fn functions_that_take_the_number_are_found() {
        // endbr64; mov rax, rdi; mov rdi, rsi; syscall; ret
        let one = [0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x0f, 0x05, 0xc3];
        assert_eq!(raw_call(&one), Some((10, None)));
        // lea rdi, [rip]; jmp; then mov rax, rdi; mov rdi, rsi; mov rsi, rdx; syscall
        let two =
            [0x48, 0x8d, 0x3d, 0, 0, 0, 0, 0xeb, 0, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6];
        assert_eq!(raw_call(&[&two[..], &SYSTEM_CALL].concat()), Some((18, None)));
        // push rbp; mov rbp, rsp; mov [rbp-24], rdi; mov [rbp-32], rsi; mov rax, [rbp-24]; mov rdi, [rbp-32]
        let plain = [
            0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0x7d, 0xe8, 0x48, 0x89, 0x75, 0xe0, 0x48, 0x8b, 0x45, 0xe8,
            0x48, 0x8b, 0x7d, 0xe0,
        ];
        assert_eq!(raw_call(&[&plain[..], &SYSTEM_CALL].concat()), Some((20, None)));
    }

    #[test]
    fn other_calls_and_our_own_are_passed_over() {
        let write = [0xb8, 1, 0, 0, 0, 0x0f, 0x05];
        assert_eq!(raw_call(&write), None);
        // mov eax, ebx: as libgomp keeps the number of futex(2).
        assert_eq!(raw_call(&[0x89, 0xd8, 0x0f, 0x05]), None);
        let mut ours = [&[0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05][..], &own()].concat();
        assert_eq!(raw_call(&ours), None);
        ours.pop();
        assert_eq!(raw_call(&ours), Some((5, Some(11))));
    }

    /// `mov r8d, 25; xor edi, edi; call [rip + 0x50f48]; jmp …`
    #[test]
    fn a_displacement_is_no_call() {
        let code =
            [0x41, 0xb8, 0x19, 0, 0, 0, 0x31, 0xff, 0xff, 0x15, 0x48, 0x0f, 0x05, 0x00, 0xe9, 0xf4, 1, 0, 0];
        assert_eq!(raw_call(&code), None);
        // mov eax, 25; mov edx, 0x50f
        assert_eq!(raw_call(&[0xb8, 0x19, 0, 0, 0, 0xba, 0x0f, 0x05, 0, 0]), None);
    }
}
