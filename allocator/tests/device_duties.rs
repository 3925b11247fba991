//! What a device pool does beside allocating: it keeps sources of copies, serves
//! requests for memory to come, registers its slabs with a registry, and leaves a forked
//! child alone. On the simulated device.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod device_common;
mod futures;

use device_common::{MIB, Random, token, wait_for};
use futures::{Count, poll};
use parking_lot::Mutex;
use pinyard_allocator::device::{
    CopyError, CopySource, DeviceBuf, DeviceError, DevicePool, MarkKind, PoolStream,
};
use pinyard_allocator::{DriverToken, PinnedSource, Pool, Segment, Source, SourceError};
use pinyard_driver::{Call, Costs, DevicePtr, Driver, Simulated};
use pinyard_registry::{
    Access, Events, MemoryKey, Registry, backend::Custom, backend::Fault, backend::Faulty,
};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

/// A device whose clock the test moves.
fn bed(limit: usize) -> (Arc<Simulated>, DevicePool, PoolStream) {
    let gpu = Arc::new(Simulated::new(1 << 30));
    // The clock stands still while an allocation waits, so it waits in vain.
    let builder = DevicePool::builder(gpu.clone()).limit(limit).patience(Duration::from_micros(200));
    let pool = builder.build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    (gpu, pool, stream)
}

fn bytes(block: &DeviceBuf) -> &[u8] {
    // SAFETY: the simulated device's memory is the process's own; the test has waited for
    // its work.
    unsafe {
        std::slice::from_raw_parts(std::ptr::with_exposed_provenance(block.ptr().0 as usize), block.len())
    }
}

/// A source that tells when it is given up.
struct Told(Vec<u8>, Arc<AtomicBool>);

// SAFETY: a Vec of its own.
unsafe impl CopySource for Told {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.0.fill(0xdd);
        self.1.store(true, SeqCst);
    }
}

#[test]
fn cupy_8789_a_source_is_kept_until_its_copy_has_passed_and_no_longer() {
    let (gpu, pool, stream) = bed(64 * MIB);
    let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
    let pinned = Pool::pinned(&registry, gpu.clone()).slab_bytes(4 * MIB).build().unwrap();
    let mut targets: Vec<_> = (0..3).map(|_| stream.alloc(MIB).unwrap()).collect();
    gpu.kernel(stream.stream(), 50_000_000, &token());
    let marks = gpu.calls(Call::StreamWriteValue);

    let given_up = Arc::new(AtomicBool::new(false));
    stream.copy_to_device(Told(vec![0x11; MIB], given_up.clone()), &mut targets[0], 0).unwrap();
    let mut source = pinned.alloc::<u8>(MIB).unwrap();
    source.fill(0x22);
    let at = source.as_ptr();
    stream.copy_to_device(source, &mut targets[1], 0).unwrap();
    let halves: Arc<[u32]> = vec![0x3333_3333; MIB / 8].into();
    stream.copy_to_device(halves.clone(), &mut targets[2], MIB / 2).unwrap();
    // The same memory is wanted at once, as in the report.
    for _ in 0..20 {
        let mut other = pinned.alloc::<u8>(MIB).unwrap();
        assert_ne!(other.as_ptr(), at, "a source was reused before its copy had passed");
        other.fill(0xee);
    }
    assert!(!given_up.load(SeqCst) && Arc::strong_count(&halves) == 2);
    gpu.advance(60_000_000);
    // Nobody allocates: the pool's thread alone gives them up.
    wait_for("the sources' end", || {
        gpu.advance(10_000);
        given_up.load(SeqCst) && Arc::strong_count(&halves) == 1
    });
    assert_eq!(pinned.alloc::<u8>(MIB).unwrap().as_ptr(), at);
    assert!(bytes(&targets[0]).iter().all(|&byte| byte == 0x11));
    assert!(bytes(&targets[1]).iter().all(|&byte| byte == 0x22));
    assert!(bytes(&targets[2])[MIB / 2..].iter().all(|&byte| byte == 0x33));
    // One mark for the three.
    assert!(gpu.calls(Call::StreamWriteValue) - marks <= 3);
    assert_eq!(gpu.offences(), Vec::<String>::new());
    drop((targets, stream, pool));
}

