//! The faults that a rank injects into itself while it runs.
#![allow(unsafe_code)]
#![allow(clippy::disallowed_methods)] // the flood is of events that hooks see

use crate::machine;
use crate::shared::Shared;
use pinyard_cli::stress::Fault;
use pinyard_cli::stress::record::Injected;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::thread;

/// Bytes of the mapping whose changes flood the hooks: wider than any one event names.
const WIDE: usize = 1 << 40;
/// Of so many events one says that everything has changed.
const EVERYTHING: u64 = 4096;

/// Injects the fault if it is due; `true` once it has.
pub(crate) fn inject(shared: &'static Shared, injected: bool) -> Result<bool, String> {
    let options = &shared.options;
    let due = shared.seconds() >= options.fault_time().as_secs_f64();
    let what = match options.fault {
        _ if injected || !due => return Ok(injected),
        Some(Fault::Memlock) => {
            machine::lower_memlock(options.memlock)?;
            format!("lowered RLIMIT_MEMLOCK to {} bytes", options.memlock)
        }
        Some(Fault::Flood) => {
            flood(shared)?;
            format!("began to publish changes of {WIDE} bytes without end, one in {EVERYTHING} of everything")
        }
        Some(Fault::KillRank | Fault::Link) | None => return Ok(true),
    };
    let at = shared.seconds();
    eprintln!("rank {}: {at:.1} s: {what}", shared.rank);
    shared.with(|state| state.rank.injected.push(Injected { at, what }));
    Ok(true)
}

/// A thread that empties an address range in which nothing is, again and again, and now
/// and then announces that all of the address space changes.
fn flood(shared: &'static Shared) -> Result<(), String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping, which nobody can read or write.
    let range = unsafe { libc::mmap(std::ptr::null_mut(), WIDE, libc::PROT_NONE, flags, -1, 0) };
    if range == libc::MAP_FAILED {
        return Err(format!("mmap({WIDE} bytes, PROT_NONE): {}", io::Error::last_os_error()));
    }
    let range = range.expose_provenance();
    let work = move || {
        while !shared.over.load(Acquire) {
            // SAFETY: the mapping from above, which is never unmapped and holds nothing.
            unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(range), WIDE, libc::MADV_DONTNEED) };
            let events = shared.flood_events.fetch_add(1, Relaxed);
            if events.is_multiple_of(EVERYTHING) {
                pinyard_hooks::notify_unmapped(std::ptr::without_provenance(4096), usize::MAX / 2);
            }
        }
    };
    let spawned = thread::Builder::new().name("flood".into()).spawn(work);
    spawned.map(drop).map_err(|error| format!("pthread_create(flood): {error}"))
}
