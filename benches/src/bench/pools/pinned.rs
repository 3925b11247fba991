//! Pinned host memory: the pool as one that replays a trace, and cold, 16 GiB in blocks of
//! 64 MiB by some threads. A virtual machine's own memory may be new the first time, so that
//! is left out.
#![allow(unsafe_code)] // blocks are freed

use super::contenders::{Block, Contender, Own, token};
use super::device;
use crate::{Settings, tell};
use pinyard_allocator::device::{DevicePool, PoolStream};
use pinyard_allocator::{Fence, Pool, PoolBuf};
use pinyard_benches::turns::or_fail;
use pinyard_cli::bench::row::OURS;
use pinyard_cli::bench::{Absence, Axis, Row, Summary};
use pinyard_driver::{Driver, Stream};
use pinyard_registry::{Events, MemoryKey, Registry, backend::Custom};
use std::sync::Arc;
use std::time::Instant;

const BLOCK: usize = 64 << 20;

/// A registry without a network.
fn registry() -> Registry {
    let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    or_fail(Registry::builder().backend(backend).events(Events::NotifyOnly).build())
}

/// The pool. A block that a stream uses is freed behind a fence of it.
pub(super) struct Pinned {
    driver: Arc<dyn Driver>,
    registry: Registry,
    /// Whose streams make fences.
    device: DevicePool,
    streams: Vec<PoolStream>,
    pool: Option<Pool>,
    blocks: Vec<Option<(PoolBuf<u8>, Option<Fence>)>>,
    spare: Vec<u64>,
}

impl Pinned {
    /// With fences of these streams.
    pub(super) fn new(driver: &Arc<dyn Driver>, raw: &[Stream]) -> Pinned {
        let device = or_fail(DevicePool::builder(driver.clone()).build());
        let streams = raw.iter().map(|&stream| or_fail(device.stream(stream))).collect();
        let (blocks, spare) = (Vec::new(), Vec::new());
        Pinned { driver: driver.clone(), registry: registry(), device, streams, pool: None, blocks, spare }
    }
}

impl Contender for Pinned {
    fn name(&self) -> &'static str {
        OURS
    }
    fn begin(&mut self, cap: Option<usize>) {
        let builder = Pool::pinned(&self.registry, self.driver.clone()).limit(cap.unwrap_or(usize::MAX));
        self.pool = Some(or_fail(builder.build()));
    }
    fn alloc(&mut self, bytes: usize, stream: u16) -> Option<Block> {
        let block = self.pool.as_ref()?.alloc::<u8>(bytes).ok()?;
        let at = self.spare.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() as u64 - 1
        });
        self.blocks[at as usize] = Some((block, None));
        Some(Block { at, own: Own::NONE, bytes, stream })
    }
    fn address(&self, block: Block) -> *const u8 {
        self.blocks[block.at as usize].as_ref().map_or(std::ptr::null(), |(block, _)| block.as_ptr())
    }
    fn free(&mut self, block: Block) {
        match self.blocks[block.at as usize].take() {
            Some((buf, Some(fence))) => buf.defer_until(fence),
            Some((buf, None)) => drop(buf),
            None => return,
        }
        self.spare.push(block.at);
    }
    fn record_use(&mut self, block: Block, other: u16) {
        let fence = or_fail(self.streams[other as usize].fence());
        if let Some((_, before)) = &mut self.blocks[block.at as usize] {
            *before = Some(fence);
        }
    }
    fn peak_reserved(&mut self) -> Option<u64> {
        self.pool.as_ref().map(|pool| pool.stats().peak_reserved_bytes)
    }
    fn end(&mut self) {
        self.pool = None;
        self.device.trim(std::time::Duration::ZERO);
    }
}

/// The pool and the driver's own, in turns.
pub(crate) fn run(settings: &Settings) {
    let device = device();
    if device.cuda.is_none() {
        return tell::skipped(Absence::new("there is no GPU", "run it on a machine with one"));
    }
    let (blocks, rounds) = (settings.pick(256, 16), settings.pick(3, 1));
    let counts = settings.thread_counts();
    tell::steps(counts.len());
    let case = format!("{blocks} blocks of 64 MiB, none ever pinned before");
    let most = counts.iter().copied().max().unwrap_or(1);
    // The warm-up.
    driver(&device.driver, blocks, most);
    for threads in counts {
        tell::step(format!("{threads} threads"));
        let ours = || pool(&device.driver, blocks, threads);
        let theirs = || driver(&device.driver, blocks, threads);
        // In turns, each as often before the other as after.
        let turns = (0..rounds).map(|round| {
            if round % 2 == 0 {
                return (ours(), theirs());
            }
            let theirs = theirs();
            (ours(), theirs)
        });
        let (ours, theirs): (Vec<_>, Vec<_>) = turns.unzip();
        let mut row = Row::new("pools.pinned", case.clone()).at(Axis::Threads, threads);
        row.enter(OURS, Summary::of(ours));
        row.enter("cuMemHostAlloc", Summary::of(theirs));
        tell::row(row);
    }
}

/// Nanoseconds until `threads` have `count` blocks together; what they have goes after that.
fn together<B: Send>(count: usize, threads: usize, alloc: &(impl Fn() -> B + Sync)) -> (f64, Vec<B>) {
    let began = Instant::now();
    let blocks = std::thread::scope(|scope| {
        let share = |number| (count + number) / threads;
        let threads: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || (0..share(number)).map(|_| alloc()).collect::<Vec<B>>()))
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
    });
    (began.elapsed().as_nanos() as f64, blocks)
}

fn driver(driver: &Arc<dyn Driver>, count: usize, threads: usize) -> f64 {
    let alloc = || or_fail(driver.host_alloc(BLOCK, &token())) as usize;
    let (took, blocks) = together(count, threads, &alloc);
    for block in blocks {
        // SAFETY: nobody uses it.
        or_fail(unsafe { driver.host_free(block as *mut u8, &token()) });
    }
    took
}

fn pool(driver: &Arc<dyn Driver>, count: usize, threads: usize) -> f64 {
    let registry = registry();
    let began = Instant::now();
    let pool = or_fail(Pool::pinned(&registry, driver.clone()).slab_bytes(8 * BLOCK).build());
    let made = began.elapsed().as_nanos() as f64;
    let (took, blocks) = together(count, threads, &|| or_fail(pool.alloc::<u8>(BLOCK)));
    drop((blocks, pool));
    made + took
}