#[test]
fn copies_that_cannot_be_are_refused_and_give_their_sources_up() {
    let (gpu, _pool, stream) = bed(64 * MIB);
    let mut target = stream.alloc(1000).unwrap();
    let given_up = Arc::new(AtomicBool::new(false));
    let told = || Told(vec![1; 600], given_up.clone());
    assert!(matches!(stream.copy_to_device(told(), &mut target, 401), Err(CopyError::Bounds { .. })));
    assert!(matches!(stream.copy_to_device(told(), &mut target, usize::MAX), Err(CopyError::Bounds { .. })));
    assert!(given_up.swap(false, SeqCst));
    gpu.capture_begin(stream.stream(), &token()).unwrap();
    assert!(matches!(stream.copy_to_device(told(), &mut target, 0), Err(CopyError::Captured)));
    gpu.capture_end(stream.stream(), &token()).unwrap();
    gpu.fail_next(Call::CopyToDevice, 1, 700);
    given_up.store(false, SeqCst);
    assert!(matches!(stream.copy_to_device(told(), &mut target, 0), Err(CopyError::Driver(_))));
    wait_for("the source's end", || {
        gpu.advance(1000);
        given_up.load(SeqCst)
    });
    stream.copy_to_device(Vec::<u8>::new(), &mut target, 1000).unwrap();
}

#[test]
fn a_copy_to_another_streams_block_is_a_use_of_it() {
    let (gpu, pool, stream) = bed(64 * MIB);
    let home = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let mut target = home.alloc(MIB).unwrap();
    let at = target.ptr();
    gpu.kernel(stream.stream(), 1_000_000, &token());
    stream.copy_to_device(vec![7u8; MIB], &mut target, 0).unwrap();
    drop(target);
    assert_ne!(home.alloc(MIB).unwrap().ptr(), at);
    gpu.synchronize(&token()).unwrap();
    wait_for("the block's return", || pool.stats().live_blocks == 0);
}

#[test]
fn a_future_resolves_when_memory_comes_free_in_the_order_of_asking() {
    let (gpu, pool, stream) = bed(64 * MIB);
    let count = Arc::new(Count::default());
    // There is memory: at once, without the pool's thread.
    let Poll::Ready(Ok(held)) = poll(pin!(stream.alloc_async(48 * MIB)), &count) else {
        panic!("not at once")
    };
    let mut first = pin!(stream.alloc_async(40 * MIB));
    let mut second = pin!(stream.alloc_async(MIB));
    assert!(poll(first.as_mut(), &count).is_pending());
    // It would fit, and waits its turn.
    assert!(poll(second.as_mut(), &count).is_pending());
    std::thread::sleep(Duration::from_millis(20));
    assert!(poll(second.as_mut(), &count).is_pending() && count.0.load(SeqCst) == 0);
    drop(held);
    wait_for("both", || {
        gpu.advance(10_000);
        count.0.load(SeqCst) == 2
    });
    let Poll::Ready(Ok(one)) = poll(first.as_mut(), &count) else { panic!("woken without a block") };
    let Poll::Ready(Ok(two)) = poll(second.as_mut(), &count) else { panic!("woken without a block") };
    assert_eq!((one.len(), two.len()), (40 * MIB, MIB));
    drop((one, two));
    assert_eq!(pool.stats().live_blocks, 0);
}

