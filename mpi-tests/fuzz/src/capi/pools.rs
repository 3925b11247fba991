//! Pools with arguments from the fuzzer: handles that are good, gone, null, of another kind
//! or made up; blocks that are good, freed, of other pools, within another, or made up;
//! pointers that are null. No two blocks in use share a byte, what is wrong is refused and
//! changes nothing, and what is freed is freed once.

use super::{Program, deregister, register, release};
use crate::ffi::*;
use core::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

const HOST: u32 = 0;
const DEVICE: u32 = 2;

/// What the fences of deferred blocks answer.
static PASSED: AtomicI32 = AtomicI32::new(1);

extern "C" fn passed(_: *mut c_void) -> c_int {
    PASSED.load(SeqCst)
}

/// A pool that there is.
struct Live {
    pool: usize,
    memory: u32,
    streams: Vec<usize>,
    /// Address and bytes.
    blocks: Vec<(usize, usize)>,
}

pub(super) struct Pools<'p, 'd> {
    program: &'p mut Program<'d>,
    registry: Registry,
    live: Vec<Live>,
    gone: Vec<usize>,
    gone_streams: Vec<usize>,
    freed: Vec<usize>,
}

/// What an allocation is asked for: size, alignment.
type Wish = (usize, usize);

impl<'p, 'd> Pools<'p, 'd> {
    pub(super) fn run(program: &'p mut Program<'d>) {
        let ops = Ops::of(c"pools", register, deregister, release);
        let config = Config { size: 88, flags: 8, ops: &raw const ops, ..Config::ZERO };
        let mut registry = 0;
        // SAFETY: readable for its size, and a place for the handle.
        assert_eq!(unsafe { pny_registry_create(&raw const config, &raw mut registry) }, OK);
        let (live, gone, gone_streams, freed) = Default::default();
        let mut pools = Pools { program, registry, live, gone, gone_streams, freed };
        for _ in 0..100 {
            if pools.step().is_none() {
                break;
            }
        }
        pools.end();
    }

    fn step(&mut self) -> Option<()> {
        match self.program.byte()? % 16 {
            0 | 1 => self.create(),
            2 => self.destroy(),
            3 => self.stream(),
            4..=7 => self.alloc(),
            8 => self.batch(),
            9..=12 => self.free(),
            13 => self.find(),
            14 => self.use_by(),
            _ => self.care(),
        }
    }

    /// A handle, and the place in `live` of the pool that it is.
    fn pool(&mut self) -> Option<(usize, Option<usize>)> {
        let (how, which) = (self.program.byte()?, self.program.byte()? as usize);
        let handle = match how % 32 {
            0 => 0,
            1 => self.program.hostile()? as usize,
            2 => which.checked_rem(self.gone.len()).map_or(16, |at| self.gone[at]),
            // Of another kind.
            3 => self.registry,
            4 => self.some_stream(which),
            _ => which.checked_rem(self.live.len()).map_or(0, |at| self.live[at].pool),
        };
        Some((handle, self.live.iter().position(|live| live.pool == handle)))
    }

    /// A stream of any pool.
    fn some_stream(&self, which: usize) -> usize {
        let mut all = self.live.iter().flat_map(|live| live.streams.iter().copied()).cycle();
        all.nth(which).unwrap_or(0)
    }

    /// A stream's handle, of the pool at `at` unless it is hostile.
    fn stream_handle(&mut self, at: Option<usize>) -> Option<usize> {
        let how = self.program.byte()?;
        let which = usize::from(how);
        Some(match how {
            0..12 => self.program.hostile()? as usize,
            12..20 => self.some_stream(which),
            20..28 => which.checked_rem(self.gone_streams.len()).map_or(0, |at| self.gone_streams[at]),
            28..32 => self.registry,
            _ => {
                let own = at.map_or(&[][..], |at| &self.live[at].streams);
                which.checked_rem(own.len()).map_or(0, |at| own[at])
            }
        })
    }

    /// A stream, and whether the pool takes it.
    fn stream_for(&mut self, at: Option<usize>) -> Option<(usize, bool)> {
        let stream = self.stream_handle(at)?;
        let good = at.map(|at| &self.live[at]).is_some_and(|live| match live.memory {
            DEVICE => live.streams.contains(&stream),
            _ => stream == 0,
        });
        Some((stream, good))
    }

    /// Null now and then.
    fn place<T>(&mut self, of: &mut T) -> Option<*mut T> {
        Some(if self.program.byte()? < 16 { null_mut() } else { of })
    }

    /// What a call says of a pool that is none.
    fn refused(status: c_int) -> Option<()> {
        Program::judge(status, false);
        assert!(status == INVALID || status == STALE, "{}", text(pny_last_error()));
        Some(())
    }

