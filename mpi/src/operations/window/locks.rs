//! Windows whose parts a rank locks, puts to and gets from while the part's own rank does
//! something else (passive targets, as between `MPI_Win_lock` and `MPI_Win_unlock`).
//!
//! ```text
//! lock, lock_all   ipc         a word that the node's ranks share; nobody else is needed
//!                  otherwise   MPI's window over the memory
//! put, get         noted: nothing moves
//! flush, unlock    all of it, at once: by copies from device to device, or MPI_Put and MPI_Get
//! lock_own         this rank's own part, which nobody else uses then
//! ```
//!
//! The others write a part at any time, so the window has the memory itself, and gives it back
//! when all ranks have closed it: leaked, it is leaked with it. What is put and got is borrowed
//! until it has moved, and a guard that is leaked leaves nothing under way; its lock is given back
//! with the next one that this rank takes, or with the window.
#![allow(unsafe_code)] // names memory to copies that have ended when it returns

use super::guards::{Locked, LockedAll, Own};
use super::held::{Held, Lock, Means, Whom};
use super::memory::WindowMemory;
use super::memory::sealed::Lies;
use super::{Memory, Parts};
use crate::calls::Win;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::paths::{Locks, Path, Shape, Shared};
use mpi::topology::Rank;
use std::cell::Cell;
use std::marker::PhantomData;

const WINDOW: &str = "MPI_Win_create for locks";

/// Memory of every rank that the others put to and get from without its help. Made by
/// [`DeviceCommunicator::lock_window`].
///
/// A rank has one lock of a window at a time, for which it may have to wait: for another rank
/// that has it, and where MPI carries it out ([`DeviceCommunicator::lock_window`]) for the target
/// to call MPI. Closed, or dropped, by all ranks together; while a rank panics, and after
/// `MPI_Finalize`, its memory is leaked.
pub struct LockWindow<'w, B: WindowMemory> {
    ranks: &'w DeviceCommunicator,
    /// None once it is given back.
    memory: Option<B>,
    parts: Parts,
    means: Option<Means>,
    /// Of a guard: still there when the next one is taken, if that was leaked.
    locked: Cell<Option<Whom>>,
}

impl DeviceCommunicator {
    /// A window of every rank's `memory`, of whichever length, of one kind: a device's or the
    /// host's. It has the memory until it is closed. Collective.
    ///
    /// | memory | path | |
    /// | --- | --- | --- |
    /// | [`DeviceBuf`](crate::DeviceBuf) | `ipc` | copies from device to device; the target may do anything meanwhile |
    /// | | `direct` | MPI's one-sided operations get the pointers: see that it takes those too |
    /// | | `staged`, `ipc+staged` | refused, but for one rank: somebody at the target would have to copy between its device and the chunks |
    /// | [`PinnedBuf`](crate::PinnedBuf), [`HostBuf`](crate::HostBuf) | every one | MPI's one-sided operations. Most MPIs get on with them where the network does it, or when the target calls MPI |
    ///
    /// # Errors
    /// [`Error::Unsupported`] as said, [`Error::OtherDevice`], and what the driver or MPI says;
    /// the other ranks get [`Error::Peer`].
    pub fn lock_window<B: WindowMemory>(&self, memory: B) -> Result<LockWindow<'_, B>, Error> {
        self.ready(&[])?;
        let (mut memory, mut own) = (memory, Memory::NONE);
        let mut mine = match memory.settled() {
            Ok(Lies { memory, place }) => {
                own = memory;
                place.map_or(Ok(()), |place| self.own(place))
            }
            Err(error) => Err(self.report.staging(error)),
        };
        let _call = self.traced(WINDOW, own.bytes);
        let (alone, near) = (self.size() == 1, B::ON_DEVICE && self.plan.path == Path::Ipc);
        let unsupported =
            |reason: String| Error::Unsupported { operation: WINDOW, rank: self.rank(), reason };
        if B::ON_DEVICE && !near && !alone && self.plan.path != Path::Direct {
            let path = self.plan.path.name();
            mine = mine.and(Err(unsupported(format!(
                "on path {path} the target would have to copy between its device and pinned chunks, so it would have \
                 to take part: use DeviceCommunicator::window with its epochs, or pinned memory"
            ))));
        }
        // Untried, it is MPI's word, or the program's.
        if B::ON_DEVICE && !alone && self.plan.path == Path::Direct && !self.awareness().has_windows() {
            mine = mine.and(Err(unsupported(
                "MPI takes device pointers in messages but not in windows, as pinyard-mpi-probe has tried: use \
                 DeviceCommunicator::window with its epochs, or pinned memory"
                    .to_owned(),
            )));
        }
        self.same(WINDOW, 0, Ok(()))?;
        let mine = mine.and(self.of_one_kind(WINDOW, B::ON_DEVICE)?);
        let parts = self.tell_parts(WINDOW, own, mine)?;
        let means = if alone {
            Some(Means::Alone { on_device: B::ON_DEVICE })
        } else if near {
            let shape = Shape { ranks: self.nodes.here.size() as usize, slots: 0, slot_bytes: 0 };
            let shared = Shared::share(&self.nodes.here, shape).map_err(|error| self.report.mpi(error))?;
            let shared = shared.map_err(|reason| unsupported(format!("no memory for locks: {reason}")));
            let (mine, shared) = match shared {
                Ok(shared) => (Ok(()), Some(shared)),
                Err(error) => (Err(error), None),
            };
            self.agree(WINDOW, mine)?;
            shared.map(|shared| Means::Copies(Locks::new(shared)))
        } else {
            // SAFETY: the window has the memory, which goes after it (`give_back`), and lends it
            // to this process only while its own lock is held (`Own`). Of a device's memory MPI
            // takes the addresses (the plan).
            let win = unsafe { Win::create(&self.whole, own.host(), own.bytes) };
            let (win, mine) = match win {
                Ok(win) => (Some(win), Ok(())),
                Err(error) => (None, Err(self.report.mpi(error))),
            };
            if let Err(error) = self.agree(WINDOW, mine) {
                if win.is_some() {
                    // Not freed by all, so not by this one: the memory stays with it.
                    std::mem::forget((win, memory));
                }
                return Err(error);
            }
            win.map(Means::Mpi)
        };
        Ok(LockWindow { ranks: self, memory: Some(memory), parts, means, locked: Cell::new(None) })
    }
}

