//! What happens in a step, drawn from the seed alone: every rank computes the same,
//! and nobody tells anybody.

use crate::memory::Change;
use crate::rma::Windows;
use pinyard_cli::stress::record::PLAN_STEPS;
use pinyard_cli::stress::{Operation, Options};
use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Buffers of a rank, each of the kind `slot % Kind::ALL.len()`.
pub(crate) const SLOTS: usize = 16;
/// A message begins at most this many bytes into its buffer.
pub(crate) const MOST_OFFSET: usize = 64;

/// One use of a buffer in so many forks first: with pinned memory that takes tens of
/// milliseconds, since the kernel copies every pinned page.
const FORKS: u64 = 256;

/// The sequence of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    seed: u64,
    ranks: u32,
    max_bytes: u64,
    operations: Vec<Operation>,
    windows: Windows,
}

/// What all ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Its number, from 0.
    pub(crate) number: u64,
    /// The operation.
    pub(crate) operation: Operation,
    /// Bytes of the message.
    pub(crate) bytes: usize,
    /// The root of a broadcast.
    pub(crate) root: u32,
    /// A rank sends to the one so far above, around the world.
    pub(crate) distance: u32,
}

/// The two buffers of a rank in a step, different ones. A broadcast uses one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Side {
    /// What it sends from.
    pub(crate) outgoing: Use,
    /// What it receives into.
    pub(crate) incoming: Use,
}

/// A buffer, and what happens to it before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    /// Which one.
    pub(crate) slot: usize,
    /// What happens.
    pub(crate) change: Change,
    /// Where the message begins.
    pub(crate) offset: usize,
}

/// Draws that are the same on every machine and in every version.
struct Draws(Xoshiro256StarStar);

impl Draws {
    fn new(seed: u64, step: u64, who: u64) -> Draws {
        let stir = |word: u64| (word ^ (word >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Draws(Xoshiro256StarStar::seed_from_u64(stir(stir(seed ^ stir(step)).wrapping_add(who))))
    }

    /// Evenly below `limit`, but for a bias of at most `limit` in 2^64.
    fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(limit.max(1))) >> 64) as u64
    }

    fn among<T: Copy>(&mut self, list: &[T], or: T) -> T {
        list.get(self.below(list.len() as u64) as usize).copied().unwrap_or(or)
    }

    /// 1 to `most`, every power of two as likely as the next. No floating point, whose
    /// logarithms differ between machines.
    fn length(&mut self, most: u64) -> u64 {
        let magnitude = self.below(u64::from(most.ilog2()) + 1);
        let low = 1 << magnitude;
        low + self.below((2 * low).min(most + 1) - low)
    }
}

impl Plan {
    /// For a world of `ranks` ranks.
    pub(crate) fn new(options: &Options, ranks: u32, windows: Windows) -> Plan {
        let Options { seed, max_bytes, .. } = *options;
        Plan { seed, ranks: ranks.max(1), max_bytes, operations: options.operations.clone(), windows }
    }

    /// Bytes of one MPI_Get at most.
    pub(crate) fn longest_get(&self) -> usize {
        self.windows.longest_get()
    }

    /// What all ranks do in step `number`.
    pub(crate) fn step(&self, number: u64) -> Step {
        let mut draws = Draws::new(self.seed, number, 0);
        let operation = draws.among(&self.operations, Operation::Bcast);
        let bytes = draws.length(self.max_bytes) as usize;
        let root = draws.below(u64::from(self.ranks)) as u32;
        let distance = match self.ranks {
            1 => 0,
            ranks => 1 + draws.below(u64::from(ranks) - 1) as u32,
        };
        let bytes = if operation == Operation::Allreduce { bytes.next_multiple_of(8) } else { bytes };
        Step { number, operation, bytes, root, distance }
    }

    /// What `rank` uses for it.
    pub(crate) fn side(&self, step: &Step, rank: u32) -> Side {
        let mut draws = Draws::new(self.seed, step.number, 1 + u64::from(rank));
        let one_sided = matches!(step.operation, Operation::Put | Operation::Get);
        // Blocks begin at multiples of 16 bytes, so an offset of 0 is aligned enough.
        let mask = match step.operation {
            _ if one_sided && self.windows == Windows::Aligned => 0,
            Operation::Allreduce => !7,
            _ => !0,
        };
        let mut draw = |slot: usize| {
            let fork = draws.below(FORKS) == 0;
            let change = draws.among(Change::of_slot(slot, fork), Change::Reused);
            let offset = draws.below(MOST_OFFSET as u64) as usize;
            Use { slot, change, offset: offset & mask }
        };
        let first = Draws::new(self.seed, step.number, !u64::from(rank)).below(SLOTS as u64) as usize;
        let apart =
            1 + Draws::new(!self.seed, step.number, !u64::from(rank)).below(SLOTS as u64 - 1) as usize;
        Side { outgoing: draw(first), incoming: draw((first + apart) % SLOTS) }
    }

