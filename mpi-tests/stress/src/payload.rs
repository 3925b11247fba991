//! What the bytes of a message are: a pattern of the seed, the step and the sender, so
//! that neither another step's, nor another sender's, nor shifted bytes pass.

/// Bytes that both sides can compute. Word number `i` is `scale * base(key, i) + add`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    key: u64,
    scale: u64,
    add: u64,
    step: u64,
}

/// What a rank's number adds to its words of a sum.
const APART: u64 = 0xd6e8_feb8_6659_fd93;

impl Pattern {
    /// What `sender` sends in `step`.
    pub(crate) fn of(seed: u64, step: u64, sender: u32) -> Pattern {
        let key = mix(mix(seed ^ 0x5bd1_e995) ^ mix(step.wrapping_mul(2) + 1)) ^ mix(!u64::from(sender));
        Pattern { key, scale: 1, add: 0, step }
    }

    /// `rank`'s part of a sum.
    pub(crate) fn summand(seed: u64, step: u64, rank: u32) -> Pattern {
        Pattern { add: u64::from(rank).wrapping_mul(APART), ..Pattern::of(seed, step, u32::MAX) }
    }

    /// The sum of all `ranks` summands, as unsigned words that wrap around.
    pub(crate) fn sum(seed: u64, step: u64, ranks: u32) -> Pattern {
        let ranks = u64::from(ranks);
        let add = (ranks * (ranks - 1) / 2).wrapping_mul(APART);
        Pattern { scale: ranks, add, ..Pattern::of(seed, step, u32::MAX) }
    }

    fn word(&self, index: usize) -> u64 {
        let mixed = self.key ^ (index as u64 + 1).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (mixed ^ (mixed >> 29)).wrapping_mul(self.scale).wrapping_add(self.add)
    }

    /// Writes it over all of `bytes`.
    pub(crate) fn fill(&self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        let last = self.word(words.len()).to_ne_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
        words.iter_mut().enumerate().for_each(|(index, word)| *word = self.word(index).to_ne_bytes());
    }

    /// The CRC-32 of its first `len` bytes.
    pub(crate) fn crc(&self, len: usize) -> u32 {
        const WORDS: usize = 512;
        let mut piece = [0u8; 8 * WORDS];
        let mut crc = crc32fast::Hasher::new();
        for start in (0..len).step_by(piece.len()) {
            let part = &mut piece[..(len - start).min(8 * WORDS)];
            for (index, word) in part.chunks_mut(8).enumerate() {
                let bytes = self.word(start / 8 + index).to_ne_bytes();
                word.copy_from_slice(&bytes[..word.len()]);
            }
            crc.update(part);
        }
        crc.finalize()
    }

    /// Compares by CRC; where it differs, says how. `before` is what the buffer held in
    /// its last use.
    pub(crate) fn check(&self, found: &[u8], before: Option<Pattern>) -> Result<(), String> {
        let (expected, crc) = (self.crc(found.len()), crc32fast::hash(found));
        if crc == expected { Ok(()) } else { Err(self.difference(found, (crc, expected), before)) }
    }

    #[cold]
    fn difference(&self, found: &[u8], (crc, expected): (u32, u32), before: Option<Pattern>) -> String {
        let byte = |pattern: &Pattern, at: usize| pattern.word(at / 8).to_ne_bytes()[at % 8];
        let differs = |&at: &usize| found[at] != byte(self, at);
        let count = (0..found.len()).filter(differs).count();
        let mut text = format!("CRC {crc:08x}, not {expected:08x}: {count} of {} bytes differ", found.len());
        let Some(first) = (0..found.len()).find(differs) else { return text };
        text += &format!(", from byte {first}: {:#04x}, not {:#04x}", found[first], byte(self, first));
        let is_old =
            |old: &Pattern| (first..found.len()).filter(differs).all(|at| found[at] == byte(old, at));
        if let Some(old) = before.filter(is_old) {
            text += &format!("; they are those of step {}", old.step);
        } else if (first..found.len()).filter(differs).all(|at| found[at] == 0) {
            text += "; they are zeros";
        }
        text
    }
}

/// A bijection that spreads every bit.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(pattern: Pattern, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        pattern.fill(&mut bytes);
        bytes
    }

    #[test]
    fn the_crc_is_that_of_the_bytes() {
        for len in [1, 7, 8, 9, 4095, 4096, 4097, 100_003] {
            let pattern = Pattern::of(7, 3, 1);
            assert_eq!(pattern.crc(len), crc32fast::hash(&bytes(pattern, len)), "{len}");
            assert_eq!(pattern.check(&bytes(pattern, len), None), Ok(()));
        }
    }

    #[test]
    fn other_bytes_do_not_pass_and_are_described() {
        let (pattern, old) = (Pattern::of(7, 3, 1), Pattern::of(7, 2, 0));
        let mut found = bytes(pattern, 1003);
        for other in [Pattern::of(8, 3, 1), Pattern::of(7, 4, 1), Pattern::of(7, 3, 2)] {
            assert!(other.check(&found, None).is_err());
        }
        found[500] ^= 1;
        let text = pattern.check(&found, Some(old)).unwrap_err();
        assert!(
            text.contains("1 of 1003 bytes differ, from byte 500") && !text.contains("those of"),
            "{text}"
        );
        found[500] ^= 1;
        found[400..600].copy_from_slice(&bytes(old, 1003)[400..600]);
        let text = pattern.check(&found, Some(old)).unwrap_err();
        assert!(text.ends_with("they are those of step 2"), "{text}");
        found[400..600].fill(0);
        assert!(pattern.check(&found, Some(old)).unwrap_err().ends_with("they are zeros"));
    }

    #[test]
    fn summands_add_up_to_the_sum() {
        let words = |pattern| -> Vec<u64> {
            bytes(pattern, 80).as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
        };
        for ranks in [1, 2, 5] {
            let mut sums = vec![0u64; 10];
            for rank in 0..ranks {
                let summand = words(Pattern::summand(7, 3, rank));
                sums.iter_mut().zip(summand).for_each(|(sum, word)| *sum = sum.wrapping_add(word));
            }
            assert_eq!(sums, words(Pattern::sum(7, 3, ranks)));
        }
    }
}
