//! Which collective a rank is in: all are to be in the same one, with the same root.

use crate::words::{WORD, put_word, word};
use mpi::topology::Rank;
use pinyard_driver::reduction::{Element, Join};

/// A collective, as ranks compare it.
#[derive(Clone, Copy)]
pub(crate) struct Called {
    /// For errors.
    pub(crate) operation: &'static str,
    /// From the top: 24 bits that stand for its name, 8 for how it reduces, 32 for its root.
    word: u64,
}

/// The end of an epoch.
pub(crate) const EPOCH: &str = "MPI_Win_fence";

/// The end of a communicator.
pub(crate) const END: &str = "MPI_Comm_free";

/// Bits of a word below its name, and below how it reduces.
const NAME: u32 = 40;
const HOW: u32 = 32;

impl From<&'static str> for Called {
    /// One without a root.
    fn from(operation: &'static str) -> Called {
        // FNV-1a (RFC 9923), folded to 24 bits.
        let hash = operation
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Called { operation, word: u64::from((hash >> 24) ^ (hash & 0x00ff_ffff)) << NAME }
    }
}

impl Called {
    /// With this root, or none.
    pub(crate) fn of(operation: &'static str, root: Option<Rank>) -> Called {
        let called = Called::from(operation);
        Called { word: called.word | root.map_or(0, |root| root as u64 + 1), ..called }
    }

    /// The end of an epoch of a window, both by their numbers at each rank.
    pub(crate) fn of_epoch(window: u16, epoch: u16) -> Called {
        let called = Called::from(EPOCH);
        Called { word: called.word | u64::from(window) << 16 | u64::from(epoch), ..called }
    }

    /// A reduction.
    pub(crate) fn reducing(self, (join, element): (Join, Element)) -> Called {
        let how = 1 + 16 * join as u64 + element as u64;
        Called { word: self.word | how << HOW, ..self }
    }

    /// What this rank is in, with `bytes` that are to be the same at all.
    pub(crate) fn with(self, bytes: usize) -> Part {
        Part { called: self.word, bytes: bytes as u64 }
    }
}

/// What a rank tells of the collective that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) called: u64,
    pub(crate) bytes: u64,
}

impl Part {
    pub(crate) fn to_bytes(self) -> [u8; 2 * WORD] {
        let mut bytes = [0; 2 * WORD];
        put_word(&mut bytes, 0, self.called);
        put_word(&mut bytes, WORD, self.bytes);
        bytes
    }

    /// Those of all ranks, one behind the other.
    pub(crate) fn all(bytes: &[u8]) -> impl Iterator<Item = Part> {
        bytes.chunks_exact(2 * WORD).map(|bytes| Part { called: word(bytes, 0), bytes: word(bytes, WORD) })
    }

    /// How the call of `rank` is another than that of `other`; `None` where it is not.
    pub(crate) fn unlike(self, rank: Rank, theirs: Part, other: Rank) -> Option<String> {
        let root = |called: u64| match called as u32 {
            0 => "no root".to_owned(),
            root => format!("root {}", root - 1),
        };
        let epoch = |called: u64| format!("epoch {} of window {}", called as u16, (called >> 16) as u16);
        let ends = |part: Part| part.called == Called::from(END).word;
        let is_epoch = self.called >> NAME == Called::from(EPOCH).word >> NAME;
        let same = |shift: u32| self.called >> shift == theirs.called >> shift;
        match (same(NAME), same(HOW), same(0)) {
            (_, _, true) => None,
            _ if ends(self) => Some(format!("rank {rank} ends its communicator")),
            _ if ends(theirs) => Some(format!("rank {other} ends its communicator")),
            (true, true, false) if is_epoch => {
                let [mine, theirs] = [self, theirs].map(|part| epoch(part.called));
                Some(format!("rank {rank} closes {mine} where rank {other} closes {theirs}"))
            }
            (true, true, false) => {
                let [mine, theirs] = [self, theirs].map(|part| root(part.called));
                Some(format!("rank {rank} names {mine} where rank {other} names {theirs}"))
            }
            (true, false, _) => {
                Some(format!("rank {rank} reduces otherwise, or other elements, than rank {other}"))
            }
            (false, ..) => Some(format!("rank {rank} calls something else than rank {other}")),
        }
    }
}

/// Of the ranks' parts in their order, the first that is not as rank 0's, and that: a call that
/// is another goes before bytes that are others.
pub(crate) fn odd(parts: impl Iterator<Item = Part> + Clone) -> Option<(Rank, Part, Part)> {
    let first = parts.clone().next()?;
    let find = |differs: fn(&Part, &Part) -> bool| {
        let found = parts.clone().enumerate().find(|(_, part)| differs(part, &first));
        found.map(|(rank, part)| (rank as Rank, part, first))
    };
    find(|part, first| part.called != first.called).or_else(|| find(|part, first| part.bytes != first.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_is_not_as_rank_0_is_named_with_what_differs() {
        let [bcast, gather] = ["MPI_Bcast", "MPI_Gather"];
        let told = |mine: Called, theirs: Called| mine.with(8).unlike(1, theirs.with(9), 0);
        let of = |root| Called::of(bcast, Some(root));
        assert_eq!(told(of(1), of(0)).unwrap(), "rank 1 names root 1 where rank 0 names root 0");
        assert_eq!(told(of(0), of(0)), None);
        let other = told(of(0), Called::of(gather, Some(0))).unwrap();
        assert_eq!(other, "rank 1 calls something else than rank 0");
        assert_eq!(told(Called::from(END), of(0)).unwrap(), "rank 1 ends its communicator");
        assert_eq!(told(of(0), Called::from(END)).unwrap(), "rank 0 ends its communicator");
        assert_eq!(told(Called::from(END), Called::from(END)), None);
        let reduce = |join| Called::from("MPI_Allreduce").reducing((join, Element::F32));
        let other = told(reduce(Join::Max), reduce(Join::Sum)).unwrap();
        assert_eq!(other, "rank 1 reduces otherwise, or other elements, than rank 0");

        let epoch = |window, epoch| Called::of_epoch(window, epoch);
        let other = told(epoch(2, 1), epoch(1, 3)).unwrap();
        assert_eq!(other, "rank 1 closes epoch 1 of window 2 where rank 0 closes epoch 3 of window 1");
        assert_eq!(told(epoch(2, 1), epoch(2, 1)), None);

        let parts = [of(0).with(8), of(0).with(9), of(2).with(8)];
        assert_eq!(odd(parts.into_iter()), Some((2, parts[2], parts[0])));
        assert_eq!(odd(parts[..2].iter().copied()), Some((1, parts[1], parts[0])));
        assert_eq!(odd(parts[..1].iter().copied()), None);
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_bytes()).collect();
        assert!(Part::all(&bytes).eq(parts));
    }
}
