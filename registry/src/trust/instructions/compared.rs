//! The search, compared with what a decoder of whole functions finds in the objects of this
//! process.
#![allow(clippy::unwrap_used)]

use super::super::{BEFORE, BEHIND, NUMBERS, raw_call};
use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::collections::BTreeSet;

/// What is in the accumulator.
#[derive(Clone, Copy)]
enum Accumulator {
    /// A constant, and where the instruction that loads it begins.
    Number(u32, usize),
    Unknown,
}

/// Follows one function in the order of its text. A constant does not outlive a call.
struct Follower {
    accumulator: Accumulator,
    /// By the instruction before.
    pushed: Option<u32>,
    factory: InstructionInfoFactory,
}

impl Follower {
    fn new() -> Follower {
        Follower { accumulator: Accumulator::Unknown, pushed: None, factory: InstructionInfoFactory::new() }
    }

    fn follow(&mut self, instruction: &Instruction) {
        let at = instruction.ip() as usize;
        let pushed = self.pushed.take();
        let constant = (instruction.op_count() > 0)
            .then(|| instruction.try_immediate(instruction.op_count() - 1).ok())
            .flatten()
            .map(|value| value as u32);
        let into = instruction.op0_register().full_register();
        match (instruction.mnemonic(), constant) {
            (Mnemonic::Push, Some(number)) => self.pushed = Some(number),
            (Mnemonic::Pop, _) if into == Register::RAX => {
                self.accumulator =
                    pushed.map_or(Accumulator::Unknown, |number| Accumulator::Number(number, at - 2));
            }
            (Mnemonic::Mov, Some(number)) if into == Register::RAX => {
                self.accumulator = Accumulator::Number(number, at);
            }
            (Mnemonic::Call, _) => self.accumulator = Accumulator::Unknown,
            _ => {
                let used = self.factory.info(instruction).used_registers().to_vec();
                let changes = used.iter().any(|register| {
                    register.register().full_register() == Register::RAX
                        && !matches!(register.access(), OpAccess::Read | OpAccess::CondRead)
                });
                if changes {
                    self.accumulator = Accumulator::Unknown;
                }
            }
        }
    }
}

/// The system calls of a file's functions whose number the search should know: where they
/// stand in the text, and the number.
fn calls_of(text: &[u8], functions: impl Iterator<Item = (usize, usize)>) -> BTreeSet<(usize, u32)> {
    let mut calls = BTreeSet::new();
    for (start, len) in functions {
        let Some(code) = text.get(start..start + len) else { continue };
        let mut follower = Follower::new();
        for instruction in &mut Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE) {
            let at = instruction.ip() as usize;
            if let (Mnemonic::Syscall, Accumulator::Number(number, loaded)) =
                (instruction.mnemonic(), follower.accumulator)
                && at - loaded <= BEFORE
                && NUMBERS.contains(&libc::c_long::from(number))
            {
                calls.insert((at, number));
            }
            follower.follow(&instruction);
        }
    }
    calls
}

/// In libc, and in whatever else is loaded here. An object may have such bytes that are no
/// instruction; none has such an instruction that is not found.
#[test]
fn system_calls_that_a_decoder_finds_are_found() {
    let maps = crate::maps::read().unwrap();
    let paths: BTreeSet<_> = crate::maps::mappings(&maps)
        .map(|mapping| mapping.path)
        .filter(|path| path.contains(".so"))
        .collect();
    let mut numbers = BTreeSet::new();
    for path in paths {
        let data = std::fs::read(path).unwrap();
        let file = object::File::parse(&*data).unwrap();
        let section = file.section_by_name(".text").unwrap();
        let text = section.data().unwrap();
        let functions = file.dynamic_symbols().filter(|symbol| symbol.kind() == SymbolKind::Text);
        let functions = functions.filter_map(|symbol| {
            Some((symbol.address().checked_sub(section.address())? as usize, symbol.size() as usize))
        });
        for (at, number) in calls_of(text, functions) {
            let from = at.saturating_sub(BEFORE);
            let window = &text[from..(at + 2 + BEHIND).min(text.len())];
            // Another such call may come before it in the window.
            let found = raw_call(window, 0);
            let right = found.is_some_and(|(place, found)| {
                from + place < at || from + place == at && found.is_none_or(|found| found == number)
            });
            assert!(right, "{path}: call {number} at {at:#x}: {found:?} in {window:x?}");
            numbers.insert(number);
        }
    }
    // Those of libc's own functions: another name for an instruction hides nothing.
    let expected = [libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_shmdt];
    let missing: Vec<_> = expected.iter().filter(|&&call| !numbers.contains(&(call as u32))).collect();
    assert!(missing.is_empty(), "{missing:?} were found in no object: {numbers:?}");
}
