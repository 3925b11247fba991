//! Memory that the ranks of a node share: words that tell what is where, and pinned chunks.
//!
//! ```text
//! line 0       magic: that it is this memory, and not what another process has by that name
//! line 1       filled: pieces that were put into slots so far           chunks.rs
//! line 2       broken: the end of the last transfer that MPI failed
//! line 3       posted: operations that the board has told of so far, and who may   board.rs
//! lines 4, 5   what it tells of the last one
//! line 6 + n   of the rank at place n: done, pieces that it needs no more, and its two last answers
//! behind them  a line of each rank: what it has told of its two last operations
//! from a page  the slots
//! ```
//!
//! Memory of a window's locks has no slots, and in line 6 + n who holds that of rank n: locks.rs.
//! Counts go on from one transfer to the next, so that nobody sets them back.
#![allow(unsafe_code)]

use crate::calls::{Answer, Comm};
use crate::words::{WORD, put_word, word};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::AsRawFd;
use std::process;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: usize = 4096;
/// Bytes of a line: no two words that different ranks write share one.
const LINE: usize = 64;
/// Words of one.
pub(super) const WORDS: usize = LINE / 8;
const MAGIC: usize = 0;
pub(super) const FILLED: usize = 1;
pub(super) const BROKEN: usize = 2;
pub(super) const POSTED: usize = 3;
pub(super) const TOLD: usize = 4;
const RANKS: usize = 6;

/// How many there are of what.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) ranks: usize,
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
}

impl Shape {
    pub(super) fn first_slot(self) -> usize {
        ((RANKS + 2 * self.ranks) * LINE).next_multiple_of(PAGE)
    }

    /// From one slot to the next: no two share a page.
    pub(super) fn stride(self) -> usize {
        self.slot_bytes.next_multiple_of(PAGE)
    }

    fn bytes(self) -> usize {
        self.first_slot() + self.slots * self.stride()
    }
}

/// Where the memory is found: `/proc/PROCESS/fd/DESCRIPTOR` (proc(5)), for processes of one
/// user in one PID namespace.
#[derive(Clone, Copy)]
struct Name {
    process: u64,
    descriptor: u64,
    /// What its first word is. None has 0.
    magic: u64,
}

impl Name {
    const BYTES: usize = 3 * WORD;

    fn bytes(self) -> [u8; Name::BYTES] {
        let mut bytes = [0; Name::BYTES];
        for (number, word) in [self.process, self.descriptor, self.magic].into_iter().enumerate() {
            put_word(&mut bytes, WORD * number, word);
        }
        bytes
    }

    fn of(bytes: &[u8; Name::BYTES]) -> Name {
        Name { process: word(bytes, 0), descriptor: word(bytes, 8), magic: word(bytes, 16) }
    }
}

/// Memory of a [`Shape`], unpinned.
pub(crate) struct Shared {
    /// libc's mmap and munmap, so that whoever caches registrations hears of its end: MPI
    /// may register a slot.
    pub(super) map: MmapRaw,
    pub(super) shape: Shape,
}

impl Shared {
    /// New memory, and the file that it is named by.
    fn create(shape: Shape) -> Result<(Shared, File, Name), String> {
        let refused = |call: String| move |error| format!("{call}: {error}");
        let file = memfd_create("pinyard chunks", MemfdFlags::CLOEXEC)
            .map_err(|errno| format!("memfd_create: {errno}"))?;
        let bytes = shape.bytes();
        ftruncate(&file, bytes as u64).map_err(|errno| format!("ftruncate({bytes}): {errno}"))?;
        let file = File::from(file);
        let map = MmapOptions::new().len(bytes).map_raw(&file).map_err(refused(format!("mmap({bytes})")))?;
        let memory = Shared { map, shape };
        let magic = RandomState::new().build_hasher().finish() | 1;
        memory.word(MAGIC, 0).store(magic, Relaxed);
        let name = Name { process: u64::from(process::id()), descriptor: file.as_raw_fd() as u64, magic };
        Ok((memory, file, name))
    }

