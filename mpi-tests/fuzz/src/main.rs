//! Random programs against registries over io_uring: map, unmap, move, empty,
//! protect, write, get, look up, release, invalidate, flush, fork, under a loose
//! budget, a tight one that a neighbour has a changing part of, and a tight count. After each step the device is asked:
//! every page of every lease must show what the model says (`world.rs`).
//!
//! `xtask/ci/fuzz.sh [seconds]` builds and runs it.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::disallowed_methods)] // changes mappings through libc, as a program would
#![no_main]

mod c_interface;
mod world;

use libfuzzer_sys::fuzz_target;
use pinyard_registry::backend::{Custom, IoUring};
use pinyard_registry::{Access, Budget, Events, GetError, Lease, MemoryKey, Registry};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use world::{PAGE, Part, Physical, Pipe, WINDOW, World, in_child};

struct Fixture {
    ring: Arc<IoUring>,
    registry: Registry,
    budget: usize,
    regions: usize,
}

/// Bytes of the tight budget.
const TIGHT: usize = 12 * PAGE;

/// Loose, tight in bytes, tight in regions: made once, since making one costs more
/// than most programs do.
fn fixtures() -> &'static [Fixture; 3] {
    static ALL: OnceLock<[Fixture; 3]> = OnceLock::new();
    ALL.get_or_init(|| {
        let budgets = [Budget::new(1 << 30), shared().clone(), Budget::new(1 << 30)];
        let mut regions = [200, 200, 3].into_iter();
        budgets.map(|budget| {
            let (ring, regions) = (Arc::new(IoUring::new(256).unwrap()), regions.next().unwrap());
            let bytes = budget.bytes();
            let builder = Registry::builder().backend(ring.clone());
            let registry = builder.budget(budget).max_regions(regions).build().unwrap();
            Fixture { ring, registry, budget: bytes, regions }
        })
    })
}

/// The tight budget.
fn shared() -> &'static Budget {
    static SHARED: OnceLock<Budget> = OnceLock::new();
    SHARED.get_or_init(|| Budget::new(TIGHT))
}

/// A registry of addresses, which has the tight budget as well.
fn neighbour() -> &'static Registry {
    static NEIGHBOUR: OnceLock<Registry> = OnceLock::new();
    NEIGHBOUR.get_or_init(|| {
        let backend = Custom::new("addresses", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
        let builder = Registry::builder().backend(backend).events(Events::NotifyOnly);
        builder.budget(shared().clone()).build().unwrap()
    })
}

/// A lease, and the physical pages that its registration covers.
struct Kept {
    fixture: &'static Fixture,
    lease: Lease<'static>,
    shows: Vec<Physical>,
}

struct Program<'d> {
    input: std::slice::Iter<'d, u8>,
    world: World,
    pipe: &'static Pipe,
    kept: Vec<Kept>,
    /// What the neighbour holds of the tight budget.
    taken: Option<Lease<'static>>,
}

fn pipe() -> &'static Pipe {
    static PIPE: OnceLock<Pipe> = OnceLock::new();
    PIPE.get_or_init(Pipe::new)
}

