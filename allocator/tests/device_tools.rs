//! Traces, leak reports, and misuse of blocks: each is done once on purpose, and must
//! be told with the places of all who took part.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod device_common;

use device_common::{Bed, MIB, token, wait_for};
use pinyard_allocator::device::{DevicePool, Leaks, Misuse, Offence, PoolStream, RawPool, TraceOptions};
use pinyard_allocator::trace::{Kind, ReadError, Reader, Trace};
use pinyard_driver::{DevicePtr, Driver, Simulated};
use proptest::prelude::*;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn with_stacks() -> TraceOptions {
    let mut options = TraceOptions::default();
    options.stacks = true;
    options
}

fn pool(gpu: &Arc<Simulated>) -> (DevicePool, PoolStream) {
    let pool = DevicePool::builder(gpu.clone()).slab_bytes(4 * MIB).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    (pool, stream)
}

fn kinds(trace: &Trace) -> Vec<Kind> {
    trace.events.iter().map(|event| event.event).collect()
}

#[test]
fn a_trace_tells_what_happened_and_nothing_else() {
    let gpu = Arc::new(Simulated::new(64 * MIB));
    let (pool, stream) = pool(&gpu);
    let other = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let before = pool.alloc(1000, &stream).unwrap();
    assert_eq!(pool.trace(), Trace::default());
    pool.start_trace(TraceOptions::default());
    let mut block = pool.alloc(3 * MIB, &stream).unwrap();
    block.record_use(&other);
    let (at, bytes) = (block.ptr().0, block.block_bytes() as u64);
    drop((block, before));
    assert!(pool.alloc(100 * MIB, &stream).is_err());
    pool.trim(Duration::from_millis(100));
    pool.stop_trace();
    drop(pool.alloc(1000, &stream).unwrap());
    let trace = pool.trace();
    assert_eq!(trace.lost, 0);
    let seen = kinds(&trace);
    assert_eq!(seen[..5], [Kind::Grow, Kind::Alloc, Kind::RecordUse, Kind::Free, Kind::Free], "{seen:?}");
    assert!(
        seen.contains(&Kind::Wait) && seen.contains(&Kind::Oom) && seen.contains(&Kind::Trim),
        "{seen:?}"
    );
    let alloc = &trace.events[1];
    assert_eq!((alloc.bytes, alloc.block_bytes, alloc.address), (3 * MIB as u64, bytes, at));
    assert!(trace.events[2].block == alloc.block && trace.events[3].block == alloc.block && alloc.block > 0);
    assert_ne!(trace.events[2].stream, alloc.stream);
    // From before the start: it has no number.
    assert_eq!(trace.events[4].block, 0);
    assert!(trace.events.windows(2).all(|pair| pair[0].time_ns <= pair[1].time_ns));
    // Anew: only what is new.
    pool.start_trace(TraceOptions::default());
    drop(pool.alloc(10, &stream).unwrap());
    assert_eq!(kinds(&pool.trace()).into_iter().filter(|&kind| kind == Kind::Alloc).count(), 1);
}

#[test]
fn the_ring_keeps_the_last_events_and_counts_the_others() {
    let gpu = Arc::new(Simulated::new(64 * MIB));
    let (pool, stream) = pool(&gpu);
    let mut options = TraceOptions::default();
    options.events = 16;
    pool.start_trace(options);
    for _ in 0..100 {
        drop(pool.alloc(512, &stream).unwrap());
    }
    let trace = pool.trace();
    assert_eq!(trace.events.len(), 16);
    // 200 of blocks and one slab.
    assert_eq!(trace.lost, 201 - 16);
    assert_eq!(trace.events[15].block, 100);
}

#[inline(never)]
fn somewhere_known(pool: &DevicePool, stream: &PoolStream) -> pinyard_allocator::device::DeviceBuf {
    let block = pool.alloc(5000, stream).unwrap();
    std::hint::black_box(block)
}

#[test]
fn a_leak_is_told_with_its_place() {
    let gpu = Arc::new(Simulated::new(64 * MIB));
    let told: Arc<Mutex<Option<Leaks>>> = Arc::default();
    let to = told.clone();
    let builder = DevicePool::builder(gpu.clone()).trace(with_stacks());
    let pool = builder.on_leak(move |leaks| *to.lock().unwrap() = Some(leaks.clone())).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let one = somewhere_known(&pool, &stream);
    let two = pool.alloc(3 * MIB, &stream).unwrap();
    assert_eq!(pool.leaks().blocks, 2);
    drop(two);
    assert!(pool.snapshot().blocks.iter().all(|block| block.age_ns.is_some() == (block.wanted > 0)));
    drop((pool, stream));
    let leaks = told.lock().unwrap().clone().expect("the last handle went with a block in use");
    assert_eq!((leaks.blocks, leaks.bytes), (1, 5000));
    let text = leaks.to_string();
    assert!(text.contains("somewhere_known") && text.contains("1 blocks of 5000 bytes on stream"), "{text}");
    // The innermost frame is the program's, not ours.
    let stack = &leaks.holders[0].allocated.as_ref().unwrap().stack;
    assert!(stack[0].contains("somewhere_known") && stack[0].contains("device_tools.rs"), "{stack:?}");
    drop(one);
    wait_for("all given back", || gpu.used_bytes() == 0);
}

