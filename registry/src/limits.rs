//! What the machine lets a process pin, read when the first registry is made.

use crate::budget::Budget;
use crate::machine;
use crate::of_process::OfProcess;
use pinyard_hooks::PAGE_SIZE;
use std::path::Path;

/// The budget of registries that were given none: one for the process, or, for
/// backends that lock pages where RLIMIT_MEMLOCK binds, one for all of those.
pub(crate) fn default_budget(locks_memory: bool) -> Budget {
    static OF_MEMORY: OfProcess<Budget> = OfProcess::new(|| Budget::new(half_of_memory()));
    static OF_MEMLOCK: OfProcess<Budget> = OfProcess::new(|| {
        Budget::of_memlock(machine::memlock_limit().map_or(usize::MAX, |limit| limit as usize))
    });
    let of_memory = OF_MEMORY.get();
    let binds = |limit: &u64| *limit < of_memory.bytes() as u64 && !may_lock_anything();
    match locks_memory && machine::memlock_limit().as_ref().is_some_and(binds) {
        true => OF_MEMLOCK.get().clone(),
        false => of_memory.clone(),
    }
}

/// Half of what the machine, or the cgroup that the process is in, has.
fn half_of_memory() -> usize {
    let cgroup = machine::memory_limit(&read).and_then(|limit| usize::try_from(limit).ok());
    memory().min(cgroup.unwrap_or(usize::MAX)) / 2
}

/// The machine's memory in bytes.
#[allow(unsafe_code)]
fn memory() -> usize {
    if cfg!(miri) {
        return 1 << 30; // it does not know the name
    }
    // SAFETY: sysconf has no preconditions.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    usize::try_from(pages).unwrap_or(0).max(2) * PAGE_SIZE
}

/// Whether RLIMIT_MEMLOCK does not bind this process.
pub(crate) fn may_lock_anything() -> bool {
    machine::may_lock_anything(&read)
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}
