//! Send, Recv and Sendrecv that do not block, and the steps that those that block take as well
//! (`blocking.rs`). Each side may be either.
#![allow(unsafe_code)] // names device memory to copies that have ended when it is done

use super::desk::Desk;
use super::engine::{Handed, Key, Work};
use super::lent::{Lent, Marks, Receiving, Sending};
use super::pipeline::{Copy, flow};
use super::request::{OwnedRequest, Request};
use super::scope::Scope;
use super::slots::Slots;
use super::steps::{done, receive_word, send_word};
use crate::buffers::{BufferStream, DeviceBuf};
use crate::calls::Comm;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::operations::{Memory, extent, piece};
use crate::paths::{Kind, MESSAGE, Message, Path};
use bytemuck::Pod;
use mpi::topology::Rank;
use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

const SEND: &str = "MPI_Isend of device memory";
const RECEIVE: &str = "MPI_Irecv of device memory";

impl DeviceCommunicator {
    /// [`send`](DeviceCommunicator::send) that does not block.
    pub fn immediate_send<'scope, T: Pod>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        to: Rank,
        tag: i32,
        buffer: impl Sending<'scope, T>,
    ) -> Result<Request<'scope, ()>, Error> {
        let id = self.begin_message::<T>(Way::To, to, tag, buffer.lent())?;
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    /// [`receive_into`](DeviceCommunicator::receive_into) that does not block: how many
    /// elements.
    pub fn immediate_receive_into<'scope, T: Pod>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        from: Rank,
        tag: i32,
        buffer: impl Receiving<'scope, T>,
    ) -> Result<Request<'scope, usize>, Error> {
        let id = self.begin_message::<T>(Way::From, from, tag, buffer.lent())?;
        Ok(Request::new(scope, &self.engine, id, |bytes| bytes / size_of::<T>().max(1)))
    }

    /// A send with a buffer of its own, which comes back with the result: without a scope.
    pub fn immediate_send_owned<T: Pod, S: BufferStream>(
        &self,
        to: Rank,
        tag: i32,
        mut buffer: DeviceBuf<T, S>,
    ) -> Result<OwnedRequest<T, S>, Error> {
        let id = self.begin_message::<T>(Way::To, to, tag, buffer.lent_whole())?;
        Ok(OwnedRequest::new(&self.engine, id, buffer))
    }

    /// A receive with a buffer of its own, which comes back with the result: without a
    /// scope.
    pub fn immediate_receive<T: Pod, S: BufferStream>(
        &self,
        from: Rank,
        tag: i32,
        mut buffer: DeviceBuf<T, S>,
    ) -> Result<OwnedRequest<T, S>, Error> {
        let id = self.begin_message::<T>(Way::From, from, tag, buffer.lent_whole())?;
        Ok(OwnedRequest::new(&self.engine, id, buffer))
    }

    /// [`exchange`](DeviceCommunicator::exchange) that does not block: how many elements were
    /// received. It is done when both are; behind it, messages from the same rank with the
    /// same tag begin when its own has come.
    pub fn immediate_exchange<'scope, T: Pod>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        to: Rank,
        sent: impl Sending<'scope, T>,
        from: Rank,
        received: impl Receiving<'scope, T>,
        tag: i32,
    ) -> Result<Request<'scope, usize>, Error> {
        self.ready(&[to, from])?;
        // Neither is begun where the other cannot be.
        let send = self.message::<T>(SEND, Way::To, (to, tag), sent.lent())?;
        let receive = self.message::<T>(RECEIVE, Way::From, (from, tag), received.lent())?;
        let (sent, over) = (Rc::new(Cell::new(None)), receive.handed.clone());
        let told = sent.clone();
        let first = async move {
            told.set(Some(send.work.await));
            Ok(0)
        };
        let both = async move {
            let received = receive.work.await;
            over.over();
            let sent = poll_fn(|_| sent.take().map_or(Poll::Pending, Poll::Ready)).await;
            received.and_then(|bytes| sent.map(|_| bytes))
        };
        let first = self.engine.submit(send.key, send.handed, Box::pin(first));
        // The other one has its result, and ends after it.
        self.engine.drop_request(first, None);
        let id = self.engine.submit(receive.key, receive.handed, Box::pin(both));
        Ok(Request::new(scope, &self.engine, id, |bytes| bytes / size_of::<T>().max(1)))
    }

    fn begin_message<T: Pod>(&self, way: Way, peer: Rank, tag: i32, buffer: Lent<'_>) -> Result<u64, Error> {
        let operation = match way {
            Way::To => SEND,
            Way::From => RECEIVE,
        };
        let Ready { key, handed, work, .. } = self.message::<T>(operation, way, (peer, tag), buffer)?;
        Ok(self.engine.submit(key, handed, work))
    }

    /// A message that errors name `operation`.
    pub(super) fn message<T: Pod>(
        &self,
        operation: &'static str,
        way: Way,
        (peer, tag): (Rank, i32),
        buffer: Lent<'_>,
    ) -> Result<Ready, Error> {
        self.ready(&[peer])?;
        if !(0..=Comm::MOST_TAG).contains(&tag) {
            let text = format!("tag {tag}: 0 to {} are possible", Comm::MOST_TAG);
            return Err(Error::Foreign { operation, rank: self.rank(), text });
        }
        let (own, memory) = (self.own(buffer.place), buffer.memory::<T>());
        if self.desk.plan.path == Path::Direct && memory.bytes > i32::MAX as usize {
            return Err(Error::TooLong { rank: self.rank(), bytes: memory.bytes });
        }
        let (desk, handed) = (self.desk.clone(), Handed::default());
        let leg = Leg { operation, peer, tag, memory };
        let work = message(desk, handed.clone(), way, leg, buffer.marks, own);
        let key = match way {
            Way::To => Key::Send(peer, tag),
            Way::From => Key::Receive(peer, tag),
        };
        Ok(Ready { key, handed, bytes: memory.bytes, work: Box::pin(work) })
    }
}

