//! Threads that use a pool at random, each until it has had [`BLOCKS`] blocks, or longer
//! (`PINYARD_TEST_SECONDS`, over all sources), with every byte checked: streams write
//! patterns, some late and by other streams than the block's own, and what is read back
//! must be what was written last.
//! On the simulated device and, with `PINYARD_TEST_DRIVER=cuda`, on a real one.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod device_common;

use device_common::{ALL, Bed, MIB, Over, Random, token, wait_for};
use parking_lot::Mutex;
use pinyard_allocator::device::{DeviceBuf, DeviceError, DevicePool, PoolStream};
use pinyard_driver::{DevicePtr, Event};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const THREADS: usize = 4;
const STREAMS: usize = 6;
/// Of each thread, over one source: a run ends by what it has done, however slow the machine.
const BLOCKS: u64 = 400;
const LARGEST: usize = 8 * MIB;
/// Less than the threads would like to have.
const LIMIT: usize = 128 * MIB;
/// Written to keep a stream behind.
const SCRATCH: usize = 64 * MIB;

#[derive(Default)]
struct Tallies {
    blocks: AtomicU64,
    refused: AtomicU64,
    late_writes: AtomicU64,
    checked_bytes: AtomicU64,
}

struct Live {
    buf: DeviceBuf,
    /// Of either half, as written last, by this stream.
    bytes: [u8; 2],
    writer: usize,
}

struct User {
    bed: Bed,
    pool: DevicePool,
    streams: Vec<PoolStream>,
    scratch: DevicePtr,
    scratch_bytes: usize,
    /// Given by one thread to the next.
    passed: Arc<Mutex<Vec<Live>>>,
    tallies: Arc<Tallies>,
    random: Random,
    /// Pinned, `LARGEST` bytes.
    host: *mut u8,
    event: Event,
}

impl User {
    fn write(&mut self, live: &mut Live, writer: usize) {
        live.bytes = [self.random.next() as u8, self.random.next() as u8];
        live.writer = writer;
        let (at, half) = (live.buf.ptr(), live.buf.len() / 2);
        self.bed.fill(at, live.bytes[0], half, &self.streams[writer]);
        let rest = live.buf.len() - half;
        self.bed.fill(DevicePtr(at.0 + half as u64), live.bytes[1], rest, &self.streams[writer]);
    }