    fn create(&mut self) -> Option<()> {
        let (memory, odd, value) =
            (u32::from(self.program.byte()? % 4), self.program.byte()?, self.program.hostile()?);
        let mut config = PoolConfig {
            size: 64,
            memory,
            driver: u32::from(memory != HOST),
            device: 0,
            access: 0,
            registry: if memory == DEVICE && odd < 128 { 0 } else { self.registry },
            slab_bytes: 2 << 20,
            limit: 8 << 20,
            patience_ns: 1_000_000,
            simulated_bytes: if memory == HOST { 0 } else { 16 << 20 },
            unknown: [0; 2],
        };
        match odd % 24 {
            0 => config.size = if value > 4096 { value as usize } else { (value as usize).min(80) },
            1 => config.memory = value as u32,
            // No real device is opened.
            2 => config.driver = value as u32 | 2,
            3 => config.device = value as u32 | 1,
            4 => config.access = value as u32,
            5 => config.registry = value as usize,
            6 => config.slab_bytes = value as usize,
            7 => config.limit = (value as usize).min(32 << 20),
            8 => config.simulated_bytes = (value as usize).min(64 << 20),
            9 => (config.size, config.unknown[1]) = (80, value),
            // A handle of another kind.
            10 => config.registry = self.pool()?.0,
            _ => {}
        }
        if self.live.len() > 2 || config.patience_ns == 0 {
            return Some(());
        }
        // Beyond what the machine has: its refusal is not what is looked for.
        config.slab_bytes = if config.slab_bytes > 64 << 20 { usize::MAX } else { config.slab_bytes };
        let mut pool = usize::MAX;
        let from = if odd % 24 == 11 { null() } else { &raw const config };
        let to = self.place(&mut pool)?;
        // SAFETY: null, or readable for its size; a larger size is refused before anything is
        // read.
        let status = unsafe { pny_pool_create(from, to) };
        Program::judge(status, !from.is_null() && !to.is_null());
        assert_eq!(status == OK, pool != usize::MAX);
        if status == OK {
            assert!(!self.gone.contains(&pool) && config.memory <= DEVICE);
            self.live.push(Live { pool, memory: config.memory, streams: Vec::new(), blocks: Vec::new() });
        }
        Some(())
    }

    fn destroy(&mut self) -> Option<()> {
        let (pool, at) = self.pool()?;
        // SAFETY: the only thread.
        let status = unsafe { pny_pool_destroy(pool) };
        let Some(at) = at else { return Self::refused(status) };
        Program::judge(status, true);
        let Live { streams, blocks, .. } = &self.live[at];
        // BUSY also where a freed block still waits.
        assert!(status == BUSY || status == OK && streams.is_empty() && blocks.is_empty());
        if status == OK {
            self.gone.push(self.live.swap_remove(at).pool);
        }
        Some(())
    }

    fn stream(&mut self) -> Option<()> {
        let ((pool, at), how) = (self.pool()?, self.program.byte()?);
        if how % 4 == 0 {
            let stream = self.stream_handle(at)?;
            // SAFETY: the only thread.
            let status = unsafe { pny_stream_destroy(stream) };
            let place = |live: &Live| live.streams.iter().position(|&other| other == stream);
            let Some((owner, place)) =
                self.live.iter_mut().find_map(|live| place(live).map(|place| (live, place)))
            else {
                return Self::refused(status);
            };
            assert_eq!(status, OK, "{}", text(pny_last_error()));
            self.gone_streams.push(owner.streams.swap_remove(place));
            return Some(());
        }
        let (native, mut made) = (if how % 4 == 1 { 4096 } else { 0 }, 0);
        if at.is_some_and(|at| self.live[at].streams.len() > 3) {
            return Some(());
        }
        let to = self.place(&mut made)?;
        // SAFETY: no native stream of a simulated device is looked at; null or the target's own.
        let status = unsafe { pny_stream_create(pool, native, to) };
        let Some(at) = at else { return Self::refused(status) };
        Program::judge(status, self.live[at].memory == DEVICE && native == 0 && !to.is_null());
        if status == OK {
            assert!(!self.gone_streams.contains(&made), "a handle for the second time");
            self.live[at].streams.push(made);
        }
        Some(())
    }

    fn wish(&mut self) -> Option<Wish> {
        let how = self.program.byte()?;
        let bytes = match how {
            0..32 => self.program.hostile()? as usize,
            _ => usize::from(how) * usize::from(how) * 10,
        };
        let align = self.program.byte()?;
        Some((bytes, if align < 200 { 1 << (align % 12) } else { self.program.hostile()? as usize }))
    }

