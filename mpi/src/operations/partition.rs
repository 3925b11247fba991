//! A buffer's parts, one for each rank.

use std::ops::Range;

/// Which elements of a buffer belong to which rank: counts and displacements, as rsmpi's
/// `Partition` and MPI's v-forms have them, in elements. Parts that are received may not
/// overlap; those that are sent may, and elements may belong to no part.
///
/// ```
/// use pinyard_mpi::Partition;
///
/// let packed = Partition::packed([2, 0, 3]); // 0..2, 2..2, 2..5
/// assert_eq!(packed, Partition::new([2, 0, 3], [0, 2, 2]).unwrap());
/// assert!(Partition::new([2, 3], [0]).is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    parts: Vec<Range<usize>>,
}

impl Partition {
    /// Parts of `counts` elements at `displacements`. `None` if there are not as many of the
    /// one as of the other, or a part ends beyond the address space.
    pub fn new(
        counts: impl IntoIterator<Item = usize>,
        displacements: impl IntoIterator<Item = usize>,
    ) -> Option<Partition> {
        let (mut counts, mut displacements) = (counts.into_iter(), displacements.into_iter());
        let mut parts = Vec::new();
        loop {
            match (counts.next(), displacements.next()) {
                (Some(count), Some(at)) => parts.push(at..at.checked_add(count)?),
                (None, None) => return Some(Partition { parts }),
                _ => return None,
            }
        }
    }

    /// Parts of `counts` elements, each behind the one before.
    pub fn packed(counts: impl IntoIterator<Item = usize>) -> Partition {
        let mut end = 0usize;
        let part = |count: usize| {
            let start = end;
            end = end.saturating_add(count);
            start..end
        };
        Partition { parts: counts.into_iter().map(part).collect() }
    }

    /// Elements of each rank, in their order.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        self.parts.iter().cloned()
    }

    /// What is wrong with it for `ranks` and a buffer of `elements`; `disjoint` if it is
    /// received into.
    pub(super) fn fault(&self, ranks: usize, elements: usize, disjoint: bool) -> Option<String> {
        if self.parts.len() != ranks {
            return Some(format!("{} parts for {ranks} ranks: one each is needed", self.parts.len()));
        }
        if let Some((rank, part)) = self.parts.iter().enumerate().find(|(_, part)| part.end > elements) {
            return Some(format!("the part of rank {rank}, {part:?}, ends beyond the {elements} elements"));
        }
        let mut sorted: Vec<_> = self.parts.iter().enumerate().filter(|(_, part)| !part.is_empty()).collect();
        sorted.sort_unstable_by_key(|(_, part)| part.start);
        let overlap = sorted.windows(2).find(|pair| pair[1].1.start < pair[0].1.end).filter(|_| disjoint)?;
        let [(rank, part), (other, their)] = [overlap[0], overlap[1]];
        Some(format!("the parts of ranks {rank} and {other}, {part:?} and {their:?}, overlap"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_named() {
        let fault = |counts: &[usize], at: &[usize], disjoint| {
            let partition = Partition::new(counts.iter().copied(), at.iter().copied()).unwrap();
            partition.fault(3, 10, disjoint)
        };
        assert_eq!(fault(&[3, 4, 3], &[0, 3, 7], true), None);
        assert_eq!(fault(&[3, 0, 3], &[7, 8, 0], true), None);
        assert_eq!(fault(&[1, 1], &[0, 1], true).unwrap(), "2 parts for 3 ranks: one each is needed");
        let text = fault(&[3, 4, 4], &[0, 3, 7], false).unwrap();
        assert_eq!(text, "the part of rank 2, 7..11, ends beyond the 10 elements");
        assert_eq!(fault(&[4, 4, 3], &[0, 3, 7], false), None);
        let text = fault(&[3, 4, 4], &[7, 3, 0], true).unwrap();
        assert_eq!(text, "the parts of ranks 2 and 1, 0..4 and 3..7, overlap");
        assert!(Partition::new([1], [usize::MAX]).is_none());
    }
}
