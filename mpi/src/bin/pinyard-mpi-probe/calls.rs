//! What the direct path does beside Bcast and messages: the collectives that do not block, and
//! windows. Each call is made with device pointers, and what came is looked at.
#![allow(unsafe_code)] // gives MPI addresses that it may not take

use super::{Room, SIZES, all_right};
use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::traits::*;
use pinyard_driver::DriverToken;
use std::ffi::c_int;

/// Where what is received lies.
const HALF: usize = SIZES[SIZES.len() - 1];

/// The ranks, for MPI's own functions.
pub(super) struct Raw<'r, C> {
    world: &'r C,
    room: &'r Room,
    rank: c_int,
    size: c_int,
}

/// One call: its name, how it is started, and whose byte each rank's share has that came.
struct Call<'c> {
    name: &'static str,
    start: &'c dyn Fn(*mut ffi::MPI_Request) -> c_int,
    /// By share, from `HALF` on. None came to a rank without.
    shares: Vec<c_int>,
}

impl<'r, C: CommunicatorCollectives + AsRaw<Raw = ffi::MPI_Comm>> Raw<'r, C> {
    pub(super) fn of(world: &'r C, room: &'r Room) -> Raw<'r, C> {
        Raw { world, room, rank: world.rank(), size: world.size() }
    }

    /// Runs `body` while the host may not touch the room, each rank's bytes being its number plus
    /// one. Then each of the `shares` of `bytes` is to have those of its rank.
    fn tried(
        &self,
        what: &str,
        bytes: usize,
        shares: &[c_int],
        token: &DriverToken,
        body: impl FnOnce() -> c_int,
    ) -> Result<(), String> {
        self.room.fill(self.rank as u8 + 1, token)?;
        self.world.barrier();
        self.room.guard(libc::PROT_NONE);
        let code = body();
        self.room.guard(libc::PROT_READ | libc::PROT_WRITE);
        let mut right = code == ffi::MPI_SUCCESS as c_int;
        for (share, &from) in shares.iter().enumerate() {
            right &= self.room.holds(HALF + share * bytes, bytes, from as u8 + 1, token)?;
        }
        all_right(self.world, right, what)
    }

    /// With shares that are `bytes` together.
    pub(super) fn collectives(
        &self,
        bytes: usize,
        say: &impl Fn(&str, &str),
        token: &DriverToken,
    ) -> Result<(), String> {
        let (rank, size, comm) = (self.rank, self.size, self.world.as_raw());
        let share = bytes / size as usize;
        let count = share as c_int;
        let from = self.room.part(0, share).at as *const std::ffi::c_void;
        let to = self.room.part(HALF, share).at as *mut std::ffi::c_void;
        let counts = vec![count; size as usize];
        let places: Vec<c_int> = (0..size).map(|rank| rank * count).collect();
        // SAFETY: a constant of the library's.
        let kind = unsafe { ffi::RSMPI_UINT8_T };
        let everyone: Vec<c_int> = (0..size).collect();
        let at_root = |shares: &[c_int]| if rank == 0 { shares.to_vec() } else { Vec::new() };
        // Of all that is unsafe here: the room has the bytes of every rank's share in each half and
        // stands until the request is done, as the lists do; whether MPI takes its address is what
        // is tried.
        let calls = [
            Call {
                name: "MPI_Ibcast",
                // SAFETY: as above.
                start: &|request| unsafe { ffi::MPI_Ibcast(to, count, kind, 0, comm, request) },
                shares: vec![0],
            },
            Call {
                name: "MPI_Igather",
                // SAFETY: as above.
                start: &|request| unsafe {
                    ffi::MPI_Igather(from, count, kind, to, count, kind, 0, comm, request)
                },
                shares: at_root(&everyone),
            },
            Call {
                name: "MPI_Iscatter",
                // SAFETY: as above.
                start: &|request| unsafe {
                    ffi::MPI_Iscatter(from, count, kind, to, count, kind, 0, comm, request)
                },
                shares: vec![0],
            },
            Call {
                name: "MPI_Iallgather",
                // SAFETY: as above.
                start: &|request| unsafe {
                    ffi::MPI_Iallgather(from, count, kind, to, count, kind, comm, request)
                },
                shares: everyone.clone(),
            },
            Call {
                name: "MPI_Ialltoall",
                // SAFETY: as above.
                start: &|request| unsafe {
                    ffi::MPI_Ialltoall(from, count, kind, to, count, kind, comm, request)
                },
                shares: everyone.clone(),
            },
            Call {
                name: "MPI_Ialltoallv",
                // SAFETY: as above.
                start: &|request| unsafe {
                    let (counts, places) = (counts.as_ptr(), places.as_ptr());
                    ffi::MPI_Ialltoallv(from, counts, places, kind, to, counts, places, kind, comm, request)
                },
                shares: everyone,
            },
        ];
        for Call { name, start, shares } in calls {
            say("trying", &format!("{name} of {bytes} bytes"));
            self.tried(name, share, &shares, token, || {
                // SAFETY: a constant of the library's.
                let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
                let code = start(&mut request);
                if code != ffi::MPI_SUCCESS as c_int {
                    return code;
                }
                // SAFETY: just started.
                unsafe { ffi::MPI_Wait(&mut request, ffi::RSMPI_STATUS_IGNORE) }
            })?;
        }
        Ok(())
    }

    /// To the part of the rank behind this one, and from it.
    pub(super) fn windows(
        &self,
        bytes: usize,
        say: &impl Fn(&str, &str),
        token: &DriverToken,
    ) -> Result<(), String> {
        let (behind, before) = ((self.rank + 1) % self.size, (self.rank + self.size - 1) % self.size);
        let (count, comm) = (bytes as c_int, self.world.as_raw());
        let from = self.room.part(0, bytes).at as *const std::ffi::c_void;
        let to = self.room.part(HALF, bytes).at as *mut std::ffi::c_void;
        // SAFETY: a constant of the library's.
        let kind = unsafe { ffi::RSMPI_UINT8_T };
        for (name, puts, comes) in [("MPI_Put", true, before), ("MPI_Get", false, behind)] {
            say("trying", &format!("{name} of {bytes} bytes"));
            self.tried(name, bytes, &[comes], token, || {
                let whole = self.room.part(0, 2 * HALF).at as *mut std::ffi::c_void;
                // SAFETY: the room, which stands behind the window, and whose halves have the
                // bytes; whether MPI takes its address is what is tried.
                unsafe {
                    let mut window = ffi::RSMPI_WIN_NULL;
                    let size = 2 * HALF as ffi::MPI_Aint;
                    let code = ffi::MPI_Win_create(whole, size, 1, ffi::RSMPI_INFO_NULL, comm, &mut window);
                    if code != ffi::MPI_SUCCESS as c_int {
                        return code;
                    }
                    let place = HALF as ffi::MPI_Aint;
                    let mut codes = [ffi::MPI_Win_lock_all(0, window), 0, 0];
                    codes[1] = match puts {
                        true => ffi::MPI_Put(from, count, kind, behind, place, count, kind, window),
                        false => ffi::MPI_Get(to, count, kind, behind, 0, count, kind, window),
                    };
                    codes[2] = ffi::MPI_Win_unlock_all(window);
                    // Waits for all ranks: their puts are here then.
                    let freed = ffi::MPI_Win_free(&mut window);
                    codes.into_iter().find(|&code| code != ffi::MPI_SUCCESS as c_int).unwrap_or(freed)
                }
            })?;
        }
        Ok(())
    }
}
