//! Who still holds blocks of a host pool.

use crate::builder::Builder;
use crate::device::Place;
use crate::exit::Leaves;
use crate::pool::{Handle, Pool};
use crate::shared::Core;
use crate::source::DriverToken;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

/// The blocks of a host pool that are in use, the most bytes first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolLeaks {
    /// Blocks.
    pub blocks: u64,
    /// Bytes, as handed out.
    pub bytes: u64,
    /// Of the blocks, those that were given up and wait for a fence.
    pub deferred: u64,
    /// By size and, in a pool that poisons, by place.
    pub holders: Vec<PoolHolder>,
}

/// Blocks of one size, and from one place if that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolHolder {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// How many.
    pub blocks: u64,
    /// Where the oldest of them was allocated: in a pool that poisons ([`Builder::poison`]).
    pub allocated: Option<Place>,
}

impl Pool {
    /// Who holds what. Costs what [`snapshot`](Pool::snapshot) does. Empty in a forked child.
    pub fn leaks(&self) -> PoolLeaks {
        self.handle.core.leaks()
    }
}

impl Builder {
    /// Has `report` called when the last handle goes while blocks are in use, by the thread that
    /// drops it and without a lock; fences are asked before. A pool that poisons says where they
    /// were allocated. A panic of it goes to the log.
    pub fn on_leak(mut self, report: impl Fn(&PoolLeaks) + Send + Sync + 'static) -> Builder {
        self.heir = Some(Box::new(report));
        self
    }
}

impl Handle {
    /// The last one goes.
    pub(crate) fn tell_leaks(&self) {
        if self.heirs.is_empty() {
            return;
        }
        self.core.poll_fences(usize::MAX);
        let leaks = self.core.leaks();
        if leaks.blocks > 0 {
            self.heirs.iter().for_each(|heir| heir(&leaks));
        }
    }
}

impl Leaves for Core {
    fn left(&self) -> Option<String> {
        if self.is_forked() || self.closed.load(Relaxed) {
            return None;
        }
        let cold = self.lock_at_exit()?;
        let counts = self.counts(&cold);
        drop(cold);
        // By size it would wait for threads that go on.
        let holders = self.poison.as_ref().map(|poison| poison.holders()).unwrap_or_default();
        let (blocks, bytes, deferred) =
            (counts.live_blocks(), counts.live_bytes, self.deferred.count() as u64);
        let leaks = PoolLeaks { blocks, bytes, deferred, holders };
        (blocks > 0).then(|| leaks.to_string())
    }
}

impl Core {
    pub(crate) fn leaks(&self) -> PoolLeaks {
        if self.is_forked() {
            return PoolLeaks::default();
        }
        let mut holders = match &self.poison {
            // Where the kernel refuses to take back what threads keep, that looks like in use.
            _ if self.stats().live_blocks == 0 => Vec::new(),
            Some(poison) => poison.holders(),
            None => self.holders_by_size(),
        };
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes()));
        PoolLeaks {
            blocks: holders.iter().map(|holder| holder.blocks).sum(),
            bytes: holders.iter().map(PoolHolder::bytes).sum(),
            deferred: self.deferred.count() as u64,
            holders,
        }
    }

    fn holders_by_size(&self) -> Vec<PoolHolder> {
        let mut token = DriverToken::at_entry();
        let sizes = self.sizes(&mut self.lock(&mut token));
        let in_use = sizes.iter().filter(|size| size.live_blocks > 0);
        let holder = |size: &crate::SizeUse| PoolHolder {
            block_bytes: size.block_bytes,
            blocks: size.live_blocks,
            allocated: None,
        };
        in_use.map(holder).collect()
    }
}

impl crate::poison::Poison {
    fn holders(&self) -> Vec<PoolHolder> {
        let mut by_place = BTreeMap::new();
        for life in self.lives() {
            let entry = by_place.entry((life.bytes, life.allocated.stack.0)).or_insert((0, life));
            entry.0 += 1;
            if life.id < entry.1.id {
                entry.1 = life;
            }
        }
        let holder = |((block_bytes, _), (blocks, oldest)): (_, (u64, crate::device::Life))| PoolHolder {
            block_bytes,
            blocks,
            allocated: Some(Place::from(&oldest.allocated)),
        };
        by_place.into_iter().map(holder).collect()
    }
}

impl PoolHolder {
    fn bytes(&self) -> u64 {
        self.block_bytes * self.blocks
    }
}

impl fmt::Display for PoolLeaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolLeaks { blocks, bytes, deferred, holders } = self;
        write!(f, "{blocks} blocks of {bytes} bytes are in use")?;
        if *deferred > 0 {
            write!(f, ", {deferred} of them given up and waiting for fences")?;
        }
        for PoolHolder { block_bytes, blocks, allocated } in holders {
            write!(f, "\n{blocks} of {block_bytes} bytes each")?;
            if let Some(place) = allocated {
                write!(f, ", the first {place}")?;
            }
        }
        Ok(())
    }
}
