//! The buffers of a rank, and everything that programs do to memory between two
//! messages. All of it goes through libc's own functions, where hooks see it.
#![allow(unsafe_code)]
#![allow(clippy::disallowed_methods)] // being seen by hooks is this file's purpose

use crate::payload::Pattern;
use crate::plan::SLOTS;
use pinyard_allocator::{Pool, PoolBuf};
use std::alloc::{Layout, alloc_zeroed, dealloc, realloc};
use std::io;
use std::ptr::{self, NonNull};

const PAGE: usize = 4096;
const ALIGN: usize = 64;

/// Where a buffer's memory is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The program's global allocator, which purges.
    Heap,
    /// C's malloc.
    Malloc,
    /// pinyard's pool.
    Pool,
    /// A private mapping.
    Map,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Heap, Kind::Malloc, Kind::Pool, Kind::Map];

    /// The kind of buffer number `slot`.
    pub(crate) fn of_slot(slot: usize) -> Kind {
        Kind::ALL[slot % Kind::ALL.len()]
    }
}

/// What happens to a buffer before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing, unless it is too small.
    Reused,
    /// Freed and allocated again, as a rule at the same address.
    Again,
    /// realloc, or mremap where it is mapped.
    Resized,
    /// madvise(MADV_DONTNEED) on its whole pages.
    Emptied,
    /// munmap, then mmap with MAP_FIXED at the same address.
    Remapped,
    /// fork; the child writes to its copy and exits.
    Forked,
}

impl Change {
    /// All, in the order of their numbers.
    pub(crate) const ALL: [Change; 6] =
        [Change::Reused, Change::Again, Change::Resized, Change::Emptied, Change::Remapped, Change::Forked];

    /// What may be drawn for buffer number `slot`; the more often in the list, the likelier.
    pub(crate) fn of_slot(slot: usize, fork: bool) -> &'static [Change] {
        use Change::{Again, Emptied, Remapped, Resized, Reused};
        match Kind::of_slot(slot) {
            _ if fork => &[Change::Forked],
            Kind::Heap | Kind::Malloc => &[Reused, Reused, Reused, Again, Again, Resized, Emptied],
            Kind::Pool => &[Reused, Reused, Again],
            Kind::Map => &[Reused, Reused, Reused, Again, Resized, Emptied, Remapped, Remapped],
        }
    }

    /// As the report has it.
    pub(crate) fn name(self, kind: Kind) -> String {
        let memory = match kind {
            Kind::Heap => "heap",
            Kind::Malloc => "malloc",
            Kind::Pool => "pool",
            Kind::Map => "mmap",
        };
        let what = match self {
            Change::Reused => "used again",
            Change::Again => "freed and allocated again",
            Change::Resized if kind == Kind::Map => "mremap",
            Change::Resized => "realloc",
            Change::Emptied => "MADV_DONTNEED",
            Change::Remapped => "munmap, mmap at the same address",
            Change::Forked => "fork, the child writes",
        };
        format!("{memory}: {what}")
    }
}

enum Memory {
    None,
    Heap(NonNull<u8>, Layout),
    Malloc(NonNull<u8>, usize),
    Pool(PoolBuf<u8>),
    Map(NonNull<u8>, usize),
}

impl Memory {
    fn parts(&self) -> (*mut u8, usize) {
        match self {
            Memory::None => (ptr::null_mut(), 0),
            Memory::Heap(start, layout) => (start.as_ptr(), layout.size()),
            Memory::Malloc(start, len) | Memory::Map(start, len) => (start.as_ptr(), *len),
            Memory::Pool(block) => (block.as_ptr().cast_mut(), block.len()),
        }
    }
}

/// What a change did besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Other memory, at the address of the memory that was freed.
    pub(crate) same_address: bool,
    /// A child was made.
    pub(crate) forked: bool,
    /// It could not write: its page was not inherited.
    pub(crate) without_pages: bool,
}

/// Why there is no memory.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The pool's slab was refused, in the pool's words; a heap block took its place.
    Pool(String),
    /// A call failed.
    Call(String),
}

/// A buffer of a rank.
pub(crate) struct Slot {
    kind: Kind,
    memory: Memory,
    /// What was last written to it by the program or by MPI.
    pub(crate) held: Option<Pattern>,
}

/// The buffers of a rank, none of which has memory yet.
pub(crate) fn slots() -> Vec<Slot> {
    let slot = |slot| Slot { kind: Kind::of_slot(slot), memory: Memory::None, held: None };
    (0..SLOTS).map(slot).collect()
}

impl Slot {
    /// Its kind.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// `len` bytes from `offset` on, which [`change`](Slot::change) made room for; fewer if
    /// it did not.
    pub(crate) fn bytes(&mut self, offset: usize, len: usize) -> &mut [u8] {
        let (start, have) = self.memory.parts();
        let offset = offset.min(have);
        let len = len.min(have - offset);
        if len == 0 {
            return &mut [];
        }
        // SAFETY: inside the slot's own memory, initialised (zeroed or copied when it was
        // made), and borrowed with the slot.
        unsafe { std::slice::from_raw_parts_mut(start.add(offset), len) }
    }

