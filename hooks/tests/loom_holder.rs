//! The installer's lock, in every interleaving that loom finds: one thread is inside at a
//! time, and of a child's threads one takes over what a thread of the parent's held.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p pinyard-hooks --test loom_holder --release`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use pinyard_hooks::{Found, Holder};

struct Counted {
    holder: Holder,
    entered: UnsafeCell<u32>,
}
// SAFETY: `entered` is reached inside the lock; loom checks it.
#[allow(unsafe_code)]
unsafe impl Sync for Counted {}

/// Goes inside and counts; loom fails where another thread is there.
#[allow(unsafe_code)]
fn enter(counted: &Counted, generation: u32) -> Found {
    let found = counted.holder.enter(generation);
    // SAFETY: inside the lock.
    counted.entered.with_mut(|entered| unsafe { *entered += 1 });
    counted.holder.leave();
    found
}

fn new() -> Arc<Counted> {
    Arc::new(Counted { holder: Holder::new(), entered: UnsafeCell::new(0) })
}

#[test]
#[allow(unsafe_code)]
fn one_thread_is_inside_at_a_time() {
    loom::model(|| {
        let counted = new();
        let other = counted.clone();
        let thread = thread::spawn(move || enter(&other, 0));
        assert_eq!(enter(&counted, 0), Found::Free);
        assert_eq!(thread.join().ok(), Some(Found::Free));
        assert_eq!(counted.holder.try_enter(0), Some(Found::Free));
        assert_eq!(counted.holder.try_enter(0), None);
        // SAFETY: inside the lock.
        assert_eq!(counted.entered.with(|entered| unsafe { *entered }), 2);
    });
}

#[test]
fn one_thread_of_a_child_takes_over() {
    loom::model(|| {
        let counted = new();
        // A thread of the parent's is inside, and is not in the child.
        assert_eq!(counted.holder.try_enter(6), Some(Found::Free));
        let other = counted.clone();
        let thread = thread::spawn(move || enter(&other, 7));
        let found = [enter(&counted, 7), thread.join().unwrap_or(Found::Free)];
        assert_eq!(found.iter().filter(|&&found| found == Found::Abandoned).count(), 1);
    });
}
