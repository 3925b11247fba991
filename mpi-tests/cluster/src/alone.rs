//! UCX and libfabric on one node: what their own endpoints move with a key whose mapping
//! has changed.

use crate::judge::{Moved, NEW, OLD, SENT, Sees, Tally, count};
use crate::memory::{Buffer, Change, LEN};
use crate::stacks::{Mover, OverLibfabric, OverUcx};
use crate::{ACCESS, Outcome};
use pinyard_registry::backend::{Backend, Libfabric, Ucx};
use pinyard_registry::{Events, Registry};
use std::sync::Arc;

pub(crate) fn ucx() -> Outcome<()> {
    // Without `self`, which copies from address to address.
    let backend = Arc::new(Ucx::options().set("TLS", "rc_v").open()?);
    run(&backend, OverUcx::open(backend.clone())?)
}

pub(crate) fn libfabric() -> Outcome<()> {
    let backend = Arc::new(Libfabric::options().provider("verbs;ofi_rxm").open()?);
    run(&backend, OverLibfabric::open(backend.clone())?)
}

fn run<B: Backend + 'static>(backend: &Arc<B>, mut mover: impl Mover) -> Outcome<()> {
    let mut tally = Tally::default();
    // First: hooks, once installed, tell every registry.
    let naive = Registry::builder().backend(backend.clone()).events(Events::NotifyOnly).build()?;
    all(&naive, &mut mover, &mut tally, "naive cache", Sees::Old)?;
    drop(naive);
    let told = Registry::builder().backend(backend.clone()).build()?;
    all(&told, &mut mover, &mut tally, "pinyard", Sees::New)?;
    let stats = told.stats();
    println!("{} registrations, {} invalidations", stats.registrations, stats.invalidations);
    tally.end()
}

fn all(
    registry: &Registry,
    mover: &mut impl Mover,
    tally: &mut Tally,
    cache: &str,
    expected: Sees,
) -> Outcome<()> {
    for change in Change::ALL {
        for write in [false, true] {
            let moved = case(registry, mover, change, write)?;
            tally.judge(cache, change, &moved, expected);
        }
    }
    Ok(())
}

fn case(registry: &Registry, mover: &mut impl Mover, change: Change, write: bool) -> Outcome<Moved> {
    let mut local = vec![if write { SENT } else { b'?' }; LEN];
    let mut buffer = Buffer::map()?;
    let at = (buffer.at() as *const u8, LEN);
    buffer.bytes().fill(OLD);
    drop(registry.get(at, ACCESS)?);
    buffer.change(change)?;
    buffer.bytes().fill(if matches!(change, Change::Nothing) { OLD } else { NEW });
    let (own, remote) = (registry.get(&local[..], ACCESS)?, registry.get(at, ACCESS)?);
    mover.go(write, &mut local, own.key(), buffer.at(), remote.key())?;
    drop((own, remote));
    registry.flush()?;
    let arrived = count(buffer.bytes(), SENT);
    Ok(Moved { write, old: count(&local, OLD), new: count(&local, NEW), arrived })
}