    /// What the last writer finds.
    fn check(&self, live: &Live) {
        let stream = &self.streams[live.writer];
        let bytes = live.buf.len();
        // SAFETY: `host` is as long as any block, and is read after the stream has passed.
        let read = unsafe {
            self.bed
                .driver
                .copy_to_host(self.host, live.buf.ptr(), bytes, stream.stream(), &token())
                .unwrap();
            self.bed.sync(stream);
            std::slice::from_raw_parts(self.host, bytes)
        };
        let (low, high) = read.split_at(bytes / 2);
        for (half, byte) in [low, high].into_iter().zip(live.bytes) {
            let wrong = half.chunks(4096).position(|page| page != &[byte; 4096][..page.len()]);
            assert_eq!(
                wrong,
                None,
                "page of a half of {:?}, all {byte:#x}: {:?}",
                live.buf,
                self.pool.stats()
            );
        }
        self.tallies.checked_bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Another stream writes, after the last writer, and the pool is told.
    fn write_elsewhere(&mut self, live: &mut Live, stream: usize) {
        let token = token();
        let driver = &self.bed.driver;
        driver.event_record(self.event, self.streams[live.writer].stream(), &token).unwrap();
        driver.stream_wait_event(self.streams[stream].stream(), self.event, &token).unwrap();
        self.write(live, stream);
        let stream = &self.streams[stream];
        live.buf.record_use(stream);
    }

    fn work(&mut self, stream: usize) {
        let stream = &self.streams[stream];
        match &self.bed.simulated {
            Some(gpu) => gpu.kernel(stream.stream(), 200_000, &token()),
            None => (0..8).for_each(|_| self.bed.fill(self.scratch, 1, self.scratch_bytes, stream)),
        }
    }

    fn run(&mut self, until: Instant) {
        let mut all: Vec<Live> = Vec::new();
        let mut blocks = 0;
        while blocks < BLOCKS || Instant::now() < until {
            let stream = self.random.below(STREAMS);
            let at = if all.is_empty() { 0 } else { self.random.below(all.len()) };
            match self.random.below(32) {
                0..=9 if all.len() < 40 => {
                    let size = self.random.size(256, LARGEST);
                    match self.streams[stream].alloc(size) {
                        Ok(buf) => {
                            let mut live = Live { buf, bytes: [0; 2], writer: stream };
                            self.write(&mut live, stream);
                            all.push(live);
                            blocks += 1;
                            self.tallies.blocks.fetch_add(1, Relaxed);
                        }
                        Err(DeviceError::OutOfMemory { .. }) => {
                            self.tallies.refused.fetch_add(1, Relaxed);
                            all.truncate(all.len() / 2);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                10..=15 if !all.is_empty() => {
                    let live = all.swap_remove(at);
                    self.check(&live);
                }
                16..=18 if !all.is_empty() => drop(all.swap_remove(at)),
                // The write may run long after the drop.
                19..=21 if !all.is_empty() => {
                    let mut live = all.swap_remove(at);
                    self.write_elsewhere(&mut live, stream);
                    self.tallies.late_writes.fetch_add(1, Relaxed);
                }
                22 | 23 if !all.is_empty() => {
                    let mut live = all.swap_remove(at);
                    self.write_elsewhere(&mut live, stream);
                    all.push(live);
                }
                24 if !all.is_empty() => self.passed.lock().push(all.swap_remove(at)),
                25 => all.extend(self.passed.lock().pop()),
                26 | 27 => self.work(stream),
                28 if self.random.below(64) == 0 => {
                    self.pool.trim(Duration::ZERO);
                }
                _ => {}
            }
        }
        all.iter().for_each(|live| self.check(live));
    }
}

fn random_use(bed: &Bed, over: Over, time: Duration) {
    let pool = over.builder(bed).limit(LIMIT).patience(Duration::from_secs(5)).build().unwrap();
    let streams: Vec<_> = (0..STREAMS).map(|_| pool.stream(bed.stream()).unwrap()).collect();
    let (passed, tallies) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Tallies::default()));
    let until = Instant::now() + time;
    let scratch_bytes = if bed.simulated.is_some() { 4096 } else { SCRATCH };
    let scratch = bed.driver.mem_alloc(scratch_bytes, &token()).unwrap();
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (bed, pool, streams) = (bed.clone(), pool.clone(), streams.clone());
            let (passed, tallies) = (passed.clone(), tallies.clone());
            thread::spawn(move || {
                let host = bed.driver.host_alloc(LARGEST, &token()).unwrap();
                let event = bed.driver.event_create(&token()).unwrap();
                let random = Random(number as u64 + 10 * over as u64);
                let mut user =
                    User { bed, pool, streams, scratch, scratch_bytes, passed, tallies, random, host, event };
                user.run(until);
                user.bed.driver.synchronize(&token()).unwrap();
                // SAFETY: nothing uses them any more.
                unsafe {
                    user.bed.driver.host_free(host, &token()).unwrap();
                    user.bed.driver.event_destroy(event, &token()).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    passed.lock().clear();
    wait_for("every block's return", || pool.stats().live_blocks == 0);
    let stats = pool.stats();
    let [blocks, refused, late, checked] =
        [&tallies.blocks, &tallies.refused, &tallies.late_writes, &tallies.checked_bytes]
            .map(|tally| tally.load(Relaxed));
    println!("{over:?}: {blocks} blocks, {refused} refused, {late} late writes, {checked} bytes checked");
    println!("{stats:?}");
    assert_eq!((stats.live_bytes, stats.allocations), (0, stats.frees));
    assert!(stats.peak_reserved_bytes <= LIMIT as u64);
    // A run that did little proves little.
    assert!(blocks >= THREADS as u64 * BLOCKS, "{blocks} blocks");
    assert!(late > 5 && checked > 8 << 20, "{late} {checked}");
    // SAFETY: nothing uses it: all streams were waited for.
    unsafe { bed.driver.mem_free(scratch, &token()) }.unwrap();
}

#[test]
fn what_was_written_last_is_read_back() {
    let seconds = std::env::var("PINYARD_TEST_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(0)) / ALL.len() as u32;
    for over in ALL {
        let bed = Bed::new(1 << 30);
        random_use(&bed, over, time);
        bed.assert_clean();
    }
}
