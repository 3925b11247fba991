//! What another node sees through a registration whose mapping has changed.
//!
//! ```text
//! stale owner          on one node
//! stale peer OWNER     on the other one
//! stale ucx            UCX, and libfabric: on one node, by an endpoint to itself
//! stale libfabric
//! ```
//!
//! The owner registers a buffer, changes its mapping, writes other bytes at the same
//! addresses, and asks its cache for a key again. The peer reads or writes with that
//! key, by RDMA. Each case runs with a cache that is told of nothing, which must show
//! the old pages (or the test proves nothing), and with pinyard's registry. Ends with
//! "N passed, M failed".

mod alone;
mod judge;
mod memory;
mod stacks;
mod wire;

use crate::judge::{Moved, NEW, OLD, SENT, Sees, Tally, count};
use crate::memory::{Buffer, Change, LEN};
use crate::wire::{Naive, Talk, Wire};
use pinyard_mpi_tests as _; // whose library has what build.rs compiles
use pinyard_registry::backend::{OpenError, Verbs};
use pinyard_registry::{Access, Lease, Registry};
use std::error::Error;
use std::sync::Arc;

const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE);
/// `IBV_WC_REM_ACCESS_ERR`.
const REMOTE_ACCESS_ERROR: u32 = 10;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["owner"] => owner(),
        ["peer", host] => peer(host),
        ["ucx"] => alone::ucx(),
        ["libfabric"] => alone::libfabric(),
        _ => Err("usage: stale owner | stale peer OWNER | stale ucx | stale libfabric".into()),
    }
}

/// Moves what the owner asks for, until it hangs up.
fn peer(host: &str) -> Outcome<()> {
    let verbs = Verbs::open()?;
    let mut talk = Talk::connect(host)?;
    while let Some([write, at, rkey, _]) = talk.hear()? {
        let mut wire = Wire::open(&verbs, LEN, &mut talk)?;
        wire.buffer().fill(if write == 1 { SENT } else { b'?' });
        let status = wire.transfer(write == 1, at, rkey as u32)?;
        let (old, new) = (count(wire.buffer(), OLD), count(wire.buffer(), NEW));
        talk.say([status.into(), old, new, 0])?;
    }
    Ok(())
}

/// Who keeps the registration.
enum Cache<'a> {
    Naive(Option<Naive>, bool),
    Pinyard(&'a Registry, Option<Lease<'a>>),
}

impl Cache<'_> {
    fn rkey(&mut self, verbs: &Verbs, buffer: &Buffer) -> Outcome<u32> {
        match self {
            Cache::Naive(kept, on_demand) => {
                if kept.is_none() {
                    *kept = Some(Naive::register(verbs, buffer.at(), LEN, *on_demand)?);
                }
                Ok(kept.as_ref().map_or(0, |naive| naive.rkey))
            }
            Cache::Pinyard(registry, held) => {
                // As a program does: a lease for as long as one operation takes.
                *held = None;
                let lease = registry.get((buffer.at() as *const u8, LEN), ACCESS)?;
                Ok(held.insert(lease).rkey() as u32)
            }
        }
    }

    fn done(&mut self) {
        if let Cache::Pinyard(_, held) = self {
            *held = None;
        }
    }
}

struct Owner {
    verbs: Arc<Verbs>,
    talk: Talk,
    tally: Tally,
}

impl Owner {
    /// What the peer answers: the status, and the old and new bytes that it read.
    fn ask(&mut self, write: bool, at: usize, rkey: u32) -> Outcome<[u64; 3]> {
        self.talk.say([write.into(), at as u64, rkey.into(), 0])?;
        let _wire = Wire::open(&self.verbs, LEN, &mut self.talk)?;
        let [status, old, new, _] = self.talk.hear()?.ok_or("the peer is gone")?;
        Ok([status, old, new])
    }

    /// One change, read and written, in one cache.
    fn case(&mut self, name: &str, mut cache: Cache<'_>, change: Change, expected: Sees) -> Outcome<()> {
        for write in [false, true] {
            let mut buffer = Buffer::map()?;
            buffer.bytes().fill(OLD);
            let verbs = self.verbs.clone();
            let first = cache.rkey(&verbs, &buffer)?;
            cache.done();
            buffer.change(change)?;
            let written = if matches!(change, Change::Nothing) { OLD } else { NEW };
            buffer.bytes().fill(written);
            let rkey = cache.rkey(&verbs, &buffer)?;
            let [status, old, new] = self.ask(write, buffer.at(), rkey)?;
            cache.done();
            let arrived = count(buffer.bytes(), SENT);
            if status != 0 {
                return Err(format!(
                    "{name}, {}: the peer's transfer ends with status {status}",
                    change.name()
                )
                .into());
            }
            self.tally.judge(name, change, &Moved { write, old, new, arrived }, expected);
            if matches!((change, &cache), (Change::Fork, Cache::Pinyard(..))) {
                let kept = if first == rkey { "the same registration" } else { "another registration" };
                self.tally.report(first == rkey, &format!("{name}, {}, hit", change.name()), kept);
            }
            if let Cache::Naive(kept, _) = &mut cache {
                *kept = None;
            }
        }
        Ok(())
    }

    /// A key that the registry has taken back opens nothing.
    fn taken_back(&mut self, registry: &Registry) -> Outcome<()> {
        let buffer = Buffer::map()?;
        let lease = registry.get((buffer.at() as *const u8, LEN), ACCESS)?;
        let (rkey, at) = (lease.rkey() as u32, buffer.at());
        drop(lease);
        drop(buffer);
        // The reaper's work, without waiting for it.
        registry.flush()?;
        let [status, ..] = self.ask(false, at, rkey)?;
        let seen = format!("status {status}");
        self.tally.report(
            status == u64::from(REMOTE_ACCESS_ERROR),
            "pinyard, a key that was taken back",
            &seen,
        );
        Ok(())
    }
}

fn owner() -> Outcome<()> {
    let verbs = Arc::new(Verbs::open()?);
    let talk = Talk::listen()?;
    let registry = Registry::builder().backend(verbs.clone()).build()?;
    let mut owner = Owner { verbs, talk, tally: Tally::default() };
    for change in Change::ALL {
        owner.case("naive cache", Cache::Naive(None, false), change, Sees::Old)?;
        owner.case("pinyard", Cache::Pinyard(&registry, None), change, Sees::New)?;
    }
    owner.taken_back(&registry)?;
    match Verbs::options().on_demand(true).open() {
        Ok(on_demand) => {
            let on_demand = Arc::new(on_demand);
            owner.verbs = on_demand.clone();
            let registry = Registry::builder().backend(on_demand).build()?;
            for change in Change::ALL {
                // The device follows the mapping: nobody need be told.
                owner.case("on demand, naive cache", Cache::Naive(None, true), change, Sees::New)?;
                owner.case("on demand, pinyard", Cache::Pinyard(&registry, None), change, Sees::New)?;
            }
        }
        Err(error @ OpenError::Unsupported { .. }) => println!("skipped: {error}"),
        Err(error) => return Err(error.into()),
    }
    let stats = registry.stats();
    println!("{} registrations, {} invalidations", stats.registrations, stats.invalidations);
    owner.tally.end()
}
