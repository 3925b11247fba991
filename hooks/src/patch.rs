//! Replacing the first instruction of a libc function while other threads run it.
//!
//! What makes it safe, whatever the other threads do:
//!
//! - only whole instructions are replaced: no thread can be, or return, behind
//!   the first byte of what changes. How that is had differs by architecture;
//!   where it cannot be had, the entry is left alone and the reason is reported;
//! - the new bytes appear with one store ([`text`]), and every thread's
//!   instruction stream is serialised before the patch counts as made;
//! - the jump leads to a trampoline that is never unmapped ([`trampolines`]): what
//!   has been jumped to once stays a way to the real call for ever;
//! - what is taken out again is taken out only where our bytes still stand.
#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
#[path = "patch/aarch64.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "patch/x86_64.rs"]
mod arch;
mod symbol;
mod text;
mod trampolines;

use crate::report::{Function, ModuleName, Owner, Why};
use crate::sys;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

pub(crate) use symbol::{end_of, module_of};
pub(crate) use trampolines::{Mode, current, is_ours, is_slot, map, renew, set_mode};

const COUNT: usize = Function::COUNT;

/// The first 16 bytes of a function.
pub(crate) type Prologue = [u8; 16];

/// How a jump goes into an entry: the word that holds it, as it was and as it
/// will be.
#[derive(Clone, Copy)]
struct Patch {
    word_at: usize,
    old: u64,
    new: u64,
    /// The architecture promises that other threads run what was there, or what
    /// is there.
    promised: bool,
}

/// The last patch of each function: what [`take_out`] takes back.
static WORD_AT: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];
static OLD: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];
static NEW: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];

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

/// One 8-byte load of text. An instruction of its own, because text is not
/// memory that the language knows, nor any sanitizer.
///
/// # Safety
/// 8 bytes at `at` are readable text of one cache line.
pub(crate) unsafe fn load_word(at: usize) -> u64 {
    // SAFETY: passed on to the caller.
    unsafe { arch::load_word(at) }
}

/// Where a jump at the start of the function at `entry` leads.
///
/// # Safety
/// As [`prologue`].
pub(crate) unsafe fn jump_target(entry: usize) -> Option<usize> {
    // SAFETY: passed on to the caller.
    unsafe { arch::jump_target(entry, &prologue(entry)) }
}

/// Whose code a call of the function at `entry` reaches. The name of another's object is
/// asked for outside the installer's lock.
///
/// # Safety
/// As [`prologue`].
pub(crate) unsafe fn owner(entry: usize) -> Owner {
    // SAFETY: passed on to the caller.
    match unsafe { jump_target(entry) } {
        None => Owner::Libc,
        Some(target) if is_ours(target) => Owner::Pinyard,
        Some(_) => Owner::Module(ModuleName::UNKNOWN),
    }
}

/// What stands in the way of a safe patch.
pub(crate) enum Refusal {
    /// There is none that is safe while other threads run.
    #[cfg_attr(target_arch = "aarch64", allow(dead_code))]
    OtherThreads(Why),
    /// There is none at all.
    Never(Why),
}

/// Makes the function at `entry` jump to `target`. `alone` says that no other
/// thread can be in the function. Whether an instruction boundary was covered.
///
/// # Safety
/// `entry` is the entry of `function` in libc; `target` is ready to be jumped to
/// with that function's arguments, and stays so for ever.
pub(crate) unsafe fn put_in(
    function: Function,
    entry: usize,
    target: usize,
    alone: impl Fn() -> bool,
) -> Result<bool, Why> {
    // SAFETY: `entry` is a function of libc.
    let mut planned = unsafe { arch::plan(function, entry, target, false) };
    let mut boundary = false;
    if let Err(Refusal::OtherThreads(_)) = planned
        && alone()
    {
        boundary = true;
        // SAFETY: as above.
        planned = unsafe { arch::plan(function, entry, target, true) };
    }
    let patch = planned.map_err(|(Refusal::OtherThreads(why) | Refusal::Never(why))| why)?;
    boundary |= !patch.promised && !alone();
    let index = function as usize;
    // Relaxed: only read and written under the installer's lock. Before the store, so
    // that what is half done can be taken out.
    WORD_AT[index].store(patch.word_at, Relaxed);
    OLD[index].store(patch.old, Relaxed);
    NEW[index].store(patch.new, Relaxed);
    // SAFETY: `plan` has looked at every instruction that the word changes.
    unsafe { apply(&patch) }?;
    Ok(boundary)
}

/// Puts back what stood at the entry of `function` before our last [`put_in`], if
/// our bytes still stand there. What we had jumped over is whole code: whoever
/// owned it then still does.
pub(crate) fn take_out(function: Function) -> Result<(), Why> {
    let index = function as usize;
    let word_at = WORD_AT[index].load(Relaxed);
    if word_at == 0 {
        return Err(Why { call: "nothing was put in", errno: 0 });
    }
    let (old, new) = (NEW[index].load(Relaxed), OLD[index].load(Relaxed));
    // SAFETY: a word of libc's text that `put_in` has written: the inverse of
    // its change replaces one whole instruction (our jump) in turn.
    unsafe { apply(&Patch { word_at, old, new, promised: true }) }
}

/// # Safety
/// For any thread, the bytes that differ are one whole instruction before and
/// after, or are reached by none.
unsafe fn apply(patch: &Patch) -> Result<(), Why> {
    // SAFETY: passed on to the caller.
    unsafe { text::replace(patch) }?;
    serialise()
}

/// Serialises every thread's instruction stream. To be asked before the first patch as
/// well: where it is refused, nothing may be changed.
pub(crate) fn serialise() -> Result<(), Why> {
    sys::serialise_instruction_streams()
        .map_err(|errno| Why { call: "not patched: membarrier(PRIVATE_EXPEDITED_SYNC_CORE)", errno })
}

/// Overwrites `bytes` of `word` from byte `at`.
fn overlay(word: u64, at: usize, bytes: &[u8]) -> u64 {
    let mut all = word.to_le_bytes();
    for (to, from) in all.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
    u64::from_le_bytes(all)
}

/// The first 8 bytes of `code` as one word.
pub(crate) fn first_word(code: &Prologue) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *code;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}
