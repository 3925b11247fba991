//! The simulated device's memory: addresses with real bytes behind them, which the
//! kernel provides as they are touched, and a budget. Shareable memory is a file
//! without a name, which other processes map as well.
#![allow(unsafe_code)]

use super::ipc::{self, Arena, Import};
use pinyard_hooks::sys;
use std::collections::BTreeMap;

/// What lies at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Device,
    Managed,
    Host,
    /// Addresses without memory.
    Reserved,
}

pub(super) struct Memory {
    /// The range that addresses come from.
    start: usize,
    bytes: usize,
    /// Where the search for addresses goes on: addresses are not reused soon, as
    /// stale pointers then show.
    next: usize,
    pub(super) allocations: BTreeMap<usize, (usize, Kind)>,
    /// Mapped physical memory by address: bytes and handle.
    pub(super) mapped: BTreeMap<usize, (usize, u64)>,
    /// Physical memory: bytes, and whether its handle is released.
    pub(super) physical: BTreeMap<u64, (usize, bool)>,
    /// Host memory that was registered.
    pub(super) registered: BTreeMap<usize, usize>,
    /// What other processes exported, by the address here.
    pub(super) imports: BTreeMap<usize, Import>,
    /// The file behind the range, if others may map it.
    pub(super) arena: Option<Arena>,
    pub(super) budget: usize,
    pub(super) used: usize,
}

/// Allocations start at multiples of this.
const GRAIN: usize = 2 << 20;

impl Memory {
    /// Shareable memory; ordinary memory where the system gives no file for it.
    pub(super) fn shareable(budget: usize) -> Memory {
        let bytes = (budget.next_multiple_of(GRAIN) * 8).max(64 << 30);
        match Arena::create(bytes) {
            Ok((arena, start)) => Memory::at(start, bytes, Some(arena), budget),
            Err(_) => Memory::new(budget),
        }
    }

    pub(super) fn new(budget: usize) -> Memory {
        let least = budget.next_multiple_of(GRAIN) * 8;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let map = |bytes: usize| {
            // SAFETY: a new mapping at an address that the kernel chooses.
            let at = unsafe { sys::mmap(0, bytes, libc::PROT_READ | libc::PROT_WRITE, flags) };
            at.ok().map(|start| (start, bytes))
        };
        // Fewer where addresses are scarce: under valgrind, or RLIMIT_AS. Without any,
        // every allocation fails, as on a device without memory.
        let (start, bytes) = map(least.max(64 << 30)).or_else(|| map(least)).unwrap_or((0, 0));
        Memory::at(start, bytes, None, budget)
    }

    fn at(start: usize, bytes: usize, arena: Option<Arena>, budget: usize) -> Memory {
        let first = start.next_multiple_of(GRAIN);
        Memory {
            start,
            bytes,
            next: first,
            allocations: BTreeMap::new(),
            mapped: BTreeMap::new(),
            physical: BTreeMap::new(),
            registered: BTreeMap::new(),
            imports: BTreeMap::new(),
            arena,
            budget,
            used: 0,
        }
    }

    /// Addresses for `bytes`, and for memory their bytes of the budget.
    pub(super) fn take(&mut self, bytes: usize, align: usize, kind: Kind) -> Option<usize> {
        let costs = if matches!(kind, Kind::Device | Kind::Managed) { bytes } else { 0 };
        if bytes == 0 || self.used.checked_add(costs)? > self.budget {
            return None;
        }
        let align = align.max(GRAIN);
        let end = self.start + self.bytes;
        let span = bytes.checked_next_multiple_of(GRAIN)?;
        for from in [self.next, self.start] {
            let mut at = from.next_multiple_of(align);
            for (&start, &(length, _)) in &self.allocations {
                if start + length.next_multiple_of(GRAIN) <= at {
                    continue;
                }
                if at.checked_add(span)? <= start {
                    break;
                }
                at = (start + length).next_multiple_of(align);
            }
            if at.checked_add(span)? <= end {
                self.next = at + span;
                self.used += costs;
                self.allocations.insert(at, (bytes, kind));
                return Some(at);
            }
        }
        None
    }