    fn enter(&mut self, at: usize, block: usize, bytes: usize) {
        let apart = |&(other, length): &(usize, usize)| block + bytes <= other || other + length <= block;
        assert!(block != 0 && self.live[at].blocks.iter().all(apart), "{block:#x} + {bytes} is in use");
        self.freed.retain(|&freed| freed != block);
        self.live[at].blocks.push((block, bytes));
    }

    fn alloc(&mut self) -> Option<()> {
        let (pool, at) = self.pool()?;
        let ((stream, good), (bytes, align)) = (self.stream_for(at)?, self.wish()?);
        let (mut block, plain) = (usize::MAX, self.program.byte()? % 2 == 0);
        let (align, to) = (if plain { 1 } else { align }, self.place(&mut block)?);
        // SAFETY: null, or a place of the target's own.
        let status = unsafe {
            match plain {
                true => pny_pool_alloc(pool, bytes, stream, to),
                false => pny_pool_alloc_aligned(pool, bytes, align, stream, to),
            }
        };
        assert!(if to.is_null() { block == usize::MAX } else { (status == OK) == (block != 0) });
        let Some(at) = at else { return Self::refused(status) };
        Program::judge(status, good && bytes > 0 && align.is_power_of_two() && !to.is_null());
        if status == OK {
            assert!(block.is_multiple_of(align));
            if bytes < 1 << 20 {
                // SAFETY: a block of so many bytes; a simulated device's memory is the host's.
                unsafe { std::ptr::with_exposed_provenance_mut::<u8>(block).write_bytes(0xa5, bytes) };
            }
            self.enter(at, block, bytes);
        }
        Some(())
    }

    fn batch(&mut self) -> Option<()> {
        let (pool, at) = self.pool()?;
        let (stream, good) = self.stream_for(at)?;
        let (count, odd) = (usize::from(self.program.byte()? % 5), self.program.byte()?);
        let sizes = (0..count).map(|_| self.wish().map(|(bytes, _)| bytes)).collect::<Option<Vec<_>>>()?;
        let mut blocks = vec![usize::MAX; count];
        let (mut from, mut to, mut told) = (sizes.as_ptr(), blocks.as_mut_ptr(), count);
        match odd % 16 {
            0 => from = null(),
            1 => to = null_mut(),
            // More than an address space has: refused before anything is read.
            2 => told = usize::MAX,
            _ => {}
        }
        let whole = told == count && (count == 0 || !from.is_null() && !to.is_null());
        // SAFETY: as many of each, or null.
        let status = unsafe { pny_pool_alloc_batch(pool, from, told, stream, to) };
        let left = if whole { 0 } else { usize::MAX };
        assert!(status == OK || blocks.iter().all(|&block| block == left), "all or none");
        let Some(at) = at else { return Self::refused(status) };
        Program::judge(status, good && whole);
        if status == OK {
            for (block, bytes) in blocks.into_iter().zip(sizes) {
                self.enter(at, block, bytes);
            }
        }
        Some(())
    }

    /// An address, and the place of the block of the pool at `at` that begins there.
    fn address(&mut self, at: Option<usize>) -> Option<(usize, Option<usize>)> {
        let (how, which) = (self.program.byte()?, self.program.byte()? as usize);
        let made_up = self.program.hostile()? as usize;
        let own = at.map_or(&[][..], |at| &self.live[at].blocks);
        let some = which.checked_rem(own.len()).map(|at| own[at]);
        let mut all = self.live.iter().flat_map(|live| &live.blocks).cycle();
        let address = match how % 8 {
            0 => made_up,
            1 => which.checked_rem(self.freed.len()).map_or(0, |at| self.freed[at]),
            2 => some.map_or(0, |(block, bytes)| block + made_up % bytes),
            // Of any pool.
            3 => all.nth(which).map_or(0, |&(block, _)| block),
            _ => some.map_or(0, |(block, _)| block),
        };
        Some((address, own.iter().position(|&(block, _)| block == address)))
    }

    fn free(&mut self) -> Option<()> {
        let (pool, at) = self.pool()?;
        let ((address, found), how) = (self.address(at)?, self.program.byte()?);
        let stream = self.stream_handle(at)?;
        let fence = if how % 32 == 8 { None } else { Some(passed as extern "C" fn(*mut c_void) -> c_int) };
        // SAFETY: nobody uses the memory any more.
        let (status, good) = unsafe {
            match how % 8 {
                0 => (pny_pool_defer_until(pool, address, fence, null_mut()), fence.is_some()),
                1 => (
                    pny_pool_free_after(pool, address, stream),
                    self.live.iter().any(|live| live.streams.contains(&stream)),
                ),
                _ => (pny_pool_free(pool, address), true),
            }
        };
        let (Some(at), true) = (at, good) else { return Self::refused(status) };
        Program::judge(status, found.is_some());
        match found {
            Some(place) => {
                assert_eq!(status, OK, "{}", text(pny_last_error()));
                self.freed.push(self.live[at].blocks.swap_remove(place).0);
            }
            None => {
                let inside =
                    self.live[at].blocks.iter().any(|&(block, bytes)| address.wrapping_sub(block) < bytes);
                assert_eq!(status, if address == 0 || inside { INVALID } else { STALE });
            }
        }
        Some(())
    }

