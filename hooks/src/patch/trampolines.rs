//! The pages that patched entries jump to.
//!
//! A page of code near libc, whose slots each jump through a word of a page of
//! data behind it. The code never changes once it is executable; switching a slot
//! is one store of its word. Nothing is ever unmapped or reused: a thread may be
//! on a slot at any time, and another patcher may have kept a copy of our jump.
//!
//! A function gets a new slot (a generation) each time we go in front of
//! another's hook. The slot before then leads to the real call past that hook:
//! whoever saved our first jump as "the original" reaches the kernel, not us again,
//! and so no two patchers ever call each other in a ring.

use super::{COUNT, Function, Why, arch};
use crate::{PAGE_SIZE, entry, passthrough, sys};
use core::sync::atomic::{AtomicUsize, Ordering::*};

/// Between two slots: a patcher that follows a jump writes up to 13 bytes over its target.
const SLOT: usize = 16;
/// How often we go in front of somebody, per function, before we give up.
const GENERATIONS: usize = PAGE_SIZE / SLOT / COUNT;

/// The code page, 0 before [`map`]. Written once, under the installer's lock.
static BASE: AtomicUsize = AtomicUsize::new(0);
static GENERATION: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

/// Where a slot leads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To the hook.
    Hook,
    /// To this hook of somebody else, past ours; 0 for the real call.
    Past(usize),
}

/// Maps the pages within reach of `near`, unless they are there.
pub(crate) fn map(near: usize) -> Result<(), Why> {
    const STEP: usize = 1 << 20;
    if BASE.load(Acquire) != 0 {
        return Ok(());
    }
    let start = near & !(STEP - 1);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let candidates = (1..arch::REACH / STEP)
        .flat_map(|step| [start.wrapping_sub(step * STEP), start.wrapping_add(step * STEP)]);
    let mut errno = 0;
    for at in candidates {
        // SAFETY: MAP_FIXED_NOREPLACE takes only pages that nobody has.
        match unsafe { sys::mmap(at, 2 * PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE, flags) } {
            Ok(base) if base == at => return fill(base),
            // A kernel older than 4.17 ignores the flag and maps elsewhere.
            Ok(elsewhere) => {
                // SAFETY: mapped just now, and nobody knows it.
                let _ = unsafe { sys::munmap(elsewhere, 2 * PAGE_SIZE) };
            }
            Err(code) => errno = code,
        }
    }
    Err(Why { call: "mmap(trampoline pages within a jump's reach of libc, MAP_FIXED_NOREPLACE)", errno })
}

fn fill(base: usize) -> Result<(), Why> {
    for index in 0..COUNT * GENERATIONS {
        let at = base + index * SLOT;
        // SAFETY: the slot lies in the page that was mapped writable just now;
        // nobody else knows it. The distance to its word is below 8 KiB.
        unsafe { (at as *mut [u8; SLOT]).write(arch::jump_through(at, word_of(base, index))) };
    }
    // SAFETY: the page holds only the code just written.
    unsafe { sys::mprotect(base, PAGE_SIZE, libc::PROT_READ | libc::PROT_EXEC) }
        .map_err(|errno| Why { call: "mprotect(trampoline page, PROT_READ | PROT_EXEC)", errno })?;
    arch::code_was_written(base, PAGE_SIZE);
    BASE.store(base, Release);
    for function in Function::ALL {
        set_mode(function, Mode::Past(0));
    }
    Ok(())
}

fn word_of(base: usize, index: usize) -> usize {
    base + PAGE_SIZE + index * size_of::<usize>()
}

fn index(function: Function) -> usize {
    GENERATION[function as usize].load(Relaxed) * COUNT + function as usize
}

/// The slot that `function`'s entry is to jump to.
pub(crate) fn current(function: Function) -> usize {
    BASE.load(Acquire) + index(function) * SLOT
}

/// Whether `address` is one of the slots, of whatever generation.
pub(crate) fn is_ours(address: usize) -> bool {
    let base = BASE.load(Acquire);
    base != 0 && (base..base + PAGE_SIZE).contains(&address)
}

/// Whether `target`, where a jump leads, is a slot of this library: of this copy, or of
/// another one in the process. 0 is none. Callable in a hook.
pub(crate) fn is_slot(target: usize) -> bool {
    if target == 0 || !target.is_multiple_of(SLOT) {
        return false;
    }
    let (base, offset) = (target & !(PAGE_SIZE - 1), target & (PAGE_SIZE - 1));
    // SAFETY: a jump leads there, so it is code; and a slot's length from a multiple of it
    // lies in one page.
    let code = unsafe { super::prologue(target) };
    code == arch::jump_through(target, word_of(base, offset / SLOT))
}

/// Switches the current slot of `function`.
pub(crate) fn set_mode(function: Function, mode: Mode) {
    let target = match mode {
        Mode::Hook => entry::replacement(function),
        Mode::Past(0) => passthrough::of(function),
        Mode::Past(next) => next,
    };
    let base = BASE.load(Acquire);
    if base == 0 {
        return; // nothing was patched
    }
    let word = word_of(base, index(function)) as *const AtomicUsize;
    // SAFETY: a word of the data page, which stays mapped and writable, and which
    // only this function stores to. Release: what the target needs (its NEXT) is
    // in force before.
    unsafe { (*word).store(target, Release) };
}

/// Starts a new slot for `function`; the old one leads past us to `next` (0 for
/// the real call) from now on.
pub(crate) fn renew(function: Function, next: usize) -> Result<(), Why> {
    let generation = &GENERATION[function as usize];
    if generation.load(Relaxed) + 1 == GENERATIONS {
        return Err(Why { call: "another patcher has patched over this entry too many times", errno: 0 });
    }
    set_mode(function, Mode::Past(next));
    generation.fetch_add(1, Relaxed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a patcher writes over one slot, whole, leaves each other slot as it is.
    #[test]
    fn slots_are_further_apart_than_a_patch_is_long() {
        const LONGEST_PATCH: usize = 14; // jmp [rip]; then the address
        let base = 1 << 30;
        let slots = || (0..COUNT * GENERATIONS).map(|index| base + index * SLOT);
        assert!(slots().zip(slots().skip(1)).all(|(at, next)| next - at >= LONGEST_PATCH && at % 16 == 0));
        assert!(slots().all(|at| at + LONGEST_PATCH <= word_of(base, 0)), "no patch reaches the words");
    }
}
