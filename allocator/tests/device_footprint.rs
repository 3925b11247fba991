//! How much memory pools take for what is in use, on the simulated device, whose clock
//! moves by calls and by what the test adds for the host's own time: the same figures
//! every time.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod device_common;

use device_common::{MIB, Over, Random, token, wait_for};
use pinyard_allocator::device::{DeviceBuf, DevicePool, DeviceStats, PoolStream};
use pinyard_driver::{Call, Driver as _, Simulated};
use std::sync::Arc;
use std::time::{Duration, Instant};

const KIB: usize = 1 << 10;

struct Run {
    stats: DeviceStats,
    /// Most bytes in use, as asked for.
    peak_live: usize,
    failed: usize,
    /// Calls of the driver.
    calls: u64,
}

impl Run {
    fn ratio(&self) -> f64 {
        self.stats.peak_reserved_bytes as f64 / self.peak_live as f64
    }
}

/// What the streams of [`streams`] do.
#[derive(Clone, Copy)]
enum Work {
    /// A kernel of so many nanoseconds per four allocations: every stream is behind.
    Behind(u64),
    /// One or two kernels of 50 us before each stream at any time; a fifth of the blocks is
    /// used by another when it is freed.
    Busy,
}

/// W5: `count` streams, 256 blocks in use, random replacement.
fn streams(count: usize, steps: usize, work: Work, stall: Duration) -> Run {
    const SPIN: u64 = 50_000;
    let gpu = Arc::new(Simulated::new(16 << 30));
    let pool = DevicePool::builder(gpu.clone()).stall(stall).build().unwrap();
    let streams: Vec<_> =
        (0..count).map(|_| pool.stream(gpu.stream_create(&token()).unwrap()).unwrap()).collect();
    let (mut peak_live, mut failed) = (0, 0);
    let before = gpu.all_calls();
    let mut random = Random(1);
    let mut live: Vec<Option<DeviceBuf>> = (0..256).map(|_| None).collect();
    let mut until = vec![0; count];
    let mut bytes = 0;
    for step in 0..steps {
        let slot = if step < 256 { step } else { random.below(256) };
        if let Some(mut block) = live[slot].take() {
            bytes -= block.len();
            if matches!(work, Work::Busy) && random.below(5) == 0 {
                block.record_use(&streams[random.below(count)]);
            }
        }
        let at = random.below(count);
        let block = streams[at].alloc(random.size(4 * KIB, 8 * MIB));
        failed += usize::from(block.is_err());
        live[slot] = block.ok();
        bytes += live[slot].as_ref().map_or(0, DeviceBuf::len);
        peak_live = peak_live.max(bytes);
        match work {
            Work::Behind(kernel) if step % 4 == 0 => gpu.kernel(streams[at].stream(), kernel, &token()),
            Work::Behind(_) => {}
            Work::Busy => {
                while until[at] < gpu.now() + SPIN {
                    gpu.kernel(streams[at].stream(), SPIN, &token());
                    until[at] = until[at].max(gpu.now()) + SPIN;
                }
            }
        }
        gpu.advance(200);
    }
    drop(live);
    gpu.synchronize(&token()).unwrap();
    let calls = gpu.all_calls() - before;
    Run { stats: pool.stats(), peak_live, failed, calls }
}

/// W6: up to 92 % of 8 GiB in use, blocks of 1 to 512 MiB, on one stream.
fn pressure() -> Run {
    let cap = 8 << 30;
    let gpu = Arc::new(Simulated::new(16 << 30));
    // The clock stands still while an allocation waits, so it waits in vain.
    let patience = Duration::from_micros(100);
    let pool = DevicePool::builder(gpu.clone()).limit(cap).patience(patience).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let before = gpu.all_calls();
    let mut random = Random(4);
    let mut live: Vec<(Option<DeviceBuf>, usize)> = Vec::new();
    let (mut peak_live, mut failed, mut sum) = (0, 0, 0);
    for _ in 0..10_000 {
        let bytes = random.size(MIB, 512 * MIB);
        // What failed counts as in use: the pressure is the same for every allocator.
        while sum + bytes > cap / 100 * 92 {
            sum -= live.swap_remove(random.below(live.len())).1;
        }
        let block = stream.alloc(bytes).ok();
        failed += usize::from(block.is_none());
        live.push((block, bytes));
        sum += bytes;
        peak_live = peak_live.max(sum);
    }
    drop(live);
    Run { stats: pool.stats(), peak_live, failed, calls: gpu.all_calls() - before }
}