/// A child has the parent's pool, watched, whose locks may be held.
#[test]
fn a_forked_child_of_a_watched_pool_does_not_hang() {
    let gpu = Arc::new(Simulated::new(64 * MIB));
    let builder = DevicePool::builder(gpu.clone()).trace(with_stacks()).on_leak(|leaks| panic!("{leaks}"));
    let pool = builder.build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let block = pool.alloc(1000, &stream).unwrap();
    let raw = RawPool::new(pool.clone());
    // SAFETY: the child runs to _exit below, and allocates with glibc's own handlers.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: alarm(2) has no conditions: a hang ends the child.
            unsafe { libc::alarm(5) };
            let fine = pool.alloc(1, &stream).is_err()
                && raw.free(block.ptr()).is_ok()
                && pool.snapshot().blocks.is_empty()
                && pool.stats().live_blocks == 0;
            drop((block, raw, pool, stream));
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!fine)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: our own child.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child hung, or used its parent's pool");
        }
    }
    drop(block);
}

#[test]
fn without_a_leak_nobody_is_told() {
    let gpu = Arc::new(Simulated::new(64 * MIB));
    let pool = DevicePool::builder(gpu.clone()).on_leak(|leaks| panic!("{leaks}")).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    drop(pool.alloc(1000, &stream).unwrap());
    drop((pool, stream));
}

fn raw(gpu: &Arc<Simulated>) -> (RawPool, PoolStream) {
    let (pool, stream) = pool(gpu);
    pool.start_trace(with_stacks());
    (RawPool::new(pool), stream)
}

#[inline(never)]
fn the_first_free(raw: &RawPool, at: DevicePtr) {
    raw.free(at).unwrap();
    std::hint::black_box(());
}

#[test]
fn a_double_free_is_told_with_three_places() {
    let gpu = Arc::new(Simulated::new(64 * MIB));
    let (raw, stream) = raw(&gpu);
    let at = raw.alloc(5000, &stream).unwrap();
    the_first_free(&raw, at);
    let misuse = raw.free(at).unwrap_err();
    assert_eq!((misuse.offence, misuse.address), (Offence::DoubleFree, at.0));
    let places = [misuse.allocated.as_ref(), misuse.freed.as_ref(), Some(&misuse.noticed)];
    for place in places {
        let stack = &place.unwrap().stack;
        assert!(stack.iter().any(|frame| frame.contains("a_double_free_is_told")), "{stack:?}");
    }
    assert!(misuse.freed.as_ref().unwrap().stack[0].contains("the_first_free"), "{misuse}");
    assert!(misuse.to_string().starts_with("double free of the block at 0x"), "{misuse}");
    // Nothing was harmed.
    let again = raw.alloc(5000, &stream).unwrap();
    assert_eq!((again, raw.pool().stats().live_blocks, raw.pool().misuses()), (at, 1, 1));
    raw.free(again).unwrap();
}

#[test]
fn wrong_sizes_and_foreign_pointers_are_refused() {
    let gpu = Arc::new(Simulated::new(64 * MIB));
    let (raw, stream) = raw(&gpu);
    let at = raw.alloc(5000, &stream).unwrap();
    let offence = |misuse: Result<(), Misuse>| misuse.unwrap_err().offence;
    assert_eq!(offence(raw.free_sized(at, 5001)), Offence::WrongSize { allocated: 5000, given: 5001 });
    assert_eq!(offence(raw.free(DevicePtr(at.0 + 256))), Offence::Inside { block: at.0 });
    assert_eq!(offence(raw.free(DevicePtr(0))), Offence::Foreign);
    assert_eq!(offence(raw.free(DevicePtr(u64::MAX))), Offence::Foreign);
    assert_eq!(offence(raw.record_use(DevicePtr(4096), &stream)), Offence::Foreign);
    assert_eq!(raw.pool().stats().live_blocks, 1);
    raw.free_sized(at, 5000).unwrap();
    assert_eq!(raw.pool().stats().live_blocks, 0);
    assert_eq!(offence(raw.free_sized(at, 5000)), Offence::DoubleFree);
}

