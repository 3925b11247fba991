//! What is still in use when the process ends. A pool that lives as long as the program, as
//! in a static or in C, has no last handle that would tell; where `PINYARD_POOL_LEAKS` or
//! `PINYARD_HOST_POOL_LEAKS` asks for it, exit(3) does.
#![allow(unsafe_code)] // atexit(3)

use crate::requests::guarded;
use parking_lot::Mutex;
use pinyard_worker::say;
use std::fmt::Display;
use std::sync::{Once, Weak};
use std::time::Duration;

/// For a pool's lock, at the end of the process.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Told of blocks that outlive their pool.
pub(crate) type Heir<L> = Box<dyn Fn(&L) + Send + Sync>;

/// Who is told of what `pool` leaves: whom the program has named; and, if `tells`, stderr, at the end
/// of the process as well.
pub(crate) fn heirs<L: Display + 'static>(
    named: Option<Heir<L>>,
    tells: bool,
    pool: Weak<dyn Leaves>,
) -> Vec<Heir<L>> {
    if tells {
        watch(pool);
    }
    let told = tells.then(|| -> Heir<L> { Box::new(tell) });
    named.into_iter().chain(told).collect()
}

/// A pool that may be left.
pub(crate) trait Leaves: Send + Sync {
    /// What is in use, unless nothing is, or its last handle is gone and has told. Waits
    /// [`PATIENCE`] for its lock: a thread that was cancelled may hold it for ever.
    fn left(&self) -> Option<String>;
}

static LEFT: Mutex<Vec<Weak<dyn Leaves>>> = Mutex::new(Vec::new());

/// Has what this pool leaves told on stderr when the process ends by exit(3) or by main's
/// return; not by a signal or _exit(2), nor in a child that was forked. What others free in
/// handlers or destructors that are older than the first pool, is in use still.
fn watch(pool: Weak<dyn Leaves>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if cfg!(miri) {
            return; // it has no atexit
        }
        // SAFETY: a plain function that does not unwind. Refused, nothing is told at exit.
        let _ = unsafe { libc::atexit(tell_all) };
    });
    // In a child that was forked under it, it is held for ever.
    let Some(mut left) = LEFT.try_lock_for(PATIENCE) else { return };
    left.retain(|pool| pool.strong_count() > 0);
    left.push(pool);
}

extern "C" fn tell_all() {
    let Some(left) = LEFT.try_lock() else { return };
    let pools: Vec<_> = left.iter().filter_map(Weak::upgrade).collect();
    drop(left);
    for pool in &pools {
        // No panic may cross into C.
        if let Some(leaks) = guarded("the report of what is left", || pool.left()).flatten() {
            tell(&format_args!("at the process's end, {leaks}"));
        }
    }
    // A pool's end is not for here: its sources and drivers may be gone.
    std::mem::forget(pools);
}

fn tell(leaks: &impl Display) {
    say(format_args!("{leaks}"));
}
