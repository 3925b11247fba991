//! Random programs on pools of a simulated device, in any configuration, with calls of the
//! driver that fail: allocations one by one and in batches, uses by other streams, fences,
//! kernels, retired streams, trims. Every byte of every block is looked at in its stream's
//! order before the block may be another's; at the end the device has everything back, and
//! the driver saw nothing that was wrong. Inputs that begin with `TEXT` are traces as files
//! have them, right or wrong, which `pinyard replay` runs through the same configurations.
//!
//! `xtask/ci/fuzz.sh [seconds]` builds and runs it.
#![allow(unsafe_code, clippy::unwrap_used)]
#![no_main]

use libfuzzer_sys::fuzz_target;
use pinyard_allocator::device::{DeviceBuf, DeviceBuilder, DevicePool, MarkKind, PoolStream};
use pinyard_allocator::replay::{self, Configuration};
use pinyard_allocator::trace::Reader;
use pinyard_allocator::{AtomicFence, DriverToken};
use pinyard_driver::{Call, Driver, Simulated};
use std::slice::Iter;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The first byte of an input that is a trace.
const TEXT: u8 = 0xff;
const DEVICE: usize = 128 << 20;
/// Bytes of slabs at most.
const LIMIT: usize = 64 << 20;
const STREAMS: usize = 3;

/// Calls that a pool makes for itself, and recovers from.
const FALLIBLE: [Call; 9] = [
    Call::MemAlloc,
    Call::PhysicalCreate,
    Call::AddressReserve,
    Call::Map,
    Call::EventCreate,
    Call::EventRecord,
    Call::StreamWriteValue,
    Call::StreamWaitEvent,
    Call::StreamWaitValue,
];

fn token() -> DriverToken {
    DriverToken::at_entry()
}

struct Live {
    block: DeviceBuf,
    stream: PoolStream,
    byte: u8,
}

struct Program<'d> {
    input: Iter<'d, u8>,
    gpu: Arc<Simulated>,
    pool: DevicePool,
    streams: Vec<PoolStream>,
    live: Vec<Live>,
    word: AtomicFence,
    signalled: u64,
    wrong: Arc<Mutex<Vec<String>>>,
}

/// Which pool, by two bytes.
fn builder(gpu: &Arc<Simulated>, choice: u8, limit: u8) -> DeviceBuilder {
    let builder = match choice & 1 {
        0 => DevicePool::builder(gpu.clone()),
        _ => DevicePool::virtual_memory(gpu.clone(), choice & 2 != 0).unwrap(),
    };
    let marks = if choice & 4 == 0 { MarkKind::Best } else { MarkKind::Events };
    let stall = if choice & 8 == 0 { Duration::ZERO } else { Duration::MAX };
    // The clock stands while an allocation waits.
    let builder = builder.ignore_environment().marks(marks).patience(Duration::ZERO).stall(stall);
    builder
        .slab_bytes(4 << 20)
        .limit(LIMIT.min((8 << 20) + (usize::from(limit) << 18)))
        .poison(choice & 0xf0 == 0xf0)
}