/// A message that is not begun.
pub(super) struct Ready {
    pub(super) key: Key,
    handed: Handed,
    /// Of the buffer.
    pub(super) bytes: usize,
    pub(super) work: Work,
}

#[derive(Clone, Copy)]
pub(super) enum Way {
    To,
    From,
}

#[derive(Clone, Copy)]
struct Leg {
    /// For errors.
    operation: &'static str,
    peer: Rank,
    tag: i32,
    memory: Memory,
}

async fn message(
    desk: Rc<Desk>,
    handed: Handed,
    way: Way,
    leg: Leg,
    marks: Option<Marks>,
    mine: Result<(), Error>,
) -> Result<usize, Error> {
    let mine = desk.passed([marks], mine).await;
    if desk.plan.path == Path::Direct {
        let moved = directly(&desk, &handed, way, leg).await;
        return mine.and(moved);
    }
    let (mut slots, mine) = Slots::of(&desk.rings, mine);
    let done = match way {
        Way::To => send(&desk, &mut slots, leg, mine).await,
        Way::From => receive(&desk, &mut slots, leg, mine).await,
    };
    slots.give_back(&desk.rings);
    done
}

async fn directly(desk: &Desk, handed: &Handed, way: Way, leg: Leg) -> Result<usize, Error> {
    let Leg { peer, tag, memory, .. } = leg;
    // SAFETY: lent memory, which stands until the operation is done; MPI takes its address
    // (the plan).
    let request = unsafe {
        match way {
            Way::To => desk.whole.start_send(memory.host(), memory.bytes, peer, tag),
            Way::From => desk.whole.start_receive(memory.host(), memory.bytes, peer, tag),
        }
    };
    handed.over();
    done(request.map_err(|error| desk.report.mpi(error))?).await.map_err(|error| desk.report.mpi(error))
}

/// A message, and then on the path that it tells.
async fn send(desk: &Desk, slots: &mut Slots, leg: Leg, mut mine: Result<(), Error>) -> Result<usize, Error> {
    let Leg { operation, peer, tag, memory } = leg;
    let failed = |error| desk.report.mpi(error);
    let through = if desk.is_near(peer) { Path::Ipc } else { Path::Staged };
    let mut kind = desk.kind(slots, memory, through, &mut mine).await;
    let mut chunks = None;
    if kind == Kind::Staged {
        match desk.rings.long(piece_of_message(desk, memory.bytes)) {
            Ok(ring) => chunks = Some(ring),
            Err(error) => {
                kind = Kind::Failed(error.failure());
                mine = Err(error);
            }
        }
    }
    Message { kind, bytes: memory.bytes as u64 }.write(slots.message(0));
    let at = slots.message(0).as_ptr();
    // SAFETY: a message's bytes, not written before the request is done.
    let request = unsafe { desk.whole.start_send(at, MESSAGE, peer, tag) }.map_err(failed)?;
    done(request).await.map_err(failed)?;
    if let Some(ring) = &mut chunks {
        let (bytes, piece) = (memory.bytes, piece_of_message(desk, memory.bytes));
        // SAFETY: lent memory of these bytes, which stands until the operation is done; a piece
        // fits a slot.
        let outcome = unsafe {
            flow(
                ring,
                bytes.div_ceil(piece),
                |number| {
                    let (start, length) = extent(bytes, piece, number);
                    Some((memory.byte(start), 0, length))
                },
                |number, slot| desk.whole.start_send(slot, extent(bytes, piece, number).1, peer, tag),
                |_| None::<Copy>,
            )
        };
        mine = desk.report.ended(outcome.await)?;
        // Behind the pieces: whether they are what was to be sent.
        send_word(&desk.whole, desk.report.answer(&mine), peer, tag).await.map_err(failed)?;
    }
    if let Some(ring) = chunks {
        desk.rings.keep(ring);
    }
    if kind.is_answered() {
        let answer = receive_word(&desk.answers, peer, tag).await.map_err(failed)?;
        mine = mine.and_then(|()| desk.report.told(operation, answer));
    }
    mine.map(|()| 0)
}

