//! The C interface with arguments from the fuzzer, under AddressSanitizer: handles, tickets, sizes, flags,
//! lengths and texts' capacities that are good, old, of others, or made up; functions of
//! the caller's own that fail. Whatever they are, a status with a text comes back, never
//! that of a defect; what is held is exactly what was given out and not yet given back;
//! `release` is called once a registry; what is written ends where the capacity ends.
//!
//! Pointers that are written to are null or the target's own: those are the caller's
//! word. `xtask/ci/fuzz.sh [seconds]` builds and runs it.
#![allow(unsafe_code, clippy::unwrap_used)]
#![no_main]

mod ffi;
mod plug;
mod pools;

use core::ffi::{c_int, c_void};
use ffi::*;
use libfuzzer_sys::fuzz_target;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

/// What the functions of the target's registries answer, and what they were asked.
static ERRNO: AtomicI32 = AtomicI32::new(0);
static PINNED: AtomicU64 = AtomicU64::new(0);
static RELEASED: AtomicU64 = AtomicU64::new(0);

extern "C" fn register(_: *mut c_void, at: usize, length: usize, access: u32, key: &mut [u64; 3]) -> c_int {
    assert!(at.is_multiple_of(4096) && length.is_multiple_of(4096) && access < 16);
    let errno = ERRNO.load(SeqCst);
    if errno == 0 {
        PINNED.fetch_add(1, SeqCst);
        *key = [at as u64, length as u64, 1];
    }
    errno
}

extern "C" fn deregister(_: *mut c_void, key: &[u64; 3], at: usize, length: usize) -> c_int {
    assert_eq!(*key, [at as u64, length as u64, 1]);
    PINNED.fetch_sub(1, SeqCst);
    0
}

extern "C" fn release(_: *mut c_void) {
    RELEASED.fetch_add(1, SeqCst);
}

/// Memory to register: addresses are only compared, so nothing has to be mapped.
const BASE: usize = 0x2000_0000_0000;

/// The first byte of an input that begins with pools.
const POOLS: u8 = 0xff;
/// The same of the functions for other libraries' allocators.
const PLUG: u8 = 0xfe;

/// The pool behind pny_torch_malloc has the simulated device, and libfabric no monitor of
/// ours: it would be there for every later input.
fn environment() {
    for (name, value) in [("PINYARD_DRIVER", "simulated"), ("FI_MR_CACHE_MONITOR", "disabled")] {
        // SAFETY: called once, before libFuzzer reads an input: nobody else reads variables.
        unsafe { std::env::set_var(name, value) };
    }
}

struct Program<'d> {
    input: std::slice::Iter<'d, u8>,
    live: Vec<Registry>,
    gone: Vec<Registry>,
    held: Vec<(Registry, Lease)>,
    spent: Vec<Lease>,
    inits: u32,
}

