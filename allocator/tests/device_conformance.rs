//! What every device pool must do, over every source and both ways of marking, on
//! the simulated device and, with `PINYARD_TEST_DRIVER=cuda`, on a real one. Names
//! with a number are upstream issues that describe the failure.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod device_common;
mod resting;

use device_common::{Bed, Gate, MIB, Over, Random, over_all, token, wait_for};
use parking_lot::Mutex;
use pinyard_allocator::device::{DeviceBuf, DeviceError, DevicePool, PoolStream, Registrar};
use pinyard_allocator::{AtomicFence, DriverToken, Pool, Segment, SourceError};
use pinyard_driver::Capture;
use pinyard_registry::{Events, MemoryKey, Registry, backend::Custom};
use resting::Thread;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

fn is_out_of_memory(error: &DeviceError) -> bool {
    matches!(error, DeviceError::OutOfMemory { .. })
}

#[test]
fn blocks_do_not_overlap_are_aligned_and_keep_their_bytes() {
    over_all(|bed, over| {
        let pool = over.builder(bed).limit(256 * MIB).build().unwrap();
        let stream = pool.stream(bed.stream()).unwrap();
        let mut blocks: Vec<(DeviceBuf, u8)> = Vec::new();
        let sizes = [1, 255, 256, 257, 2048, 2049, 32 << 10, (32 << 10) + 1, 100_000, MIB, MIB + 1, 5 * MIB];
        for (at, &bytes) in sizes.iter().cycle().take(48).enumerate() {
            let block = pool.alloc(bytes, &stream).unwrap();
            assert!(
                block.ptr().0.is_multiple_of(256) && block.block_bytes() >= bytes && block.len() == bytes
            );
            let range = block.ptr().0..block.ptr().0 + block.block_bytes() as u64;
            for (other, _) in &blocks {
                let start = other.ptr().0;
                assert!(range.end <= start || start + other.block_bytes() as u64 <= range.start);
            }
            bed.fill(block.ptr(), at as u8, bytes, &stream);
            blocks.push((block, at as u8));
        }
        for (block, byte) in &blocks {
            bed.assert_filled(block.ptr(), *byte, block.len(), &stream);
        }
    });
}

#[test]
fn a_streams_later_work_has_its_freed_block_at_once() {
    over_all(|bed, over| {
        let pool = over.builder(bed).build().unwrap();
        let stream = pool.stream(bed.stream()).unwrap();
        for bytes in [256, 20_000, 100_000, 3 * MIB] {
            let block = pool.alloc(bytes, &stream).unwrap();
            let gate = Gate::close(bed, &stream);
            let at = block.ptr();
            bed.fill(at, 1, bytes, &stream);
            drop(block);
            let again = pool.alloc(bytes, &stream).unwrap();
            assert_eq!(again.ptr(), at, "{bytes} bytes");
            bed.fill(at, 2, bytes, &stream);
            gate.open();
            bed.assert_filled(at, 2, bytes, &stream);
        }
    });
}

#[test]
fn another_stream_has_it_only_when_the_work_has_passed() {
    over_all(|bed, over| {
        let pool = over.builder(bed).slab_bytes(2 * MIB).limit(2 * MIB).build().unwrap();
        let (one, two) = (pool.stream(bed.stream()).unwrap(), pool.stream(bed.stream()).unwrap());
        let block = pool.alloc(2 * MIB, &one).unwrap();
        let at = block.ptr();
        let gate = Gate::close(bed, &one);
        bed.fill(at, 1, 2 * MIB, &one);
        drop(block);
        let opener = gate.open_after(Duration::from_millis(100));
        // No other memory is to be had: waited for on the host, or on the device.
        let block = pool.alloc(2 * MIB, &two).unwrap();
        assert_eq!(block.ptr(), at);
        bed.fill(at, 2, 2 * MIB, &two);
        bed.assert_filled(at, 2, 2 * MIB, &two);
        opener.join().unwrap();
        bed.sync(&one);
        bed.assert_filled(at, 2, 2 * MIB, &two);
    });
}