#[test]
fn a_future_that_is_dropped_loses_nothing_and_holds_up_nobody() {
    let (gpu, pool, stream) = bed(64 * MIB);
    let count = Arc::new(Count::default());
    let held = stream.alloc(48 * MIB).unwrap();
    {
        // Withdrawn while it waits: the next is served.
        let mut gone = Box::pin(stream.alloc_async(50 * MIB));
        assert!(poll(gone.as_mut(), &count).is_pending());
        let mut next = pin!(stream.alloc_async(8 * MIB));
        assert!(poll(next.as_mut(), &count).is_pending());
        drop(gone);
        wait_for("the next", || {
            gpu.advance(10_000);
            count.0.load(SeqCst) == 1
        });
        // Dropped with its answer in it.
    }
    assert_eq!(pool.stats().live_blocks, 1);
    drop(held);
    let counts = pool.stats();
    assert_eq!((counts.live_blocks, counts.live_bytes), (0, 0));
    // Never polled, never asked.
    drop(stream.alloc_async(8 * MIB));
    assert_eq!(pool.stats().allocations, counts.allocations);
}

#[test]
fn callbacks_are_called_once_without_a_lock_and_hopeless_requests_fail() {
    let (gpu, pool, stream) = bed(64 * MIB);
    let held = stream.alloc(48 * MIB).unwrap();
    let got = Arc::new(Mutex::new(Vec::new()));
    for number in 0..3 {
        let (got, pool, stream2) = (got.clone(), pool.clone(), stream.clone());
        stream.alloc_then(20 * MIB, move |block| {
            // With no lock held: the pool may be used.
            assert!(pool.stats().live_blocks >= 1);
            drop(block.unwrap());
            drop(stream2.alloc(1000).unwrap());
            got.lock().push(number);
        });
    }
    assert!(got.lock().is_empty());
    drop(held);
    wait_for("three callbacks", || {
        gpu.advance(10_000);
        got.lock().len() == 3
    });
    assert_eq!(*got.lock(), [0, 1, 2]);
    // One that panics does not end the pool's thread.
    let held = stream.alloc(48 * MIB).unwrap();
    stream.alloc_then(40 * MIB, |_| panic!("on purpose"));
    let after = Arc::new(AtomicBool::new(false));
    let told = after.clone();
    stream.alloc_then(MIB, move |block| told.store(block.is_ok(), SeqCst));
    drop(held);
    wait_for("the callback after", || {
        gpu.advance(10_000);
        after.load(SeqCst)
    });
    let failed = Arc::new(AtomicUsize::new(0));
    for bytes in [0, 65 * MIB, usize::MAX] {
        let failed = failed.clone();
        stream.alloc_then(bytes, move |block| {
            assert!(block.is_err());
            failed.fetch_add(1, SeqCst);
        });
    }
    assert_eq!(failed.load(SeqCst), 3);
    drop((stream, pool));
    wait_for("the end", || {
        gpu.advance(10_000);
        gpu.used_bytes() == 0
    });
}

/// Says that its segments join, and puts no two side by side.
struct Scattered(Arc<Simulated>);

// SAFETY: memory of cuMemAlloc, whose alignment the simulated device makes 2 MiB.
unsafe impl Source for Scattered {
    fn name(&self) -> &'static str {
        "scattered"
    }
    fn granularity(&self) -> usize {
        2 * MIB
    }
    fn joins(&self) -> bool {
        true
    }
    fn grow(&self, bytes: usize, token: &DriverToken) -> Result<Segment, SourceError> {
        let gap = self.0.mem_alloc(2 * MIB, token)?;
        let start = self.0.mem_alloc(bytes, token)?.0 as usize;
        // SAFETY: just allocated, and used by nobody.
        unsafe { self.0.mem_free(gap, token) }?;
        Ok(Segment { start, bytes })
    }
    unsafe fn shrink(&self, segment: Segment, token: &DriverToken) -> Result<(), SourceError> {
        // SAFETY: the caller's contract.
        Ok(unsafe { self.0.mem_free(DevicePtr(segment.start as u64), token) }?)
    }
}

