//! Cold: 4 GiB of pinned memory in blocks of 64 MiB. A virtual machine's own memory may
//! be new the first time, so that is left out.
#![allow(unsafe_code)] // blocks are freed

use super::contenders::token;
use super::device;
use crate::{Settings, tell};
use pinyard_allocator::Pool;
use pinyard_bench_report::row::OURS;
use pinyard_bench_report::{Absence, Row, Summary};
use pinyard_benches::turns::or_fail;
use pinyard_driver::Driver;
use pinyard_registry::{Events, MemoryKey, Registry, backend::Custom};
use std::sync::Arc;
use std::time::Instant;

const BLOCK: usize = 64 << 20;

/// The pool and the driver's own, in turns.
pub(crate) fn run(settings: &Settings) {
    let device = device();
    if device.cuda.is_none() {
        return tell::skipped(Absence::new("there is no GPU", "run it on a machine with one"));
    }
    let (blocks, rounds) = (settings.pick(64, 4), settings.pick(3, 1));
    tell::steps(rounds + 1);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        tell::step(format!("round {round}"));
        let figures = (pool(&device.driver, blocks), driver(&device.driver, blocks));
        if round > 0 {
            ours.push(figures.0);
            theirs.push(figures.1);
        }
    }
    let mut row = Row::new("pools.pinned", format!("{blocks} blocks of 64 MiB, none ever pinned before"));
    row.enter(OURS, Summary::of(ours));
    row.enter("cuMemHostAlloc", Summary::of(theirs));
    tell::row(row);
}

fn driver(driver: &Arc<dyn Driver>, count: usize) -> f64 {
    let began = Instant::now();
    let blocks: Vec<_> = (0..count).map(|_| or_fail(driver.host_alloc(BLOCK, &token()))).collect();
    let took = began.elapsed().as_nanos() as f64;
    for block in blocks {
        // SAFETY: nobody uses it.
        or_fail(unsafe { driver.host_free(block, &token()) });
    }
    took
}

fn pool(driver: &Arc<dyn Driver>, count: usize) -> f64 {
    let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let registry = or_fail(Registry::builder().backend(backend).events(Events::NotifyOnly).build());
    let began = Instant::now();
    let pool = or_fail(Pool::pinned(&registry, driver.clone()).slab_bytes(8 * BLOCK).build());
    let blocks: Vec<_> = (0..count).map(|_| or_fail(pool.alloc::<u8>(BLOCK))).collect();
    let took = began.elapsed().as_nanos() as f64;
    drop((blocks, pool));
    took
}
