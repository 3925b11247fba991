//! Who still holds what.

use super::core::Core;
use super::misuse::Place;
use super::snapshot::BlockState;
use crate::exit::Leaves;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::SeqCst;

/// The blocks of a pool that are in use, by who holds them, the most bytes first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leaks {
    /// Blocks.
    pub blocks: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// By stream and, where stacks were kept, by place.
    pub holders: Vec<Holder>,
}

/// Blocks that were allocated on one stream, and at one place if that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// `cuStreamGetId`.
    pub stream: u64,
    /// How many.
    pub blocks: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Of these, blocks that were dropped and wait for other users.
    pub dropped: u64,
    /// Where the oldest of them was allocated, if the pool was watched then.
    pub allocated: Option<Place>,
}

impl Leaves for Core {
    fn left(&self) -> Option<String> {
        if self.is_forked() || self.closed.load(SeqCst) || !self.is_lockable() {
            return None;
        }
        let leaks = self.leaks();
        (leaks.blocks > 0).then(|| leaks.to_string())
    }
}

impl Core {
    pub(super) fn leaks(&self) -> Leaks {
        let snapshot = self.snapshot();
        let lives: BTreeMap<_, _> =
            if self.watch.is_on() { self.watch.ledger.live().into_iter().collect() } else { BTreeMap::new() };
        let mut by_place = BTreeMap::new();
        for block in snapshot.blocks.iter().filter(|block| block.wanted > 0) {
            let life = lives.get(&block.address);
            let stream = block.stream.unwrap_or(0);
            let key = (stream, life.map(|life| life.allocated.stack.0));
            let entry = by_place.entry(key).or_insert_with(|| (Holder { stream, ..Holder::default() }, life));
            entry.0.blocks += 1;
            entry.0.bytes += block.wanted;
            entry.0.dropped += u64::from(block.state == BlockState::Dropped);
            if life.map(|life| life.id) < entry.1.map(|life| life.id) {
                entry.1 = life;
            }
        }
        let with_place = |(holder, life): (Holder, Option<&super::ledger::Life>)| Holder {
            allocated: life.map(|life| Place::from(&life.allocated)),
            ..holder
        };
        let mut holders: Vec<Holder> = by_place.into_values().map(with_place).collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
        Leaks {
            blocks: holders.iter().map(|holder| holder.blocks).sum(),
            bytes: holders.iter().map(|holder| holder.bytes).sum(),
            holders,
        }
    }
}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks of {} bytes are in use", self.blocks, self.bytes)?;
        for Holder { stream, blocks, bytes, dropped, allocated } in &self.holders {
            write!(f, "\n{blocks} blocks of {bytes} bytes on stream {stream}")?;
            if *dropped > 0 {
                write!(f, ", {dropped} of them dropped, waiting for other users")?;
            }
            if let Some(place) = allocated {
                write!(f, ", the first {place}")?;
            }
        }
        Ok(())
    }
}