impl Program<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.input.next().copied()
    }

    /// 1 byte to 2 MiB, all magnitudes alike.
    fn bytes(&mut self) -> Option<usize> {
        let (shift, part) = (self.byte()? % 21, self.byte()?);
        Some((1usize << shift) + ((usize::from(part) << shift) >> 8))
    }

    fn stream(&mut self) -> Option<PoolStream> {
        let at = usize::from(self.byte()?) % STREAMS;
        Some(self.streams[at].clone())
    }

    fn take(&mut self) -> Option<Live> {
        let at = usize::from(self.byte()?);
        (!self.live.is_empty()).then(|| self.live.swap_remove(at % self.live.len()))
    }

    fn fill(&self, block: &DeviceBuf, byte: u8, stream: &PoolStream) {
        // SAFETY: the block stands until the stream has passed, or is told of its use.
        unsafe { self.gpu.fill(block.ptr(), byte, block.len(), stream.stream(), &token()) }.unwrap();
    }

    /// Has the block's stream look at all of it when its turn comes.
    fn check(&self, live: &Live) {
        let (start, bytes, byte) = (live.block.ptr().0 as usize, live.block.len(), live.byte);
        let wrong = self.wrong.clone();
        let look = move || {
            // SAFETY: the simulated device's memory is the process's own, and at this point
            // of the stream's work the block's.
            let memory =
                unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(start), bytes) };
            if let Some(at) = memory.iter().position(|&other| other != byte) {
                let found = memory[at];
                wrong
                    .lock()
                    .unwrap()
                    .push(format!("{found:#x} for {byte:#x} at {at} of {bytes}, {start:#x}"));
            }
        };
        self.gpu.host_function(live.stream.stream(), Box::new(look), &token()).unwrap();
    }

    fn own(&mut self, block: DeviceBuf, stream: &PoolStream) {
        let (start, end) = (block.ptr().0, block.ptr().0 + block.block_bytes() as u64);
        for other in &self.live {
            let (from, to) = (other.block.ptr().0, other.block.ptr().0 + other.block.block_bytes() as u64);
            assert!(end <= from || to <= start, "{block:?} overlaps {:?}", other.block);
        }
        let byte = (self.live.len() as u8).wrapping_mul(31).wrapping_add(self.signalled as u8);
        self.fill(&block, byte, stream);
        self.live.push(Live { block, stream: stream.clone(), byte });
    }

    fn step(&mut self) -> Option<()> {
        match self.byte()? % 16 {
            0..=4 => {
                let (bytes, stream) = (self.bytes()?, self.stream()?);
                if let Ok(block) = stream.alloc(bytes) {
                    self.own(block, &stream);
                }
            }
            5 | 6 => {
                let gone = self.take()?;
                self.check(&gone);
            }
            7 => {
                let (mut gone, user) = (self.take()?, self.stream()?);
                self.check(&gone);
                self.gpu.stream_synchronize(gone.stream.stream(), &token()).unwrap();
                // Written late: were the block another's by then, its bytes would be wrong.
                self.fill(&gone.block, 0xee, &user);
                gone.block.record_use(&user);
            }
            8 => {
                let gone = self.take()?;
                self.check(&gone);
                gone.block.defer_until(self.word.at(self.signalled + 1));
            }
            9 => {
                self.signalled += 1;
                self.word.signal(self.signalled);
            }
            10 => {
                let (stream, nanoseconds) = (self.stream()?, u64::from(self.byte()?) << 12);
                self.gpu.kernel(stream.stream(), nanoseconds, &token());
            }
            11 => {
                let nanoseconds = u64::from(self.byte()?) << 12;
                self.gpu.advance(nanoseconds);
            }
            12 => {
                let (count, stream) = (self.byte()? % 6, self.stream()?);
                let sizes: Vec<usize> = (0..count).map_while(|_| self.bytes()).collect();
                for block in self.pool.alloc_batch(&sizes, &stream).into_iter().flatten() {
                    self.own(block, &stream);
                }
            }
            13 => {
                let (call, times, code) = (self.byte()?, self.byte()? % 4, self.byte()?);
                let code = [2, 1, 999, 600][usize::from(code % 4)];
                self.gpu.fail_next(FALLIBLE[usize::from(call) % FALLIBLE.len()], times.into(), code);
            }
            14 => {
                let at = usize::from(self.byte()?) % STREAMS;
                let new = self.gpu.stream_create(&token()).unwrap();
                if let Ok(new) = self.pool.stream(new) {
                    // Refused by a call that fails, it is retired by nobody: as a program may.
                    let _ = std::mem::replace(&mut self.streams[at], new).retire();
                }
            }
            _ => {
                self.pool.trim(Duration::ZERO);
            }
        }
        Some(())
    }

    fn end(self) {
        let Program { gpu, pool, streams, live, word, wrong, .. } = self;
        gpu.fail_never();
        word.signal(u64::MAX);
        let stats = pool.stats();
        assert!(stats.live_blocks >= live.len() as u64 && stats.reserved_bytes <= LIMIT as u64);
        for Live { block, stream, byte } in live {
            gpu.stream_synchronize(stream.stream(), &token()).unwrap();
            let start = std::ptr::with_exposed_provenance::<u8>(block.ptr().0 as usize);
            // SAFETY: as in `check`; its stream has done its work.
            let memory = unsafe { std::slice::from_raw_parts(start, block.len()) };
            assert!(memory.iter().all(|&other| other == byte), "{block:?} is not all {byte:#x}");
        }
        drop((streams, pool));
        let began = Instant::now();
        let given_back = || {
            let left = gpu.outstanding();
            left.is_empty() || left.ends_with(" streams") && !left.contains(',')
        };
        while gpu.used_bytes() > 0 || !given_back() {
            assert!(began.elapsed() < Duration::from_secs(10), "{} left", gpu.outstanding());
            gpu.advance(1_000_000);
            std::thread::yield_now();
        }
        assert_eq!(*wrong.lock().unwrap(), Vec::<String>::new());
        assert_eq!(gpu.offences(), Vec::<String>::new());
    }
}

/// A trace file's text, through a pool of each source.
fn replayed(text: &[u8]) {
    for configuration in ["device=128m,slab_bytes=4m", "source=virtual,device=64m,kernel_ns=1000,limit=32m"] {
        let configuration = Configuration::from_pairs(configuration).unwrap();
        let Ok(events) = Reader::new(text) else { return };
        let Ok(outcome) = replay::run(&configuration, events) else { continue };
        assert!(outcome.failures <= outcome.allocations && outcome.allocations <= outcome.events);
        assert!(outcome.live_bytes <= outcome.peak_live_bytes);
        assert!(outcome.peak_live_bytes <= outcome.peak_reserved_bytes);
    }
}

fuzz_target!(|data: &[u8]| {
    let (choice, rest) = match data {
        [TEXT, text @ ..] => return replayed(text),
        [choice, rest @ ..] => (*choice, rest),
        [] => return,
    };
    let mut input = rest.iter();
    let Some(&limit) = input.next() else { return };
    let gpu = Arc::new(Simulated::new(DEVICE));
    let pool = builder(&gpu, choice, limit).build().unwrap();
    let stream = |_| pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let streams = (0..STREAMS).map(stream).collect();
    let mut program = Program {
        input,
        gpu,
        pool,
        streams,
        live: Vec::new(),
        word: AtomicFence::new(),
        signalled: 0,
        wrong: Arc::default(),
    };
    while !program.input.as_slice().is_empty() {
        let _ = program.step();
    }
    program.end();
});
