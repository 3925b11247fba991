//! Sequences of allocations and frees against a model: no overlap, alignment kept,
//! contents kept, keys right, counters exact; at the end nothing is left.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Books, pool};
use pinyard_allocator::{AllocError, AtomicFence, PoolBuf};
use proptest::prelude::*;
use std::sync::atomic::Ordering::SeqCst;

const MIB: usize = 1 << 20;

#[derive(Clone, Debug)]
enum Op {
    Alloc { bytes: usize, align: usize },
    Free(prop::sample::Index),
    Defer(prop::sample::Index),
    Signal,
    Trim,
}

fn sizes() -> impl Strategy<Value = usize> {
    // Log-uniform, from one byte past the largest class of a 2 MiB slab.
    (0u32..=22, 0.0..1.0f64).prop_map(|(shift, part)| ((1 << shift) as f64 * (1.0 + part)) as usize)
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        8 => (sizes(), 0u32..=21).prop_map(|(bytes, shift)| Op::Alloc { bytes, align: 1 << (shift % 13) }),
        1 => (sizes(), 0u32..=21).prop_map(|(bytes, shift)| Op::Alloc { bytes, align: 1 << shift }),
        6 => any::<prop::sample::Index>().prop_map(Op::Free),
        1 => any::<prop::sample::Index>().prop_map(Op::Defer),
        1 => Just(Op::Signal),
        1 => Just(Op::Trim),
    ];
    prop::collection::vec(op, 1..300)
}

struct Live {
    block: PoolBuf<u8>,
    pattern: u8,
}

impl Live {
    fn range(&self) -> std::ops::Range<usize> {
        let start = self.block.as_ptr().addr();
        start..start + self.block.block_bytes()
    }

    /// First, last and one byte a page: a byte of another block's would show.
    fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let last = self.block.len() - 1;
        (0..=last).step_by(4096).chain([last])
    }

    fn write(&mut self) {
        for at in self.places() {
            self.block[at] = self.pattern;
        }
    }

    fn check(&self) {
        for at in self.places() {
            assert_eq!(self.block[at], self.pattern, "byte {at} of {:?}", self.block);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn as_a_list_of_ranges(ops in ops(), limit_mib in 8usize..64) {
        let books = Books::new();
        let pool = pool(&books, limit_mib * MIB);
        let word = AtomicFence::new();
        let (mut live, mut deferred): (Vec<Live>, Vec<std::ops::Range<usize>>) = (Vec::new(), Vec::new());
        let mut signalled = 0;
        for (step, op) in ops.into_iter().enumerate() {
            match op {
                Op::Alloc { bytes, align } => match pool.alloc_aligned::<u8>(bytes, align) {
                    Ok(block) => {
                        let mut new = Live { block, pattern: step as u8 };
                        let range = new.range();
                        prop_assert_eq!(range.start % align, 0);
                        prop_assert!(range.len() >= bytes);
                        for other in live.iter().map(Live::range).chain(deferred.iter().cloned()) {
                            prop_assert!(range.end <= other.start || other.end <= range.start);
                        }
                        prop_assert_eq!(new.block.key().lkey, new.block.slab_base() as u64);
                        let registered = books.registered.lock()[&new.block.slab_base()];
                        prop_assert!(registered.start <= range.start && range.end <= registered.end);
                        new.write();
                        live.push(new);
                    }
                    Err(AllocError::Limit { limit, reserved, live: used, live_blocks, deferred: waiting, .. }) => {
                        prop_assert_eq!(limit, limit_mib * MIB);
                        prop_assert!(reserved <= limit);
                        let sizes: usize = live.iter().map(|live| live.range().len()).sum();
                        let waits: usize = deferred.iter().map(|range| range.len()).sum();
                        prop_assert_eq!(used, (sizes + waits) as u64);
                        prop_assert_eq!((live_blocks, waiting), ((live.len() + deferred.len()) as u64, deferred.len() as u64));
                    }
                    Err(error) => prop_assert!(false, "{}", error),
                },
                Op::Free(which) if !live.is_empty() => {
                    let gone = live.swap_remove(which.index(live.len()));
                    gone.check();
                }
                Op::Defer(which) if !live.is_empty() => {
                    let gone = live.swap_remove(which.index(live.len()));
                    deferred.push(gone.range());
                    gone.block.defer_until(word.at(signalled + 1));
                }
                Op::Signal => {
                    signalled += 1;
                    word.signal(signalled);
                    prop_assert_eq!(pool.poll_fences(), deferred.len());
                    deferred.clear();
                }
                Op::Trim => {
                    let before = pool.stats().reserved_bytes;
                    let given_back = pool.trim() as u64;
                    prop_assert_eq!(pool.stats().reserved_bytes, before - given_back);
                }
                Op::Free(_) | Op::Defer(_) => {}
            }
            let stats = pool.stats();
            prop_assert_eq!(stats.live_blocks, (live.len() + deferred.len()) as u64);
            prop_assert_eq!(stats.live_bytes + stats.free_bytes + stats.cached_bytes, stats.reserved_bytes);
            prop_assert!(stats.reserved_bytes <= (limit_mib * MIB) as u64);
            let mapped: usize = books.mapped.lock().values().map(|segment| segment.bytes).sum();
            prop_assert_eq!(stats.reserved_bytes, mapped as u64);
        }
        live.iter().for_each(Live::check);
        prop_assert_eq!(books.registrations.load(SeqCst), pool.stats().registrations);
        drop(live);
        word.signal(signalled + 1);
        pool.poll_fences();
        pool.trim();
        prop_assert_eq!(pool.stats().slabs, 0);
        books.assert_balanced();
    }
}