impl Program<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.input.next().copied()
    }

    fn word(&mut self) -> Option<u64> {
        let bytes: Vec<u8> = self.input.by_ref().take(8).copied().collect();
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// One of the words that bounds are about, or any.
    fn hostile(&mut self) -> Option<u64> {
        const EDGES: [u64; 12] =
            [0, 1, 4095, 4096, 4097, 88, 64, 1 << 31, 1 << 47, 1 << 63, u64::MAX, u64::MAX - 4095];
        let how = self.byte()? as usize;
        if how < EDGES.len() { Some(EDGES[how]) } else { self.word() }
    }

    /// A handle, and whether it is good.
    fn registry(&mut self) -> Option<(Registry, bool)> {
        let (how, which) = (self.byte()?, self.byte()? as usize);
        let handle = match how % 8 {
            0 => 0,
            1 => self.hostile()? as Registry,
            2 => self.gone.get(which % self.gone.len().max(1)).copied().unwrap_or(16),
            _ => self.live.get(which % self.live.len().max(1)).copied().unwrap_or(0),
        };
        Some((handle, self.live.contains(&handle)))
    }

    fn range(&mut self) -> Option<(usize, usize)> {
        let how = self.byte()?;
        if how < 200 {
            return Some((
                BASE + usize::from(how % 16) * 4096 + usize::from(how),
                usize::from(how) * 100 + 1,
            ));
        }
        Some((self.hostile()? as usize, self.hostile()? as usize))
    }

    fn access(&mut self) -> Option<u32> {
        let how = self.byte()?;
        if how < 200 { Some(u32::from(how % 16)) } else { Some(self.hostile()? as u32) }
    }

    /// A status has a text, and no call finds a defect.
    fn judge(status: c_int, good: bool) {
        assert_ne!(status, INTERNAL, "{}", text(pny_last_error()));
        assert!(!text(pny_strerror(status)).is_empty());
        let said = text(pny_last_error());
        assert_eq!(status == OK, said.is_empty(), "{status}: {said}");
        assert!(status == OK || said.starts_with("pny_"), "{said}");
        assert!(good || status != OK, "a handle that is none was taken");
    }

    fn create(&mut self) -> Option<()> {
        let (odd, value, unknown) = (self.byte()?, self.hostile()?, self.byte()? == 0);
        let mut ops = Ops::of(c"fuzz", register, deregister, release);
        let mut config = Config {
            size: 88,
            backend: 0,
            flags: 8, // the changes are announced
            device: std::ptr::null(),
            object: std::ptr::null_mut(),
            ops: &raw const ops,
            user: std::ptr::null_mut(),
            budget: 1 << 20,
            max_regions: 64,
            coarsen: 0,
            port: 0,
            reserved: 0,
            share_budget_of: 0,
            unknown: [u64::from(unknown); 2],
        };
        // Never more than there is: what is read is the caller's word.
        let size = |value: u64, most: usize| {
            if value as usize > 4096 { value as usize } else { most.min(value as usize) }
        };
        match odd % 32 {
            0 => config.size = size(value, size_of::<Config>()),
            1 => ops.size = size(value, size_of::<Ops>()),
            2 => config.flags = value as u32 | 8,
            // No real device is opened.
            3 => config.backend = if value < 6 { 0 } else { value as u32 | 8 },
            4 => config.ops = std::ptr::null(),
            5 => config.budget = value as usize,
            6 => config.max_regions = value as usize,
            7 => config.coarsen = value as usize,
            8 => config.port = value as u32,
            9 => config.reserved = value as u32,
            10 => (config.share_budget_of, config.budget) = (value as Registry, 0),
            11 => (config.share_budget_of, config.budget) = (self.registry()?.0, 0),
            12 => ops.register = None,
            13 => ops.deregister = None,
            14 => ops.max_region_bytes = value as usize,
            15 => ops.max_regions = value as usize,
            16 => ops.locks_memory = value as u32,
            17 => ops.reserved = value as u32,
            18 => ops.name = c"\xff\xfe".as_ptr(),
            19 => config.device = c"mlx5_0".as_ptr(),
            20 => ops.release = None,
            _ => {}
        }
        if self.live.len() > 6 || ops.release.is_none() {
            return Some(());
        }
        let (mut handle, released) = (usize::MAX, RELEASED.load(SeqCst));
        let from = if odd % 32 == 21 { std::ptr::null() } else { &raw const config };
        let to = if odd % 32 == 22 { std::ptr::null_mut() } else { &raw mut handle };
        // SAFETY: null, or both structures are readable for their sizes; a larger size is
        // refused before anything is read.
        let status = unsafe { pny_registry_create(from, to) };
        Self::judge(status, !from.is_null() && !to.is_null());
        assert_eq!(RELEASED.load(SeqCst), released, "a registry that never was");
        if status == OK {
            assert!(
                !self.live.contains(&handle) && !self.gone.contains(&handle),
                "a handle for the second time"
            );
            self.live.push(handle);
        } else {
            assert_eq!(handle, usize::MAX);
        }
        Some(())
    }

    fn destroy(&mut self) -> Option<()> {
        let (handle, good) = self.registry()?;
        let (held, released) = (self.held.iter().any(|(owner, _)| *owner == handle), RELEASED.load(SeqCst));
        // SAFETY: the only thread.
        let status = unsafe { pny_registry_destroy(handle) };
        Self::judge(status, good);
        let expected = if !good {
            (status, 0)
        } else if held {
            (BUSY, 0)
        } else {
            (OK, 1)
        };
        assert_eq!((status, RELEASED.load(SeqCst) - released), expected, "{}", text(pny_last_error()));
        assert!(good || status == STALE || handle == 0 && status == INVALID);
        if status == OK {
            self.live.retain(|live| *live != handle);
            self.gone.push(handle);
        }
        Some(())
    }

    fn get(&mut self) -> Option<()> {
        let ((handle, good), (at, length), access) = (self.registry()?, self.range()?, self.access()?);
        ERRNO.store(if self.byte()? < 16 { i32::from(self.byte()?) - 128 } else { 0 }, SeqCst);
        let mut lease = Lease { ticket: 77, ..Lease::default() };
        let to = if self.byte()? == 0 { std::ptr::null_mut() } else { &raw mut lease };
        // SAFETY: null or the target's own.
        let status = unsafe { pny_get(handle, at, length, access, to) };
        ERRNO.store(0, SeqCst);
        Self::judge(status, good);
        if status == OK {
            assert!(lease.ticket != 0 && lease.base <= at as u64);
            assert!(at as u64 + length as u64 <= lease.base + lease.length);
            assert!(
                self.held.iter().all(|(_, other)| other.ticket != lease.ticket),
                "a ticket given out twice"
            );
            self.held.push((handle, lease));
        } else if !to.is_null() {
            assert!(lease == Lease::default());
        }
        Some(())
    }

    fn put(&mut self) -> Option<()> {
        let (how, which) = (self.byte()?, self.byte()? as usize);
        let (mut lease, good) = match how % 8 {
            0 => (Lease { ticket: self.hostile()?, ..Lease::default() }, false),
            1 => (self.spent.get(which % self.spent.len().max(1)).copied().unwrap_or_default(), false),
            2 => {
                // SAFETY: null.
                Self::judge(unsafe { pny_put(std::ptr::null_mut()) }, false);
                return Some(());
            }
            _ if self.held.is_empty() => return Some(()),
            _ => (self.held.swap_remove(which % self.held.len()).1, true),
        };
        // A ticket that was made up may be one that is held.
        let by_chance = !good && self.held.iter().any(|(_, held)| held.ticket == lease.ticket);
        let before = lease;
        // SAFETY: the target's own.
        let status = unsafe { pny_put(&raw mut lease) };
        Self::judge(status, good || by_chance);
        assert_eq!(status, if good || by_chance { OK } else { STALE });
        if by_chance {
            self.held.retain(|(_, held)| held.ticket != before.ticket);
        }
        if status == OK {
            assert_eq!(lease.ticket, 0);
            self.spent.push(before);
        }
        Some(())
    }

    fn texts(&mut self) -> Option<()> {
        let ((handle, good), (at, length), access) = (self.registry()?, self.range()?, self.access()?);
        let (capacity, null, report) = (usize::from(self.byte()?), self.byte()? < 32, self.byte()? < 64);
        let (mut room, mut whole) = ([b'#' as core::ffi::c_char; 257], usize::MAX);
        let to = if null { std::ptr::null_mut() } else { room.as_mut_ptr() };
        let length_to = if self.byte()? < 32 { std::ptr::null_mut() } else { &raw mut whole };
        // SAFETY: null, or as large as the capacity; null, or the target's own.
        let status = unsafe {
            if report {
                pny_hooks_report(to, capacity, length_to)
            } else {
                pny_explain(handle, at, length, access, to, capacity, length_to)
            }
        };
        Self::judge(status, good || report);
        assert!(room[capacity..].iter().all(|&byte| byte == b'#' as core::ffi::c_char), "past the capacity");
        if status == OK && capacity > 0 {
            assert!(!null && text(room.as_ptr()).len() <= whole.min(capacity - 1));
        }
        Some(())
    }

    fn counts(&mut self) -> Option<()> {
        let ((handle, good), size, libfabric) = (self.registry()?, self.hostile()?, self.byte()? < 64);
        let mut counts = [u64::MAX; 32];
        // Never more than there is: what is written is the caller's word.
        counts[0] = if size > 4096 { size } else { size.min(256) };
        let end = (counts[0] as usize).clamp(8, 256).div_ceil(8);
        let to = if self.byte()? < 16 { std::ptr::null_mut() } else { &raw mut counts };
        // SAFETY: null, or as large as it says; a larger size is refused before anything is
        // written.
        let status = unsafe {
            if libfabric { pny_libfabric_monitor_stats(to) } else { pny_registry_stats(handle, to) }
        };
        Self::judge(status, good && !libfabric && !to.is_null());
        assert!(!libfabric || status == NOT_READY || status == INVALID);
        assert!(counts[end..].iter().all(|&count| count == u64::MAX), "past the size");
        Some(())
    }

    fn step(&mut self) -> Option<()> {
        match self.byte()? % 32 {
            0..=2 => self.create(),
            3..=4 => self.destroy(),
            5..=14 => self.get(),
            15..=20 => self.put(),
            21..=22 => {
                let ((handle, good), (at, length), access) =
                    (self.registry()?, self.range()?, self.access()?);
                let mut key = [u64::MAX; 3];
                let to = if self.byte()? == 0 { std::ptr::null_mut() } else { &raw mut key };
                // SAFETY: null or the target's own.
                let status = unsafe { pny_lookup(handle, at, length, access, to) };
                Self::judge(status, good);
                assert!([OK, INVALID, STALE, NOT_FOUND].contains(&status));
                assert_eq!(key == [u64::MAX; 3], status != OK);
                Some(())
            }
            23 => {
                let ((handle, good), (at, length)) = (self.registry()?, self.range()?);
                // SAFETY: the address is compared.
                Self::judge(unsafe { pny_invalidate(handle, at, length) }, good);
                Some(())
            }
            24 => {
                let (handle, good) = self.registry()?;
                // SAFETY: the only thread.
                Self::judge(unsafe { pny_flush(handle) }, good);
                Some(())
            }
            25 => self.range().map(|(at, length)| pny_notify_unmapped(at, length)),
            26..=27 => self.texts(),
            28..=29 => self.counts(),
            30 => self.process(),
            _ => self.ends(),
        }
    }

    /// What is the whole process's. What hooks see is the other target's.
    fn process(&mut self) -> Option<()> {
        match self.byte()? % 5 {
            0 => assert!(!text(pny_strerror(self.word()? as c_int)).is_empty()),
            1 => assert!(text(pny_version()).starts_with(env!("CARGO_PKG_VERSION_MAJOR"))),
            2 => {
                let status = pny_hooks_install();
                Self::judge(status, true);
                assert!(status == OK || status == HOOKS_INCOMPLETE, "{}", text(pny_last_error()));
            }
            3 => {
                let status = pny_libfabric_import_monitor();
                Self::judge(status, false);
                assert_eq!(status, REFUSED, "{}", text(pny_last_error()));
            }
            _ => {
                let verified = pny_hooks_verify();
                assert!(verified == OK || verified == NOT_READY, "{}", text(pny_last_error()));
            }
        }
        Some(())
    }

    /// Beginnings and ends, in pairs or not.
    fn ends(&mut self) -> Option<()> {
        if self.byte()? % 2 == 0 {
            assert_eq!(pny_init(), OK, "{}", text(pny_last_error()));
            self.inits += 1;
            return Some(());
        }
        let status = pny_finalize();
        Self::judge(status, true);
        match self.inits {
            0 => assert_eq!(status, NOT_READY),
            1 => {
                // It destroys nothing.
                assert_eq!(status, if self.live.is_empty() { OK } else { BUSY });
                self.inits = u32::from(status != OK);
            }
            _ => {
                assert_eq!(status, OK);
                self.inits -= 1;
            }
        }
        Some(())
    }
}

fuzz_target!(init: environment(), |data: &[u8]| {
    let mut program = Program {
        input: data.iter(),
        live: Vec::new(),
        gone: Vec::new(),
        held: Vec::new(),
        spent: Vec::new(),
        inits: 0,
    };
    // Marked, so that the inputs of before mean what they did.
    match data.first() {
        Some(&POOLS) => {
            program.byte();
            pools::Pools::run(&mut program);
        }
        Some(&PLUG) => {
            program.byte();
            plug::Plug::run(&mut program);
        }
        _ => {}
    }
    for _ in 0..200 {
        if program.step().is_none() {
            break;
        }
    }
    for (_, mut lease) in program.held.drain(..) {
        // SAFETY: the target's own.
        assert_eq!(unsafe { pny_put(&raw mut lease) }, OK, "{}", text(pny_last_error()));
    }
    for handle in program.live.drain(..) {
        // SAFETY: the only thread.
        assert_eq!(unsafe { pny_registry_destroy(handle) }, OK, "{}", text(pny_last_error()));
    }
    for _ in 0..program.inits {
        assert_eq!(pny_finalize(), OK);
    }
    assert_eq!(PINNED.load(SeqCst), 0, "registered, and nobody holds it");
});