    /// Ends an allocation of one of `kinds`; whether there was one at `at`.
    pub(super) fn give(&mut self, at: usize, kinds: &[Kind]) -> bool {
        let Some(&(bytes, kind)) = self.allocations.get(&at).filter(|(_, kind)| kinds.contains(kind)) else {
            return false;
        };
        self.allocations.remove(&at);
        if matches!(kind, Kind::Device | Kind::Managed) {
            self.used -= bytes;
        }
        // Of a file's pages DONTNEED loses only this process's view.
        let advice = if self.arena.is_some() { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
        // SAFETY: our own mapping; what was allocated here is used no more. New
        // memory reads as zeros.
        let _ = unsafe { sys::madvise(at, bytes.next_multiple_of(4096), advice) };
        true
    }

    /// Frees everything; nobody can touch it any more, nor get any, nor open what was exported.
    /// What others have open stays theirs.
    pub(super) fn reset(&mut self) {
        // SAFETY: our own mapping, whose users a reset takes it from. Refused, it can be touched.
        let _ = unsafe { sys::mprotect(self.start, self.bytes, libc::PROT_NONE) };
        for (start, import) in std::mem::take(&mut self.imports) {
            ipc::close(start, import);
        }
        self.allocations.clear();
        self.mapped.clear();
        self.physical.clear();
        self.registered.clear();
        (self.arena, self.budget, self.used) = (None, 0, 0);
    }

    /// Whether `bytes` at `at` are memory of the device's, or host memory that it
    /// may reach.
    pub(super) fn is_memory(&self, at: usize, bytes: usize) -> bool {
        let within = |start: usize, length: usize| at >= start && at + bytes <= start + length;
        let allocated = self
            .allocations
            .range(..=at)
            .next_back()
            .is_some_and(|(&start, &(length, kind))| kind != Kind::Reserved && within(start, length));
        let registered = || {
            self.registered.range(..=at).next_back().is_some_and(|(&start, &length)| within(start, length))
        };
        let imported = || {
            self.imports
                .range(..=at)
                .next_back()
                .is_some_and(|(&start, import)| within(start, import.bytes()))
        };
        allocated || registered() || imported() || self.is_mapped(at, bytes)
    }

    /// Where an allocation begins in the range that addresses come from.
    pub(super) fn offset(&self, at: usize) -> usize {
        at - self.start
    }

    /// Whether anything is mapped in the range.
    pub(super) fn overlaps_mapped(&self, at: usize, bytes: usize) -> bool {
        self.mapped.range(..at + bytes).next_back().is_some_and(|(&start, &(length, _))| start + length > at)
    }

    /// Ends physical memory whose handle is released and that is mapped nowhere.
    pub(super) fn drop_unmapped(&mut self, handle: u64) {
        let released = self.physical.get(&handle).is_some_and(|(_, released)| *released);
        if released && !self.mapped.values().any(|&(_, mapped)| mapped == handle) {
            self.used -= self.physical.remove(&handle).map_or(0, |(bytes, _)| bytes);
        }
    }

    /// Whether neighbouring mappings cover the range.
    fn is_mapped(&self, at: usize, bytes: usize) -> bool {
        let mut covered = at;
        while covered < at + bytes {
            match self.mapped.range(..=covered).next_back() {
                Some((&start, &(length, _))) if covered < start + length => covered = start + length,
                _ => return false,
            }
        }
        true
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: our own mapping; the device is gone, and its memory with it.
            let _ = unsafe { sys::munmap(self.start, self.bytes) };
        }
        for (start, import) in std::mem::take(&mut self.imports) {
            ipc::close(start, import);
        }
    }
}
