//! A broadcast through the chunks of the nodes, in turns that wait for nobody.
//!
//! ```text
//! root             device -> slot            as slots get free
//! first of a node  slot -> MPI -> slot       among the nodes
//! all others       slot -> device            as slots get full
//! ```
//!
//! All of it goes on at the same time, one piece behind the other. Within a node a piece
//! crosses host memory once, whoever wants it.
#![allow(unsafe_code)]

use super::chunks::Chunks;
use super::pipeline::Outcome;
use crate::calls::{Answer, Request};
use pinyard_allocator::DriverToken;
use pinyard_driver::DevicePtr;
use std::collections::VecDeque;

/// What a rank does for its node's slots through MPI.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Sends,
    Receives,
}

/// What a rank has to do with a transfer.
#[derive(Clone, Copy, Default)]
pub(crate) struct Part {
    /// It has the bytes, here. A root that has failed fills slots with what they hold.
    pub(crate) is_root: bool,
    /// Where it has them, or wants them; not, where it failed.
    pub(crate) memory: Option<DevicePtr>,
    pub(crate) link: Option<Link>,
}

impl Part {
    fn loads(self) -> bool {
        self.is_root
    }

    fn stores(self) -> bool {
        !self.is_root && self.memory.is_some()
    }

    /// Whether it is the one who fills the slots.
    fn fills(self) -> bool {
        self.is_root || self.link == Some(Link::Receives)
    }
}

/// Pieces of a stage: how many have begun, how many have ended.
#[derive(Clone, Copy, Default)]
struct Stage {
    begun: u64,
    ended: u64,
}

/// A transfer of which this rank has done a part.
pub(crate) struct Relay {
    part: Part,
    bytes: usize,
    piece: usize,
    pieces: u64,
    /// The number of its first piece among those of all transfers.
    first: u64,
    copies: Stage,
    links: Stage,
    /// Of the pieces between `links.ended` and `links.begun`.
    requests: VecDeque<Option<Request>>,
    outcome: Outcome,
}

impl Relay {
    /// Of `bytes`, more than none, in pieces of `piece`, which fit a slot. The ranks of all
    /// nodes say the same.
    pub(crate) fn new(chunks: &Chunks, part: Part, bytes: usize, piece: usize) -> Relay {
        assert!(piece <= chunks.slot_bytes(), "a piece beyond its slot");
        Relay {
            part,
            bytes,
            piece,
            pieces: bytes.div_ceil(piece) as u64,
            first: chunks.pieces,
            copies: Stage::default(),
            links: Stage::default(),
            requests: VecDeque::with_capacity(chunks.slots()),
            outcome: Outcome::default(),
        }
    }

    fn end(&self) -> u64 {
        self.first + self.pieces
    }

    /// Where a piece begins, and its bytes.
    fn extent(&self, piece: u64) -> (usize, usize) {
        let start = piece as usize * self.piece;
        (start, self.piece.min(self.bytes - start))
    }

    /// Pieces of this transfer that are in slots.
    fn filled(&self, chunks: &Chunks) -> u64 {
        chunks.filled().saturating_sub(self.first).min(self.pieces)
    }

    /// Whether the slot of the next piece of a stage is free to be filled: by this rank's
    /// own stage, and by all who read it.
    fn is_free(&self, chunks: &Chunks, stage: Stage) -> bool {
        let slots = chunks.slots() as u64;
        stage.begun - stage.ended < slots && self.first + stage.begun < chunks.all_done() + slots
    }

    /// Does what can be done now. Whether it did anything.
    ///
    /// # Safety
    /// The part's memory has the bytes; nobody writes what the root has, or uses what
    /// others want, until [`finish`](Relay::finish) has returned. `start` starts the MPI
    /// request of a slot and its bytes, unless it is done at once; it uses no more than them.
    pub(crate) unsafe fn turn(
        &mut self,
        chunks: &Chunks,
        start: &mut dyn FnMut(*mut u8, usize) -> Answer<Option<Request>>,
        token: &DriverToken,
    ) -> bool {
        let before = (self.copies.begun + self.copies.ended, self.links.begun + self.links.ended);
        if self.part.loads() || self.part.stores() {
            self.copy(chunks, token);
        }
        if let Some(link) = self.part.link
            && let Err(error) = self.link(link, chunks, start)
        {
            self.outcome.mpi = Some(error);
            chunks.break_off(self.end());
        }
        chunks.done(self.first + self.read());
        before != (self.copies.begun + self.copies.ended, self.links.begun + self.links.ended)
    }

