//! Words in what ranks tell each other: 64 bits, the least byte first.

/// Bytes of a word.
pub(crate) const WORD: usize = 8;

/// The word at byte `at`. Like a slice's index, it panics where fewer bytes are left.
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; WORD];
    word.copy_from_slice(&bytes[at..at + WORD]);
    u64::from_le_bytes(word)
}

/// Writes the word at byte `at`, likewise.
pub(crate) fn put_word(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + WORD].copy_from_slice(&word.to_le_bytes());
}

/// All whole words.
pub(crate) fn words(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> + '_ {
    bytes.chunks_exact(WORD).map(|bytes| word(bytes, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_read_least_byte_first() {
        let mut bytes = [0; 3 * WORD];
        put_word(&mut bytes, WORD, 0x0102_0304_0506_0708);
        assert_eq!(bytes[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(word(&bytes, 9), 0x0001_0203_0405_0607);
        assert_eq!(words(&bytes[..23]).collect::<Vec<_>>(), [0, 0x0102_0304_0506_0708]);
    }
}
