//! What the decoder knows, compared with what another one says of this machine's libc.
#![allow(clippy::unwrap_used)]

use super::*;
use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
extern crate std;
use std::vec::Vec;

/// How much of each function's start is looked at.
const START: usize = 32;

/// libc's text as its file has it, and the offsets of its functions in it.
fn libc_text() -> (Vec<u8>, Vec<usize>) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path =
        maps.lines().find_map(|line| Some(&line[line.find('/')?..]).filter(|path| path.contains("libc.so")));
    let data = std::fs::read(path.unwrap()).unwrap();
    let file = object::File::parse(&*data).unwrap();
    let text = file.section_by_name(".text").unwrap();
    let functions = file.dynamic_symbols().filter(|symbol| symbol.kind() == SymbolKind::Text);
    let offsets = functions.filter_map(|symbol| symbol.address().checked_sub(text.address()));
    let mut offsets: Vec<usize> =
        offsets.map(|at| at as usize).filter(|&at| at + 2 * START < text.size() as usize).collect();
    offsets.sort_unstable();
    offsets.dedup();
    (text.data().unwrap().to_vec(), offsets)
}

/// It may refuse an instruction, and is never wrong about one that it takes.
#[test]
fn the_lengths_of_instructions_are_another_decoders() {
    let (text, functions) = libc_text();
    let (mut known, mut refused, mut kinds) = (0, 0, std::collections::BTreeSet::new());
    for &entry in &functions {
        let code = &text[entry..entry + 2 * START];
        let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
        while decoder.position() < START {
            let at = decoder.position();
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                break;
            }
            match instruction_length(&code[at..]) {
                Some(length) => {
                    assert_eq!(length, instruction.len(), "{instruction:?} {:x?}", &code[at..at + 16]);
                    known += 1;
                    kinds.insert(instruction.code());
                }
                None => refused += 1,
            }
        }
    }
    assert!(functions.len() > 1000 && known > 2000 && kinds.len() > 20, "{known} of {} kinds", kinds.len());
    // Otherwise the loop has decoded nothing but what is known.
    assert!(refused > 1000, "{refused} refused");
}

/// What is taken for padding does nothing: a jump there changes what nobody runs.
#[test]
fn what_is_taken_for_padding_does_nothing() {
    let (text, functions) = libc_text();
    let mut paddings = 0;
    for &entry in &functions {
        for from in entry.saturating_sub(ALIGNMENT - 1)..entry {
            // SAFETY: `from..entry` and more behind it lie in the copy of the text.
            if !unsafe { is_padding(text.as_ptr() as usize + from, text.as_ptr() as usize + entry) } {
                continue;
            }
            paddings += 1;
            let mut decoder = Decoder::with_ip(64, &text[from..entry], 0, DecoderOptions::NONE);
            while decoder.can_decode() {
                let instruction = decoder.decode();
                let does_nothing = matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
                    || instruction.code() == Code::Nopd;
                assert!(does_nothing, "{instruction:?} in {:x?}", &text[from..entry]);
            }
        }
    }
    assert!(paddings > 1000, "{paddings} paddings");
}
