//! Communicators of our own.
#![allow(unsafe_code)]

use super::{Answer, Request, Rooted};
use crate::error::MpiError;
use mpi::ffi;
use mpi::raw::AsRaw;
use mpi::topology::{Communicator, Rank};
use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::mem::ManuallyDrop;

/// A communicator that is ours alone, which returns errors. Freed with the value, unless
/// MPI is finalised by then.
pub(crate) struct Comm {
    raw: ffi::MPI_Comm,
    /// For messages of `small.rs`, where those of programs have any tag.
    small: Option<ffi::MPI_Comm>,
    rank: Rank,
    size: Rank,
    /// Small collectives so far: as many at every rank.
    smalls: Cell<u32>,
}

/// `Ok`, or the error with MPI's words for it.
pub(super) fn check(code: c_int, call: &'static str) -> Answer<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0 as c_char; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length = 0;
    // SAFETY: the buffer has the length that the standard asks for.
    let told = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr(), &mut length) };
    let text = if told == ffi::MPI_SUCCESS as c_int {
        text[..length as usize].iter().map(|&byte| byte as u8 as char).collect()
    } else {
        "unknown".to_owned()
    };
    Err(MpiError { call, code, text })
}

pub(super) fn bytes() -> ffi::MPI_Datatype {
    // SAFETY: a constant of the library's.
    unsafe { ffi::RSMPI_UINT8_T }
}

pub(super) fn words() -> ffi::MPI_Datatype {
    // SAFETY: a constant of the library's.
    unsafe { ffi::RSMPI_UINT64_T }
}