/// PyTorch fails 427 times here on an H200. A refusal costs no driver call: what is free
/// does not suffice however it is arranged.
#[test]
fn w6_a_pool_at_its_limit_refuses_without_a_driver_call() {
    let run = pressure();
    println!("{} failed, {} calls, {:?}", run.failed, run.calls, run.stats);
    assert!(run.failed < 427 && run.calls < 600, "{} failed, {} calls", run.failed, run.calls);
    assert!(run.ratio() < 1.09);
}

/// Peak reserved over peak live of W5, with edges; PyTorch's is 2.8 to 3.4 on an H200.
#[test]
fn w5_busy_streams_share() {
    const EVER: Duration = Duration::from_secs(3600);
    // A kernel is as long as 800 or 12,800 allocations take: every stream is behind.
    for (count, steps, kernel) in [
        (4, 40_000, 40_000),
        (16, 15_000, 40_000),
        (16, 15_000, 640_000),
        (32, 15_000, 640_000),
        (64, 15_000, 40_000),
        (64, 15_000, 640_000),
        (128, 15_000, 640_000),
    ] {
        let run = streams(count, steps, Work::Behind(kernel), EVER);
        println!("{count} streams, kernels of {kernel} ns: {:.3}, {} calls", run.ratio(), run.calls);
        assert_eq!(run.failed, 0);
        assert!(run.ratio() < 1.5, "{count} streams: {:.3} of {:?}", run.ratio(), run.stats);
    }
    // What it is without, so that the figures above mean something.
    let alone = streams(16, 15_000, Work::Behind(40_000), Duration::ZERO);
    assert!(alone.ratio() > 3.0 && alone.stats.holds == 0, "{:.3} of {:?}", alone.ratio(), alone.stats);
}

/// The same where every stream has 50 to 100 us of work before it, and blocks are used by
/// several.
#[test]
fn w5_streams_that_keep_up_share_what_others_use() {
    // 1.35 to 1.7, as the pool's thread comes to it, and 2.0 on a busy machine; 9.6 to 13.5 where used
    // blocks wait for marks alone.
    for count in [4, 16, 64] {
        let run = streams(count, 40_000, Work::Busy, Duration::from_secs(3600));
        println!("{count} busy streams: {:.3}, {} calls, {:?}", run.ratio(), run.calls, run.stats);
        assert_eq!(run.failed, 0);
        assert!(run.ratio() < 4.0, "{count} streams: {:.3} of {:?}", run.ratio(), run.stats);
    }
}

/// 512 blocks of 256 B to 64 MiB in use, random replacement by one stream; all freed at the end.
fn random_use(stream: &PoolStream, seed: u64, steps: usize) {
    let mut random = Random(seed);
    let mut live: Vec<Option<DeviceBuf>> = (0..512).map(|_| None).collect();
    for step in 0..steps {
        let slot = if step < 512 { step } else { random.below(512) };
        drop(live[slot].take());
        live[slot] = Some(stream.alloc(random.size(256, 64 * MIB)).unwrap());
    }
}

/// W3, twice the same.
#[test]
fn w3_random_use_comes_to_its_end_the_first_time() {
    const TRACES: u64 = 96;
    let (mut grew, mut ratios) = (0, 0.0);
    for seed in 1..=TRACES {
        let gpu = Arc::new(Simulated::new(16 << 30));
        let pool = DevicePool::builder(gpu.clone()).build().unwrap();
        let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
        let [first, again] = [(); 2].map(|()| {
            random_use(&stream, seed, 10_000);
            pool.stats()
        });
        grew += again.growths - first.growths;
        ratios += again.peak_reserved_bytes as f64 / again.peak_live_bytes as f64;
    }
    let ratio = ratios / TRACES as f64;
    println!("{grew} slabs the second time, {ratio:.3}");
    assert!(grew <= 20 && ratio < 1.24, "{grew} slabs the second time, {ratio:.3}");
}

/// As above, where slabs may be of a length that is none of the source's, which says so.
#[test]
fn slabs_are_of_the_sources_granularity_whatever_they_may_be() {
    let gpu = Arc::new(Simulated::new(16 << 30));
    let pool = Over::Custom.try_builder(gpu.clone()).unwrap().slab_bytes(100 * MIB + 1).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    random_use(&stream, 5, 6_000);
    let longest = pool.snapshot().slabs.iter().map(|slab| slab.bytes as usize).max().unwrap();
    assert_eq!(longest, 100 * MIB);
}