/// A pool that brings only what its last range lacks does not go on for ever where that
/// does not lie behind it.
#[test]
fn a_source_whose_slabs_do_not_meet_is_asked_for_the_whole() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let pool = DevicePool::from_source(gpu.clone(), Scattered(gpu.clone())).limit(512 * MIB);
    let pool = pool.patience(Duration::ZERO).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    for mib in [20, 21, 30, 31, 90, 95] {
        let before = pool.stats().growths;
        let block = stream.alloc(mib * MIB).unwrap();
        assert!(pool.stats().growths <= before + 8, "{mib} MiB: {:?}", pool.stats());
        assert!(block.block_bytes() >= mib * MIB);
    }
}

/// Counts and sizes whose product no word holds, or whose sum no device has.
#[test]
fn a_warm_up_or_batch_beyond_everything_is_refused_at_once() {
    let (gpu, pool, stream) = bed(256 * MIB);
    let unlimited = DevicePool::builder(gpu.clone()).build().unwrap();
    let other = unlimited.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let huge = [
        vec![(usize::MAX, 1)],
        vec![(1, usize::MAX)],
        vec![(usize::MAX, usize::MAX)],
        vec![(MIB, usize::MAX / MIB), (MIB, 1)],
        vec![(1, usize::MAX / 2), (1, usize::MAX / 2), (1, 2)],
    ];
    for sizes in &huge {
        assert!(matches!(pool.warmup(sizes, &stream), Err(DeviceError::Overflow { .. })), "{sizes:?}");
        assert!(matches!(unlimited.warmup(sizes, &other), Err(DeviceError::Overflow { .. })), "{sizes:?}");
    }
    let error = pool.warmup(&[(MIB, 257)], &stream);
    assert!(matches!(error, Err(DeviceError::Limit { .. })), "{error:?}");
    let most = (1 << 46) - MIB;
    for bytes in [usize::MAX, usize::MAX / 2, isize::MAX as usize + 1, 1 << 46, most] {
        for sizes in [vec![bytes], vec![MIB, bytes], vec![bytes, bytes]] {
            assert!(pool.alloc_batch(&sizes, &stream).is_err());
        }
        assert!(pool.alloc(bytes, &stream).is_err());
    }
    // A sum that wraps to nothing.
    assert!(pool.alloc_batch(&vec![1 << 45; 1 << 19], &stream).is_err());
    assert_eq!(pool.stats().live_blocks, 0);
    pool.trim(Duration::ZERO);
    assert_eq!((pool.stats().reserved_bytes, unlimited.stats().reserved_bytes), (0, 0));
}

#[test]
fn a_batch_lies_side_by_side() {
    let (_gpu, pool, stream) = bed(256 * MIB);
    pool.warmup(&[(100 * MIB, 1)], &stream).unwrap();
    let sizes = [3 * MIB, 100, 64 << 10, 5 * MIB, 40_000, 2 * MIB];
    let batch = pool.alloc_batch(&sizes, &stream).unwrap();
    assert!(batch.iter().zip(sizes).all(|(block, bytes)| block.len() == bytes));
    for pair in [(0, 3), (3, 5)] {
        let (one, two) = (&batch[pair.0], &batch[pair.1]);
        assert_eq!(one.ptr().0 + one.block_bytes() as u64, two.ptr().0);
    }
    assert_eq!(pool.stats().live_blocks, 6);
    drop(batch);
    assert_eq!((pool.stats().live_blocks, pool.stats().live_bytes), (0, 0));
    // All or nothing.
    assert!(pool.alloc_batch(&[MIB, 300 * MIB], &stream).is_err());
    assert_eq!(pool.stats().live_blocks, 0);
    drop(pool.alloc(200 * MIB, &stream).unwrap());
}