impl Comm {
    /// # Safety
    /// `raw` is a new communicator without another owner.
    unsafe fn own(raw: ffi::MPI_Comm) -> Answer<Comm> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: a communicator that stands.
        unsafe {
            check(ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN), "MPI_Comm_set_errhandler")?;
            check(ffi::MPI_Comm_rank(raw, &mut rank), "MPI_Comm_rank")?;
            check(ffi::MPI_Comm_size(raw, &mut size), "MPI_Comm_size")?;
        }
        Ok(Comm { raw, small: None, rank, size, smalls: Cell::new(0) })
    }

    /// A duplicate of rsmpi's. Collective.
    pub(crate) fn of(ranks: &impl Communicator) -> Answer<Comm> {
        let duplicate = ManuallyDrop::new(ranks.duplicate());
        // SAFETY: new, and its owner is forgotten.
        let mut comm = unsafe { Comm::own(duplicate.as_raw()) }?;
        let mut inter = 0;
        // SAFETY: stores a number.
        check(unsafe { ffi::MPI_Comm_test_inter(comm.raw, &mut inter) }, "MPI_Comm_test_inter")?;
        if inter == 0 {
            comm.small = Some(comm.duplicate()?);
            return Ok(comm);
        }
        let text = "an inter-communicator: merge it first".to_owned();
        Err(MpiError { call: "MPI_Comm_test_inter", code: 0, text })
    }

    /// Another one of the same ranks. Collective.
    pub(crate) fn again(&self) -> Answer<Comm> {
        // SAFETY: just made.
        unsafe { Comm::own(self.duplicate()?) }
    }

    fn duplicate(&self) -> Answer<ffi::MPI_Comm> {
        // SAFETY: the null communicator is a constant.
        let mut new = unsafe { ffi::RSMPI_COMM_NULL };
        // SAFETY: ours stands; stores the handle.
        check(unsafe { ffi::MPI_Comm_dup(self.raw, &mut new) }, "MPI_Comm_dup")?;
        Ok(new)
    }

    /// `MPI_Comm_split_type`: the ranks that can share memory, in this order. Collective.
    pub(crate) fn of_node(&self) -> Answer<Comm> {
        // SAFETY: constants; stores the handle; ours stands.
        unsafe {
            let mut new = ffi::RSMPI_COMM_NULL;
            let (kind, info) = (ffi::RSMPI_COMM_TYPE_SHARED, ffi::RSMPI_INFO_NULL);
            let code = ffi::MPI_Comm_split_type(self.raw, kind, self.rank, info, &mut new);
            check(code, "MPI_Comm_split_type")?;
            Comm::own(new)
        }
    }

    /// `MPI_Comm_split`: those of one colour, in this order; none for those without.
    /// Collective.
    pub(crate) fn of_colour(&self, colour: Option<i32>) -> Answer<Option<Comm>> {
        // SAFETY: constants; stores the handle; ours stands.
        unsafe {
            let mut new = ffi::RSMPI_COMM_NULL;
            let colour = colour.unwrap_or(ffi::RSMPI_UNDEFINED);
            check(ffi::MPI_Comm_split(self.raw, colour, self.rank, &mut new), "MPI_Comm_split")?;
            if new == ffi::RSMPI_COMM_NULL { Ok(None) } else { Comm::own(new).map(Some) }
        }
    }

    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    pub(crate) fn size(&self) -> Rank {
        self.size
    }

    pub(super) fn raw(&self) -> ffi::MPI_Comm {
        self.raw
    }

    /// Where messages of small collectives go. It returns errors as the other does: a duplicate
    /// has its handler.
    pub(super) fn raw_of_small(&self) -> ffi::MPI_Comm {
        self.small.unwrap_or(self.raw)
    }

    /// The tag of the next small collective: a message that was left of another is never taken for one
    /// of its own. Chains have those below (`Tags` in `links.rs`), probes the longest.
    pub(super) fn tag_of_small(&self) -> i32 {
        let number = self.smalls.get();
        self.smalls.set(number.wrapping_add(1));
        20_000 + (number % 12_000) as i32
    }

    /// The longest tag (`MPI_TAG_UB`) is at least this.
    pub(crate) const MOST_TAG: i32 = 32767;

    /// `MPI_Iallreduce` of words, the largest of each.
    ///
    /// # Safety
    /// Both stand where they are, and `all` is not used, until the request is done.
    pub(crate) unsafe fn start_largest<const N: usize>(
        &self,
        mine: &[u64; N],
        all: &mut [u64; N],
    ) -> Answer<Request> {
        let (from, to) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: both arrays have N words; the rest is the caller's contract.
        Request::start("MPI_Iallreduce", |request| unsafe {
            ffi::MPI_Iallreduce(from, to, N as c_int, words(), ffi::RSMPI_MAX, self.raw, request)
        })
    }

    /// `MPI_Allgather` of as many bytes from each rank, in their order.
    pub(crate) fn gather_all(&self, mine: &[u8]) -> Answer<Vec<u8>> {
        let mut all = vec![0; mine.len() * self.size as usize];
        // SAFETY: both stand until the wait is over; the vector has the bytes of all ranks.
        unsafe { self.start_shares(Rooted::AllGather, mine.as_ptr(), all.as_mut_ptr(), mine.len()) }?
            .wait()?;
        Ok(all)
    }

    /// Lets MPI go on with what others have begun (`MPI_Iprobe`, for a message that nobody
    /// sends).
    pub(crate) fn progress(&self) {
        let mut found = 0;
        // SAFETY: ours stands; stores a number. Its error would come again with what waits.
        let _ = unsafe {
            ffi::MPI_Iprobe(self.rank, Comm::MOST_TAG, self.raw, &mut found, ffi::RSMPI_STATUS_IGNORE)
        };
    }

    /// `MPI_Barrier`.
    pub(crate) fn barrier(&self) -> Answer<()> {
        // SAFETY: ours stands; nothing is written.
        Request::start("MPI_Ibarrier", |request| unsafe { ffi::MPI_Ibarrier(self.raw, request) })?.wait()
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if !mpi::is_finalized() {
            for mut raw in self.small.into_iter().chain([self.raw]) {
                // SAFETY: ours, freed once.
                unsafe { ffi::MPI_Comm_free(&mut raw) };
            }
        }
    }
}