/// What PyTorch allocates in twelve steps of a training with batches of varying length
/// (`recorded/record.py`), with or without a second stream that brings the batches. PyTorch's
/// rules make it 1.32 (`recorded/pytorch_rules.py`). 1.44 and 1.6 where slabs were 16 MiB long and
/// neighbours of two owners two ranges.
#[test]
fn batches_of_varying_length_fit_where_others_were() {
    for has_loader in [false, true] {
        let gpu = Arc::new(Simulated::new(16 << 30));
        let pool = DevicePool::builder(gpu.clone()).build().unwrap();
        let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
        let loader = has_loader.then(|| pool.stream(gpu.stream_create(&token()).unwrap()).unwrap());
        let mut blocks: Vec<Option<DeviceBuf>> = Vec::new();
        let (mut live, mut peak_live) = (0, 0);
        for (step, word) in include_str!("recorded/torch_train.txt").split_whitespace().enumerate() {
            if let Some(number) = word.strip_prefix('-') {
                live -= blocks[number.parse::<usize>().unwrap()].take().unwrap().len();
                continue;
            }
            if let Some(loader) = loader.as_ref().filter(|_| step % 400 == 0) {
                loader.alloc(48 * KIB).unwrap().record_use(&stream);
            }
            let block = stream.alloc(word.parse().unwrap()).unwrap();
            live += block.len();
            peak_live = peak_live.max(live);
            blocks.push(Some(block));
        }
        let stats = pool.stats();
        let ratio = stats.peak_reserved_bytes as f64 / peak_live as f64;
        println!("training, loader {has_loader}: {ratio:.3}");
        assert!(ratio < 1.32, "loader {has_loader}: {ratio:.3} of {stats:?}");
    }
}

fn word(block: &DeviceBuf, gpu: &Simulated, stream: &PoolStream) -> u8 {
    gpu.stream_synchronize(stream.stream(), &token()).unwrap();
    // SAFETY: the simulated device's memory is the process's own; its work is done.
    unsafe { std::ptr::with_exposed_provenance::<u8>(block.ptr().0 as usize).read() }
}

/// A pool of two streams that have passed a mark each, with half of it free.
fn two(stall: Duration) -> (Arc<Simulated>, DevicePool, [PoolStream; 2]) {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let pool = DevicePool::builder(gpu.clone()).stall(stall).build().unwrap();
    let streams = [0; 2].map(|_| pool.stream(gpu.stream_create(&token()).unwrap()).unwrap());
    gpu.synchronize(&token()).unwrap();
    (gpu, pool, streams)
}

#[test]
fn a_borrower_waits_on_the_device_for_what_the_lender_had_been_given() {
    let (gpu, pool, [one, other]) = two(Duration::from_secs(3600));
    let block = one.alloc(64 * MIB).unwrap();
    let at = block.ptr();
    gpu.kernel(one.stream(), 5_000_000, &token());
    // SAFETY: the block stands until the stream has passed, as the pool promises.
    unsafe { gpu.fill(at, 1, 64 * MIB, one.stream(), &token()) }.unwrap();
    drop(block);
    let began = gpu.now();
    let block = other.alloc(64 * MIB).unwrap();
    assert_eq!(block.ptr(), at, "{:?}", pool.stats());
    assert!(gpu.now() - began < 1_000_000, "the host waited");
    // SAFETY: as above.
    unsafe { gpu.fill(at, 2, 64 * MIB, other.stream(), &token()) }.unwrap();
    assert_eq!(word(&block, &gpu, &other), 2);
    gpu.synchronize(&token()).unwrap();
    assert_eq!(word(&block, &gpu, &other), 2, "the lender wrote after the borrower");
    let stats = pool.stats();
    assert_eq!((stats.growths, stats.holds, gpu.offences().len()), (1, 1, 0), "{stats:?}");
}