    /// Pieces that this rank needs no more from their slots.
    fn read(&self) -> u64 {
        let sent = if self.part.link == Some(Link::Sends) { self.links.ended } else { self.pieces };
        let stored = if self.part.stores() { self.copies.ended } else { self.pieces };
        sent.min(stored)
    }

    fn copy(&mut self, chunks: &Chunks, token: &DriverToken) {
        let (loads, memory) = (self.part.loads(), self.part.memory);
        while self.copies.begun < self.pieces {
            let piece = self.copies.begun;
            let ready = if loads { self.is_free(chunks, self.copies) } else { piece < self.filled(chunks) };
            if !ready {
                break;
            }
            let (offset, bytes) = self.extent(piece);
            let number = self.first + piece;
            if let Some(at) = memory.map(|at| DevicePtr(at.0 + offset as u64)) {
                // SAFETY: the caller's contract; waited for below, or in `finish`.
                self.outcome.note(unsafe {
                    if loads {
                        chunks.load(number, at, bytes, token)
                    } else {
                        chunks.store(number, at, bytes, token)
                    }
                });
            }
            let lanes = &chunks.lanes;
            let slot = number as usize;
            self.outcome.note(if loads { lanes.loaded(slot, token) } else { lanes.stored(slot, token) });
            self.copies.begun += 1;
        }
        while self.copies.ended < self.copies.begun {
            match chunks.lanes.has_ended((self.first + self.copies.ended) as usize, token) {
                Ok(false) => break,
                Ok(true) => {}
                // The ranks behind wait for the piece all the same, and are told at the end.
                Err(error) => self.outcome.note(Err(error)),
            }
            self.copies.ended += 1;
            if loads {
                chunks.fill(self.first + self.copies.ended);
            }
        }
    }

    fn link(
        &mut self,
        link: Link,
        chunks: &Chunks,
        start: &mut dyn FnMut(*mut u8, usize) -> Answer<Option<Request>>,
    ) -> Answer<()> {
        while self.links.begun < self.pieces {
            let piece = self.links.begun;
            let ready = match link {
                Link::Sends => piece < self.filled(chunks),
                Link::Receives => self.is_free(chunks, self.links),
            };
            if !ready {
                break;
            }
            let (_, bytes) = self.extent(piece);
            self.requests.push_back(start(chunks.slot(self.first + piece), bytes)?);
            self.links.begun += 1;
        }
        while let Some(request) = self.requests.front_mut() {
            if let Some(request) = request {
                match request.test() {
                    Ok(None) => break,
                    ended => self.outcome.ended(ended.map(drop)),
                }
            }
            self.requests.pop_front();
            self.links.ended += 1;
            if link == Link::Receives {
                chunks.fill(self.first + self.links.ended);
            }
        }
        Ok(())
    }

    /// Whether there is nothing left for this rank to do.
    pub(crate) fn is_done(&self, chunks: &Chunks) -> bool {
        let copied = !(self.part.loads() || self.part.stores()) || self.copies.ended == self.pieces;
        let linked = self.part.link.is_none() || self.links.ended == self.pieces;
        (copied && linked) || self.outcome.mpi.is_some() || chunks.is_broken(self.end())
    }

    /// Waits for the copies, and lets the next transfer begin.
    pub(crate) fn finish(mut self, chunks: &mut Chunks, token: &DriverToken) -> Outcome {
        // Requests that are left (after a failure) end before their slots are used again.
        self.requests.clear();
        self.outcome.note(chunks.lanes.wait_all(token));
        if self.part.fills() {
            chunks.fill(self.end());
        }
        chunks.done(self.end());
        chunks.pieces = self.end();
        self.outcome.is_cut = self.outcome.mpi.is_none() && chunks.is_broken(self.end());
        self.outcome
    }