#[test]
fn a_side_streams_use_keeps_a_block_until_it_has_passed() {
    over_all(|bed, over| {
        let pool = over.builder(bed).build().unwrap();
        let (home, side) = (pool.stream(bed.stream()).unwrap(), pool.stream(bed.stream()).unwrap());
        // A driver's allocation may wait for the device: none is needed later.
        pool.warmup(&[(4 * MIB, 20)], &home).unwrap();
        for bytes in [512, 4 * MIB] {
            let mut block = pool.alloc(bytes, &home).unwrap();
            let at = block.ptr();
            let gate = Gate::close(bed, &side);
            bed.fill(at, 7, bytes, &side);
            block.record_use(&side);
            drop(block);
            // The pool's thread has it in hand, and may have given it back.
            wait_for("the pool's thread", || {
                let stats = pool.stats();
                stats.waiting_blocks == 1 || stats.live_blocks == 0
            });
            let others: Vec<_> = (0..200)
                .map_while(|_| pool.alloc(bytes, &home).ok().filter(|_| pool.stats().live_bytes < 64 << 20))
                .collect();
            assert!(
                others.iter().all(|other| other.ptr() != at),
                "{bytes}: reused while a side stream uses it"
            );
            gate.open();
            bed.sync(&side);
            wait_for("the block's return", || pool.stats().live_blocks == others.len() as u64);
            drop(others);
            let stats = pool.stats();
            assert_eq!((stats.live_blocks, stats.live_bytes), (0, 0));
        }
    });
}

#[test]
fn pytorch_19219_blocks_recorded_on_a_slow_stream_are_waited_for() {
    over_all(|bed, over| {
        let pool = over.builder(bed).limit(64 * MIB).build().unwrap();
        let (home, slow) = (pool.stream(bed.stream()).unwrap(), pool.stream(bed.stream()).unwrap());
        let opener = Gate::close(bed, &slow).open_after(Duration::from_millis(100));
        for at in 0..40 {
            let mut block = pool.alloc(8 * MIB, &home).unwrap_or_else(|error| panic!("block {at}: {error}"));
            bed.fill(block.ptr(), at, 8 * MIB, &slow);
            block.record_use(&slow);
        }
        opener.join().unwrap();
    });
}

#[test]
fn impossible_requests_are_refused_and_the_next_one_works() {
    over_all(|bed, over| {
        let pool = over.builder(bed).limit(64 * MIB).patience(Duration::from_millis(50)).build().unwrap();
        let stream = pool.stream(bed.stream()).unwrap();
        assert!(matches!(pool.alloc(0, &stream), Err(DeviceError::Empty)));
        assert!(matches!(pool.alloc(usize::MAX, &stream), Err(DeviceError::Overflow { .. })));
        assert!(is_out_of_memory(&pool.alloc(1 << 45, &stream).unwrap_err()));
        let text = pool.alloc(65 * MIB, &stream).unwrap_err().to_string();
        assert!(text.contains("pool limit of 67108864 bytes") && text.contains("stream"), "{text}");
        let block = pool.alloc(MIB, &stream).unwrap();
        bed.fill(block.ptr(), 3, MIB, &stream);
        bed.assert_filled(block.ptr(), 3, MIB, &stream);
    });
}

#[test]
fn half_and_half_fails_and_after_a_free_succeeds() {
    over_all(|bed, over| {
        let pool = over.builder(bed).limit(64 * MIB).patience(Duration::from_millis(50)).build().unwrap();
        let stream = pool.stream(bed.stream()).unwrap();
        let half = pool.alloc(33 * MIB, &stream).unwrap();
        assert!(is_out_of_memory(&pool.alloc(33 * MIB, &stream).unwrap_err()));
        drop(half);
        pool.alloc(33 * MIB, &stream).unwrap();
    });
}

#[test]
fn pytorch_189504_pending_memory_is_searched_again_after_it_has_passed() {
    over_all(|bed, over| {
        let pool = over.builder(bed).slab_bytes(8 * MIB).limit(64 * MIB).build().unwrap();
        let (one, two) = (pool.stream(bed.stream()).unwrap(), pool.stream(bed.stream()).unwrap());
        let blocks: Vec<_> = (0..14).map(|_| pool.alloc(4 * MIB, &one).unwrap()).collect();
        let opener = Gate::close(bed, &one).open_after(Duration::from_millis(100));
        for (at, mut block) in blocks.into_iter().enumerate() {
            bed.fill(block.ptr(), 1, 4 * MIB, &one);
            if at % 2 == 0 {
                block.record_use(&two);
            }
        }
        let block = pool.alloc(32 * MIB, &two).unwrap();
        bed.fill(block.ptr(), 9, 32 * MIB, &two);
        opener.join().unwrap();
        bed.assert_filled(block.ptr(), 9, 32 * MIB, &two);
    });
}

#[test]
fn rmm_2470_a_stream_that_is_held_up_hangs_nobody_else() {
    over_all(|bed, over| {
        let pool = over.builder(bed).slab_bytes(32 * MIB).limit(32 * MIB).build().unwrap();
        let streams: Vec<_> = (0..3).map(|_| pool.stream(bed.stream()).unwrap()).collect();
        // One slab: giving a slab back would wait for the device.
        drop(pool.alloc(32 * MIB, &streams[1]).unwrap());
        let held = pool.alloc(8 * MIB, &streams[0]).unwrap();
        let other: Vec<_> = (0..6).map(|_| pool.alloc(4 * MIB, &streams[1]).unwrap()).collect();
        let gate = Gate::close(bed, &streams[0]);
        drop((held, other));
        // What stream 1 gave up suffices; stream 0 passes only after this.
        let block = pool.alloc(12 * MIB, &streams[2]).unwrap();
        gate.open();
        drop(block);
    });
}

