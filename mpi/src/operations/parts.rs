//! Any bytes of any rank to any other: what all collectives of shares and parts are.
//!
//! Each rank tells each other what it has for it, and where that lies (one small
//! MPI_Alltoall). On `ipc` the receivers then copy from the senders' devices; elsewhere
//! pieces of all parts go through pinned chunks (MPI_Ialltoallv), or MPI gets the pointers.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::traffic::Traffic;
use crate::communicator::{DeviceCommunicator, State};
use crate::error::Error;
use crate::paths::{Path, run};
use pinyard_allocator::DriverToken;

impl DeviceCommunicator {
    /// Carries it out. A rank that has failed takes part, and tells.
    pub(super) fn traffic(
        &self,
        operation: &'static str,
        traffic: Traffic,
        own: Result<(), Error>,
    ) -> Result<(), Error> {
        let own = self.checked(operation, 0, own)?;
        let token = DriverToken::at_entry();
        let state = &mut *self.state.borrow_mut();
        let here = (&*state.imports, self.report);
        let (tells, mine) = traffic.tells(self.plan.path, here, own, &token);
        let told = self.whole.swap(&tells).map_err(|error| self.report.mpi(error))?;
        let (told, mut mine) = traffic.hear(operation, &told, self.report, mine);
        match self.plan.path {
            // Each has told all, so all decide alike.
            Path::Ipc if told.iter().all(|told| !told.closed) => {
                if mine.is_ok() {
                    // SAFETY: settled memory, borrowed until the caller returns, which is after the
                    // ranks have agreed. Waited for here.
                    let queued =
                        unsafe { traffic.queue(&told, self.rank(), (&state.imports, &state.ring), &token) };
                    mine =
                        state.ring.wait_stores(&token).and(queued).map_err(|error| self.report.driver(error));
                }
                self.agree(operation, mine)
            }
            Path::Direct => self.parts_directly(operation, &traffic, mine),
            Path::Ipc | Path::Staged | Path::IpcAndStaged => {
                self.parts_staged(state, operation, &traffic, mine, &token)
            }
        }
    }

    fn parts_directly(
        &self,
        operation: &'static str,
        traffic: &Traffic,
        mine: Result<(), Error>,
    ) -> Result<(), Error> {
        let lists = mine.and_then(|()| traffic.lists(self.rank()));
        let lists = self.agree(operation, lists)?;
        // SAFETY: settled memory, borrowed until the caller returns, of which MPI takes the
        // addresses (the plan); the lists stand until the wait is over.
        let request = unsafe { traffic.start_directly(&self.whole, &lists) };
        request.and_then(|request| request.wait()).map_err(|error| self.report.mpi(error))
    }

    /// In pieces through the chunks, whatever the path.
    pub(super) fn parts_staged(
        &self,
        state: &mut State,
        operation: &'static str,
        traffic: &Traffic,
        mine: Result<(), Error>,
        token: &DriverToken,
    ) -> Result<(), Error> {
        let failed = |error| self.report.mpi(error);
        let [worst, longest] =
            self.whole.largest([self.report.answer(&mine), traffic.longest() as u64]).map_err(failed)?;
        mine.and_then(|()| self.report.told(operation, worst))?;
        if longest == 0 {
            return Ok(());
        }
        let cut = traffic.cut(self.plan.chunk_bytes, longest as usize);
        let ring = &mut state.ring;
        let grown = ring.grow(cut.slot).map_err(|source| self.report.staging(source));
        self.agree(operation, grown)?;
        let slots = ring.slots();
        let mut lists = cut.lists(slots);
        // SAFETY: settled memory of these parts, borrowed until the caller returns; all pieces
        // fit a slot. A slot's lists are written when its request before has ended, as its
        // bytes are, and stand until the call returns, which ends all requests.
        let outcome = unsafe {
            run(
                ring,
                cut.pieces,
                token,
                |number, copy| cut.loads(number).for_each(|(from, at, bytes)| copy(from, at, bytes)),
                |number, slot| {
                    Ok([Some(cut.start(&self.whole, &mut lists[number % slots], number, slot)?), None])
                },
                |number, copy| cut.stores(number).for_each(|(to, at, bytes)| copy(to, at, bytes)),
            )
        };
        let mine = self.report.ended(outcome)?;
        self.agree(operation, mine)
    }
}