    /// All of it. `between` two turns says whether the first did anything: if not, others have
    /// to come first.
    ///
    /// # Safety
    /// As [`turn`](Relay::turn)'s, until it returns.
    pub(crate) unsafe fn run(
        mut self,
        chunks: &mut Chunks,
        mut start: impl FnMut(*mut u8, usize) -> Answer<Option<Request>>,
        mut between: impl FnMut(bool),
        token: &DriverToken,
    ) -> Outcome {
        while !self.is_done(chunks) {
            // SAFETY: the caller's contract.
            between(unsafe { self.turn(chunks, &mut start, token) });
        }
        self.finish(chunks, token)
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::{Shape, Shared};
    use super::*;
    use crate::buffers::{DeviceBuf, Gpu};
    use crate::error::MpiError;
    use pinyard_driver::{Call, Simulated};
    use std::sync::{Arc, mpsc};

    const SLOT: usize = 4096;

    struct Rank {
        simulated: Arc<Simulated>,
        buffer: DeviceBuf<u8>,
        chunks: Chunks,
    }

    /// The ranks of one node, of which `root` has `bytes`.
    fn node(ranks: usize, slots: usize, bytes: &[u8], root: Option<usize>) -> Vec<Rank> {
        let devices: Vec<_> = (0..ranks).map(|_| Arc::new(Simulated::new(64 << 20))).collect();
        let gpus: Vec<Gpu> = devices.iter().map(|device| Gpu::new(device.clone()).unwrap()).collect();
        let views = Shared::of_one_process(Shape { ranks, slots, slot_bytes: SLOT });
        let token = DriverToken::at_entry();
        let chunks = views.into_iter().zip(&gpus).enumerate();
        let chunks: Vec<Chunks> =
            chunks.map(|(place, (view, gpu))| Chunks::pin(gpu, view, Some(place), &token).unwrap()).collect();
        let ranks = devices.into_iter().zip(gpus).zip(chunks).enumerate();
        ranks
            .map(|(place, ((simulated, gpu), chunks))| {
                let mut buffer = gpu.alloc::<u8>(bytes.len(), &gpu.stream().unwrap()).unwrap();
                if root == Some(place) {
                    buffer.write(bytes).unwrap();
                } else {
                    buffer.write(&vec![0; bytes.len()]).unwrap();
                }
                Rank { simulated, buffer, chunks }
            })
            .collect()
    }

    type Start<'a> = Box<dyn FnMut(*mut u8, usize) -> Answer<Option<Request>> + Send + 'a>;

    impl Rank {
        fn takes_part(
            &mut self,
            is_root: bool,
            link: Option<Link>,
            bytes: usize,
            start: Start<'_>,
        ) -> Outcome {
            let part = Part { is_root, memory: Some(self.buffer.ptr()), link };
            let transfer = Relay::new(&self.chunks, part, bytes, SLOT);
            let token = DriverToken::at_entry();
            // SAFETY: the buffer has the bytes and is settled by `write`.
            unsafe { transfer.run(&mut self.chunks, start, |_| std::thread::yield_now(), &token) }
        }
    }

    fn nothing() -> Start<'static> {
        Box::new(|_, _| Ok(None))
    }

