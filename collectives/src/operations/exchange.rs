//! Send, Recv and Sendrecv of device buffers.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::{Memory, extent, piece};
use crate::buffers::{Settled, SettledMut};
use crate::calls::{Comm, Request};
use crate::communicator::{DeviceCommunicator, State};
use crate::error::Error;
use crate::immediate::Key;
use crate::paths::{Kind, MESSAGE, Message, Path, run};
use bytemuck::Pod;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;

const SEND: &str = "MPI_Send of device memory";
const RECEIVE: &str = "MPI_Recv of device memory";

/// A buffer and the rank at the other end.
#[derive(Clone, Copy)]
struct Leg {
    peer: Rank,
    memory: Memory,
}

impl DeviceCommunicator {
    /// Sends to rank `to`, which receives with the same `tag`, 0 to 32767. More than 2 KiB
    /// are sent when the other rank receives, not before.
    pub fn send<T: Pod>(&self, to: Rank, tag: i32, buffer: &Settled<'_, T>) -> Result<(), Error> {
        self.transfer::<T>(Some((to, buffer)), None, tag).map(drop)
    }

    /// Receives what rank `from` sends with this `tag`: how many elements. More than the
    /// buffer has are [`Error::Counts`].
    pub fn receive_into<T: Pod>(
        &self,
        from: Rank,
        tag: i32,
        buffer: &mut SettledMut<'_, T>,
    ) -> Result<usize, Error> {
        self.transfer::<T>(None, Some((from, buffer)), tag)
    }

    /// Both at a time (MPI_Sendrecv): sends to `to` and receives from `from`, whichever
    /// ranks these are, this one included.
    pub fn exchange<T: Pod>(
        &self,
        to: Rank,
        sent: &Settled<'_, T>,
        from: Rank,
        received: &mut SettledMut<'_, T>,
        tag: i32,
    ) -> Result<usize, Error> {
        self.transfer(Some((to, sent)), Some((from, received)), tag)
    }

