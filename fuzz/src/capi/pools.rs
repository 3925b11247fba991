//! Pools with arguments from the fuzzer: blocks that are good, freed, of others, within
//! another, or made up. No two blocks in use share a byte, a wrong one is refused and
//! changes nothing, and what is freed is freed once.

use super::{Program, deregister, register, release};
use crate::ffi::*;
use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

const HOST: u32 = 0;
const PINNED: u32 = 1;
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
        let mut pools = Pools { program, registry, live: Vec::new(), gone: Vec::new(), freed: Vec::new() };
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

    /// A pool's place in `live`, if there is any.
    fn any(&mut self) -> Option<Option<usize>> {
        let which = self.program.byte()? as usize;
        Some(which.checked_rem(self.live.len()))
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
            patience_ns: if memory == DEVICE { 1_000_000 } else { 0 },
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
            _ => {}
        }
        if self.live.len() > 2 || config.patience_ns == 0 && config.memory == DEVICE {
            return Some(());
        }
        // Beyond what the machine has: its refusal is not what is looked for.
        config.slab_bytes = if config.slab_bytes > 64 << 20 { usize::MAX } else { config.slab_bytes };
        let mut pool = usize::MAX;
        // SAFETY: readable for its size; a larger size is refused before anything is read.
        let status = unsafe { pny_pool_create(&raw const config, &raw mut pool) };
        Program::judge(status, true);
        assert_eq!(status == OK, pool != usize::MAX);
        if status == OK {
            assert!(!self.gone.contains(&pool) && config.memory <= DEVICE);
            self.live.push(Live { pool, memory: config.memory, streams: Vec::new(), blocks: Vec::new() });
        }
        Some(())
    }

    fn destroy(&mut self) -> Option<()> {
        let Some(at) = self.any()? else {
            let made_up = self.program.hostile()? as usize;
            // SAFETY: a number that is no handle.
            Program::judge(unsafe { pny_pool_destroy(made_up) }, false);
            return Some(());
        };
        let Live { pool, streams, blocks, .. } = &self.live[at];
        // SAFETY: the only thread.
        let status = unsafe { pny_pool_destroy(*pool) };
        Program::judge(status, true);
        // BUSY also where a freed block still waits.
        assert!(status == BUSY || status == OK && streams.is_empty() && blocks.is_empty());
        if status == OK {
            self.gone.push(self.live.swap_remove(at).pool);
        }
        Some(())
    }

    fn stream(&mut self) -> Option<()> {
        let (Some(at), how) = (self.any()?, self.program.byte()?) else { return Some(()) };
        let live = &mut self.live[at];
        if how % 4 == 0 {
            let Some(stream) = live.streams.pop() else { return Some(()) };
            // SAFETY: the only thread.
            assert_eq!(unsafe { pny_stream_destroy(stream) }, OK, "{}", text(pny_last_error()));
            // SAFETY: a number that is no handle any more.
            assert_eq!(unsafe { pny_stream_destroy(stream) }, STALE);
            return Some(());
        }
        let (native, mut made) = (if how % 4 == 1 { 4096 } else { 0 }, 0);
        if live.streams.len() > 3 {
            return Some(());
        }
        // SAFETY: no native stream of a simulated device is looked at.
        let status = unsafe { pny_stream_create(live.pool, native, &raw mut made) };
        Program::judge(status, live.memory == DEVICE && native == 0);
        if status == OK {
            live.streams.push(made);
        }
        Some(())
    }

    /// A stream, and whether the pool takes it.
    fn stream_for(&mut self, at: usize) -> Option<(usize, bool)> {
        let how = self.program.byte()?;
        let made_up = if how < 16 { Some(self.program.hostile()? as usize) } else { None };
        let live = &self.live[at];
        let own = usize::from(how).checked_rem(live.streams.len()).map(|at| live.streams[at]);
        let stream = made_up.or(own).unwrap_or(0);
        Some((stream, if live.memory == DEVICE { live.streams.contains(&stream) } else { stream == 0 }))
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
        let Some(at) = self.any()? else { return Some(()) };
        let ((stream, good), (bytes, align)) = (self.stream_for(at)?, self.wish()?);
        let pool = self.live[at].pool;
        let mut block = usize::MAX;
        // SAFETY: a place of the target's own.
        let status = unsafe { pny_pool_alloc_aligned(pool, bytes, align, stream, &raw mut block) };
        Program::judge(status, good && bytes > 0 && align.is_power_of_two());
        assert_eq!(status == OK, block != 0);
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
        let Some(at) = self.any()? else { return Some(()) };
        let (stream, good) = self.stream_for(at)?;
        let count = usize::from(self.program.byte()? % 5);
        let sizes = (0..count).map(|_| self.wish().map(|(bytes, _)| bytes)).collect::<Option<Vec<_>>>()?;
        let mut blocks = vec![usize::MAX; count];
        // SAFETY: as many of each.
        let status = unsafe {
            pny_pool_alloc_batch(self.live[at].pool, sizes.as_ptr(), count, stream, blocks.as_mut_ptr())
        };
        Program::judge(status, good);
        assert!(blocks.iter().all(|&block| (block != 0) == (status == OK)), "all or none");
        if status == OK {
            for (block, bytes) in blocks.into_iter().zip(sizes) {
                self.enter(at, block, bytes);
            }
        }
        Some(())
    }

    /// An address, and the place in `blocks` of the block that begins there.
    fn address(&mut self, at: usize) -> Option<(usize, Option<usize>)> {
        let (how, which) = (self.program.byte()?, self.program.byte()? as usize);
        let made_up = self.program.hostile()? as usize;
        let blocks = &self.live[at].blocks;
        let some = which.checked_rem(blocks.len());
        let address = match how % 8 {
            0 => made_up,
            1 => which.checked_rem(self.freed.len()).map_or(0, |at| self.freed[at]),
            2 => some.map_or(0, |at| blocks[at].0 + made_up % blocks[at].1),
            _ => some.map_or(0, |at| blocks[at].0),
        };
        Some((address, blocks.iter().position(|&(block, _)| block == address)))
    }

    fn free(&mut self) -> Option<()> {
        let Some(at) = self.any()? else { return Some(()) };
        let ((address, good), how) = (self.address(at)?, self.program.byte()?);
        let (pool, stream) = (self.live[at].pool, self.live[at].streams.last().copied());
        // SAFETY: nobody uses the memory any more.
        let status = unsafe {
            match (how % 8, stream) {
                (0, _) => pny_pool_defer_until(pool, address, Some(passed), std::ptr::null_mut()),
                (1, Some(stream)) => pny_pool_free_after(pool, address, stream),
                _ => pny_pool_free(pool, address),
            }
        };
        Program::judge(status, good.is_some());
        match good {
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
        let Some(at) = self.any()? else { return Some(()) };
        let (address, _) = self.address(at)?;
        // `pny_block_place`: size, key, slab, block, offset.
        let mut place = [u64::MAX; 12];
        place[0] = 72;
        // SAFETY: as large as it says.
        let status = unsafe { pny_pool_find(self.live[at].pool, address, place.as_mut_ptr()) };
        let inside = self.live[at].blocks.iter().find(|&&(block, bytes)| address.wrapping_sub(block) < bytes);
        Program::judge(status, inside.is_some());
        assert_eq!(place[9..], [u64::MAX; 3], "past its end");
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
        let Some(at) = self.any()? else { return Some(()) };
        let ((address, good), (stream, known)) = (self.address(at)?, self.stream_for(at)?);
        let Live { pool, memory, .. } = self.live[at];
        // SAFETY: nobody destroys anything.
        let status = unsafe { pny_pool_record_use(pool, address, stream) };
        Program::judge(status, good.is_some() && known && memory == DEVICE);
        Some(())
    }

    /// Warming up, trimming, counting; fences that pass or not.
    fn care(&mut self) -> Option<()> {
        let (Some(at), how) = (self.any()?, self.program.byte()?) else { return Some(()) };
        let (stream, good) = self.stream_for(at)?;
        let pool = self.live[at].pool;
        match how % 4 {
            0 => {
                let (bytes, count) = (self.program.hostile()? as usize, self.program.byte()? as usize);
                // SAFETY: nobody destroys anything.
                Program::judge(unsafe { pny_pool_warmup(pool, bytes, count, stream) }, good || count == 0);
            }
            1 => {
                let mut released = 0;
                // SAFETY: a place of the target's own.
                Program::judge(unsafe { pny_pool_trim(pool, &raw mut released) }, true);
            }
            2 => PASSED.store(i32::from(how / 4 % 2), SeqCst),
            _ => {
                let mut counts = [u64::MAX; 12];
                counts[0] = 88;
                // SAFETY: as large as it says.
                assert_eq!(unsafe { pny_pool_stats(pool, counts.as_mut_ptr()) }, OK);
                let held = self.live[at].blocks.len() as u64;
                assert!(counts[11] == u64::MAX && counts[6] >= held && counts[6] <= held + counts[9]);
                assert_eq!(counts[6], counts[9] - counts[10], "handed out and not taken back");
            }
        }
        Some(())
    }

    fn end(mut self) {
        PASSED.store(1, SeqCst);
        for Live { pool, memory, streams, blocks } in self.live.drain(..) {
            for (block, _) in blocks {
                // SAFETY: nobody uses the memory any more.
                assert_eq!(unsafe { pny_pool_free(pool, block) }, OK, "{}", text(pny_last_error()));
            }
            for stream in streams {
                // SAFETY: the only thread.
                assert_eq!(unsafe { pny_stream_destroy(stream) }, OK, "{}", text(pny_last_error()));
            }
            // What waits has passed, and the pool's thread sees it soon.
            let tries = if memory == HOST || memory == PINNED { 2 } else { 5000 };
            // SAFETY: the only thread.
            let gone = (0..tries).any(|_| unsafe { pny_pool_destroy(pool) } == OK);
            assert!(gone, "{}", text(pny_last_error()));
        }
        // SAFETY: the only thread.
        assert_eq!(unsafe { pny_registry_destroy(self.registry) }, OK, "{}", text(pny_last_error()));
    }
}