/// A poisoned pool on a device that runs, and the misuses that it told of.
fn poisoned(bed: &Bed) -> (DevicePool, PoolStream, Arc<Mutex<Vec<Misuse>>>) {
    let pool = DevicePool::builder(bed.driver.clone()).slab_bytes(4 * MIB).poison(true).build().unwrap();
    let stream = pool.stream(bed.stream()).unwrap();
    let told: Arc<Mutex<Vec<Misuse>>> = Arc::default();
    let to = told.clone();
    pool.on_misuse(move |misuse| to.lock().unwrap().push(misuse.clone()));
    (pool, stream, told)
}

fn buried(pool: &DevicePool) {
    wait_for("the pattern", || pool.stats().live_blocks == 0);
}

#[test]
fn a_write_after_the_free_is_told_when_the_memory_is_used_again() {
    let bed = Bed::new(64 * MIB);
    let (pool, stream, told) = poisoned(&bed);
    for bytes in [700, 40_000, 3 * MIB] {
        let block = pool.alloc(bytes, &stream).unwrap();
        let at = block.ptr();
        bed.fill(at, 7, bytes, &stream);
        drop(block);
        buried(&pool);
        // One byte, through the pointer that was kept.
        bed.fill(DevicePtr(at.0 + 500), 8, 1, &stream);
        let next = pool.alloc(bytes, &stream).unwrap();
        assert_eq!(next.ptr(), at);
        let misuse = told.lock().unwrap().pop().expect("the write was not noticed");
        assert!(told.lock().unwrap().is_empty());
        assert_eq!((misuse.offence, misuse.address), (Offence::UseAfterFree { offset: 500, found: 8 }, at.0));
        for place in [misuse.allocated.as_ref(), misuse.freed.as_ref(), Some(&misuse.noticed)] {
            let stack = &place.unwrap().stack;
            assert!(stack.iter().any(|frame| frame.contains("a_write_after_the_free")), "{stack:?}");
        }
        drop(next);
        buried(&pool);
    }
    drop((pool, stream));
    bed.assert_clean();
}

#[test]
fn a_write_after_the_free_is_told_to_a_batch_and_to_a_request() {
    let bed = Bed::new(64 * MIB);
    let (pool, stream, told) = poisoned(&bed);
    for batch in [true, false] {
        let block = pool.alloc(3 * MIB, &stream).unwrap();
        let at = block.ptr();
        drop(block);
        buried(&pool);
        bed.fill(DevicePtr(at.0 + 5000), 8, 1, &stream);
        let next = if batch {
            pool.alloc_batch(&[MIB + 1, MIB + 1], &stream).unwrap()
        } else {
            let got: Arc<Mutex<Option<_>>> = Arc::default();
            let to = got.clone();
            stream.alloc_then(3 * MIB, move |block| *to.lock().unwrap() = block.ok());
            wait_for("the request", || got.lock().unwrap().is_some());
            Vec::from_iter(got.lock().unwrap().take())
        };
        let misuses = std::mem::take(&mut *told.lock().unwrap());
        assert_eq!(misuses.len(), 1, "{misuses:?}");
        assert_eq!(
            (misuses[0].offence, misuses[0].address),
            (Offence::UseAfterFree { offset: 5000, found: 8 }, at.0)
        );
        drop(next);
        buried(&pool);
    }
    drop((pool, stream));
    bed.assert_clean();
}

#[test]
fn a_write_after_the_free_is_told_when_the_slab_goes() {
    let bed = Bed::new(64 * MIB);
    let (pool, stream, told) = poisoned(&bed);
    let block = pool.alloc(2 * MIB, &stream).unwrap();
    let at = block.ptr();
    drop(block);
    buried(&pool);
    bed.fill(DevicePtr(at.0 + 2 * MIB as u64 - 1), 9, 1, &stream);
    bed.sync(&stream);
    pool.trim(Duration::from_secs(5));
    let misuses = told.lock().unwrap().clone();
    assert_eq!(misuses.len(), 1);
    assert_eq!(misuses[0].offence, Offence::UseAfterFree { offset: 2 * MIB as u64 - 1, found: 9 });
    drop((pool, stream));
    bed.assert_clean();
}

