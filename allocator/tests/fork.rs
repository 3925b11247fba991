//! A forked child neither uses nor disturbs its parent's pools, and never hangs.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Books, builder, pool, wait_for};
use pinyard_allocator::{AllocError, AtomicFence, Bound};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::thread;

const MIB: usize = 1 << 20;

/// Runs `work` in a forked child and returns its verdict; a child that hangs is
/// killed by its own alarm.
fn in_child(work: impl FnOnce() -> Result<(), String>) {
    // SAFETY: the child calls what is under test, and _exit.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: a timer of the child's own.
            unsafe { libc::alarm(20) };
            let verdict = work();
            if let Err(text) = &verdict {
                eprintln!("child: {text}");
            }
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(verdict.is_err())) }
        }
        child => {
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: our child, and a place for its status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "the child was killed by signal {}", libc::WTERMSIG(status));
            assert_eq!(libc::WEXITSTATUS(status), 0);
        }
    }
}

fn expect(condition: bool, text: &str) -> Result<(), String> {
    if condition { Ok(()) } else { Err(text.to_owned()) }
}

#[test]
fn a_child_has_no_part_in_its_parents_pools() {
    let books = Books::new();
    let parents = pool(&books, 64 * MIB);
    // In the parent little is left.
    let marked = builder(&books, usize::MAX).watermarks(Bound::Bytes(1 << 40), Bound::Bytes(1 << 40));
    let marked = marked.fence_thread(false).build().unwrap();
    books.total.store(64 * MIB, Relaxed);
    books.others.store(MIB, Relaxed);
    assert!(marked.relieve());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // Keeps the pool's lock busy, so that some child is born while it is held.
        let busy = scope.spawn(|| {
            while !stop.load(Relaxed) {
                parents.alloc::<u8>(3 * MIB).unwrap();
                parents.trim();
            }
        });
        for _ in 0..50 {
            let mut kept = parents.alloc::<u8>(1000).unwrap();
            let other = parents.alloc::<u8>(1000).unwrap();
            kept.fill(7);
            in_child(|| {
                expect(
                    matches!(parents.alloc::<u8>(1000), Err(AllocError::Forked)),
                    "alloc from a magazine",
                )?;
                expect(
                    matches!(parents.alloc::<u8>(3 * MIB), Err(AllocError::Forked)),
                    "alloc from the ranges",
                )?;
                expect(matches!(parents.warmup(64 * MIB), Err(AllocError::Forked)), "warm-up")?;
                let batch = parents.alloc_batch::<u8>(&[1000, 3 * MIB]);
                expect(matches!(batch, Err(AllocError::Forked)), "a batch")?;
                let warm = parents.warmup_sizes(&[(1000, 10)]);
                expect(matches!(warm, Err(AllocError::Forked)), "warm-up by sizes")?;
                expect(!marked.relieve(), "a look at what is left")?;
                expect(kept.iter().all(|&byte| byte == 7), "contents")?;
                expect(parents.trim() == 0 && parents.stats().slabs == 0, "trim")?;
                other.defer_until(AtomicFence::new().at(0));
                expect(parents.poll_fences() == 0, "fences")?;
                drop(kept);
                // Thread-local magazines, and what is the last handle here.
                thread::spawn({
                    let last = parents.clone();
                    move || drop(last.alloc::<u8>(1000))
                })
                .join()
                .map_err(|_| "a thread of the child panicked".to_owned())
            });
        }
        stop.store(true, Relaxed);
        busy.join().unwrap();
    });
    // The parent's own copies of what the children dropped were dropped here too.
    assert_eq!(parents.stats().live_blocks, 0);
    drop(parents);
    books.assert_balanced();
}

#[test]
fn a_child_makes_pools_of_its_own() {
    let parents = pool(&Books::new(), 64 * MIB);
    let kept = parents.alloc::<u8>(1000).unwrap();
    in_child(|| {
        let books = Books::new();
        let own = pool(&books, 64 * MIB);
        let mut block = own.alloc::<u8>(1000).map_err(|error| error.to_string())?;
        block.fill(1);
        expect(matches!(parents.alloc::<u8>(1000), Err(AllocError::Forked)), "the parent's")?;
        drop((block, kept));
        expect(own.stats().frees == 1 && own.trim() == 2 * MIB, "its own")?;
        drop((own, parents));
        books.assert_balanced();
        Ok(())
    });
}

/// Futures that wait when the process forks: in the child they have failed, whatever lock the
/// parent's thread held, and their drops do nothing.
#[test]
fn a_future_that_waits_fails_in_a_child() {
    let books = Books::new();
    let pool = pool(&books, 64 * MIB);
    let held = pool.alloc::<u8>(48 * MIB).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut future = Box::pin(pool.alloc_async::<u8>(40 * MIB));
    assert!(future.as_mut().poll(&mut context).is_pending());
    let mut future = Some(future);
    for _ in 0..20 {
        in_child(|| {
            let mut future = future.take().ok_or("no future")?;
            let answer = future.as_mut().poll(&mut context);
            expect(matches!(answer, Poll::Ready(Err(AllocError::Forked))), "no answer in the child")?;
            drop(future);
            let again = Box::pin(pool.alloc_async::<u8>(MIB)).as_mut().poll(&mut context);
            expect(matches!(again, Poll::Ready(Err(AllocError::Forked))), "a request in the child")
        });
    }
    drop(held);
    let mut future = future.unwrap();
    wait_for("the answer", || pool.stats().live_blocks == 1);
    assert!(matches!(future.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
}
