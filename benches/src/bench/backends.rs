//! What a registration takes, by its size, and what a hit takes in its place: the reason
//! for a cache. The peer is the registration made anew for each use.

use crate::peer::Memory;
use crate::{Settings, tell};
use pinyard_benches::turns::{Turns, fail, or_fail};
use pinyard_cli::bench::row::OURS;
use pinyard_cli::bench::{Absence, Axis, Row};
use pinyard_registry::backend::{Backend, IoUring, Mlock};
use pinyard_registry::{Access, Registry};
use std::sync::Arc;

const SIZES: [usize; 8] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// The peer.
const ANEW: &str = "registered for each use";

/// A backend by its name, new for each registry.
type Open = fn() -> Result<Arc<dyn Backend>, String>;

const BACKENDS: [(&str, Open); 2] = [
    ("io_uring", || Ok(Arc::new(IoUring::new(16).map_err(|error| error.to_string())?))),
    ("mlock", || Ok(Arc::new(Mlock::new()))),
];

/// Every size with every backend that opens here.
pub(crate) fn run(settings: &Settings) {
    let sizes = settings.up_to(1 << 20, &SIZES);
    tell::steps(BACKENDS.len() * sizes.len());
    for (name, open) in BACKENDS {
        for &bytes in &sizes {
            tell::step(format!("{name}, {bytes} bytes"));
            match row(settings, name, open, bytes) {
                Ok(row) => tell::row(row),
                Err(why) => {
                    // Larger ones need more of what is short.
                    let remedy = "raise the limit (ulimit -l unlimited), or allow io_uring (sysctl kernel.io_uring_disabled)";
                    let of = format!("{name} from {bytes} bytes on");
                    tell::peer(&of, Err(Absence::new(why, remedy)));
                    break;
                }
            }
        }
    }
}

fn row(settings: &Settings, name: &str, open: Open, bytes: usize) -> Result<Row, String> {
    let registry = |most| {
        let registry = Registry::builder().backend(open()?).max_regions(most).build();
        registry.map_err(|error| error.to_string())
    };
    let (cached, full) = (registry(2)?, registry(1)?);
    // Resident before, so that no page is faulted in while it is timed.
    // Apart, so that neither is a part of the other's region.
    let (one, _gap, other) = (Memory::map(bytes)?, Memory::map(bytes)?, Memory::map(bytes)?);
    let buffers = [one, other];
    buffers.iter().for_each(Memory::touch);
    let get = |registry: &Registry, buffer: &Memory| {
        registry.get((buffer.at(0), bytes), Access::LOCAL_READ).map(drop).map_err(|error| error.to_string())
    };
    get(&cached, &buffers[0])?;
    buffers.iter().try_for_each(|buffer| get(&full, buffer))?;
    // An even number: the next turn must not begin with the buffer that this one ended with.
    let anew = ((64 << 20) / bytes.max(1 << 20)).max(2);
    let (mut ours, mut theirs) = (Turns::new(), Turns::new());
    for _ in 0..settings.slow_turns() {
        ours.time(settings.operations(), || {
            (0..settings.operations()).for_each(|_| or_fail(get(&cached, &buffers[0])));
        });
        // There is room for one of the two, so each get registers and deregisters.
        let before = full.stats().misses;
        theirs.time(anew, || (0..anew).for_each(|turn| or_fail(get(&full, &buffers[turn % 2]))));
        if full.stats().misses - before < anew as u64 {
            fail("a registration was found where each should have been made anew");
        }
    }
    let mut row = Row::new("backends.register", name).at(Axis::Bytes, bytes);
    row.enter(OURS, ours.summary());
    row.enter(ANEW, theirs.summary());
    Ok(row)
}
