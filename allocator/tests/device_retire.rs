//! A stream that one thread retires and destroys while others have the pool call the driver
//! for it: the dead stream is never used, and no memory is handed out, or source given up,
//! before the work that uses it has ended.
//!
//! The first tests hold the other thread up inside its driver call, between the look whether
//! the stream is retired and the work that it queues. There the stream must not go. The wait
//! ends by count, so a pool that keeps the retire lock waits it out; one that does not is seen
//! in each round.
#![allow(unsafe_code, clippy::unwrap_used)]

use pinyard_allocator::device::{DevicePool, MarkKind, PoolStream};
use pinyard_driver::{Call, Costs, Driver, DriverToken, Simulated};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::Duration;

const MIB: usize = 1 << 20;
const HOUR: u64 = 3_600_000_000_000;
/// How long a call that is held up waits for the stream to go: 20 ms in steps of 1 ms.
const STEPS: u32 = 20;

fn token() -> DriverToken {
    DriverToken::at_entry()
}

thread_local! {
    /// This thread's calls are not held up.
    static PASSES: Cell<bool> = const { Cell::new(false) };
}

/// Holds up the first call of a kind by another thread until the stream is gone, or for
/// [`STEPS`].
#[derive(Default)]
struct Window {
    armed: AtomicBool,
    reached: AtomicBool,
    gone: AtomicBool,
    /// How often the stream went while a call was held up.
    seen: AtomicU32,
}

impl Window {
    fn on(gpu: &Simulated, call: Call) -> Arc<Window> {
        PASSES.set(true);
        let window = Arc::new(Window::default());
        let held = window.clone();
        gpu.before_call(move |now| {
            if now != call || PASSES.get() || !held.armed.swap(false, SeqCst) {
                return;
            }
            held.reached.store(true, SeqCst);
            for _ in 0..STEPS {
                if held.gone.load(SeqCst) {
                    held.seen.fetch_add(1, SeqCst);
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        window
    }

    fn arm(&self) {
        self.reached.store(false, SeqCst);
        self.gone.store(false, SeqCst);
        self.armed.store(true, SeqCst);
    }

    fn wait(&self) {
        let reached = (0..5000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            self.reached.load(SeqCst)
        });
        assert!(reached, "no thread makes the call");
    }
}

/// As the manual asks: retire, then destroy.
fn end(gpu: &Simulated, stream: PoolStream) {
    let raw = stream.stream();
    stream.retire().unwrap();
    // SAFETY: retired.
    unsafe { gpu.stream_destroy(raw, &token()) }.unwrap();
}

fn new_stream(gpu: &Simulated, pool: &DevicePool) -> PoolStream {
    pool.stream(gpu.stream_create(&token()).unwrap()).unwrap()
}

/// A block of `home` that `user` uses is dropped, and the thread of `home` is about to mark the
/// user's stream when that goes. CUDA gives the handle out anew: the mark must not be of the
/// new stream, whose mark passes at once, but of the old one, whose kernel runs for an hour.
fn a_mark_meets_the_end_of_its_stream(foreign: bool, marks: MarkKind) {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let [home, other] = [(); 2].map(|()| DevicePool::builder(gpu.clone()).marks(marks).build().unwrap());
    let own = new_stream(&gpu, &home);
    let window = Window::on(&gpu, Call::StreamCapture);
    let mut early = 0;
    for _ in 0..10 {
        let user = new_stream(&gpu, if foreign { &other } else { &home });
        gpu.kernel(user.stream(), HOUR, &token());
        let mut block = own.alloc(MIB).unwrap();
        let at = block.ptr();
        block.record_use(&user);
        window.arm();
        drop(block);
        window.wait();
        end(&gpu, user);
        gpu.stream_create(&token()).unwrap();
        window.gone.store(true, SeqCst);
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(1));
            let again = own.alloc(MIB).unwrap();
            early += u32::from(again.ptr() == at);
            std::mem::forget(again);
        }
    }
    let seen = window.seen.load(SeqCst);
    assert_eq!((gpu.offences(), early, seen), (vec![], 0, 0), "offences, blocks in use, streams that went");
}

#[test]
fn a_mark_of_another_pool_meets_the_end_of_its_stream() {
    a_mark_meets_the_end_of_its_stream(true, MarkKind::Best);
    a_mark_meets_the_end_of_its_stream(true, MarkKind::Events);
}

#[test]
fn a_mark_of_the_own_pool_meets_the_end_of_its_stream() {
    a_mark_meets_the_end_of_its_stream(false, MarkKind::Best);
    a_mark_meets_the_end_of_its_stream(false, MarkKind::Events);
}

/// A copy is about to be queued by one handle when another retires the stream.
#[test]
fn a_copy_meets_the_end_of_its_stream() {
    let gpu = Arc::new(Simulated::with_costs(1 << 30, slow_copies()));
    let pool = DevicePool::builder(gpu.clone()).build().unwrap();
    let own = new_stream(&gpu, &pool);
    let window = Window::on(&gpu, Call::CopyToDevice);
    for round in 0..10 {
        let user = new_stream(&gpu, &pool);
        let (raw, copies) = (user.stream(), user.clone());
        let mut target = own.alloc(64 << 10).unwrap();
        let source: Arc<[u8]> = vec![7; 64 << 10].into();
        window.arm();
        let (target, done) = std::thread::scope(|scope| {
            let given = source.clone();
            let copier = scope.spawn(move || {
                let done = copies.copy_to_device(given, &mut target, 0).is_ok();
                (target, done)
            });
            window.wait();
            user.retire().unwrap();
            window.gone.store(true, SeqCst);
            copier.join().unwrap()
        });
        assert!(done, "round {round}: the copy was queued before the stream was retired");
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(1));
            let passed = gpu.stream_query(raw, &token()).unwrap();
            assert!(passed || Arc::strong_count(&source) == 2, "round {round}: given up, and still read");
        }
        gpu.advance(2_000_000_000);
        drop(target);
    }
    assert_eq!((gpu.offences(), window.seen.load(SeqCst)), (vec![], 0));
}

