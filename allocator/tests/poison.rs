//! Writes to freed host memory, done on purpose, must be told with the places of all
//! who took part; right use must be told of nothing.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

use pinyard_allocator::device::{Misuse, Offence};
use pinyard_allocator::{AtomicFence, Pool};
use pinyard_registry::{Events, MemoryKey, Registry, backend::Custom};
use std::sync::{Arc, Mutex};
use std::thread;

fn pool() -> (Pool, Arc<Mutex<Vec<Misuse>>>) {
    let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
    let pool = Pool::host(&registry).slab_bytes(2 << 20).poison(true).build().unwrap();
    let told: Arc<Mutex<Vec<Misuse>>> = Arc::default();
    let to = told.clone();
    pool.on_misuse(move |misuse| to.lock().unwrap().push(misuse.clone()));
    (pool, told)
}

/// Through a pointer that was kept.
fn write(at: *mut u8, byte: u8) {
    // SAFETY: the slab is mapped, and the test has one thread: what is shown is a fault of
    // the program's, not of memory.
    unsafe { at.write_volatile(byte) };
}

#[test]
fn a_write_after_the_free_is_told() {
    let (pool, told) = pool();
    for bytes in [64, 5000, 600_000] {
        let mut block = pool.alloc::<u8>(bytes).unwrap();
        let at = block.as_mut_ptr();
        block.fill(1);
        drop(block);
        write(at.wrapping_add(bytes - 3), 7);
        // Newest first, or whatever range has it.
        let mut others = Vec::new();
        while told.lock().unwrap().is_empty() && others.len() < 1000 {
            others.push(pool.alloc::<u8>(bytes).unwrap());
        }
        let misuse = told.lock().unwrap().pop().expect("the write was not noticed");
        assert!(told.lock().unwrap().is_empty());
        let offence = Offence::UseAfterFree { offset: bytes as u64 - 3, found: 7 };
        assert_eq!((misuse.offence, misuse.address), (offence, at as u64));
        for place in [misuse.allocated.as_ref(), misuse.freed.as_ref(), Some(&misuse.noticed)] {
            let stack = &place.unwrap().stack;
            assert!(stack.iter().any(|frame| frame.contains("a_write_after_the_free_is_told")), "{stack:?}");
        }
    }
}

#[test]
fn a_write_is_told_when_the_slab_goes() {
    let (pool, told) = pool();
    let mut block = pool.alloc::<u8>(100_000).unwrap();
    let at = block.as_mut_ptr();
    // Given up with a fence that has passed, while somebody still writes.
    block.as_mut().fill(3);
    block.defer_until(AtomicFence::new().at(0));
    pool.poll_fences();
    write(at, 9);
    assert!(pool.trim() > 0);
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].offence, Offence::UseAfterFree { offset: 0, found: 9 });
}

#[test]
fn right_use_by_several_threads_is_told_of_nothing() {
    let (pool, told) = pool();
    thread::scope(|scope| {
        for seed in 0..3usize {
            let pool = &pool;
            scope.spawn(move || {
                let mut live = Vec::new();
                for step in 0..150usize {
                    let mut block = pool.alloc::<u8>(1 + (step * 7919 + seed * 104_729) % 40_000).unwrap();
                    block.fill(step as u8);
                    live.push((block, step as u8));
                    if live.len() > 20 {
                        let (block, byte) = live.swap_remove(step % 20);
                        assert!(block.iter().all(|&other| other == byte));
                    }
                }
            });
        }
    });
    pool.trim();
    assert_eq!(pool.stats().live_blocks, 0);
    let told = told.lock().unwrap();
    assert!(told.is_empty(), "{}", told[0]);
}