    fn find(&mut self) -> Option<()> {
        let (pool, at) = self.pool()?;
        let (address, _) = self.address(at)?;
        // `pny_block_place`: size, key, slab, block, offset.
        let mut place = [u64::MAX; 12];
        place[0] = 72;
        let to = self.place(&mut place)?;
        // SAFETY: null, or as large as it says.
        let status = unsafe { pny_pool_find(pool, address, to.cast()) };
        assert_eq!(place[9..], [u64::MAX; 3], "past its end");
        let (Some(at), false) = (at, to.is_null()) else { return Self::refused(status) };
        let inside = self.live[at].blocks.iter().find(|&&(block, bytes)| address.wrapping_sub(block) < bytes);
        Program::judge(status, inside.is_some());
        match inside {
            Some(&(block, bytes)) => {
                assert_eq!((status, place[6], place[7]), (OK, block as u64, bytes as u64));
                assert_eq!(place[4] + place[8], address as u64);
                assert!(place[8] < place[5], "in its slab");
            }
            None => assert_eq!(status, NOT_FOUND),
        }
        Some(())
    }

    fn use_by(&mut self) -> Option<()> {
        let (pool, at) = self.pool()?;
        let ((address, found), (stream, known)) = (self.address(at)?, self.stream_for(at)?);
        // SAFETY: nobody destroys anything.
        let status = unsafe { pny_pool_record_use(pool, address, stream) };
        let Some(at) = at else { return Self::refused(status) };
        Program::judge(status, found.is_some() && known && self.live[at].memory == DEVICE);
        Some(())
    }

    /// Warming up, trimming, counting; fences that pass or not.
    fn care(&mut self) -> Option<()> {
        let ((pool, at), how) = (self.pool()?, self.program.byte()?);
        let (stream, good) = self.stream_for(at)?;
        let status = match how % 4 {
            0 => {
                let (bytes, count) = (self.program.hostile()? as usize, self.program.byte()? as usize);
                // SAFETY: nobody destroys anything.
                let status = unsafe { pny_pool_warmup(pool, bytes, count, stream) };
                Program::judge(status, good);
                status
            }
            1 => {
                let mut released = usize::MAX;
                let to = self.place(&mut released)?;
                // SAFETY: null, or a place of the target's own.
                let status = unsafe { pny_pool_trim(pool, to) };
                assert_eq!(released == usize::MAX, status != OK || to.is_null());
                status
            }
            2 => {
                PASSED.store(i32::from(how / 4 % 2), SeqCst);
                return Some(());
            }
            _ => {
                let mut counts = [u64::MAX; 12];
                counts[0] = 88;
                let to = self.place(&mut counts)?;
                // SAFETY: null, or as large as it says.
                let status = unsafe { pny_pool_stats(pool, to.cast()) };
                assert_eq!(counts[11], u64::MAX, "past its end");
                if to.is_null() {
                    return Self::refused(status);
                }
                if let Some(at) = at {
                    let held = self.live[at].blocks.len() as u64;
                    assert!(counts[6] >= held && counts[6] <= held + counts[9]);
                    assert_eq!(counts[6], counts[9] - counts[10], "handed out and not taken back");
                }
                status
            }
        };
        match at {
            None => return Self::refused(status),
            Some(_) if how % 4 != 0 => assert_eq!(status, OK, "{}", text(pny_last_error())),
            Some(_) => {}
        }
        Some(())
    }

    fn end(mut self) {
        PASSED.store(1, SeqCst);
        for Live { pool, streams, blocks, .. } in self.live.drain(..) {
            for (block, _) in blocks {
                // SAFETY: nobody uses the memory any more.
                assert_eq!(unsafe { pny_pool_free(pool, block) }, OK, "{}", text(pny_last_error()));
            }
            for stream in streams {
                // SAFETY: the only thread.
                assert_eq!(unsafe { pny_stream_destroy(stream) }, OK, "{}", text(pny_last_error()));
            }
            // What waits has passed, and the pool's thread sees it soon.
            // SAFETY: the only thread.
            let gone = (0..5000).any(|_| unsafe { pny_pool_destroy(pool) } == OK);
            assert!(gone, "{}", text(pny_last_error()));
        }
        // SAFETY: the only thread.
        assert_eq!(unsafe { pny_registry_destroy(self.registry) }, OK, "{}", text(pny_last_error()));
    }
}