    fn pattern(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at / SLOT * 31 + at) as u8).collect()
    }

    #[test]
    fn every_rank_of_a_node_gets_every_piece_transfer_after_transfer() {
        for (ranks, slots) in [(2, 2), (3, 4), (4, 3)] {
            for length in [1, SLOT, 3 * SLOT + 5, 17 * SLOT] {
                let bytes = pattern(length);
                let mut ranks = node(ranks, slots, &bytes, Some(0));
                std::thread::scope(|scope| {
                    for (place, rank) in ranks.iter_mut().enumerate() {
                        scope.spawn(move || {
                            for _ in 0..3 {
                                let outcome = rank.takes_part(place == 0, None, length, nothing());
                                assert!(outcome.device.is_none() && !outcome.is_cut);
                            }
                        });
                    }
                });
                for rank in &ranks {
                    assert!(rank.buffer.to_vec().unwrap() == bytes);
                    assert_eq!(rank.simulated.offences(), Vec::<String>::new());
                }
            }
        }
    }

    /// From a root that is not the first of its node to two nodes, whose first ranks are
    /// joined by a channel. The receiving end fails after `good` pieces.
    fn between_two_nodes(length: usize, good: usize) -> (Vec<(bool, Outcome)>, Vec<Vec<u8>>) {
        let bytes = pattern(length);
        let mut home = node(2, 3, &bytes, Some(1));
        let mut other = node(3, 2, &bytes, None);
        let (to, from) = mpsc::channel::<Vec<u8>>();
        let send: Start<'_> = Box::new(move |slot, bytes| {
            // SAFETY: a slot of these bytes that nobody writes now.
            let piece = unsafe { std::slice::from_raw_parts(slot, bytes) }.to_vec();
            // Nobody may listen any more.
            let _ = to.send(piece);
            Ok(None)
        });
        let mut left = good;
        let receive: Start<'_> = Box::new(move |slot, bytes| {
            if left == 0 {
                return Err(MpiError { call: "MPI_Ibcast", code: 15, text: "truncated".to_owned() });
            }
            left -= 1;
            let piece = from.recv().unwrap();
            assert_eq!(piece.len(), bytes);
            // SAFETY: a slot of these bytes that nobody else uses now.
            unsafe { slot.copy_from(piece.as_ptr(), bytes) };
            Ok(None)
        });
        let [first, root] = &mut home[..] else { unreachable!() };
        let [entry, second, third] = &mut other[..] else { unreachable!() };
        let outcomes = std::thread::scope(|scope| {
            let ranks = [
                scope.spawn(|| (false, first.takes_part(false, Some(Link::Sends), length, send))),
                scope.spawn(|| (false, root.takes_part(true, None, length, nothing()))),
                scope.spawn(|| (true, entry.takes_part(false, Some(Link::Receives), length, receive))),
                scope.spawn(|| (true, second.takes_part(false, None, length, nothing()))),
                scope.spawn(|| (true, third.takes_part(false, None, length, nothing()))),
            ];
            ranks.map(|rank| rank.join().unwrap()).into_iter().collect()
        });
        let contents = home.iter().chain(&other).map(|rank| rank.buffer.to_vec().unwrap()).collect();
        (outcomes, contents)
    }

    #[test]
    fn the_first_ranks_of_nodes_hand_the_pieces_on() {
        for length in [1, SLOT, 23 * SLOT + 77] {
            let (outcomes, contents) = between_two_nodes(length, usize::MAX);
            assert!(outcomes.iter().all(|(_, outcome)| outcome.mpi.is_none() && outcome.device.is_none()));
            assert!(contents.into_iter().all(|bytes| bytes == pattern(length)));
        }
    }

    #[test]
    fn a_node_whose_first_rank_mpi_fails_is_cut_off_and_the_other_goes_on() {
        let (outcomes, contents) = between_two_nodes(9 * SLOT, 4);
        let cut: Vec<bool> = outcomes.iter().map(|(_, outcome)| outcome.is_cut).collect();
        assert_eq!(cut, [false, false, false, true, true]);
        assert_eq!(outcomes[2].1.mpi.as_ref().map(|error| error.code), Some(15));
        assert!(contents[..2].iter().all(|bytes| *bytes == pattern(9 * SLOT)));
    }

    #[test]
    fn a_refused_copy_is_told_and_the_others_get_their_pieces() {
        for (place, call) in [(0, Call::CopyToHost), (1, Call::CopyToDevice)] {
            let bytes = pattern(9 * SLOT);
            let mut ranks = node(3, 3, &bytes, Some(0));
            ranks[place].simulated.fail_next(call, 1, 700);
            let codes: Vec<Option<i32>> = std::thread::scope(|scope| {
                let started = ranks.iter_mut().enumerate().map(|(place, rank)| {
                    scope.spawn(move || rank.takes_part(place == 0, None, bytes_of(9), nothing()))
                });
                let started: Vec<_> = started.collect();
                started.into_iter().map(|rank| rank.join().unwrap().device.map(|error| error.code)).collect()
            });
            let mut expected = vec![None; 3];
            expected[place] = Some(700);
            assert_eq!(codes, expected);
            if place == 1 {
                assert!(ranks[2].buffer.to_vec().unwrap() == bytes);
            }
        }
    }

    fn bytes_of(pieces: usize) -> usize {
        pieces * SLOT
    }
}
