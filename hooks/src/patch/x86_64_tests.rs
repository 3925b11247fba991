//! The ways in which a jump goes in, on code of the tests' own.

use super::*;
use crate::sys;

const PAGE: usize = crate::PAGE_SIZE;
const RETURN_9: [u8; 6] = [0xb8, 9, 0, 0, 0, 0xc3];

/// A page of code with a function at byte 64 and one that returns 9 at 256.
fn page_with(before: &[u8], function: &[u8]) -> (usize, usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh page, filled before it becomes executable.
    unsafe {
        let base = sys::mmap(0, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags).unwrap();
        (base as *mut u8).write_bytes(0xf4, PAGE); // hlt: faults
        let put = |at: usize, bytes: &[u8]| {
            ((base + at) as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        };
        put(64 - before.len(), before);
        put(64, function);
        put(256, &RETURN_9);
        sys::mprotect(base, PAGE, libc::PROT_READ | libc::PROT_EXEC).unwrap();
        (base + 64, base + 256)
    }
}

/// Patches, and calls what was patched.
fn patched(function: Function, entry: usize, target: usize) -> (Patch, i32) {
    // SAFETY: code of the test's own, which takes no arguments.
    unsafe {
        let patch = plan(function, entry, target, false).ok().unwrap();
        super::super::apply(&patch).unwrap();
        assert_eq!(jump_target(entry, &super::super::prologue(entry)), Some(target));
        let call = core::mem::transmute::<usize, extern "C" fn() -> i32>(entry);
        (patch, call())
    }
}

const MOV: [u8; 6] = [0xb8, 7, 0, 0, 0, 0xc3];
const NOP_6: [u8; 7] = [0xc3, 0x66, 0x0f, 0x1f, 0x44, 0, 0];

#[test]
fn a_long_first_instruction_is_replaced_by_one_jump() {
    let (entry, target) = page_with(&[], &MOV);
    let (patch, result) = patched(Function::Munmap, entry, target);
    assert_eq!((patch.word_at, result), (entry, 9));
}

#[test]
fn a_short_one_by_a_jump_through_the_padding() {
    // mov r10d, ecx; mov eax, 7; ret
    let (entry, target) = page_with(&NOP_6, &[0x41, 0x89, 0xca, 0xb8, 7, 0, 0, 0, 0xc3]);
    let (patch, result) = patched(Function::Mmap, entry, target);
    assert_eq!(result, 9);
    assert_eq!((patch.old ^ patch.new) >> 16, 0, "nothing behind the first two bytes changes");
}

#[test]
fn a_jump_of_another_copy_in_the_padding_is_replaced_and_given_back() {
    let short = [0x41, 0x89, 0xca, 0xb8, 7, 0, 0, 0, 0xc3];
    let (entry, theirs) = page_with(&NOP_6, &short);
    let (_, result) = patched(Function::Truncate, entry, theirs);
    assert_eq!(result, 9);
    // The other copy's pads are not ours.
    PADS[Function::Truncate as usize].store(0, Relaxed);
    let ours = entry + 64; // hlt: where it leads is looked at, not run
    // SAFETY: code of the test's own.
    unsafe {
        let patch = plan(Function::Truncate, entry, ours, false).ok().unwrap();
        assert!(patch.word_at < entry, "the entry stays");
        super::super::apply(&patch).unwrap();
        assert_eq!(jump_target(entry, &super::super::prologue(entry)), Some(ours));
        super::super::apply(&Patch { old: patch.new, new: patch.old, ..patch }).unwrap();
        assert_eq!(jump_target(entry, &super::super::prologue(entry)), Some(theirs));
    }
}

#[test]
fn a_landing_pad_stays() {
    let mut code = [0; 10];
    code[..4].copy_from_slice(&ENDBR64);
    code[4..].copy_from_slice(&MOV);
    for (function, before) in [(Function::Mremap, &NOP_6[..]), (Function::Shmdt, &[])] {
        let (entry, target) = page_with(before, &code);
        let (patch, result) = patched(function, entry, target);
        assert_eq!(result, 9);
        // Without padding the 5 bytes cross an 8-byte boundary, under a lock.
        assert_eq!(patch.word_at, if before.is_empty() { entry + 4 } else { entry });
        // SAFETY: the function that was patched.
        assert!(unsafe { super::super::prologue(entry) }.starts_with(&ENDBR64));
    }
}

/// `_dl_debug_state` of a libc built with CET: no store crosses a word.
#[test]
fn an_empty_function_behind_a_landing_pad_jumps_through_its_own_padding() {
    let code = [0xf3, 0x0f, 0x1e, 0xfa, 0xc3, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x90];
    let (entry, target) = page_with(&[], &code);
    for _ in 0..2 {
        let (patch, result) = patched(Function::DlDebugState, entry, target);
        assert_eq!((patch.word_at, result), (entry, 9));
        // SAFETY: code of the test's own.
        unsafe {
            assert!(super::super::prologue(entry).starts_with(&ENDBR64));
            super::super::apply(&Patch { old: patch.new, new: patch.old, ..patch }).unwrap();
            assert_eq!(super::super::prologue(entry)[..5], code[..5], "given back, and taken once more");
        }
    }
}

#[test]
fn what_is_not_safe_is_refused() {
    let refused = |code: &[u8], alone| {
        let (entry, target) = page_with(&[], code);
        // SAFETY: code of the test's own.
        unsafe { plan(Function::Brk, entry, target, alone) }
    };
    let pushes = [0x55, 0x53, 0x41, 0x54, 0x41, 0x55, 0xc3];
    assert!(matches!(refused(&pushes, false), Err(Refusal::OtherThreads(_))));
    assert!(refused(&pushes, true).is_ok());
    let unknown = [0x0f, 0x0b, 0x90, 0x90, 0x90];
    assert!(matches!(refused(&unknown, true), Err(Refusal::Never(_))));
    let (entry, _) = page_with(&[], &MOV);
    // SAFETY: as above.
    let far = unsafe { plan(Function::Brk, entry, entry + (1 << 33), false) };
    assert!(matches!(far, Err(Refusal::Never(_))));
}

#[test]
fn jumps_of_every_known_patcher_are_decoded() {
    let target = |code: &[u8]| decode_jump(0x7f00_0000_1000, code);
    assert_eq!(target(&[0xe9, 0xfb, 0xff, 0xff, 0x00]), Some(0x7f00_0100_1000));
    assert_eq!(target(&[0xeb, 0xfe]), Some(0x7f00_0000_1000));
    let open_mpi = [0x49, 0xbb, 8, 7, 6, 5, 4, 3, 2, 1, 0x41, 0xff, 0xe3, 0, 0, 0];
    assert_eq!(target(&open_mpi), Some(0x0102_0304_0506_0708));
    let ucx = [0x48, 0xb8, 8, 7, 6, 5, 4, 3, 2, 1, 0xff, 0xe0, 0, 0, 0, 0];
    assert_eq!(target(&ucx), Some(0x0102_0304_0506_0708));
    assert_eq!(target(&MOV), None);
}

#[test]
fn padding_is_what_does_nothing_to_its_end() {
    let (entry, _) = page_with(&[], &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x66, 0x90]);
    // SAFETY: the page's own bytes.
    unsafe {
        assert!(is_padding(entry, entry + 12));
        assert!(!is_padding(entry, entry + 11), "ends inside an instruction");
        assert!(!is_padding(entry, entry + 13), "hlt is none");
    }
}