impl<B: WindowMemory> LockWindow<'_, B> {
    /// Elements of a rank's part. Like a slice's index, it panics if there is no such rank.
    pub fn len_of(&self, rank: Rank) -> usize {
        self.parts[rank as usize].bytes / B::ELEMENT.max(1)
    }

    /// Locks the part of rank `target` for puts and gets.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::Finalized`], and what MPI says.
    pub fn lock(&mut self, target: Rank, lock: Lock) -> Result<Locked<'_, '_, B>, Error> {
        Ok(Locked { held: self.hold(Whom::One(target, lock))?, target, borrows: PhantomData })
    }

    /// Shares the locks of all parts, this rank's own as well.
    ///
    /// # Errors
    /// [`Error::Finalized`], and what MPI says.
    pub fn lock_all(&mut self) -> Result<LockedAll<'_, '_, B>, Error> {
        Ok(LockedAll { held: self.hold(Whom::All)?, borrows: PhantomData })
    }

    /// Locks this rank's own part, alone, for itself.
    ///
    /// # Errors
    /// As [`lock`](LockWindow::lock).
    pub fn lock_own(&mut self) -> Result<Own<'_, B>, Error> {
        let whom = Whom::One(self.ranks.rank(), Lock::Exclusive);
        self.recover();
        let LockWindow { ranks, memory, parts, means, locked } = self;
        let held = Held::take(ranks, parts, means.as_ref(), whom, locked)?;
        match memory {
            Some(memory) => Ok(Own { ranks, memory, held: Some(held) }),
            // Given back, so the window is no more.
            None => Err(Error::Finalized { rank: ranks.rank() }),
        }
    }

    fn hold(&mut self, whom: Whom) -> Result<Held<'_>, Error> {
        self.recover();
        Held::take(self.ranks, &self.parts, self.means.as_ref(), whom, &self.locked)
    }

    /// Gives back the lock of a guard that was leaked: nothing is under way.
    fn recover(&mut self) {
        let (Some(whom), Some(means)) = (self.locked.get(), &self.means) else { return };
        if let Some(Err(error)) = self.memory.as_mut().map(B::settled) {
            tracing::error!(%error, "a window's part could not be waited for");
        }
        let (ranks, parts, locked) = (self.ranks, &self.parts, &self.locked);
        drop(Held { ranks, parts, means, whom, locked, asked: Vec::new() });
    }

    /// Ends the window, when all ranks have come to that, and gives the memory back. Collective.
    ///
    /// # Errors
    /// What MPI says: the memory is leaked then, as another rank may still use it.
    pub fn close(mut self) -> Result<B, Error> {
        let ended = self.end();
        match (ended, self.memory.take()) {
            (Ok(()), Some(memory)) => Ok(memory),
            (ended, memory) => {
                std::mem::forget((memory, self.means.take()));
                ended.and(Err(Error::Finalized { rank: self.ranks.rank() }))
            }
        }
    }

    /// Until nobody uses the memory.
    fn end(&mut self) -> Result<(), Error> {
        let rank = self.ranks.rank();
        if mpi::is_finalized() {
            return Err(Error::Finalized { rank });
        }
        self.recover();
        // `MPI_Win_free` need not wait for the others' gets.
        self.ranks.whole.barrier().map_err(|error| self.ranks.report.mpi(error))?;
        self.means = None;
        Ok(())
    }
}

impl<B: WindowMemory> Drop for LockWindow<'_, B> {
    fn drop(&mut self) {
        if self.memory.is_none() {
            return;
        }
        // The others may be inside it for good.
        let ended = !std::thread::panicking() && self.end().is_ok();
        if !ended {
            std::mem::forget((self.memory.take(), self.means.take()));
        }
    }
}

impl<B: WindowMemory> std::fmt::Debug for LockWindow<'_, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let by_mpi = matches!(self.means, Some(Means::Mpi(_)));
        f.debug_struct("LockWindow")
            .field("on_device", &B::ON_DEVICE)
            .field("by_mpi", &by_mpi)
            .finish_non_exhaustive()
    }
}