async fn receive(
    desk: &Desk,
    slots: &mut Slots,
    leg: Leg,
    mut mine: Result<(), Error>,
) -> Result<usize, Error> {
    let Leg { operation, peer, tag, memory } = leg;
    let failed = |error| desk.report.mpi(error);
    let at = slots.message(0).as_mut_ptr();
    // SAFETY: a message's bytes, used by nobody else before the request is done.
    let request = unsafe { desk.whole.start_receive(at, MESSAGE, peer, tag) }.map_err(failed)?;
    done(request).await.map_err(failed)?;
    let told = desk.report.understood(operation, slots.message(0))?;
    let bytes = told.bytes as usize;
    if let Kind::Failed(what) = told.kind {
        mine = mine.and(Err(desk.report.peer(operation, peer, what)));
    } else if bytes > memory.bytes {
        mine = mine.and(Err(desk.report.unequal(operation, memory.bytes, peer, told.bytes)));
    }
    let target = mine.is_ok().then_some(Memory { bytes, ..memory });
    match (told.kind, target, slots.ring()) {
        (Kind::Inline, Some(target), Some(ring)) => mine = desk.unpack(ring, 0, target).await,
        (Kind::Ipc(there), Some(target), Some(ring)) => mine = desk.pull(ring, peer, &there, target).await,
        (Kind::Staged, target, _) => {
            let moved = receive_pieces(desk, Leg { memory: Memory { bytes, ..memory }, ..leg }, target);
            mine = mine.and(moved.await?);
            let word = receive_word(&desk.whole, peer, tag).await.map_err(failed)?;
            mine = mine.and(desk.report.told(operation, word));
        }
        _ => {}
    }
    if told.kind.is_answered() {
        send_word(&desk.answers, desk.report.answer(&mine), peer, tag).await.map_err(failed)?;
    }
    mine.map(|()| bytes)
}

/// Bytes of a piece, the same at both ranks: half a chunk at most.
fn piece_of_message(desk: &Desk, bytes: usize) -> usize {
    piece(bytes, desk.plan.chunk_bytes / 2)
}

/// Pieces of the message to `target`. A rank that has failed, as one without chunks has, takes
/// them out of MPI all the same. The outer error is MPI's.
async fn receive_pieces(
    desk: &Desk,
    Leg { peer, tag, memory: Memory { bytes, .. }, .. }: Leg,
    target: Option<Memory>,
) -> Result<Result<(), Error>, Error> {
    let piece = piece_of_message(desk, bytes);
    let pieces = bytes.div_ceil(piece);
    // SAFETY: of the caller's: a slot or memory of a piece, used by nobody else before the request
    // is done.
    let start =
        |number, slot| unsafe { desk.whole.start_receive(slot, extent(bytes, piece, number).1, peer, tag) };
    let ring = target.map(|target| desk.rings.long(piece).map(|ring| (target, ring)));
    let (target, mut ring) = match ring {
        Some(Ok(both)) => both,
        failed => {
            let (mut slot, mut lost) = (vec![0; piece], Ok(()));
            for number in 0..pieces {
                let request = start(number, slot.as_mut_ptr()).map_err(|error| desk.report.mpi(error))?;
                // The next ones come in any case.
                let ended = done(request).await.map(drop);
                lost = lost.and(ended.map_err(|error| desk.report.mpi(error)));
            }
            return Ok(failed.map_or(Ok(()), |failed| failed.map(drop)).and(lost));
        }
    };
    // SAFETY: lent memory of these bytes, which is nobody's until the operation is done; a piece
    // fits a slot.
    let outcome = unsafe {
        flow(
            &mut ring,
            pieces,
            |_| None::<Copy>,
            start,
            |number| {
                let (start, length) = extent(bytes, piece, number);
                Some((target.byte(start), 0, length))
            },
        )
    };
    let moved = desk.report.ended(outcome.await)?;
    desk.rings.keep(ring);
    Ok(moved)
}