/// Another handle of a stream that `stream()` has just made known, and marks, retires it.
#[test]
fn a_first_mark_meets_the_end_of_its_stream() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let pool = DevicePool::builder(gpu.clone()).build().unwrap();
    let window = Window::on(&gpu, Call::StreamCapture);
    for _ in 0..10 {
        let raw = gpu.stream_create(&token()).unwrap();
        window.arm();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| drop(pool.stream(raw)));
            window.wait();
            end(&gpu, pool.stream(raw).unwrap());
            window.gone.store(true, SeqCst);
            first.join().unwrap();
        });
    }
    assert_eq!((gpu.offences(), window.seen.load(SeqCst)), (vec![], 0));
}

/// A pool that poisons reads a block back on its stream when that goes. Its thread fills what is
/// dropped, some time later: until it has, an allocation finds nothing to read.
#[test]
fn a_look_at_freed_memory_meets_the_end_of_its_stream() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let pool = DevicePool::builder(gpu.clone()).poison(true).build().unwrap();
    let window = Window::on(&gpu, Call::CopyToHost);
    for _ in 0..10 {
        let user = new_stream(&gpu, &pool);
        let allocates = user.clone();
        window.arm();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..5000 {
                    drop(allocates.alloc(MIB));
                    if window.reached.load(SeqCst) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            window.wait();
            end(&gpu, user);
            window.gone.store(true, SeqCst);
        });
    }
    assert_eq!((gpu.offences(), window.seen.load(SeqCst)), (vec![], 0));
}

/// An alarm is the program's: it may retire the stream whose memory was looked at.
#[test]
fn an_alarm_may_retire_the_stream() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let pool = DevicePool::builder(gpu.clone()).poison(true).build().unwrap();
    let user = new_stream(&gpu, &pool);
    let (told, retires) = (Arc::new(AtomicBool::new(false)), user.clone());
    let tells = told.clone();
    pool.on_misuse(move |_| {
        retires.clone().retire().unwrap();
        tells.store(true, SeqCst);
    });
    for _ in 0..5000 {
        let block = user.alloc(MIB).unwrap();
        if told.load(SeqCst) {
            break;
        }
        let at = block.ptr();
        drop(block);
        std::thread::sleep(Duration::from_millis(1));
        // SAFETY: the device's memory, which the pool keeps: the misuse that it looks for.
        unsafe { gpu.fill(at, 1, 64, user.stream(), &token()) }.unwrap();
    }
    assert!(told.load(SeqCst));
}

fn slow_copies() -> Costs {
    let mut costs = Costs::default();
    // 1 s of the virtual clock, which calls and `advance` move.
    costs.copy_64_kib = 1_000_000_000;
    costs
}

/// Turns of the processor, up to `most`, that differ from round to round.
fn some_turns(state: &mut u64, most: u32) {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (0..*state >> (64 - most.ilog2())).for_each(|_| std::hint::spin_loop());
}

/// Without a hook: whatever schedule comes.
#[test]
fn marks_at_full_speed() {
    let gpu = Simulated::new(1 << 30).running();
    let [home, other] = [(); 2].map(|()| DevicePool::builder(gpu.clone()).build().unwrap());
    let own = new_stream(&gpu, &home);
    let mut state = 1;
    for _ in 0..3000 {
        let user = new_stream(&gpu, &other);
        let mut block = own.alloc(MIB).unwrap();
        block.record_use(&user);
        drop(block);
        some_turns(&mut state, 4096);
        end(&gpu, user);
    }
    assert_eq!(gpu.offences(), Vec::<String>::new());
}

/// The same of copies.
#[test]
fn copies_at_full_speed() {
    let gpu = Arc::new(Simulated::with_costs(1 << 30, slow_copies()));
    let pool = DevicePool::builder(gpu.clone()).build().unwrap();
    let own = new_stream(&gpu, &pool);
    let mut state = 1;
    for round in 0..300 {
        let user = new_stream(&gpu, &pool);
        let (raw, copies) = (user.stream(), user.clone());
        let mut target = own.alloc(64 << 10).unwrap();
        let source: Arc<[u8]> = vec![7; 64 << 10].into();
        let (barrier, given) = (Barrier::new(2), source.clone());
        let (target, done) = std::thread::scope(|scope| {
            let copier = scope.spawn(|| {
                barrier.wait();
                let done = copies.copy_to_device(given, &mut target, 0).is_ok();
                (target, done)
            });
            barrier.wait();
            some_turns(&mut state, 8192);
            user.retire().unwrap();
            copier.join().unwrap()
        });
        std::thread::sleep(Duration::from_micros(300));
        let given_up = Arc::strong_count(&source) == 1;
        assert!(!done || !given_up || gpu.stream_query(raw, &token()).unwrap(), "round {round}");
        gpu.advance(2_000_000_000);
        drop(target);
    }
    assert_eq!(gpu.offences(), Vec::<String>::new());
}