/// A block that another stream uses goes to a third while both have it: it waits for both,
/// whichever is slower.
#[test]
fn a_borrower_waits_on_the_device_for_all_users_of_a_block() {
    for (home, user) in [(1_000_000, 9_000_000), (9_000_000, 1_000_000)] {
        let (gpu, pool, [one, other]) = two(Duration::from_secs(3600));
        let third = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
        gpu.synchronize(&token()).unwrap();
        let mut block = one.alloc(64 * MIB).unwrap();
        let at = block.ptr();
        for (stream, kernel) in [(&one, home), (&other, user)] {
            gpu.kernel(stream.stream(), kernel, &token());
            // SAFETY: the block stands until the streams have passed, as the pool promises.
            unsafe { gpu.fill(at, 1, 64 * MIB, stream.stream(), &token()) }.unwrap();
        }
        block.record_use(&other);
        drop(block);
        // In the hands of the pool's thread, which marks its users, it is nobody's.
        let until = Instant::now() + Duration::from_secs(10);
        while pool.stats().waiting_blocks == 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        let began = gpu.now();
        let block = third.alloc(64 * MIB).unwrap();
        assert_eq!(block.ptr(), at, "{:?}", pool.stats());
        assert!(gpu.now() - began < 1_000_000, "the host waited");
        // SAFETY: as above.
        unsafe { gpu.fill(at, 2, 64 * MIB, third.stream(), &token()) }.unwrap();
        assert_eq!(word(&block, &gpu, &third), 2);
        gpu.synchronize(&token()).unwrap();
        assert_eq!(word(&block, &gpu, &third), 2, "a user wrote after the borrower");
        drop(block);
        let stats = pool.stats();
        assert_eq!((stats.growths, stats.live_blocks, stats.live_bytes), (1, 0, 0), "{stats:?}");
        assert_eq!(gpu.offences(), Vec::<String>::new());
    }
}

/// Once the lenders' work has passed, what they have lent is anybody's: even a stream that is
/// being captured may have it.
#[test]
fn a_borrower_waits_only_while_the_lenders_are_behind() {
    let (gpu, pool, [one, other]) = two(Duration::from_secs(3600));
    let [early, late, captured] = [0; 3].map(|_| pool.stream(gpu.stream_create(&token()).unwrap()).unwrap());
    gpu.synchronize(&token()).unwrap();
    let lent = one.alloc(256 * MIB).unwrap();
    gpu.kernel(one.stream(), 5_000_000, &token());
    drop(lent);
    let waits = || gpu.calls(Call::StreamWaitEvent);
    let _first = other.alloc(64 * MIB).unwrap();
    // The hub waits for the lender, the borrower for the hub.
    assert_eq!(waits(), 2);
    let _second = early.alloc(64 * MIB).unwrap();
    assert_eq!(waits(), 3);
    gpu.advance(6_000_000);
    let _third = late.alloc(64 * MIB).unwrap();
    gpu.capture_begin(captured.stream(), &token()).unwrap();
    let _fourth = captured.alloc(64 * MIB).unwrap();
    gpu.capture_end(captured.stream(), &token()).unwrap();
    assert_eq!((waits(), pool.stats().growths), (3, 1), "{:?}", pool.stats());
    assert_eq!(gpu.offences(), Vec::<String>::new());
}

/// Neither the lender's record nor the hub's first one can be made: the event that was created
/// for the second is nobody's.
#[test]
fn an_epoch_that_cannot_begin_leaves_no_event_behind() {
    let (gpu, pool, [one, other]) = two(Duration::from_secs(3600));
    let block = one.alloc(64 * MIB).unwrap();
    let at = block.ptr();
    gpu.kernel(one.stream(), 5_000_000, &token());
    drop(block);
    // It is tried once more before the pool grows.
    gpu.fail_next(Call::EventRecord, 4, 999);
    let grown = other.alloc(64 * MIB).unwrap();
    assert_eq!((pool.stats().growths, gpu.calls(Call::EventRecord)), (2, 4), "{:?}", pool.stats());
    // The next one begins, with the event of those that failed.
    let block = other.alloc(64 * MIB).unwrap();
    assert_eq!((block.ptr(), gpu.calls(Call::EventCreate)), (at, 1), "{:?}", pool.stats());
    drop((grown, block, one, other, pool));
    gpu.advance(1_000_000_000);
    wait_for("all given back", || gpu.outstanding() == "2 streams");
    assert_eq!(gpu.offences(), Vec::<String>::new());
}

#[test]
fn a_stream_that_is_held_up_lends_nothing_and_neither_does_one_that_never_moved() {
    let (gpu, pool, [one, other]) = two(Duration::from_millis(1));
    drop(one.alloc(64 * MIB).unwrap());
    gpu.kernel(one.stream(), 5_000_000, &token());
    // A mark that it has not passed for longer than a millisecond of the host's.
    let _behind = one.fence().unwrap();
    std::thread::sleep(Duration::from_millis(3));
    let _large = other.alloc(64 * MIB).unwrap();
    let _again = other.alloc(32 * MIB).unwrap();
    // Busy before the pool knew it: nothing shows that it moves.
    let third = gpu.stream_create(&token()).unwrap();
    gpu.kernel(third, 5_000_000, &token());
    let third = pool.stream(third).unwrap();
    drop(third.alloc(64 * MIB).unwrap());
    let _more = other.alloc(64 * MIB).unwrap();
    assert_eq!(pool.stats().holds, 0, "{:?}", pool.stats());
}