#[test]
fn patience_ends_and_the_error_says_who_holds_what() {
    over_all(|bed, over| {
        let patience = Duration::from_millis(80);
        let builder = over.builder(bed).slab_bytes(2 * MIB).limit(2 * MIB).patience(patience);
        // Or the second stream, which moved a moment ago, would be waited for on the device.
        let pool = builder.stall(Duration::ZERO).build().unwrap();
        let (one, two) = (pool.stream(bed.stream()).unwrap(), pool.stream(bed.stream()).unwrap());
        let mut block = pool.alloc(2 * MIB, &one).unwrap();
        let gate = Gate::close(bed, &two);
        block.record_use(&two);
        drop(block);
        let began = Instant::now();
        match pool.alloc(2 * MIB, &one).unwrap_err() {
            DeviceError::OutOfMemory { shortage, .. } => {
                assert_eq!((shortage.wanted, shortage.reserved), (2 * MIB, 2 * MIB));
                assert_eq!((shortage.live, shortage.waiting_blocks), (2 << 20, 1));
                assert_eq!(shortage.streams.len(), 2);
            }
            other => panic!("{other}"),
        }
        assert!(began.elapsed() >= patience);
        gate.open();
        pool.alloc(2 * MIB, &one).unwrap();
    });
}

#[test]
fn cccl_4222_a_squeeze_leaves_live_blocks_alone_and_gives_the_rest_back() {
    over_all(|bed, over| {
        let pool = over.builder(bed).slab_bytes(4 * MIB).limit(64 * MIB).build().unwrap();
        let stream = pool.stream(bed.stream()).unwrap();
        let mut blocks: Vec<_> = (0..16).map(|_| pool.alloc(4 * MIB, &stream).unwrap()).collect();
        let live = blocks.swap_remove(5);
        bed.fill(live.ptr(), 0xa5, 4 * MIB, &stream);
        assert!(is_out_of_memory(&pool.alloc(40 * MIB, &stream).unwrap_err()));
        assert_eq!(blocks.len() + 1, 16);
        drop(blocks);
        let large = pool.alloc(56 * MIB, &stream).unwrap();
        bed.fill(large.ptr(), 1, 56 * MIB, &stream);
        bed.assert_filled(live.ptr(), 0xa5, 4 * MIB, &stream);
        drop(large);
        pool.trim(Duration::from_secs(5));
        let stats = pool.stats();
        assert_eq!((stats.live_blocks, stats.live_bytes), (1, 4 << 20));
        assert!(stats.reserved_bytes <= 8 << 20, "{stats:?}");
        drop(live);
        pool.trim(Duration::from_secs(5));
        assert_eq!((pool.stats().reserved_bytes, pool.stats().slabs), (0, 0));
    });
}

#[test]
fn cccl_585_long_blocks_are_freed_in_any_order() {
    over_all(|bed, over| {
        let pool = over.builder(bed).slab_bytes(2 * MIB).limit(256 * MIB).build().unwrap();
        let stream = pool.stream(bed.stream()).unwrap();
        for order in [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]] {
            let mut blocks: Vec<_> =
                [3, 7, 5, 11].map(|mib| Some(pool.alloc(mib * MIB, &stream).unwrap())).into();
            for at in order {
                blocks[at] = None;
            }
            assert_eq!(pool.stats().live_bytes, 0);
        }
    });
}

#[test]
fn freed_neighbours_become_one_and_a_fragmented_limit_is_no_obstacle() {
    over_all(|bed, over| {
        let pool = over.builder(bed).slab_bytes(16 * MIB).limit(16 * MIB).build().unwrap();
        let stream = pool.stream(bed.stream()).unwrap();
        drop(pool.alloc(16 * MIB, &stream).unwrap());
        let mut blocks: Vec<_> = (0..8).map(|_| Some(pool.alloc(2 * MIB, &stream).unwrap())).collect();
        blocks.iter_mut().step_by(2).for_each(|block| *block = None);
        assert!(is_out_of_memory(&pool.alloc(4 * MIB, &stream).unwrap_err()));
        blocks[1] = None;
        pool.alloc(6 * MIB, &stream).unwrap();
        blocks.clear();
        pool.alloc(16 * MIB, &stream).unwrap();
    });
}