/// One thread is held up by the driver while it marks a stream (its queue is full); no other
/// thread's work on other streams is.
#[test]
fn a_driver_call_that_hangs_for_one_stream_holds_up_no_other() {
    for marks in [MarkKind::Best, MarkKind::Events] {
        let mut costs = Costs::default();
        (costs.record, costs.write_value) = (1_000_000, 1_000_000);
        // That a cuMemFree waits is another matter.
        costs.free_waits = false;
        let gpu = Arc::new(Simulated::with_costs(1 << 30, costs));
        let pool = DevicePool::builder(gpu.clone()).limit(64 * MIB).patience(Duration::ZERO).marks(marks);
        let pool = pool.build().unwrap();
        let [stuck, free] = [(); 2].map(|()| pool.stream(gpu.stream_create(&token()).unwrap()).unwrap());
        gpu.advance(10_000_000);
        // It is known to the pool, which looks at its events.
        stuck.fence().unwrap();
        let (began, has_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let work = Box::new(move || {
            began.send(()).unwrap();
            let _ = may_go_on.recv();
        });
        thread::scope(|scope| {
            let marking = scope.spawn(|| {
                // It is due within the call that marks the stream, and runs there.
                gpu.kernel(stuck.stream(), 500_000, &token());
                gpu.host_function(stuck.stream(), work, &token()).unwrap();
                stuck.fence().unwrap();
            });
            has_begun.recv().unwrap();
            let (done, is_done) = mpsc::channel();
            let (pool, free) = (pool.clone(), free.clone());
            scope.spawn(move || {
                // Nothing of the stuck stream's is needed.
                drop(free.alloc(20 * MIB).unwrap());
                free.fence().unwrap().passed();
                pool.trim(Duration::ZERO);
                assert!(free.alloc(100 * MIB).is_err());
                drop(free.alloc_batch(&[MIB, 2 * MIB]).unwrap());
                pool.stats();
                done.send(()).unwrap();
            });
            let in_time = is_done.recv_timeout(Duration::from_secs(20));
            assert!(!marking.is_finished());
            go_on.send(()).unwrap();
            in_time.expect("the other stream's work waited");
        });
    }
}

/// Events are asked without a lock, so two threads may have one answer.
#[test]
fn threads_that_ask_the_same_events_agree() {
    let gpu = Simulated::new(1 << 30).running();
    let pool = DevicePool::builder(gpu.clone()).marks(MarkKind::Events).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let word = gpu.host_alloc(4096, &token()).unwrap();
                    // SAFETY: pinned, ours, and freed after the fence that is behind the write.
                    unsafe {
                        word.cast::<u64>().write(0);
                        let at = gpu.host_device_ptr(word, &token()).unwrap();
                        gpu.stream_write_value(stream.stream(), at, 1, &token()).unwrap();
                        let mut fence = stream.fence().unwrap();
                        while !fence.passed() {
                            thread::yield_now();
                        }
                        assert_eq!(AtomicU64::from_ptr(word.cast()).load(SeqCst), 1, "passed too early");
                        gpu.host_free(word, &token()).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(gpu.offences(), Vec::<String>::new());
}

/// A NIC, as far as registrations go: slabs as dma-bufs of the driver's.
fn nic(gpu: &Arc<Simulated>, registered: &Arc<AtomicUsize>, ever: &Arc<AtomicU64>) -> Custom {
    let (driver, now, all) = (gpu.clone(), registered.clone(), ever.clone());
    let gone = registered.clone();
    Custom::new(
        "simulated NIC",
        move |range, _| {
            let exported = driver.dma_buf(DevicePtr(range.start as u64), range.len(), &token());
            drop(exported.expect("whole slabs are exported"));
            now.fetch_add(range.len(), SeqCst);
            let key = all.fetch_add(1, SeqCst);
            Ok(MemoryKey { lkey: key, rkey: key, handle: 0 })
        },
        move |_, range| {
            gone.fetch_sub(range.len(), SeqCst);
            Ok(())
        },
    )
}

#[test]
fn w13_nothing_is_registered_after_the_first_step() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let (registered, ever) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let backend = nic(&gpu, &registered, &ever);
    let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let pool = DevicePool::builder(gpu.clone()).registry(&registry, access).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let mut after_first = None;
    for step in 0..10 {
        let mut random = Random(5);
        let mut saved: Vec<DeviceBuf> = Vec::new();
        for layer in 0..24 {
            for part in [1, 3, 4, 4] {
                saved.push(stream.alloc(part * MIB / 2).unwrap());
            }
            drop(stream.alloc(random.size(4096, 2 * MIB)).unwrap());
            // Each tenth block goes to the NIC, by its key and by a look-up.
            let block = &saved[saved.len() - 1 - layer % 3];
            let at = (std::ptr::without_provenance::<u8>(block.ptr().0 as usize), block.len());
            let found = registry.lookup(at, access).expect("a block of a registered slab");
            assert_eq!(found, block.key());
            assert!(block.offset_in_slab() + block.len() <= block.slab_bytes());
        }
        while let Some(tensor) = saved.pop() {
            let _gradient = stream.alloc(tensor.len()).unwrap();
        }
        let now = ever.load(SeqCst);
        assert_eq!(*after_first.get_or_insert(now), now, "step {step} registered");
    }
    assert_eq!(pool.stats().growths, ever.load(SeqCst));
    assert_eq!(registered.load(SeqCst) as u64, pool.stats().reserved_bytes);
    drop((stream, pool));
    wait_for("deregistration", || registered.load(SeqCst) == 0 && gpu.used_bytes() == 0);
}

/// Slabs of virtual memory are neighbours at growing addresses, each a mapping of its own
/// (so a dma-buf of its own): each is registered by itself, no block lies in two, and its
/// key is its slab's by arithmetic.
#[test]
fn slabs_of_virtual_memory_are_registered_mapping_by_mapping() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let (registered, ever) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let ranges: Arc<Mutex<Vec<(usize, usize, u64)>>> = Arc::default();
    let (told, gone, driver) = (ranges.clone(), registered.clone(), gpu.clone());
    let backend = Custom::new(
        "simulated NIC",
        move |range, _| {
            drop(driver.dma_buf(DevicePtr(range.start as u64), range.len(), &token()).unwrap());
            registered.fetch_add(range.len(), SeqCst);
            let key = ever.fetch_add(1, SeqCst);
            told.lock().push((range.start, range.len(), key));
            Ok(MemoryKey { lkey: key, rkey: key, handle: 0 })
        },
        move |_, range| {
            gone.fetch_sub(range.len(), SeqCst);
            Ok(())
        },
    );
    let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
    let access = Access::LOCAL_WRITE;
    let pool = DevicePool::virtual_memory(gpu.clone(), true).unwrap().registry(&registry, access);
    let pool = pool.slab_bytes(16 * MIB).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let mut random = Random(3);
    let mut live: Vec<DeviceBuf> = Vec::new();
    for _ in 0..2000 {
        if live.len() > 60 {
            live.swap_remove(random.below(60));
        }
        let block = stream.alloc(random.size(256, 6 * MIB)).unwrap();
        let at = block.ptr().0 as usize;
        let slabs = ranges.lock();
        let &(start, length, key) = slabs
            .iter()
            .rev()
            .find(|&&(start, length, _)| (start..start + length).contains(&at))
            .expect("in a registered slab");
        assert!(at + block.block_bytes() <= start + length, "in one slab");
        assert_eq!((block.key().lkey, block.offset_in_slab()), (key, at - start));
        drop(slabs);
        let range = (std::ptr::without_provenance::<u8>(at), block.len());
        assert_eq!(registry.lookup(range, access), Some(block.key()));
        live.push(block);
    }
    let starts = ranges.lock().clone();
    let neighbours =
        starts.iter().any(|&(start, length, _)| starts.iter().any(|next| next.0 == start + length));
    assert!(neighbours && starts.len() > 3, "{starts:?}");
    drop((live, stream));
    pool.trim(Duration::ZERO);
    drop(pool);
    wait_for("deregistration", || registry.stats().regions == 0 && gpu.used_bytes() == 0);
    assert_eq!(gpu.offences(), Vec::<String>::new());
}