    /// Does `change`; afterwards there is room for `len` bytes.
    pub(crate) fn change(&mut self, change: Change, len: usize, pool: &Pool) -> Result<Effects, Refusal> {
        let (before, have) = self.memory.parts();
        let mut effects = Effects::default();
        match change {
            Change::Forked if have >= len && len > 0 => {
                effects.without_pages = !fork_and_write(before, have).map_err(Refusal::Call)?;
                effects.forked = true;
            }
            Change::Reused if have >= len => {}
            Change::Emptied if have >= len => empty(before, have).map_err(Refusal::Call)?,
            Change::Remapped if matches!(self.memory, Memory::Map(..)) && have >= len => {
                self.remap().map_err(Refusal::Call)?;
                effects.same_address = true;
            }
            Change::Resized if have > 0 && self.kind != Kind::Pool => {
                self.resize(len).map_err(Refusal::Call)?
            }
            _ => {
                self.free();
                let made = self.allocate(len, pool);
                effects.same_address = !before.is_null() && self.memory.parts().0 == before;
                made?;
            }
        }
        Ok(effects)
    }

    fn free(&mut self) {
        match std::mem::replace(&mut self.memory, Memory::None) {
            Memory::None => {}
            Memory::Pool(block) => drop(block),
            // SAFETY: allocated with this layout, and the slot was its only owner.
            Memory::Heap(start, layout) => unsafe { dealloc(start.as_ptr(), layout) },
            // SAFETY: from malloc or realloc, likewise.
            Memory::Malloc(start, _) => unsafe { libc::free(start.as_ptr().cast()) },
            // SAFETY: a mapping of the slot's own; a failure would only keep it.
            Memory::Map(start, len) => unsafe {
                libc::munmap(start.as_ptr().cast(), len);
            },
        }
    }

    fn allocate(&mut self, len: usize, pool: &Pool) -> Result<(), Refusal> {
        let mut refused = Ok(());
        self.memory = match self.kind {
            Kind::Heap => heap(len)?,
            Kind::Malloc => {
                // SAFETY: calloc has no preconditions.
                let start = unsafe { libc::calloc(len, 1) }.cast();
                Memory::Malloc(NonNull::new(start).ok_or_else(|| out_of_memory("calloc", len))?, len)
            }
            Kind::Pool => match pool.alloc_aligned::<u8>(len, ALIGN) {
                Ok(block) => Memory::Pool(block),
                Err(error) => {
                    refused = Err(Refusal::Pool(error.to_string()));
                    heap(len)?
                }
            },
            Kind::Map => {
                let pages = len.next_multiple_of(PAGE);
                Memory::Map(map(ptr::null_mut(), pages).map_err(Refusal::Call)?, pages)
            }
        };
        refused
    }

    fn resize(&mut self, len: usize) -> Result<(), String> {
        let failed = |call: &str| format!("{call}({len} bytes): {}", io::Error::last_os_error());
        match &mut self.memory {
            Memory::Heap(start, layout) => {
                let old = layout.size();
                // SAFETY: the slot's block with its layout, and a length that is not zero.
                let moved = unsafe { realloc(start.as_ptr(), *layout, len) };
                *start = NonNull::new(moved).ok_or_else(|| failed("realloc"))?;
                *layout = layout_of(len);
                zero_behind(*start, old, len);
            }
            Memory::Malloc(start, have) => {
                // SAFETY: the slot's block, from malloc.
                let moved = unsafe { libc::realloc(start.as_ptr().cast(), len) };
                *start = NonNull::new(moved.cast()).ok_or_else(|| failed("realloc"))?;
                zero_behind(*start, *have, len);
                *have = len;
            }
            Memory::Map(start, have) => {
                let pages = len.next_multiple_of(PAGE);
                // SAFETY: the slot's own mapping, to which nothing is borrowed.
                let moved =
                    unsafe { libc::mremap(start.as_ptr().cast(), *have, pages, libc::MREMAP_MAYMOVE) };
                if moved == libc::MAP_FAILED {
                    // EFAULT: several mappings, as the backend mlock's locks make of one.
                    let several = io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT);
                    return if several { self.replace(pages) } else { Err(failed("mremap")) };
                }
                *start = NonNull::new(moved.cast()).ok_or_else(|| failed("mremap"))?;
                *have = pages;
            }
            Memory::None | Memory::Pool(_) => {}
        }
        Ok(())
    }

    /// Another mapping, somewhere.
    fn replace(&mut self, len: usize) -> Result<(), String> {
        self.free();
        self.memory = Memory::Map(map(ptr::null_mut(), len)?, len);
        Ok(())
    }

    /// Other pages at the same address.
    fn remap(&mut self) -> Result<(), String> {
        let (start, len) = self.memory.parts();
        // SAFETY: the slot's own mapping, to which nothing is borrowed.
        if unsafe { libc::munmap(start.cast(), len) } != 0 {
            return Err(format!("munmap({len} bytes): {}", io::Error::last_os_error()));
        }
        self.memory = Memory::None;
        // Another thread may have taken the place: then it is an ordinary new mapping.
        let start = map(start, len).or_else(|_| map(ptr::null_mut(), len));
        self.memory = Memory::Map(start?, len);
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.free();
    }
}

