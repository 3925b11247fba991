//! Blocks that wait until streams have come far enough, a queue per stream: one
//! that is slow holds up no other. Under the pool's lock.
#![allow(unsafe_code)]

use super::block::{ANYBODY, BlockRef, NO_CLASS, Owner, Stack};
use super::index::bits;
use super::stream::StreamState;
use crate::fence::Fence;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A place on a stream's timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) owner: Owner,
    pub(super) value: u64,
}

/// A block that other streams used, or whose fences have not passed.
pub(super) struct Used {
    pub(super) block: BlockRef,
    pub(super) marks: Vec<Mark>,
    pub(super) fences: Vec<Fence>,
}

impl Used {
    pub(super) fn home(&self) -> Owner {
        // SAFETY: a block that is out keeps its home.
        unsafe { &*self.block.home.get() }.owner
    }

    /// Whether a large block, in the queue of `owner`, waits for nothing but streams that
    /// `moves` says move.
    fn is_movable(&self, owner: Owner, moves: &impl Fn(Owner) -> bool) -> bool {
        let marks = self.marks.iter().map(|mark| mark.owner);
        self.fences.is_empty() && self.block.class.get() == NO_CLASS && marks.chain([owner]).all(moves)
    }
}

/// Blocks taken from one stream, for anybody when it has come that far.
pub(super) struct Stolen {
    pub(super) from: Mark,
    pub(super) blocks: Stack,
    pub(super) bytes: usize,
}

enum What {
    Used(Used),
    Stolen(Stolen),
}

const BITS: usize = u64::BITS as usize;

#[derive(Default)]
pub(super) struct Waiting {
    /// By owner; values ascend.
    queues: Vec<VecDeque<(u64, What)>>,
    /// Bit by owner: queues that may hold something.
    filled: Vec<u64>,
    /// Blocks whose marks have passed and whose fences are not known to have.
    fenced: Vec<Used>,
    pub(super) stolen_bytes: usize,
    pub(super) used_blocks: usize,
}

/// What has passed.
#[derive(Default)]
pub(super) struct Passed {
    pub(super) used: Vec<BlockRef>,
    pub(super) stolen: Vec<Stack>,
}

