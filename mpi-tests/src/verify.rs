//! What a round's bytes must be: a pattern of the round and the offset, so that
//! neither another round's bytes nor shifted ones pass.

/// Pattern word number `index` of `round`. The multiplications are bijective on
/// their own and the rounds' keys differ, so two rounds differ in every word.
fn word(round: u64, index: usize) -> u64 {
    let key = (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = key ^ (index as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed ^ (mixed >> 29)
}

/// Writes `round`'s pattern over all of `bytes`.
pub fn fill(bytes: &mut [u8], round: u64) {
    let (words, rest) = bytes.as_chunks_mut::<8>();
    let last = word(round, words.len()).to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
    for (index, at) in words.iter_mut().enumerate() {
        *at = word(round, index).to_le_bytes();
    }
}

/// Whether `bytes` are `round`'s pattern, every one of them.
pub fn matches(bytes: &[u8], round: u64) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let last = word(round, words.len()).to_le_bytes();
    last.starts_with(rest)
        && words.iter().enumerate().all(|(index, found)| *found == word(round, index).to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_round_matches() {
        let mut bytes = vec![0; 1003];
        fill(&mut bytes, 7);
        assert!(matches(&bytes, 7));
        assert!(!matches(&bytes, 8) && !matches(&bytes, 0));
        for at in [0, 500, 1002] {
            bytes[at] ^= 1;
            assert!(!matches(&bytes, 7), "byte {at}");
            bytes[at] ^= 1;
        }
        bytes.rotate_left(8);
        assert!(!matches(&bytes, 7), "shifted bytes do not pass");
    }

    #[test]
    fn rounds_differ_in_every_page() {
        let pattern = |round| {
            let mut bytes = vec![0; 16 * 4096];
            fill(&mut bytes, round);
            bytes
        };
        for round in 0..64 {
            let (this, next) = (pattern(round), pattern(round + 1));
            assert!(this.chunks(4096).zip(next.chunks(4096)).all(|(a, b)| a != b));
        }
    }
}
