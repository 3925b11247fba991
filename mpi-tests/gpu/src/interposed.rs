//! MPI functions that fail when they are told to, in the place that MPI has for tools: what an MPI
//! calls MPI_Isend is PMPI_Isend as well.
#![allow(unsafe_code)]

use mpi::ffi;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fails {
    /// `MPI_Isend` of so many bytes.
    Send,
    /// `MPI_Irecv` of so many bytes.
    Receive,
    /// `MPI_Allreduce` of so many elements or more.
    Reduce,
    /// A collective that does not block, of so many elements or more for each rank.
    Collective,
    /// The same, once it was started: whoever waits for it is told so when it is done.
    Late,
    /// `MPI_Test`, which says nothing of the request.
    Test,
}

#[derive(Clone, Copy)]
struct Next {
    what: Fails,
    count: c_int,
    times: usize,
}

impl Next {
    fn is(self, what: Fails, count: c_int) -> bool {
        match what {
            Fails::Send | Fails::Receive => self.what == what && count == self.count,
            _ => self.what == what && count >= self.count,
        }
    }
}

thread_local! {
    static NEXT: Cell<Option<Next>> = const { Cell::new(None) };
    /// Started, and to fail when it is done.
    static LATE: Cell<Option<ffi::MPI_Request>> = const { Cell::new(None) };
    static IS_ASKER: Cell<bool> = const { Cell::new(false) };
}

static ASKED_ELSEWHERE: AtomicUsize = AtomicUsize::new(0);

/// The calls of `MPI_Test` by others are counted.
pub(crate) fn this_thread_asks() {
    IS_ASKER.set(true);
}

/// Calls of `MPI_Test` by threads of which nobody has said that they ask.
pub(crate) fn asked_elsewhere() -> usize {
    ASKED_ELSEWHERE.load(Relaxed)
}

/// The next ones of so many bytes or elements fail, so many `times`.
pub(crate) fn fail_next(what: Fails, count: c_int, times: usize) {
    NEXT.set(Some(Next { what, count, times }));
}

/// None does any more. Whether all have.
pub(crate) fn fail_none() -> bool {
    let (next, late) = (NEXT.take(), LATE.take());
    next.is_none() && late.is_none()
}

fn fails(what: Fails, count: c_int) -> bool {
    let Some(next) = NEXT.get().filter(|next| next.is(what, count)) else { return false };
    NEXT.set((next.times > 1).then_some(Next { times: next.times - 1, ..next }));
    true
}

/// A collective of `count`, which `start` starts.
fn collective(count: c_int, request: *mut ffi::MPI_Request, start: impl FnOnce() -> c_int) -> c_int {
    if fails(Fails::Collective, count) {
        return ffi::MPI_ERR_OTHER as c_int;
    }
    let code = start();
    if fails(Fails::Late, count) {
        // SAFETY: MPI has stored it.
        LATE.set(Some(unsafe { *request }));
    }
    code
}

/// Whether the request is the one that fails when it is done. Read before it is done.
///
/// # Safety
/// As of `MPI_Wait`.
unsafe fn is_late(request: *mut ffi::MPI_Request) -> bool {
    // SAFETY: the caller's contract.
    LATE.get() == Some(unsafe { *request })
}

fn ended(code: c_int, is_late: bool) -> c_int {
    if !is_late {
        return code;
    }
    LATE.set(None);
    ffi::MPI_ERR_OTHER as c_int
}

/// Functions that are MPI's, but where `$around` says otherwise.
macro_rules! interposed {
    ($($name:ident = $real:ident($($argument:ident: $kind:ty),*) $around:expr;)*) => {$(
        /// # Safety
        /// As MPI's.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            // SAFETY: the caller's contract.
            let real = || unsafe { ffi::$real($($argument),*) };
            called(real, $around)
        }
    )*};
}

/// What lets the closure know its argument.
fn called<R: FnOnce() -> c_int>(real: R, around: impl FnOnce(R) -> c_int) -> c_int {
    around(real)
}

type Of = ffi::MPI_Datatype;
type Ranks = ffi::MPI_Comm;
type Started = *mut ffi::MPI_Request;

fn or_fails(what: Fails, count: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if fails(what, count) { ffi::MPI_ERR_OTHER as c_int } else { real() }
}

interposed! {
    MPI_Isend = PMPI_Isend(
        from: *const c_void, count: c_int, of: Of, to: c_int, tag: c_int, ranks: Ranks, request: Started
    ) |real| or_fails(Fails::Send, count, real);
    MPI_Irecv = PMPI_Irecv(
        into: *mut c_void, count: c_int, of: Of, from: c_int, tag: c_int, ranks: Ranks, request: Started
    ) |real| or_fails(Fails::Receive, count, real);
    MPI_Allreduce = PMPI_Allreduce(
        from: *const c_void, to: *mut c_void, count: c_int, of: Of, operation: ffi::MPI_Op, ranks: Ranks
    ) |real| or_fails(Fails::Reduce, count, real);
    MPI_Iallreduce = PMPI_Iallreduce(
        from: *const c_void, to: *mut c_void, count: c_int, of: Of, operation: ffi::MPI_Op, ranks: Ranks,
        request: Started
    ) |real| collective(count, request, real);
    MPI_Ibcast = PMPI_Ibcast(
        at: *mut c_void, count: c_int, of: Of, root: c_int, ranks: Ranks, request: Started
    ) |real| collective(count, request, real);
    MPI_Igather = PMPI_Igather(
        from: *const c_void, count: c_int, of: Of, to: *mut c_void, each: c_int, of_each: Of, root: c_int,
        ranks: Ranks, request: Started
    ) |real| collective(count, request, real);
    MPI_Iscatter = PMPI_Iscatter(
        from: *const c_void, each: c_int, of_each: Of, to: *mut c_void, count: c_int, of: Of, root: c_int,
        ranks: Ranks, request: Started
    ) |real| collective(count, request, real);
    MPI_Iallgather = PMPI_Iallgather(
        from: *const c_void, count: c_int, of: Of, to: *mut c_void, each: c_int, of_each: Of, ranks: Ranks,
        request: Started
    ) |real| collective(count, request, real);
    MPI_Ialltoall = PMPI_Ialltoall(
        from: *const c_void, count: c_int, of: Of, to: *mut c_void, each: c_int, of_each: Of, ranks: Ranks,
        request: Started
    ) |real| collective(count, request, real);
    MPI_Ialltoallv = PMPI_Ialltoallv(
        from: *const c_void, counts: *const c_int, at: *const c_int, of: Of,
        to: *mut c_void, each: *const c_int, into: *const c_int, of_each: Of, ranks: Ranks, request: Started
    ) |real| {
        // SAFETY: there is a count for each rank.
        let count = unsafe { *counts };
        collective(count, request, real)
    };
    MPI_Wait = PMPI_Wait(request: Started, status: *mut ffi::MPI_Status) |real| {
        // SAFETY: the caller's contract.
        let is_late = unsafe { is_late(request) };
        ended(real(), is_late)
    };
    MPI_Test = PMPI_Test(request: Started, done: *mut c_int, status: *mut ffi::MPI_Status)
    |real| {
        if !IS_ASKER.get() {
            ASKED_ELSEWHERE.fetch_add(1, Relaxed);
        }
        if fails(Fails::Test, 0) {
            return ffi::MPI_ERR_OTHER as c_int;
        }
        // SAFETY: the caller's contract.
        let is_late = unsafe { is_late(request) };
        let code = real();
        // SAFETY: MPI has stored it.
        ended(code, is_late && unsafe { *done } != 0)
    };
}
