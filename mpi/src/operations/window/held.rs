//! A lock of a window while it is held, and how what was asked for under it is carried out.
#![allow(unsafe_code)] // names memory to copies that have ended when it returns

use super::memory::sealed::{Lent, Lies};
use super::{Asked, Memory, Part, Way};
use crate::calls::Idle;
use crate::calls::Win;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::paths::Locks;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::DevicePtr;
use std::cell::Cell;

const FLUSH: &str = "MPI_Win_flush";

/// How a part is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// With others that share it: what they do to the same elements may come in any order.
    Shared,
    /// Alone.
    Exclusive,
}

/// What carries operations out.
pub(super) enum Means {
    /// Device to device, on one node.
    Copies(Locks),
    /// There is one rank, with memory of its device or of the host.
    Alone {
        on_device: bool,
    },
    Mpi(Win),
}

/// Whose lock is held.
#[derive(Clone, Copy)]
pub(super) enum Whom {
    One(Rank, Lock),
    All,
}

/// A lock that is held, and what was asked for under it: given back when it is dropped.
pub(super) struct Held<'l> {
    pub(super) ranks: &'l DeviceCommunicator,
    pub(super) parts: &'l [Part],
    pub(super) means: &'l Means,
    pub(super) whom: Whom,
    /// The window's.
    pub(super) locked: &'l Cell<Option<Whom>>,
    pub(super) asked: Vec<Asked>,
}

impl<'l> Held<'l> {
    /// Waits for it.
    pub(super) fn take(
        ranks: &'l DeviceCommunicator,
        parts: &'l [Part],
        means: Option<&'l Means>,
        whom: Whom,
        locked: &'l Cell<Option<Whom>>,
    ) -> Result<Held<'l>, Error> {
        match whom {
            Whom::One(target, _) => ranks.ready(&[target])?,
            Whom::All => ranks.ready(&[])?,
        }
        let Some(means) = means else { return Err(Error::Finalized { rank: ranks.rank() }) };
        match (means, whom) {
            (Means::Copies(locks), whom) => {
                for (target, lock) in whom.each(ranks.size()) {
                    let mut idle = Idle::default();
                    locks.take(target as usize, lock, || idle.turn(&ranks.whole));
                }
            }
            (Means::Alone { .. }, _) => {}
            (Means::Mpi(win), Whom::One(target, lock)) => {
                win.lock(target, lock).map_err(|error| ranks.report.mpi(error))?;
            }
            (Means::Mpi(win), Whom::All) => win.lock_all().map_err(|error| ranks.report.mpi(error))?,
        }
        locked.set(Some(whom));
        Ok(Held { ranks, parts, means, whom, locked, asked: Vec::new() })
    }

    pub(super) fn ask<'b>(
        &mut self,
        way: Way,
        target: Rank,
        at: usize,
        lent: &impl Lent<'b>,
        element: usize,
    ) -> Result<(), Error> {
        let Lies { memory, place } = lent.lies();
        if let Some(place) = place {
            self.ranks.own(place)?;
        }
        let asked = self.ranks.ask(self.parts, way, target, at, memory, element)?;
        self.asked.extend(asked);
        Ok(())
    }

    /// Until all that was asked for is where it belongs.
    pub(super) fn carry_out(&mut self) -> Result<(), Error> {
        self.ranks.ready(&[])?;
        let asked = std::mem::take(&mut self.asked);
        let _call = self.ranks.traced(FLUSH, asked.iter().map(|asked| asked.own.bytes).sum());
        match self.means {
            Means::Copies(_) | Means::Alone { on_device: true } => {
                let state = &mut *self.ranks.state.borrow_mut();
                // SAFETY: the targets' windows have their memory, and lend it to nobody while this
                // rank has their locks; ours is borrowed by the guard.
                unsafe { self.ranks.copy_asked(state, self.parts, &asked, &DriverToken::at_entry()) }
            }
            Means::Alone { on_device: false } => {
                for &Asked { way, own, target, start } in &asked {
                    let there = self.parts[target as usize].place.address().wrapping_add(start as u64);
                    let there = Memory { at: DevicePtr(there), ..own };
                    let (to, from) = if way == Way::Put { (there, own) } else { (own, there) };
                    // SAFETY: the window's part has the bytes (`ask`), and nobody uses it while its
                    // lock is held; ours is borrowed by the guard.
                    unsafe { std::ptr::copy(from.host(), to.host(), own.bytes) };
                }
                Ok(())
            }
            Means::Mpi(win) => {
                let mut done = Ok(());
                for &Asked { way, own, target, start } in &asked {
                    // SAFETY: locked, and the part has the bytes (`ask`); ours is borrowed by the
                    // guard until it is flushed.
                    let begun = unsafe {
                        match way {
                            Way::Put => win.put(own.host(), own.bytes, target, start),
                            Way::Get => win.get(own.host(), own.bytes, target, start),
                        }
                    };
                    done = done.and(begun);
                }
                // Also after one that has failed: the others are under way.
                let mut targets: Vec<Rank> = asked.iter().map(|asked| asked.target).collect();
                targets.sort_unstable();
                targets.dedup();
                for target in targets {
                    done = win.flush(target).and(done);
                }
                done.map_err(|error| self.ranks.report.mpi(error))
            }
        }
    }

    /// All that was asked for, and the lock back.
    pub(super) fn unlock(mut self) -> Result<(), Error> {
        self.carry_out()
    }
}

impl Whom {
    /// Those of `ranks`, in an order that is the same for all.
    fn each(self, ranks: Rank) -> impl Iterator<Item = (Rank, Lock)> {
        let (targets, lock) = match self {
            Whom::One(target, lock) => (target..target + 1, lock),
            Whom::All => (0..ranks, Lock::Shared),
        };
        targets.map(move |target| (target, lock))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.locked.set(None);
        if !self.asked.is_empty() {
            tracing::warn!(
                operations = self.asked.len(),
                "a lock was given back without `unlock`: nothing has moved"
            );
        }
        let given = match (self.means, self.whom) {
            _ if mpi::is_finalized() => Ok(()),
            (Means::Copies(locks), whom) => {
                for (target, lock) in whom.each(self.ranks.size()) {
                    locks.give_back(target as usize, lock);
                }
                Ok(())
            }
            (Means::Alone { .. }, _) => Ok(()),
            (Means::Mpi(win), Whom::One(target, _)) => win.unlock(target),
            (Means::Mpi(win), Whom::All) => win.unlock_all(),
        };
        if let Err(error) = given {
            tracing::error!(%error, "a window's lock could not be given back");
        }
    }
}