#[test]
fn a_drop_in_a_host_function_calls_no_driver_and_waits_for_nobody() {
    // AMReX#4044.
    over_all(|bed, over| {
        let pool = over.builder(bed).build().unwrap();
        let (one, two) = (pool.stream(bed.stream()).unwrap(), pool.stream(bed.stream()).unwrap());
        let plain = pool.alloc(MIB, &one).unwrap();
        let mut used = pool.alloc(4 * MIB, &one).unwrap();
        used.record_use(&two);
        let deferred = pool.alloc(512, &one).unwrap();
        let fence = AtomicFence::new();
        let passes = fence.at(1);
        let work = move || {
            drop((plain, used));
            deferred.defer_until(passes);
        };
        bed.driver.host_function(one.stream(), Box::new(work), &token()).unwrap();
        bed.sync(&one);
        wait_for("the used block's return", || pool.stats().live_blocks == 1);
        fence.signal(1);
        wait_for("the deferred block's return", || pool.stats().live_blocks == 0);
    });
}

#[test]
fn a_drop_waits_for_no_lock_while_another_thread_allocates() {
    // A mutex of the program's, held around drops.
    over_all(|bed, over| {
        let pool = over.builder(bed).limit(512 * MIB).build().unwrap();
        let program = Arc::new(Mutex::new(()));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (pool, program, stream) =
                    (pool.clone(), program.clone(), pool.stream(bed.stream()).unwrap());
                thread::spawn(move || {
                    for at in 0..300 {
                        let block = pool.alloc(MIB + at * 1000, &stream).unwrap();
                        let held = program.lock();
                        drop(block);
                        drop(held);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// After which a test takes a wait for a hang, however busy the machine is.
const HANG: Duration = Duration::from_secs(30);

/// Runs `work` while a host function of `stream` waits for it to end: what waits for the
/// device meanwhile waits for itself. Whether it ended in time.
fn beside_a_waiting_host_function(
    bed: &Bed,
    stream: &PoolStream,
    limit: Duration,
    work: impl FnOnce(),
) -> bool {
    let (began, has_begun) = mpsc::channel();
    let (done, is_done) = mpsc::channel::<()>();
    let in_time = Arc::new(AtomicBool::new(false));
    let function = {
        let in_time = in_time.clone();
        move || {
            began.send(()).unwrap();
            in_time.store(is_done.recv_timeout(limit).is_ok(), SeqCst);
        }
    };
    // The simulated device runs it on whichever thread calls when it is due.
    let (driver, on) = (bed.driver.clone(), stream.stream());
    let launcher = thread::spawn(move || driver.host_function(on, Box::new(function), &token()).unwrap());
    has_begun.recv().unwrap();
    work();
    let _ = done.send(());
    launcher.join().unwrap();
    bed.sync(stream);
    in_time.load(SeqCst)
}

/// Blocks that are free when they are dropped, that another stream uses, and that wait for
/// a fence.
fn to_drop(pool: &DevicePool, one: &PoolStream, two: &PoolStream) -> (Vec<DeviceBuf>, DeviceBuf) {
    let mut used = pool.alloc(4 * MIB, one).unwrap();
    used.record_use(two);
    let plain = [512, 100_000, MIB, 40 * MIB].map(|bytes| pool.alloc(bytes, one).unwrap());
    (plain.into_iter().chain([used]).collect(), pool.alloc(70_000, one).unwrap())
}

/// What a pool that frees as it drops would do: it waits for the device with the driver
/// locked. Shows that the three cases below can fail.
#[test]
fn mlx_2099_the_driver_s_own_free_waits_for_the_host_function() {
    let bed = Bed { simulated: None, ..Bed::new(1 << 30) };
    if bed.driver.name() != "simulated" {
        return eprintln!("skipped: a case of the simulated device");
    }
    let pool = Over::Device.builder(&bed).build().unwrap();
    let stream = pool.stream(bed.stream()).unwrap();
    let block = bed.driver.mem_alloc(MIB, &token()).unwrap();
    let in_time = beside_a_waiting_host_function(&bed, &stream, Duration::from_millis(50), || {
        // SAFETY: allocated above, and used by nobody.
        unsafe { bed.driver.mem_free(block, &token()) }.unwrap();
    });
    assert!(!in_time);
}

/// The first case: one thread frees while another is in cuMemAllocManaged, whose lock in
/// the driver a free that waits would hold.
#[test]
fn mlx_2099_a_free_against_a_managed_allocation() {
    over_all(|bed, over| {
        let pool = over.builder(bed).build().unwrap();
        let (one, two) = (pool.stream(bed.stream()).unwrap(), pool.stream(bed.stream()).unwrap());
        let (blocks, deferred) = to_drop(&pool, &one, &two);
        let mut managed = None;
        let in_time = beside_a_waiting_host_function(bed, &one, HANG, || {
            thread::scope(|scope| {
                let allocating = scope.spawn(|| bed.driver.mem_alloc_managed(MIB, &token()).unwrap());
                drop(blocks);
                deferred.defer_until(AtomicFence::new().at(0));
                managed = Some(allocating.join().unwrap());
            });
        });
        assert!(in_time, "a drop waited for the device, over {over:?}");
        // SAFETY: allocated above, and used by nobody.
        unsafe { bed.driver.mem_free(managed.unwrap(), &token()) }.unwrap();
        wait_for("the blocks' return", || pool.stats().live_blocks == 0);
    });
}

/// The second case: the host function waits until work has been launched, by a thread that
/// frees first.
#[test]
fn mlx_2099_a_free_against_a_launch() {
    over_all(|bed, over| {
        let pool = over.builder(bed).build().unwrap();
        let (one, two) = (pool.stream(bed.stream()).unwrap(), pool.stream(bed.stream()).unwrap());
        let (blocks, deferred) = to_drop(&pool, &one, &two);
        let target = pool.alloc(MIB, &two).unwrap();
        let in_time = beside_a_waiting_host_function(bed, &one, HANG, || {
            drop(blocks);
            deferred.defer_until(AtomicFence::new().at(0));
            for byte in 0..50 {
                bed.fill(target.ptr(), byte, MIB, &two);
                drop(pool.alloc(MIB, &two).unwrap());
            }
        });
        assert!(in_time, "a drop waited for the device, over {over:?}");
        bed.assert_filled(target.ptr(), 49, MIB, &two);
        drop(target);
        wait_for("the blocks' return", || pool.stats().live_blocks == 0);
    });
}

/// The third case: the host function waits for a mutex of the program's, which is held
/// around drops and allocations.
#[test]
fn mlx_2099_a_free_against_a_mutex() {
    over_all(|bed, over| {
        let pool = over.builder(bed).build().unwrap();
        let (one, two) = (pool.stream(bed.stream()).unwrap(), pool.stream(bed.stream()).unwrap());
        let (blocks, deferred) = to_drop(&pool, &one, &two);
        let program = Mutex::new(());
        let (began, has_begun) = mpsc::channel();
        thread::scope(|scope| {
            let held = program.lock();
            let asks = scope.spawn(|| {
                beside_a_waiting_host_function(bed, &one, 2 * HANG, || {
                    began.send(()).unwrap();
                    let taken = program.try_lock_for(HANG);
                    assert!(taken.is_some(), "the mutex's holder waited for the device, over {over:?}");
                })
            });
            has_begun.recv().unwrap();
            drop(blocks);
            deferred.defer_until(AtomicFence::new().at(0));
            drop((0..20).map(|_| pool.alloc(3 * MIB, &two).unwrap()).collect::<Vec<_>>());
            drop(held);
            assert!(asks.join().unwrap());
        });
        wait_for("the blocks' return", || pool.stats().live_blocks == 0);
    });
}

/// Registers by writing into a book, and allocates from the pool meanwhile.
#[derive(Default)]
struct Book {
    pool: Mutex<Option<(DevicePool, pinyard_allocator::device::PoolStream)>>,
    registered: Mutex<BTreeMap<usize, usize>>,
    ever: AtomicUsize,
}

struct Booked(Arc<Book>);

impl Registrar for Booked {
    fn register(&self, slab: Segment, _: &DriverToken) -> Result<MemoryKey, SourceError> {
        let number = self.0.ever.fetch_add(1, SeqCst);
        assert_eq!(self.0.registered.lock().insert(slab.start, slab.bytes), None);
        let inner = self.0.pool.lock().take();
        if let Some((pool, stream)) = inner {
            drop(pool.alloc(3 * MIB, &stream).unwrap());
        }
        Ok(MemoryKey { lkey: slab.start as u64, rkey: number as u64, handle: 0 })
    }

    fn deregister(&self, slab: Segment, key: MemoryKey, _: &DriverToken) -> Result<(), SourceError> {
        assert_eq!(key.lkey, slab.start as u64);
        assert_eq!(self.0.registered.lock().remove(&slab.start), Some(slab.bytes));
        Ok(())
    }
}

#[test]
fn mlx_2232_a_registration_may_allocate_from_the_pool_that_it_serves() {
    let bed = Bed::new(1 << 30);
    let book = Arc::new(Book::default());
    let pool = DevicePool::builder(bed.driver.clone()).registrar(Booked(book.clone())).build().unwrap();
    let stream = pool.stream(bed.stream()).unwrap();
    *book.pool.lock() = Some((pool.clone(), stream.clone()));
    let block = pool.alloc(5 * MIB, &stream).unwrap();
    assert_eq!(book.ever.load(SeqCst), 2);
    assert_eq!(block.key().lkey, block.slab_base().0);
    drop((block, stream, pool));
    wait_for("deregistration", || book.registered.lock().is_empty());
    bed.assert_clean();
}

/// Virtual memory too: its slabs are neighbours, and each is a registration of its own.
#[test]
fn a_slab_is_registered_once_and_a_blocks_key_and_offset_are_arithmetic() {
    for over in [Over::Device, Over::Virtual] {
        registered_slabs(over);
    }
}

fn registered_slabs(over: Over) {
    let bed = Bed::new(1 << 30);
    let book = Arc::new(Book::default());
    let pool = over.builder(&bed).registrar(Booked(book.clone())).build().unwrap();
    let stream = pool.stream(bed.stream()).unwrap();
    let mut random = Random(1);
    let mut live: Vec<DeviceBuf> = Vec::new();
    for step in 0..3000 {
        if live.len() > 40 {
            live.swap_remove(random.below(40));
        }
        let block = pool.alloc(random.size(256, 4 * MIB), &stream).unwrap();
        assert_eq!(block.key().lkey, block.slab_base().0);
        assert_eq!(block.slab_base().0 + block.offset_in_slab() as u64, block.ptr().0);
        assert!(block.offset_in_slab() + block.block_bytes() <= block.slab_bytes(), "step {step}");
        live.push(block);
    }
    assert_eq!(book.ever.load(SeqCst) as u64, pool.stats().growths);
    assert!(pool.stats().growths < 30, "{:?}", pool.stats());
    let block = &live[0];
    bed.driver.dma_buf(block.slab_base(), block.slab_bytes(), &token()).unwrap();
    if over == Over::Virtual {
        return;
    }
    // A slab is exported once, a block by its offset.
    let one = bed.driver.ipc_handle(block.slab_base(), &token()).unwrap();
    let again = bed.driver.ipc_handle(block.slab_base(), &token()).unwrap();
    assert_eq!(one, again);
}

#[test]
fn a_recycled_stream_handle_is_another_stream() {
    over_all(|bed, over| {
        let pool = over.builder(bed).build().unwrap();
        let raw = bed.stream();
        let old = pool.stream(raw).unwrap();
        let other = pool.stream(bed.stream()).unwrap();
        let kept = pool.alloc(MIB, &old).unwrap();
        drop(pool.alloc(4 * MIB, &old).unwrap());
        old.retire().unwrap();
        // SAFETY: retired; its blocks are dropped without it.
        unsafe { bed.driver.stream_destroy(raw, &token()) }.unwrap();
        let new = pool.stream(bed.stream()).unwrap();
        drop(kept);
        let blocks: Vec<_> = (0..4).map(|_| pool.alloc(MIB, &new).unwrap()).collect();
        drop(blocks);
        drop(pool.alloc(4 * MIB, &other).unwrap());
        pool.trim(Duration::from_secs(5));
        assert_eq!(pool.stats().reserved_bytes, 0, "{}", pool.holdings());
    });
}

/// Only the first 1024 streams have a word that they raise themselves.
#[test]
fn what_the_streams_after_the_first_thousand_free_comes_back() {
    over_all(|bed, over| {
        let pool = over.builder(bed).build().unwrap();
        for _ in 0..1100 {
            let raw = bed.driver.stream_create(&token()).unwrap();
            let stream = pool.stream(raw).unwrap();
            drop(pool.alloc(MIB, &stream).unwrap());
            stream.retire().unwrap();
            // SAFETY: retired; nothing of it is out.
            unsafe { bed.driver.stream_destroy(raw, &token()) }.unwrap();
        }
        pool.trim(Duration::from_secs(5));
        assert_eq!(pool.stats().reserved_bytes, 0, "{}", pool.holdings());
    });
}

#[test]
fn a_block_outlives_its_stream() {
    over_all(|bed, over| {
        let pool = over.builder(bed).limit(64 * MIB).build().unwrap();
        let raw = bed.stream();
        let stream = pool.stream(raw).unwrap();
        let block = pool.alloc(48 * MIB, &stream).unwrap();
        bed.fill(block.ptr(), 1, 48 * MIB, &stream);
        stream.retire().unwrap();
        // SAFETY: retired.
        unsafe { bed.driver.stream_destroy(raw, &token()) }.unwrap();
        drop(block);
        let other = pool.stream(bed.stream()).unwrap();
        pool.alloc(48 * MIB, &other).unwrap();
    });
}

#[test]
fn a_captured_stream_is_not_marked_and_its_blocks_come_back_afterwards() {
    // pytorch#193982, #159594.
    over_all(|bed, over| {
        let pool = over.builder(bed).build().unwrap();
        let (one, two) = (pool.stream(bed.stream()).unwrap(), pool.stream(bed.stream()).unwrap());
        let mut block = pool.alloc(MIB, &one).unwrap();
        bed.driver.capture_begin(two.stream(), &token()).unwrap();
        bed.fill(block.ptr(), 1, MIB, &two);
        block.record_use(&two);
        drop(block);
        thread::sleep(Duration::from_millis(30));
        assert_eq!(pool.stats().live_blocks, 1, "reused during a capture");
        assert!(matches!(bed.driver.stream_capture(two.stream(), &token()), Ok(Capture::Active(_))));
        bed.driver.capture_end(two.stream(), &token()).unwrap();
        wait_for("the block's return", || pool.stats().live_blocks == 0);
    });
}

#[test]
fn a_pool_grows_while_another_thread_captures() {
    over_all(|bed, over| {
        let pool = over.builder(bed).build().unwrap();
        let (one, two) = (pool.stream(bed.stream()).unwrap(), pool.stream(bed.stream()).unwrap());
        let target = pool.alloc(MIB, &two).unwrap();
        bed.driver.capture_begin(two.stream(), &token()).unwrap();
        let inner = pool.clone();
        thread::spawn(move || drop((0..20).map(|_| inner.alloc(8 * MIB, &one).unwrap()).collect::<Vec<_>>()))
            .join()
            .unwrap();
        bed.fill(target.ptr(), 1, MIB, &two);
        assert!(matches!(bed.driver.stream_capture(two.stream(), &token()), Ok(Capture::Active(_))));
        bed.driver.capture_end(two.stream(), &token()).unwrap();
    });
}

fn pinned_pool(bed: &Bed) -> Pool {
    let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
    Pool::pinned(&registry, bed.driver.clone()).slab_bytes(4 * MIB).build().unwrap()
}

#[test]
fn cupy_8789_a_dropped_source_stays_until_its_copy_has_passed() {
    for over in [Over::Device, Over::DeviceEvents] {
        let bed = Bed::new(1 << 30);
        let pool = over.builder(&bed).build().unwrap();
        let stream = pool.stream(bed.stream()).unwrap();
        let pinned = pinned_pool(&bed);
        pinned.warmup(12 * MIB).unwrap();
        let target = pool.alloc(MIB, &stream).unwrap();
        let mut source = pinned.alloc::<u8>(MIB).unwrap();
        source.fill(0x11);
        let gate = Gate::close(&bed, &stream);
        // SAFETY: the fence keeps the source, and the test the target, until then.
        unsafe { bed.driver.copy_to_device(target.ptr(), source.as_ptr(), MIB, stream.stream(), &token()) }
            .unwrap();
        let at = source.as_ptr();
        source.defer_until(stream.fence().unwrap());
        let mut others: Vec<_> = (0..6).map(|_| pinned.alloc::<u8>(MIB).unwrap()).collect();
        for other in &mut others {
            assert_ne!(other.as_ptr(), at);
            other.fill(0x22);
        }
        gate.open();
        bed.assert_filled(target.ptr(), 0x11, MIB, &stream);
        // By us or by the pool's thread.
        pinned.poll_fences();
        wait_for("the source", || pinned.stats().deferred_blocks == 0);
        drop((others, pinned, target, stream, pool));
        bed.assert_clean();
    }
}

#[test]
fn what_one_thread_allocates_another_frees() {
    over_all(|bed, over| {
        let pool = over.builder(bed).limit(256 * MIB).build().unwrap();
        let (make, take) = std::sync::mpsc::sync_channel::<DeviceBuf>(32);
        let (one, two) = (pool.stream(bed.stream()).unwrap(), pool.stream(bed.stream()).unwrap());
        let inner = pool.clone();
        let maker = thread::spawn(move || {
            let mut random = Random(5);
            for _ in 0..2000 {
                make.send(inner.alloc(random.size(256, MIB), &one).unwrap()).unwrap();
            }
        });
        for (at, mut block) in take.into_iter().enumerate() {
            if at % 3 == 0 {
                block.record_use(&two);
            }
        }
        maker.join().unwrap();
        wait_for("every block's return", || pool.stats().live_blocks == 0);
        let stats = pool.stats();
        assert_eq!((stats.live_bytes, stats.allocations, stats.frees), (0, 2000, 2000));
    });
}

#[test]
fn observers_may_free_memory_before_an_allocation_fails() {
    over_all(|bed, over| {
        let pool = over.builder(bed).limit(32 * MIB).build().unwrap();
        let stream = pool.stream(bed.stream()).unwrap();
        let cache = Arc::new(Mutex::new(vec![pool.alloc(24 * MIB, &stream).unwrap()]));
        let held = Arc::downgrade(&cache);
        pool.on_shortage(move |shortage| {
            assert_eq!(shortage.wanted, 16 << 20);
            if let Some(cache) = held.upgrade() {
                cache.lock().clear();
            }
        });
        pool.alloc(16 * MIB, &stream).unwrap();
    });
}

#[test]
fn free_bytes_live_bytes_and_waiting_ones_are_all_there_is() {
    over_all(|bed, over| {
        let pool = over.builder(bed).build().unwrap();
        let streams: Vec<_> = (0..3).map(|_| pool.stream(bed.stream()).unwrap()).collect();
        let mut random = Random(9);
        let mut live: Vec<DeviceBuf> = Vec::new();
        for _ in 0..400 {
            if random.below(3) == 0 && !live.is_empty() {
                live.swap_remove(random.below(live.len()));
            } else {
                live.push(pool.alloc(random.size(64 << 10, 4 * MIB), &streams[random.below(3)]).unwrap());
            }
            let stats = pool.stats();
            let sum = stats.live_bytes + stats.free_bytes + stats.waiting_bytes;
            assert_eq!(sum, stats.reserved_bytes, "{stats:?}");
            assert_eq!(stats.live_blocks, live.len() as u64);
        }
        drop(live);
        pool.trim(Duration::from_secs(5));
        let stats = pool.stats();
        assert_eq!(
            (stats.reserved_bytes, stats.live_bytes, stats.free_bytes, stats.waiting_bytes),
            (0, 0, 0, 0)
        );
    });
}

#[test]
fn warm_sizes_need_no_driver_and_a_batch_is_all_or_nothing() {
    over_all(|bed, over| {
        let pool = over.builder(bed).limit(128 * MIB).patience(Duration::from_millis(20)).build().unwrap();
        let stream = pool.stream(bed.stream()).unwrap();
        pool.warmup(&[(512, 100), (MIB, 8), (8 * MIB, 2)], &stream).unwrap();
        let growths = pool.stats().growths;
        let blocks = pool.alloc_batch(&[512, MIB, 8 * MIB, 8 * MIB, 512], &stream).unwrap();
        assert_eq!(pool.stats().growths, growths);
        drop(blocks);
        assert!(is_out_of_memory(&pool.alloc_batch(&[64 * MIB, 64 * MIB, 64 * MIB], &stream).unwrap_err()));
        assert_eq!(pool.stats().live_blocks, 0);
        // A failed warm-up spoils nothing.
        assert!(pool.warmup(&[(64 * MIB, 3)], &stream).is_err());
        pool.alloc(64 * MIB, &stream).unwrap();
    });
}

#[test]
fn streams_do_not_hoard() {
    // pytorch#186232: blocks of one stream were never another's.
    over_all(|bed, over| {
        let pool = over.builder(bed).build().unwrap();
        let streams: Vec<_> = (0..16).map(|_| pool.stream(bed.stream()).unwrap()).collect();
        let mut peak_live = 0;
        for stream in streams.iter().cycle().take(64) {
            let blocks: Vec<_> = (0..8).map(|_| pool.alloc(2 * MIB, stream).unwrap()).collect();
            peak_live = peak_live.max(pool.stats().live_bytes);
            drop(blocks);
        }
        let reserved = pool.stats().peak_reserved_bytes;
        assert!(reserved <= 2 * peak_live, "{reserved} reserved, {peak_live} live at most");
    });
}

#[test]
fn bad_settings_and_foreign_streams_are_refused() {
    let bed = Bed::new(1 << 30);
    let builder = || DevicePool::builder(bed.driver.clone());
    assert!(builder().slab_bytes(0).build().is_err());
    assert!(builder().limit(4096).build().is_err());
    for fraction in [0.0, -1.0, 1.1, f64::NAN] {
        assert!(builder().limit_fraction(fraction).is_err());
    }
    let (one, two) = (builder().build().unwrap(), builder().build().unwrap());
    let stream = one.stream(bed.stream()).unwrap();
    assert!(matches!(two.alloc(1, &stream), Err(DeviceError::ForeignStream)));
}

#[test]
fn an_idle_pools_thread_uses_no_time() {
    let bed = Bed::new(1 << 30);
    let pool = DevicePool::builder(bed.driver.clone()).build().unwrap();
    let (one, two) = (pool.stream(bed.stream()).unwrap(), pool.stream(bed.stream()).unwrap());
    let mut block = pool.alloc(MIB, &one).unwrap();
    block.record_use(&two);
    drop(block);
    wait_for("the block's return", || pool.stats().live_blocks == 0);
    let workers = Thread::all("pinyard-device");
    assert!(!workers.is_empty());
    wait_for("sleep", || workers.iter().all(Thread::sleeps_for_good));
}