#[test]
fn a_slab_that_cannot_be_registered_is_given_back() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let (registered, ever) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let faulty = Faulty::over(nic(&gpu, &registered, &ever))
        .registering(|number| (number < 3).then_some(Fault::Fail(libc::ENOMEM)));
    let registry = Registry::builder().backend(faulty).events(Events::NotifyOnly).build().unwrap();
    let pool = DevicePool::builder(gpu.clone()).registry(&registry, Access::LOCAL_WRITE).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let error = stream.alloc(MIB).unwrap_err();
    assert!(
        matches!(&error, DeviceError::OutOfMemory { cause, .. }
        if matches!(**cause, DeviceError::Registration { .. })),
        "{error}"
    );
    assert_eq!((gpu.used_bytes(), pool.stats().reserved_bytes), (0, 0));
    wait_for("a registration that works", || stream.alloc(MIB).is_ok());
}

/// A transport still has a lease of the slab, whose device may write to it: its memory
/// becomes nobody's before the lease ends, and goes then.
#[test]
fn a_slab_that_somebody_leases_is_not_given_back() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let (registered, ever) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let registry = Registry::builder().backend(nic(&gpu, &registered, &ever)).events(Events::NotifyOnly);
    let registry = registry.build().unwrap();
    for pool_goes_first in [false, true] {
        let pool = DevicePool::builder(gpu.clone()).registry(&registry, Access::LOCAL_WRITE).build().unwrap();
        let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
        let block = stream.alloc(3 * MIB).unwrap();
        let at = (std::ptr::without_provenance::<u8>(block.ptr().0 as usize), block.len());
        let lease = registry.get(at, Access::LOCAL_WRITE).unwrap();
        assert_eq!(lease.key(), block.key());
        drop(block);
        let held = pool.stats().reserved_bytes as usize;
        for _ in 0..3 {
            assert_eq!(pool.trim(Duration::ZERO), 0);
        }
        assert_eq!((pool.stats().reserved_bytes as usize, registered.load(SeqCst)), (held, held));
        assert!(gpu.used_bytes() >= held);
        // The pool goes on, with other memory.
        let other = stream.alloc(3 * MIB).unwrap();
        assert!(
            other.slab_base().0 as usize >= lease.base() + lease.len() || {
                other.slab_base().0 as usize + other.slab_bytes() <= lease.base()
            }
        );
        drop((other, stream));
        if pool_goes_first {
            drop(pool);
            wait_for("all but the leased slab", || registered.load(SeqCst) == held);
            std::thread::sleep(Duration::from_millis(20));
            assert!(gpu.used_bytes() >= held);
            drop(lease);
        } else {
            drop(lease);
            assert_eq!(pool.trim(Duration::ZERO), 2 * held);
            assert_eq!((pool.stats().reserved_bytes, registered.load(SeqCst)), (0, 0));
            drop(pool);
        }
        wait_for("the slab", || registered.load(SeqCst) == 0 && gpu.used_bytes() == 0);
    }
}