fn layout_of(len: usize) -> Layout {
    // Lengths are far below isize::MAX.
    Layout::from_size_align(len, ALIGN).unwrap_or(Layout::new::<u64>())
}

fn heap(len: usize) -> Result<Memory, Refusal> {
    let layout = layout_of(len);
    // SAFETY: the length is not zero.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| out_of_memory("alloc", len))?;
    Ok(Memory::Heap(start, layout))
}

fn out_of_memory(call: &str, len: usize) -> Refusal {
    Refusal::Call(format!("{call}({len} bytes): out of memory"))
}

/// What realloc added is not initialised.
fn zero_behind(start: NonNull<u8>, old: usize, new: usize) {
    if new > old {
        // SAFETY: inside the block, which has just been resized to `new` bytes.
        unsafe { start.as_ptr().add(old).write_bytes(0, new - old) };
    }
}

/// A private mapping; at `at` if that is not null, and nothing is there.
fn map(at: *mut u8, len: usize) -> Result<NonNull<u8>, String> {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED_NOREPLACE };
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed);
    // SAFETY: a new mapping that replaces none.
    let start = unsafe { libc::mmap(at.cast(), len, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        return Err(format!("mmap({at:p}, {len} bytes): {error}"));
    }
    NonNull::new(start.cast()).ok_or_else(|| "mmap gave address 0".to_owned())
}

/// Drops the whole pages of a buffer. Its first and last bytes may share theirs with
/// the allocator's.
fn empty(start: *mut u8, len: usize) -> Result<(), String> {
    let first = start.addr().next_multiple_of(PAGE);
    let end = (start.addr() + len) & !(PAGE - 1);
    if first >= end {
        return Ok(());
    }
    // SAFETY: pages of the slot's own, whose contents nobody needs.
    let answer =
        unsafe { libc::madvise(start.add(first - start.addr()).cast(), end - first, libc::MADV_DONTNEED) };
    let error = io::Error::last_os_error();
    // The backend mlock has locked them: they cannot be dropped, and stay.
    let locked = error.raw_os_error() == Some(libc::EINVAL);
    if answer == 0 || locked {
        return Ok(());
    }
    Err(format!("madvise({first:#x}, {} bytes, MADV_DONTNEED): {error}", end - first))
}

/// A child that writes over its copy of the buffer and exits. `false` if it had none.
fn fork_and_write(start: *mut u8, len: usize) -> Result<bool, String> {
    // SAFETY: the child calls nothing but memset and _exit, which are async-signal-safe.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(format!("fork: {}", io::Error::last_os_error())),
        0 => {
            // SAFETY: the child's copy of the slot's own memory. Pages that were not
            // inherited end it with SIGSEGV, which its parent expects.
            unsafe {
                start.write_bytes(0xee, len);
                libc::_exit(0)
            }
        }
        child => loop {
            let mut status = 0;
            // SAFETY: fills an int.
            if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
                let segfault = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV;
                break Ok(!segfault);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                break Err(format!("waitpid({child}): {error}"));
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinyard_registry::backend::Mlock;
    use pinyard_registry::{Events, Registry};

    #[test]
    fn every_change_leaves_room_and_initialised_bytes() {
        let registry = Registry::builder().backend(Mlock::new()).events(Events::NotifyOnly).build().unwrap();
        let pool = Pool::host(&registry).slab_bytes(2 << 20).build().unwrap();
        let mut slots = slots();
        for round in 0..3 {
            for (index, slot) in slots.iter_mut().enumerate() {
                for &change in Change::of_slot(index, false).iter().chain([&Change::Forked]) {
                    for len in [1, 5000, 300_000, 70] {
                        slot.change(change, len, &pool).unwrap();
                        let bytes = slot.bytes(0, len);
                        assert_eq!(bytes.len(), len, "{change:?} {round}");
                        bytes.fill(round);
                        assert!(slot.bytes(0, len).iter().all(|&byte| byte == round));
                    }
                }
            }
        }
    }

    #[test]
    fn changes_change_pages_and_a_child_does_not() {
        let registry = Registry::builder().backend(Mlock::new()).events(Events::NotifyOnly).build().unwrap();
        let pool = Pool::host(&registry).slab_bytes(2 << 20).build().unwrap();
        let mut slot = slots().remove(3);
        slot.change(Change::Again, 5 * PAGE, &pool).unwrap();
        for (change, left) in
            [(Change::Forked, 7), (Change::Reused, 7), (Change::Emptied, 0), (Change::Remapped, 0)]
        {
            slot.bytes(0, 5 * PAGE).fill(7);
            let effects = slot.change(change, 5 * PAGE, &pool).unwrap();
            assert_eq!(effects.forked, change == Change::Forked);
            assert!(slot.bytes(0, 5 * PAGE).iter().all(|&byte| byte == left), "{change:?}");
        }
    }
}