    /// Hash of the first steps for all ranks.
    pub(crate) fn hash(&self) -> String {
        let mut hash = Hash::default();
        for step in (0..PLAN_STEPS).map(|number| self.step(number)) {
            hash.add(&step);
            // All ranks of a large world would take too long: the first, and the last.
            let sides = (0..self.ranks).filter(|&rank| rank < 64 || rank + 1 == self.ranks);
            for side in sides.map(|rank| self.side(&step, rank)) {
                for one in [side.outgoing, side.incoming] {
                    hash.words([one.slot as u64, one.change as u64, one.offset as u64]);
                }
            }
        }
        hash.text()
    }
}

/// Hash of a sequence of steps: FNV-1a over 64-bit words.
#[derive(Clone, Debug)]
pub(crate) struct Hash(u64);

impl Default for Hash {
    fn default() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    /// Another step.
    pub(crate) fn add(&mut self, step: &Step) {
        let Step { number, operation, bytes, root, distance } = *step;
        self.words([number, operation.code(), bytes as u64, u64::from(root), u64::from(distance)]);
    }

    fn words<const N: usize>(&mut self, words: [u64; N]) {
        for byte in words.iter().flat_map(|word| word.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// As it is written.
    pub(crate) fn text(&self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Cli;
    use clap::Parser;

    fn plan(line: &str, ranks: u32) -> Plan {
        let line = std::iter::once("x").chain(line.split_whitespace());
        Plan::new(&Cli::parse_from(line).options, ranks, Windows::Anywhere)
    }

    #[test]
    fn seed_options_and_ranks_make_the_plan_and_nothing_else() {
        let hash = |line, ranks| plan(line, ranks).hash();
        assert_eq!(hash("--seed 7", 4), hash("--seed 7 --time 9 --backend mlock", 4));
        assert_ne!(hash("--seed 7", 4), hash("--seed 8", 4));
        assert_ne!(hash("--seed 7", 4), hash("--seed 7", 3));
        assert_ne!(hash("--seed 7", 4), hash("--seed 7 --max-bytes 64K", 4));
        // As it was when this was written: another value is another plan for every user.
        assert_eq!(hash("--seed 7", 4), "ee5f7dca4065fa2a");
    }

    #[test]
    fn steps_keep_their_bounds_and_reach_them() {
        for (most, ranks) in [("1", 1), ("5", 2), ("4096", 5), ("4M", 3)] {
            let plan = plan(&format!("--max-bytes {most}"), ranks);
            let steps: Vec<Step> = (0..4000).map(|number| plan.step(number)).collect();
            let most = plan.max_bytes as usize;
            for step in &steps {
                let rounded =
                    if step.operation == Operation::Allreduce { most.next_multiple_of(8) } else { most };
                assert!((1..=rounded).contains(&step.bytes), "{step:?}");
                assert!(step.root < ranks && (step.distance < ranks && (ranks == 1 || step.distance > 0)));
                for side in (0..ranks).map(|rank| plan.side(step, rank)) {
                    assert_ne!(side.outgoing.slot, side.incoming.slot);
                    assert!(side.outgoing.slot.max(side.incoming.slot) < SLOTS);
                    assert!(side.outgoing.offset.max(side.incoming.offset) < MOST_OFFSET);
                }
            }
            assert!(steps.iter().any(|step| step.bytes == 1));
            assert!(steps.iter().any(|step| 2 * step.bytes > most));
            for operation in Operation::ALL {
                assert!(steps.iter().any(|step| step.operation == operation));
            }
        }
    }

    #[test]
    fn only_the_operations_asked_for() {
        let plan = plan("--operations put,get", 2);
        let other = |step: Step| !matches!(step.operation, Operation::Put | Operation::Get);
        assert!(!(0..500).any(|number| other(plan.step(number))));
    }
}
