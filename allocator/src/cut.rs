//! What a host pool's slabs are cut into: how many blocks there are of each size, in use or
//! free. Under the pool's lock.

use crate::classes::{CLASSES, Class, OVERSIZE};
use std::collections::BTreeMap;

pub(crate) struct Cut {
    /// Blocks of each class.
    classes: [u64; CLASSES],
    /// Blocks of whole pages, by their bytes.
    pages: BTreeMap<usize, u64>,
    bytes: usize,
    peak: usize,
}

impl Default for Cut {
    fn default() -> Cut {
        Cut { classes: [0; CLASSES], pages: BTreeMap::new(), bytes: 0, peak: 0 }
    }
}

impl Cut {
    /// Bytes of all blocks.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most that there ever were.
    pub(crate) fn peak(&self) -> usize {
        self.peak
    }

    /// Blocks of a class.
    pub(crate) fn of(&self, class: Class) -> u64 {
        self.classes.get(class as usize).copied().unwrap_or(0)
    }

    /// Blocks of whole pages, by their bytes.
    pub(crate) fn of_pages(&self) -> impl Iterator<Item = (usize, u64)> {
        self.pages.iter().map(|(&bytes, &blocks)| (bytes, blocks))
    }

    /// A span becomes blocks.
    pub(crate) fn add(&mut self, class: Class, block_bytes: usize, blocks: usize) {
        if class == OVERSIZE {
            *self.pages.entry(block_bytes).or_default() += blocks as u64;
        } else {
            self.classes[class as usize] += blocks as u64;
        }
        self.bytes += block_bytes * blocks;
        self.peak = self.peak.max(self.bytes);
    }

    /// They become a range again.
    pub(crate) fn remove(&mut self, class: Class, block_bytes: usize, blocks: usize) {
        if class == OVERSIZE {
            if let Some(count) = self.pages.get_mut(&block_bytes) {
                *count -= blocks as u64;
                if *count == 0 {
                    self.pages.remove(&block_bytes);
                }
            }
        } else {
            self.classes[class as usize] -= blocks as u64;
        }
        self.bytes -= block_bytes * blocks;
    }
}
