//! W13: training whose every tenth block a NIC uses. The pool registers its slabs, so that a
//! block that is reused costs no registration. Counted, on a simulated device.

use crate::{Settings, tell};
use pinyard_allocator::device::{DeviceBuf, DevicePool};
use pinyard_benches::traces::{self, Op, Trace};
use pinyard_benches::turns::or_fail;
use pinyard_cli::bench::row::OURS;
use pinyard_cli::bench::{Row, Summary, Unit};
use pinyard_driver::{Driver, DriverToken, Simulated};
use pinyard_registry::{Access, Events, MemoryKey, Registry, backend::Custom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The NIC uses one block in so many.
const USED: u32 = 10;
/// Bytes of the device.
const DEVICE: usize = 140 << 30;

/// Registrations of the first time that a trace is replayed, and of all the others.
#[derive(Debug, PartialEq)]
struct Counted {
    first: u64,
    later: u64,
}

/// A row for each trace and time.
pub(crate) fn run(settings: &Settings, benchmark: &str) {
    let (traces, rounds) = (traces::training(1), settings.pick(20, 2));
    tell::steps(traces.len());
    for trace in traces {
        tell::step(trace.name.clone());
        let counted = replayed(&trace, rounds);
        for (when, count) in [("the first time", counted.first), ("later", counted.later)] {
            let case = format!("{}, 1 block in {USED} used by a NIC, {when}", trace.name);
            let mut row = Row::new(benchmark, case).unit(Unit::Registrations);
            row.enter(OURS, Some(Summary::counted(count as f64)));
            tell::row(row);
        }
    }
}

/// Replays a trace, which is a step or a round of steps, and then `later` times again.
fn replayed(trace: &Trace, later: usize) -> Counted {
    let registrations = Arc::new(AtomicU64::new(0));
    let counting = registrations.clone();
    let register = move |_, _| {
        counting.fetch_add(1, Relaxed);
        Ok(MemoryKey::default())
    };
    let backend = Custom::new("counted", register, |_, _| Ok(()));
    // The device's memory is not this machine's.
    let builder = Registry::builder().backend(backend).events(Events::NotifyOnly).budget(DEVICE);
    let registry = or_fail(builder.build());
    let gpu = Arc::new(Simulated::new(DEVICE));
    let stream = or_fail(gpu.stream_create(&DriverToken::at_entry()));
    let builder = DevicePool::builder(gpu);
    let pool = or_fail(builder.registry(&registry, Access::REMOTE_WRITE).build());
    let stream = or_fail(pool.stream(stream));
    let mut first = None;
    for _ in 0..=later {
        let mut blocks: Vec<Option<DeviceBuf>> = (0..trace.ids).map(|_| None).collect();
        for &op in &trace.ops {
            match op {
                Op::Alloc { id, bytes, .. } => {
                    let block = or_fail(stream.alloc(bytes));
                    if id % USED == 0 {
                        // As whoever gets an address and a length does.
                        drop(or_fail(
                            registry.get((block.ptr().0 as *const u8, bytes), Access::REMOTE_WRITE),
                        ));
                    }
                    blocks[id as usize] = Some(block);
                }
                Op::Free { id } => blocks[id as usize] = None,
                Op::Use { .. } | Op::Busy { .. } | Op::Work { .. } | Op::Copy { .. } => {}
            }
        }
        first.get_or_insert(registrations.load(Relaxed));
    }
    let first = first.unwrap_or(0);
    Counted { first, later: registrations.load(Relaxed) - first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_is_reused_is_not_registered_again() {
        for trace in traces::training(1) {
            let counted = replayed(&trace, 2);
            assert!(counted.first > 0 && counted.later == 0, "{}: {counted:?}", trace.name);
        }
    }
}