impl Program<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.input.next().copied()
    }

    fn part(&mut self) -> Option<Part> {
        let (first, count) = (self.byte()? as usize % WINDOW, self.byte()? as usize % 8 + 1);
        Some(Part { first, count: count.min(WINDOW - first) })
    }

    fn fixture(&mut self) -> Option<&'static Fixture> {
        Some(&fixtures()[self.byte()? as usize % 3])
    }

    /// What the device sees through `key` at the page of `at`.
    fn word(&self, fixture: &Fixture, key: MemoryKey, at: usize) -> u64 {
        // SAFETY: the pipe is never closed.
        let writer = unsafe { BorrowedFd::borrow_raw(self.pipe.writer) };
        // SAFETY: the registration stands: it is held, or was found by this thread,
        // the only one that changes anything, a moment ago. Nobody writes meanwhile.
        let written = unsafe { fixture.ring.write_fixed(writer, key, at as *const u8, PAGE) };
        assert_eq!(written.unwrap(), PAGE);
        let (first, last) = self.pipe.page();
        assert_eq!(first, last, "half of a page");
        first
    }

    /// A held registration shows the pages that it was made of, changed since or not.
    fn check(&self, kept: &Kept) {
        for (index, &physical) in kept.shows.iter().enumerate() {
            let at = kept.lease.base() + index * PAGE;
            let seen = self.word(kept.fixture, kept.lease.key(), at);
            assert_eq!(seen, self.world.word(physical), "the holder's page {index}");
        }
    }

    fn get(&mut self) -> Option<()> {
        let (fixture, part, how) = (self.fixture()?, self.part()?, self.byte()?);
        let access = if how & 1 == 0 { Access::LOCAL_READ } else { Access::LOCAL_WRITE };
        // Not always whole pages.
        let bytes = if how & 2 == 0 { part.bytes() } else { ((part.at() + 7) as *const u8, part.len() - 9) };
        let lease = match fixture.registry.get(bytes, access) {
            Ok(lease) => lease,
            Err(error) => {
                self.refused(fixture, part, &error);
                return Some(());
            }
        };
        assert!(self.world.is_mapped(part), "{part:?} is not mapped, and was served");
        let region = Part::of(lease.base(), lease.len());
        assert!(region.first <= part.first && part.pages().end <= region.pages().end);
        // A region is current as a whole, or is not found.
        let shows = region.pages().map(|page| self.world.physical(page).expect("a page that is gone"));
        let kept = Kept { fixture, lease, shows: shows.collect() };
        self.check(&kept);
        if how & 4 != 0 && self.kept.len() < 12 {
            self.kept.push(kept);
        }
        Some(())
    }

    /// An error needs its cause.
    fn refused(&self, fixture: &Fixture, part: Part, error: &GetError) {
        let mut held: Vec<_> = self.kept.iter().filter(|kept| std::ptr::eq(kept.fixture, fixture)).collect();
        held.sort_unstable_by_key(|kept| kept.lease.lkey());
        held.dedup_by_key(|kept| kept.lease.lkey());
        let in_use: usize = held.iter().map(|kept| kept.lease.len()).sum();
        // Beside it the neighbour's alone count: what either only caches makes way.
        let taken =
            if fixture.budget == TIGHT { self.taken.as_ref().map_or(0, |lease| lease.len()) } else { 0 };
        let justified = match error {
            GetError::Unmapped { .. } => !self.world.is_mapped(part),
            GetError::ReadOnly { .. } => !self.world.is_writable(part),
            GetError::Budget { .. } => in_use + taken + part.len() > fixture.budget,
            GetError::TooManyRegions { .. } => held.len() >= fixture.regions,
            _ => false,
        };
        assert!(justified, "{part:?} with {} in use: {error}", held.len());
    }

    fn lookup(&mut self) -> Option<()> {
        let (fixture, part) = (self.fixture()?, self.part()?);
        if let Some(key) = fixture.registry.lookup(part.bytes(), Access::LOCAL_READ) {
            for page in part.pages() {
                let physical = self.world.physical(page).expect("found, and not mapped");
                let at = part.at() + (page - part.first) * PAGE;
                assert_eq!(self.word(fixture, key, at), self.world.word(physical), "a stale lookup");
            }
        }
        Some(())
    }

    fn release(&mut self) -> Option<()> {
        let index = self.byte()? as usize;
        if !self.kept.is_empty() {
            let kept = self.kept.swap_remove(index % self.kept.len());
            self.check(&kept);
        }
        Some(())
    }

    /// The neighbour has so many pages of the tight budget from now on, or none where
    /// leases leave too few.
    fn take(&mut self, pages: usize) {
        self.taken = None;
        if pages > 0 {
            let at: *const u8 = std::ptr::without_provenance(1 << 40);
            self.taken = neighbour().get((at, pages * PAGE), Access::LOCAL_READ).ok();
        }
    }

    fn fork(&mut self) {
        let part = Part { first: 0, count: WINDOW };
        let refused = |fixture: &Fixture| {
            let registry = &fixture.registry;
            matches!(registry.get(part.bytes(), Access::LOCAL_READ), Err(GetError::Forked))
                && registry.lookup(part.bytes(), Access::LOCAL_READ).is_none()
        };
        let child = in_child(|| {
            // SAFETY: the child's own copy of the window.
            unsafe { libc::munmap(part.at() as *mut _, part.len()) };
            fixtures().iter().all(refused)
        });
        assert!(child, "the child");
    }

    /// One step; `None` at the end of the input.
    fn step(&mut self) -> Option<()> {
        match self.byte()? % 32 {
            0..=3 => self.part().map(|part| self.world.map(part)),
            4..=5 => self.part().map(|part| self.world.unmap(part)),
            6 => {
                let (from, to) = (self.byte()? as usize % WINDOW, self.byte()? as usize % WINDOW);
                self.world.remap(from, to);
                Some(())
            }
            7..=8 => {
                let (part, how) = (self.part()?, self.byte()?);
                self.world.empty(part, how);
                Some(())
            }
            9 => {
                let (part, how) = (self.part()?, self.byte()?);
                self.world.protect(part, how & 3 != 0);
                Some(())
            }
            10..=11 => self.part().map(|part| self.world.write(part)),
            12..=20 => self.get(),
            21..=23 => self.lookup(),
            24..=26 => self.release(),
            27 => {
                let (fixture, part) = (self.fixture()?, self.part()?);
                fixture.registry.invalidate(part.bytes()).unwrap();
                Some(())
            }
            28 => self.fixture().map(|fixture| fixture.registry.flush().unwrap()),
            29 => self.fixture().map(|fixture| {
                let stats = fixture.registry.stats();
                assert!(stats.pinned_bytes <= fixture.budget as u64, "{stats:?}");
            }),
            30 => {
                let input: Vec<u8> = self.input.by_ref().take(17).copied().collect();
                c_interface::call(&input);
                Some(())
            }
            // Rarely: it costs as much as a thousand hits.
            _ => {
                match self.byte()? % 16 {
                    0 => self.fork(),
                    pages => self.take(pages as usize % 13),
                }
                Some(())
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let (world, pipe) = (World::new(), pipe());
    let mut program = Program { input: data.iter(), world, pipe, kept: Vec::new(), taken: None };
    for _ in 0..200 {
        if program.step().is_none() {
            break;
        }
    }
    while let Some(kept) = program.kept.pop() {
        program.check(&kept);
    }
    program.take(0);
    for fixture in fixtures() {
        fixture.registry.flush().unwrap();
        let stats = fixture.registry.stats();
        assert_eq!((stats.registrations, stats.pinned_bytes), (stats.deregistrations, 0), "{stats:?}");
        assert_eq!(stats.failed_deregistrations, 0);
    }
});