    fn transfer<T: Pod>(
        &self,
        out: Option<(Rank, &Settled<'_, T>)>,
        into: Option<(Rank, &mut SettledMut<'_, T>)>,
        tag: i32,
    ) -> Result<usize, Error> {
        let mut own = [Ok(()), Ok(())];
        let out = out.map(|(peer, buffer)| {
            own[0] = self.own(buffer.place());
            Leg { peer, memory: Memory::of::<T>(buffer.place(), buffer.len()) }
        });
        let into = into.map(|(peer, buffer)| {
            own[1] = self.own(buffer.place());
            Leg { peer, memory: Memory::of::<T>(buffer.place(), buffer.len()) }
        });
        let peers: Vec<Rank> = out.iter().chain(&into).map(|leg| leg.peer).collect();
        self.ready(&peers)?;
        if !(0..=Comm::MOST_TAG).contains(&tag) {
            let text = format!("tag {tag}: 0 to {} are possible", Comm::MOST_TAG);
            return Err(Error::Foreign { operation: SEND, rank: self.rank(), text });
        }
        // What does not block and was begun before has its messages first.
        if let Some(leg) = &out {
            self.engine.finish(Key::Send(leg.peer, tag));
        }
        if let Some(leg) = &into {
            self.engine.finish(Key::Receive(leg.peer, tag));
        }
        let sum = out.iter().chain(&into).map(|leg| leg.memory.bytes).sum();
        let _call = self.traced(if out.is_some() { SEND } else { RECEIVE }, sum);
        let bytes = if self.plan.path == Path::Direct {
            self.directly(out, into, tag)?
        } else {
            self.with_messages(out, into, tag, own)?
        };
        Ok(bytes / size_of::<T>().max(1))
    }

    /// With the device pointers themselves. Bytes received.
    fn directly(&self, out: Option<Leg>, into: Option<Leg>, tag: i32) -> Result<usize, Error> {
        if let Some(leg) = out.iter().chain(&into).find(|leg| leg.memory.bytes > i32::MAX as usize) {
            return Err(Error::TooLong { rank: self.rank(), bytes: leg.memory.bytes });
        }
        let failed = |error| self.report.mpi(error);
        let whole = &self.whole;
        // SAFETY: settled memory, borrowed for the call, of which MPI takes the addresses (the
        // plan); the requests end before it does.
        let receive = into.map(|Leg { peer, memory }| unsafe {
            whole.start_receive(memory.host(), memory.bytes, peer, tag)
        });
        let receive = receive.transpose().map_err(failed)?;
        // SAFETY: as above.
        let send = out
            .map(|Leg { peer, memory }| unsafe { whole.start_send(memory.host(), memory.bytes, peer, tag) });
        let send = send.transpose().map_err(failed)?;
        let received = receive.map(Request::wait_for_bytes).transpose().map_err(failed)?;
        send.map(Request::wait).transpose().map_err(failed)?;
        Ok(received.unwrap_or(0))
    }

    /// With a message first, and then on the path that the sender took. Bytes received. One leg's
    /// failure is none of the other's: what comes is received where sending has failed.
    fn with_messages(
        &self,
        out: Option<Leg>,
        into: Option<Leg>,
        tag: i32,
        [mut goes, mut comes]: [Result<(), Error>; 2],
    ) -> Result<usize, Error> {
        let token = DriverToken::at_entry();
        let state = &mut *self.state.borrow_mut();
        let failed = |error| self.report.mpi(error);
        // To oneself device to device only where this call receives as well.
        let at_once = |leg: Leg| leg.peer != self.rank() || into.is_some_and(|into| into.peer == leg.peer);
        let sent = out.map(|leg| self.announce(state, leg, at_once(leg), &mut goes, &token));
        let (at_out, at_in) = (state.messages.slot(0), state.messages.slot(1));
        // SAFETY: slot 1 is a message long, and used by nobody else before the wait.
        let receive = into.map(|leg| unsafe { self.whole.start_receive(at_in, MESSAGE, leg.peer, tag) });
        let receive = receive.transpose().map_err(failed)?;
        // SAFETY: slot 0 is a message long, and not written before the wait.
        let send = out.map(|leg| unsafe { self.whole.start_send(at_out, MESSAGE, leg.peer, tag) });
        let send = send.transpose().map_err(failed)?;
        receive.map(Request::wait).transpose().map_err(failed)?;
        let mut told = Message { kind: Kind::Inline, bytes: 0 };
        // What fits: a longer message is taken out of MPI all the same.
        let mut target = None;
        if let Some(leg) = into {
            told = self.report.understood(RECEIVE, state.messages.bytes(1, MESSAGE))?;
            let fits = told.bytes <= leg.memory.bytes as u64;
            if let Kind::Failed(what) = told.kind {
                let failure = self.report.peer(RECEIVE, leg.peer, what);
                comes = comes.and(Err(failure));
            } else if !fits {
                comes = comes.and(Err(self.report.unequal(RECEIVE, leg.memory.bytes, leg.peer, told.bytes)));
            }
            if fits && comes.is_ok() {
                target = Some(Memory { bytes: told.bytes as usize, ..leg.memory });
            }
            if told.kind == Kind::Inline
                && let Some(memory) = target
            {
                let unpacked = self.unpack(state, 1, memory, &token);
                comes = comes.and(unpacked);
            }
            if let Kind::Ipc(there) = told.kind {
                let pulled = match target {
                    Some(memory) => self.pull(state, leg.peer, &there, memory, &token),
                    None => Ok(()),
                };
                comes = comes.and(pulled);
                self.reply(leg.peer, tag, self.report.answer(&comes))?;
            }
        }
        send.map(Request::wait).transpose().map_err(failed)?;
        let staged_out = out.filter(|_| sent == Some(Kind::Staged));
        let staged_in = into.filter(|_| told.kind == Kind::Staged);
        if staged_out.is_some() || staged_in.is_some() {
            let incoming = staged_in.map(|leg| (leg.peer, told.bytes as usize));
            let moved = self.staged_legs(state, staged_out, incoming, target, tag, &token)?;
            // Behind the pieces: whether they are what was to be sent.
            let word = staged_out.map(|leg| (self.report.answer(&moved), leg.peer));
            let from = staged_in.map(|leg| leg.peer);
            let told = self.whole.exchange_words(word, from, tag).map_err(failed)?;
            match staged_in {
                Some(_) => comes = comes.and(moved),
                None => goes = goes.and(moved),
            }
            comes = comes.and(self.report.told(RECEIVE, told.unwrap_or(0)));
            if let Some(leg) = staged_in {
                self.reply(leg.peer, tag, self.report.answer(&comes))?;
            }
        }
        if let Some(leg) = out.filter(|_| sent.is_some_and(Kind::is_answered)) {
            let answer = self.await_reply(leg.peer, tag)?;
            goes = goes.and(self.report.told(SEND, answer));
        }
        comes.and(goes).map(|()| told.bytes as usize)
    }

    /// Writes the message of an outgoing leg to slot 0.
    fn announce(
        &self,
        state: &mut State,
        leg: Leg,
        at_once: bool,
        mine: &mut Result<(), Error>,
        token: &DriverToken,
    ) -> Kind {
        let near =
            at_once && self.plan.path.has_ipc() && self.nodes.of(leg.peer) == self.nodes.of(self.rank());
        let through = if near { Path::Ipc } else { Path::Staged };
        let kind = self.kind(state, leg.memory, through, mine, token);
        Message { kind, bytes: leg.memory.bytes as u64 }.write(state.messages.bytes(0, MESSAGE));
        kind
    }

    /// Tells a sender how it went. To itself a rank has nothing to say: it knows.
    fn reply(&self, to: Rank, tag: i32, answer: u64) -> Result<(), Error> {
        if to == self.rank() {
            return Ok(());
        }
        self.answers.send_word(answer, to, tag).map_err(|error| self.report.mpi(error))
    }

    fn await_reply(&self, from: Rank, tag: i32) -> Result<u64, Error> {
        if from == self.rank() {
            return Ok(0);
        }
        self.answers.receive_word(from, tag).map_err(|error| self.report.mpi(error))
    }

    /// Chunks both ways, piece by piece. Each direction has its own count of them.
    fn staged_legs(
        &self,
        state: &mut State,
        out: Option<Leg>,
        into: Option<(Rank, usize)>,
        target: Option<Memory>,
        tag: i32,
        token: &DriverToken,
    ) -> Result<Result<(), Error>, Error> {
        let ring = &mut state.ring;
        // Half a slot each way.
        let half = ring.slot_bytes().min(self.plan.chunk_bytes) / 2;
        let pieces = |bytes: usize| (piece(bytes, half), bytes.div_ceil(piece(bytes, half)));
        let (out_piece, out_pieces) = out.map_or((1, 0), |leg| pieces(leg.memory.bytes));
        let (in_piece, in_pieces) = into.map_or((1, 0), |(_, bytes)| pieces(bytes));
        let whole = &self.whole;
        // SAFETY: settled memory of these bytes, borrowed until the caller returns; two pieces
        // fit a slot.
        let outcome = unsafe {
            run(
                ring,
                out_pieces.max(in_pieces),
                token,
                |number, copy| {
                    if let Some(Leg { memory, .. }) = out.filter(|_| number < out_pieces) {
                        let (start, length) = extent(memory.bytes, out_piece, number);
                        copy(memory.byte(start), 0, length);
                    }
                },
                |number, slot| {
                    let receive = into.filter(|_| number < in_pieces).map(|(peer, bytes)| {
                        let (_, length) = extent(bytes, in_piece, number);
                        whole.start_receive(slot.wrapping_add(half), length, peer, tag)
                    });
                    let receive = receive.transpose()?;
                    let send = out.filter(|_| number < out_pieces).map(|Leg { peer, memory }| {
                        let (_, length) = extent(memory.bytes, out_piece, number);
                        whole.start_send(slot, length, peer, tag)
                    });
                    Ok([receive, send.transpose()?])
                },
                |number, copy| {
                    if let Some(memory) = target.filter(|_| number < in_pieces) {
                        let (start, length) = extent(memory.bytes, in_piece, number);
                        copy(memory.byte(start), half, length);
                    }
                },
            )
        };
        self.report.ended(outcome)
    }
}
