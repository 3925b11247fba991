//! Blocks from an allocator that gives pages back inside malloc and free, are
//! registered, judged by the bytes that travel through io_uring, and freed.
//!
//! The addresses come again with other pages; a hit that is stale shows at once,
//! and a hook that waits for the allocator hangs. One source for every allocator:
//! the programs in `bin/` differ in how they come by theirs.
#![allow(unsafe_code, clippy::print_stdout)]

use pinyard_registry::backend::IoUring;
use pinyard_registry::{Access, Events, Lease, Registry};
use std::alloc::{Layout, alloc, dealloc, realloc};
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const THREADS: usize = 2;
/// Blocks that each thread holds at a time.
const HELD: usize = 24;

/// What came of a run.
#[derive(Default)]
struct Counts {
    rounds: AtomicU64,
    stale: AtomicU64,
    /// The run ends with the first stale hit.
    until_stale: bool,
}

/// Where a block comes from.
#[derive(Clone, Copy)]
enum Source {
    /// The program's `#[global_allocator]`.
    Rust,
    /// C's malloc, whoever has it.
    C,
}

struct Block {
    at: *mut u8,
    layout: Layout,
    source: Source,
}

impl Block {
    fn new(len: usize, source: Source) -> Block {
        let layout = Layout::from_size_align(len, 16).unwrap_or(Layout::new::<u128>());
        // SAFETY: the length is not zero.
        let at = unsafe {
            match source {
                Source::Rust => alloc(layout),
                Source::C => libc::malloc(len).cast(),
            }
        };
        if at.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Block { at, layout, source }
    }

    fn resize(&mut self, len: usize) {
        // SAFETY: allocated by `new` from the same source; the length is not zero.
        let at = unsafe {
            match self.source {
                Source::Rust => realloc(self.at, self.layout, len),
                Source::C => libc::realloc(self.at.cast(), len).cast(),
            }
        };
        self.layout = Layout::from_size_align(len, 16).unwrap_or(self.layout);
        if at.is_null() {
            std::alloc::handle_alloc_error(self.layout);
        }
        self.at = at;
    }

    fn fill(&mut self, byte: u8) {
        // SAFETY: the block is this thread's own.
        unsafe { self.at.write_bytes(byte, self.layout.size()) };
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` from the same source, not used again.
        unsafe {
            match self.source {
                Source::Rust => dealloc(self.at, self.layout),
                Source::C => libc::free(self.at.cast()),
            }
        }
    }
}

/// The byte that the device finds at `at`.
fn through(ring: &IoUring, lease: &Lease<'_>, at: *const u8, len: usize) -> Result<u8, String> {
    let (mut reader, writer) = std::io::pipe().map_err(|error| error.to_string())?;
    // SAFETY: the lease is held, and nobody writes the block meanwhile.
    let written = unsafe { ring.write_fixed(writer.as_fd(), lease.key(), at, len) };
    if !matches!(written, Ok(count) if count == len) {
        return Err(format!("io_uring wrote {written:?} instead of {len}"));
    }
    let mut bytes = [0; PAGE];
    reader.read_exact(&mut bytes[..len]).map_err(|error| error.to_string())?;
    Ok(bytes[0])
}

/// When a thread ends.
#[derive(Clone, Copy)]
enum End {
    Rounds(u64),
    At(Instant),
}

impl End {
    /// `6000`, rounds of each thread, or `3s`.
    fn parse(text: &str) -> Option<End> {
        match text.strip_suffix('s') {
            Some(seconds) => {
                let seconds = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
                Instant::now().checked_add(seconds).map(End::At)
            }
            None => text.parse().ok().map(End::Rounds),
        }
    }

    fn is_here(self, rounds: u64) -> bool {
        match self {
            End::Rounds(most) => rounds >= most,
            End::At(instant) => Instant::now() >= instant,
        }
    }
}

fn churn(registry: &Registry, ring: &IoUring, seed: u64, end: End, counts: &Counts) -> Result<(), String> {
    let mut state = seed;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    let mut held: Vec<Block> = Vec::new();
    let mut byte = seed as u8;
    for round in 0.. {
        if end.is_here(round) || (counts.until_stale && counts.stale.load(Relaxed) > 0) {
            break;
        }
        counts.rounds.fetch_add(1, Relaxed);
        // From a page to 2 MiB, small ones more often.
        let len = (PAGE << random(10)) - random(64);
        let index = random(HELD);
        match held.get_mut(index) {
            Some(block) if random(4) == 0 => block.resize(len),
            Some(block) => *block = Block::new(len, if random(2) == 0 { Source::Rust } else { Source::C }),
            None => held.push(Block::new(len, Source::Rust)),
        }
        let index = index.min(held.len() - 1);
        let Some(block) = held.get_mut(index) else { continue };
        byte = byte % 250 + 1;
        block.fill(byte);
        let len = block.layout.size();
        let lease = registry
            .get((block.at.cast_const(), len), Access::LOCAL_READ)
            .map_err(|error| format!("get of {len} bytes: {error}"))?;
        let sent = len.min(PAGE);
        for at in [0, len - sent] {
            let found = through(ring, &lease, block.at.wrapping_add(at), sent)?;
            counts.stale.fetch_add((found != byte) as u64, Relaxed);
        }
    }
    Ok(())
}

fn soak(events: Events, end: End) -> Result<(Counts, String), String> {
    let ring = Arc::new(IoUring::new(512).map_err(|error| error.to_string())?);
    let registry = Registry::builder().backend(ring.clone()).events(events).budget(256 << 20).build();
    let registry = registry.map_err(|error| error.to_string())?;
    let counts = Counts { until_stale: matches!(events, Events::NotifyOnly), ..Counts::default() };
    std::thread::scope(|scope| {
        let work = |seed: u64| churn(&registry, &ring, seed, end, &counts);
        let threads: Vec<_> =
            (1..=THREADS as u64).map(|thread| scope.spawn(move || work(thread * 0x9e37_79b9))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or(Err("a thread panicked".to_owned())))
    })?;
    let stats = registry.stats();
    let text = format!("{} hits, {} misses, {} invalidations", stats.hits, stats.misses, stats.invalidations);
    Ok((counts, text))
}

/// `PROGRAM ROUNDS|SECONDSs [control]`. With `control` nobody tells the registry of
/// changes: stale hits are expected, or the allocator gives no page back and the
/// run proves nothing. The first ends it.
pub fn main() -> std::process::ExitCode {
    let mut arguments = std::env::args().skip(1);
    let text = arguments.next().unwrap_or_default();
    let Some(end) = End::parse(&text) else {
        println!("{text:?} is neither a number of rounds nor a time such as 3s");
        return 2.into();
    };
    let control = arguments.next().is_some_and(|word| word == "control");
    let events = if control { Events::NotifyOnly } else { Events::Hooks };
    let (counts, text) = match soak(events, end) {
        Ok(done) => done,
        Err(cause) => {
            println!("{cause}");
            return 1.into();
        }
    };
    let (rounds, stale) = (counts.rounds.into_inner(), counts.stale.into_inner());
    println!("{rounds} rounds, {stale} stale, {text}");
    let right = if control { stale > 0 } else { stale == 0 && rounds > 10 };
    u8::from(!right).into()
}