impl Waiting {
    fn queue(&mut self, owner: Owner, value: u64, what: What) {
        let at = owner as usize;
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, VecDeque::new);
        }
        self.filled.resize(self.queues.len().div_ceil(BITS), 0);
        self.filled[at / BITS] |= 1 << (at % BITS);
        let queue = &mut self.queues[at];
        let place = queue.partition_point(|&(other, _)| other <= value);
        queue.insert(place, (value, what));
    }

    pub(super) fn add_used(&mut self, used: Used) {
        self.used_blocks += 1;
        self.sort_in(used);
    }

    fn sort_in(&mut self, mut used: Used) {
        match used.marks.pop() {
            Some(mark) => self.queue(mark.owner, mark.value, What::Used(used)),
            None => self.fenced.push(used),
        }
    }

    pub(super) fn add_stolen(&mut self, stolen: Stolen) {
        debug_assert_ne!(stolen.from.owner, ANYBODY);
        self.stolen_bytes += stolen.bytes;
        self.queue(stolen.from.owner, stolen.from.value, What::Stolen(stolen));
    }

    /// What has passed by now, for one load per stream that is waited for.
    pub(super) fn poll(&mut self, streams: &[Arc<StreamState>]) -> Passed {
        let mut passed = Passed::default();
        for word in 0..self.filled.len() {
            for bit in bits(self.filled[word]) {
                self.poll_queue(word * BITS + bit, streams, &mut passed);
            }
        }
        passed
    }

    fn poll_queue(&mut self, at: usize, streams: &[Arc<StreamState>], passed: &mut Passed) {
        if self.queues[at].is_empty() {
            self.filled[at / BITS] &= !(1 << (at % BITS));
            return;
        }
        let Some(state) = at.checked_sub(1).and_then(|at| streams.get(at)) else { return };
        let now = state.timeline.passed();
        while self.queues[at].front().is_some_and(|&(value, _)| value <= now) {
            let Some((_, what)) = self.queues[at].pop_front() else { break };
            match what {
                What::Stolen(stolen) => {
                    self.stolen_bytes -= stolen.bytes;
                    passed.stolen.push(stolen.blocks);
                }
                What::Used(used) if used.marks.is_empty() && used.fences.is_empty() => {
                    self.used_blocks -= 1;
                    passed.used.push(used.block);
                }
                What::Used(used) => self.sort_in(used),
            }
        }
    }

    /// Blocks whose fences someone should ask, with the pool unlocked. They come back
    /// by `sort_fenced`.
    pub(super) fn take_fenced(&mut self) -> Vec<Used> {
        std::mem::take(&mut self.fenced)
    }

    pub(super) fn put_fenced(&mut self, used: Used) {
        self.fenced.push(used);
    }

    /// What was stolen from `owner`, which it may have back at once.
    pub(super) fn take_back(&mut self, owner: Owner) -> Vec<Stolen> {
        let Some(queue) = self.queues.get_mut(owner as usize) else { return Vec::new() };
        let (mut back, mut kept) = (Vec::new(), VecDeque::new());
        for (value, what) in queue.drain(..) {
            match what {
                What::Stolen(stolen) => back.push(stolen),
                used => kept.push_back((value, used)),
            }
        }
        *queue = kept;
        self.stolen_bytes -= back.iter().map(|stolen| stolen.bytes).sum::<usize>();
        back
    }

    /// Bytes of what was stolen from `owner`.
    pub(super) fn stolen_from(&self, owner: Owner) -> usize {
        let queue = self.queues.get(owner as usize).into_iter().flatten();
        let bytes = queue.map(|(_, what)| match what {
            What::Stolen(stolen) => stolen.bytes,
            What::Used(_) => 0,
        });
        bytes.sum()
    }

    /// Bytes of large blocks, by their own stream, that wait for nothing but streams that
    /// `moves` says move.
    pub(super) fn movable(&self, moves: impl Fn(Owner) -> bool) -> BTreeMap<Owner, usize> {
        let mut bytes = BTreeMap::new();
        for (owner, queue) in (0..).zip(&self.queues) {
            for (_, what) in queue {
                if let What::Used(used) = what
                    && used.is_movable(owner, &moves)
                {
                    *bytes.entry(used.home()).or_default() += used.block.bytes.get();
                }
            }
        }
        bytes
    }

    /// Takes such blocks out, with all the marks that they wait for.
    pub(super) fn take_movable(
        &mut self,
        lends: impl Fn(Owner) -> bool,
        moves: impl Fn(Owner) -> bool,
    ) -> Vec<Used> {
        let mut taken = Vec::new();
        for (owner, queue) in (0..).zip(&mut self.queues) {
            for (value, what) in std::mem::take(queue) {
                match what {
                    What::Used(mut used) if lends(used.home()) && used.is_movable(owner, &moves) => {
                        used.marks.push(Mark { owner, value });
                        taken.push(used);
                    }
                    what => queue.push_back((value, what)),
                }
            }
        }
        self.used_blocks -= taken.len();
        taken
    }

    /// The longest of what was stolen.
    pub(super) fn take_stolen(&mut self) -> Option<Stolen> {
        let all = self.queues.iter().enumerate().flat_map(|(at, queue)| {
            queue.iter().enumerate().filter_map(move |(place, (_, what))| match what {
                What::Stolen(stolen) => Some((stolen.bytes, at, place)),
                What::Used(_) => None,
            })
        });
        let (_, at, place) = all.max()?;
        let (_, what) = self.queues[at].remove(place)?;
        let What::Stolen(stolen) = what else { return None };
        self.stolen_bytes -= stolen.bytes;
        Some(stolen)
    }

    /// All blocks that wait, and whether for the users of a dropped block.
    pub(super) fn each(&self, mut visit: impl FnMut(BlockRef, bool)) {
        self.fenced.iter().for_each(|used| visit(used.block, true));
        for (_, what) in self.queues.iter().flatten() {
            match what {
                What::Used(used) => visit(used.block, true),
                What::Stolen(stolen) => stolen.blocks.iter().for_each(|block| visit(block, false)),
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fenced.is_empty() && self.queues.iter().all(VecDeque::is_empty)
    }
}