/// Runs `work` in a forked child; one that hangs is killed by its own alarm.
fn in_child(work: impl FnOnce()) {
    // SAFETY: the child calls what is under test, and _exit.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: a timer of the child's own.
            unsafe { libc::alarm(20) };
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err();
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(failed)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: our child, and a place for its status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child was killed by signal {}", libc::WTERMSIG(status));
            assert_eq!(libc::WEXITSTATUS(status), 0);
        }
    }
}

/// Everything that a program might do with a pool of its parent's.
fn misuse(pool: &DevicePool, stream: &PoolStream, mut block: DeviceBuf, used: DeviceBuf) {
    assert!(matches!(stream.alloc(1000), Err(DeviceError::Forked)));
    assert!(matches!(stream.alloc(3 * MIB), Err(DeviceError::Forked)));
    assert!(matches!(pool.stream(stream.stream()), Err(DeviceError::Forked)));
    assert!(matches!(stream.alloc_batch(&[MIB]), Err(DeviceError::Forked)));
    assert!(matches!(pool.warmup(&[(MIB, 2)], stream), Err(DeviceError::Forked)));
    assert!(matches!(stream.copy_to_device(vec![1u8], &mut block, 0), Err(CopyError::Forked)));
    let count = Arc::new(Count::default());
    assert!(matches!(poll(pin!(stream.alloc_async(MIB)), &count), Poll::Ready(Err(DeviceError::Forked))));
    let told = Arc::new(AtomicBool::new(false));
    let telling = told.clone();
    stream.alloc_then(MIB, move |answer| telling.store(answer.is_err(), SeqCst));
    assert!(told.load(SeqCst));
    assert!(stream.fence().is_err() && stream.clone().retire().is_err());
    assert_eq!(pool.trim(Duration::from_secs(1)), 0);
    assert_eq!(pool.stats().slabs, 0);
    assert_eq!(pool.holdings().reserved, 0);
    drop((block, used));
    // The last handles here.
    drop((pool.clone(), stream.clone()));
}