/// As glibc 2.39 of Ubuntu 24.04 begins its functions, behind `endbr64`: built with
/// frame pointers and for indirect-branch tracking.
#[test]
fn the_entries_of_ubuntu_are_known() {
    let entries: [(&str, &[u8], usize); 7] = [
        ("mmap: test r9d, 0xfff", &[0x41, 0xf7, 0xc1, 0xff, 0x0f, 0, 0], 7),
        ("munmap: mov eax, 11", &[0xb8, 0x0b, 0, 0, 0], 5),
        ("mremap: push rbp", &[0x55], 1),
        ("process_madvise: mov r10, rcx", &[0x49, 0x89, 0xca], 3),
        ("syscall: mov rax, rdi", &[0x48, 0x89, 0xf8], 3),
        ("fallocate: cmp byte ptr [rip], 0", &[0x80, 0x3d, 0x35, 0xf7, 0x0e, 0, 0], 7),
        ("sub rsp, 0x50", &[0x48, 0x83, 0xec, 0x50], 4),
    ];
    for (name, code, length) in entries {
        assert_eq!(instruction_length(code), Some(length), "{name}");
    }
    // mmap's: endbr64; test r9d, 0xfff; mov eax, 7; ret
    let mmap = [0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0xf7, 0xc1, 0xff, 0x0f, 0, 0, 0xb8, 7, 0, 0, 0, 0xc3];
    for (function, before) in [(Function::Madvise, &NOP_6[..]), (Function::Shmat, &[])] {
        let (entry, target) = page_with(before, &mmap);
        assert_eq!(patched(function, entry, target).1, 9);
    }
}