    /// Another process's.
    fn open(name: Name, shape: Shape) -> Result<Shared, String> {
        if name.magic == 0 {
            return Err("the node's first rank has none".to_owned());
        }
        let path = format!("/proc/{}/fd/{}", name.process, name.descriptor);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|error| format!("open({path}): {error}"))?;
        let bytes = shape.bytes();
        let there = file.metadata().map_err(|error| format!("fstat({path}): {error}"))?.len();
        let map = MmapOptions::new().len(bytes).map_raw(&file);
        let map = map.map_err(|error| format!("mmap({bytes}, {path}): {error}"))?;
        let memory = Shared { map, shape };
        // Beyond the file's end there is nothing to read.
        if there != bytes as u64 || memory.word(MAGIC, 0).load(Relaxed) != name.magic {
            return Err(format!("{path} is another memory: the ranks have PID namespaces of their own"));
        }
        Ok(memory)
    }

    /// Word `number` of a line.
    pub(super) fn word(&self, line: usize, number: usize) -> &AtomicU64 {
        assert!(line < RANKS + 2 * self.shape.ranks && number < WORDS, "no such word");
        // SAFETY: aligned and within the mapping, which stands as long as `self`; all processes
        // use these words as atomics alone.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(line * LINE + 8 * number).cast()) }
    }

    /// Pieces that the rank at `place` needs no more.
    pub(super) fn done(&self, place: usize) -> &AtomicU64 {
        self.word(RANKS + place, 0)
    }

    /// What the rank at `place` told of an operation, or of the one two before: that it has
    /// begun it, its answer, which one it is, and its bytes.
    pub(super) fn told(&self, place: usize, operation: u64) -> [&AtomicU64; 4] {
        let line = RANKS + self.shape.ranks + place;
        [0, 1, 2, 3].map(|word| self.word(line, 4 * (operation % 2) as usize + word))
    }

    /// The last operation that the rank at `place` answered, or the one before.
    pub(super) fn answer(&self, place: usize, operation: u64) -> &AtomicU64 {
        self.word(RANKS + place, 1 + (operation % 2) as usize)
    }

    /// Holders of the lock of the rank at `place`, and those that wait for it alone, in memory
    /// that is for locks.
    pub(super) fn lock(&self, place: usize) -> [&AtomicU64; 2] {
        [0, 1].map(|number| self.word(RANKS + place, number))
    }

    /// That of the ranks of `node`, in memory of its first one. `Err` says why this rank has
    /// none; others may have it all the same. Collective over `node`.
    pub(crate) fn share(node: &Comm, shape: Shape) -> Answer<Result<Arc<Shared>, String>> {
        let own = (node.rank() == 0).then(|| Shared::create(shape));
        let mut told = [0; Name::BYTES];
        if let Some(Ok((_, _, name))) = &own {
            told = name.bytes();
        }
        node.broadcast(&mut told, 0)?;
        let (memory, file) = match own {
            Some(Ok((memory, file, _))) => (Ok(memory), Some(file)),
            Some(Err(why)) => (Err(why), None),
            None => (Shared::open(Name::of(&told), shape), None),
        };
        // The name is good while the file is open: until all have tried.
        node.barrier()?;
        drop(file);
        Ok(memory.map(Arc::new))
    }

    /// A rank's own, shared with nobody.
    pub(crate) fn alone(shape: Shape) -> Result<Arc<Shared>, String> {
        Ok(Arc::new(Shared::create(Shape { ranks: 1, ..shape })?.0))
    }
}

#[cfg(test)]
impl Shared {
    /// Views of one memory for the ranks of a node that are threads of this process.
    pub(super) fn of_one_process(shape: Shape) -> Vec<Arc<Shared>> {
        let (first, _file, name) = Shared::create(shape).unwrap();
        let mut views = vec![Arc::new(first)];
        views.extend((1..shape.ranks).map(|_| Arc::new(Shared::open(name, shape).unwrap())));
        views
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::{Acquire, Release};

    const SHAPE: Shape = Shape { ranks: 2, slots: 3, slot_bytes: PAGE };

    #[test]
    fn what_one_writes_the_other_reads() {
        let (own, _file, name) = Shared::create(SHAPE).unwrap();
        let other = Shared::open(Name::of(&name.bytes()), SHAPE).unwrap();
        assert_ne!(own.map.as_ptr(), other.map.as_ptr());
        own.word(FILLED, 0).store(7, Release);
        other.answer(1, 1).store(5, Release);
        assert_eq!((other.word(FILLED, 0).load(Acquire), own.answer(1, 1).load(Acquire)), (7, 5));
    }

    #[test]
    fn another_memory_of_that_name_is_refused() {
        let (_own, file, name) = Shared::create(SHAPE).unwrap();
        let refused = |name, shape| Shared::open(name, shape).map(|_| ()).unwrap_err();
        let told = refused(Name { magic: name.magic ^ 2, ..name }, SHAPE);
        assert!(told.ends_with("is another memory: the ranks have PID namespaces of their own"), "{told}");
        assert!(refused(name, Shape { slots: 2, ..SHAPE }).contains("another memory"));
        assert_eq!(refused(Name { magic: 0, ..name }, SHAPE), "the node's first rank has none");
        drop(file);
        assert!(refused(name, SHAPE).starts_with("open(/proc/"), "the file is closed");
    }

    #[test]
    fn slots_do_not_overlap_and_lie_within() {
        let shape = Shape { ranks: 200, slots: 3, slot_bytes: 2 * PAGE };
        assert_eq!(shape.first_slot() % PAGE, 0);
        assert!(shape.first_slot() >= (RANKS + 400) * LINE);
        assert_eq!(shape.bytes(), shape.first_slot() + 6 * PAGE);
    }
}