#[test]
fn a_forked_child_neither_frees_nor_calls_the_driver() {
    let (gpu, pool, stream) = bed(64 * MIB);
    let side = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let block = stream.alloc(MIB).unwrap();
    let mut used = stream.alloc(2 * MIB).unwrap();
    used.record_use(&side);
    let at = (block.ptr(), used.ptr());
    let mut kept = Some((block, used));
    let calls = gpu.all_calls();
    in_child(|| {
        let (block, used) = kept.take().unwrap();
        misuse(&pool, &stream, block, used);
        assert_eq!(gpu.all_calls(), calls, "the child called the driver");
    });
    assert_eq!(gpu.all_calls(), calls);
    let (block, used) = kept.take().unwrap();
    assert_eq!((block.ptr(), used.ptr()), at);
    assert_eq!(pool.stats().live_blocks, 2);
}

/// What a device has pinned is no part of a child (`MADV_DONTFORK`): copied on write, the
/// parent's pages would be others than the device's.
#[test]
fn a_child_has_no_page_of_a_pinned_slab() {
    let gpu = Simulated::new(1 << 30).running();
    let source = PinnedSource::new(gpu.clone()).threads(1);
    let pool = DevicePool::from_source(gpu.clone(), source).slab_bytes(4 * MIB).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let block = stream.alloc(MIB).unwrap();
    let page = (block.ptr().0 as usize & !4095) as *mut libc::c_void;
    let is_mapped = || {
        let mut resident = 0;
        // SAFETY: asks the kernel about a page, and has room for the answer.
        unsafe { libc::mincore(page, 4096, &mut resident) == 0 }
    };
    assert!(is_mapped());
    in_child(|| assert!(!is_mapped()));
}

#[test]
fn a_child_born_while_the_pools_locks_are_held_does_not_hang() {
    let gpu = Simulated::new(1 << 30).running();
    let pool = DevicePool::builder(gpu.clone()).limit(64 * MIB).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                drop(stream.alloc(3 * MIB).unwrap());
                pool.stats();
                pool.trim(Duration::ZERO);
            }
        });
        for _ in 0..30 {
            let blocks = (stream.alloc(1000).unwrap(), stream.alloc(5000).unwrap());
            let mut kept = Some(blocks);
            in_child(|| {
                let (block, used) = kept.take().unwrap();
                misuse(&pool, &stream, block, used);
            });
        }
        stop.store(true, SeqCst);
    });
    assert_eq!(pool.stats().live_blocks, 0);
}