#[test]
fn right_use_of_a_poisoned_pool_is_told_of_nothing() {
    let bed = Bed::new(256 * MIB);
    let (pool, stream, told) = poisoned(&bed);
    let other = pool.stream(bed.stream()).unwrap();
    let mut random = device_common::Random(5);
    let mut live = Vec::new();
    for step in 0..300u32 {
        if live.len() > 12 {
            let (mut block, byte): (pinyard_allocator::device::DeviceBuf, u8) =
                live.swap_remove(random.below(live.len()));
            if step % 3 == 0 {
                // Used by another stream until after the drop.
                bed.sync(&stream);
                bed.assert_filled(block.ptr(), byte, block.len(), &other);
                bed.fill(block.ptr(), 1, block.len(), &other);
                block.record_use(&other);
            }
        }
        let on = if step % 5 == 0 { &other } else { &stream };
        let block = pool.alloc(random.size(200, 100_000), on).unwrap();
        bed.fill(block.ptr(), step as u8, block.len(), on);
        bed.sync(on);
        live.push((block, step as u8));
    }
    for (block, byte) in live {
        bed.assert_filled(block.ptr(), byte, block.len(), &stream);
    }
    buried(&pool);
    pool.trim(Duration::from_secs(5));
    assert_eq!(pool.stats().reserved_bytes, 0);
    let told = told.lock().unwrap();
    assert!(told.is_empty(), "{}", told[0]);
    drop((pool, stream, other));
    bed.assert_clean();
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("pinyard-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    folder
}

fn sample() -> Trace {
    let gpu = Arc::new(Simulated::new(64 * MIB));
    let (pool, stream) = pool(&gpu);
    pool.start_trace(TraceOptions::default());
    let block = pool.alloc(1000, &stream).unwrap();
    drop((pool.alloc(2 * MIB, &stream).unwrap(), block));
    pool.trace()
}

fn read(text: &[u8]) -> Result<Vec<pinyard_allocator::trace::Event>, ReadError> {
    Reader::new(text)?.collect()
}

#[test]
fn a_file_is_the_owners_and_overwrites_nothing() {
    let folder = folder("trace");
    let trace = sample();
    let path = folder.join("trace");
    trace.write(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(read(&std::fs::read(&path).unwrap()).unwrap(), trace.events);
    let error = trace.write(&path).unwrap_err().to_string();
    assert!(error.contains("overwrite nothing") && error.contains(&path.display().to_string()), "{error}");
    let (target, link) = (folder.join("target"), folder.join("link"));
    symlink(&target, &link).unwrap();
    trace.write(&link).unwrap_err();
    assert!(!target.exists());
    assert!(trace.write(&folder.join("none").join("trace")).unwrap_err().to_string().starts_with("open("));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn bad_files_are_refused_with_their_line() {
    let mut text = Vec::new();
    sample().lines(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let refused = |text: &str| read(text.as_bytes()).unwrap_err().to_string();
    assert!(refused("").contains("empty"));
    assert!(refused("#!/bin/sh\n").contains("line 1"));
    assert!(refused("{\"format\":\"pinyard-trace\",\"version\":2,\"events\":0}\n").contains("version 2"));
    let short = lines[..lines.len() - 1].join("\n");
    assert!(refused(&short).contains("cut short"), "{}", refused(&short));
    let cut = &text[..text.len() - 20];
    assert!(refused(cut).contains(&format!("line {}", lines.len())), "{}", refused(cut));
    let twice = format!("{text}{}\n", lines[lines.len() - 1]);
    assert!(refused(&twice).contains(&format!("line {}", lines.len() + 1)), "{}", refused(&twice));
    let long = format!("{}\n{}", lines[0], "x".repeat(200_000));
    assert!(refused(&long).contains("line 2 is longer"));
    let huge = "{\"t\":1,\"thread\":1,\"event\":\"alloc\",\"block\":1,\"bytes\":99999999999999999}";
    assert!(refused(&format!("{}\n{huge}\n", lines[0])).contains("line 2"));
    let deep = format!("{}\n{}\n", lines[0], "[".repeat(10_000));
    assert!(refused(&deep).contains("line 2"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Whatever a file holds, reading ends with events or with a line's error.
    #[test]
    fn no_file_harms_the_reader(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        whole: bool,
    ) {
        let mut text = Vec::new();
        Trace::of((1..20).flat_map(|at| {
            use pinyard_allocator::trace::Event;
            [Event::alloc(at, at, 100 * at, 1), Event::record_use(at, at, 2), Event::free(at, at)]
        }).collect()).lines(&mut text).unwrap();
        for (at, byte) in &changes {
            let at = at.index(text.len());
            text[at] = *byte;
        }
        if !whole {
            text.truncate(cut.index(text.len() + 1));
        }
        match read(&text) {
            Ok(events) => prop_assert!(events.len() <= 57),
            Err(error) => prop_assert!(error.to_string().contains("line"), "{}", error),
        }
        if changes.is_empty() && whole {
            prop_assert_eq!(read(&text).unwrap().len(), 57);
        }
    }
}
