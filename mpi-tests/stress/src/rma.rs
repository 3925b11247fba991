//! One-sided operations, which rsmpi does not have: a window over the caller's buffer
//! for one operation between two fences.
#![allow(unsafe_code)]

use mpi::ffi::{self, MPI_Win};
use mpi::raw::AsRaw;
use mpi::topology::{Communicator, SimpleCommunicator};
use std::ffi::c_int;

/// MPI reports failures of these calls to the communicator's or window's handler, which
/// ends the program; a library that returns instead is heard here.
fn succeeded(call: &str, answer: c_int) -> Result<(), String> {
    if answer == ffi::MPI_SUCCESS as c_int { Ok(()) } else { Err(format!("{call}: {}", words(answer))) }
}

/// MPI's own words for an error.
fn words(error: c_int) -> String {
    let (mut text, mut len) = ([0u8; ffi::MPI_MAX_ERROR_STRING as usize], 0);
    // SAFETY: as many bytes as any of its texts has, and their number.
    let answer = unsafe { ffi::MPI_Error_string(error, text.as_mut_ptr().cast(), &raw mut len) };
    match text.get(..len as usize) {
        Some(text) if answer == ffi::MPI_SUCCESS as c_int => String::from_utf8_lossy(text).into_owned(),
        _ => format!("MPI error {error}"),
    }
}

/// A window for one epoch. Freed by [`close`](Window::close) on every path on which all
/// ranks come this far.
struct Window(MPI_Win);

impl Window {
    /// # Safety
    /// `len` bytes at `start` are the caller's until the window is closed.
    unsafe fn open(world: &SimpleCommunicator, start: *mut u8, len: usize) -> Result<Window, String> {
        // SAFETY: a constant of the library's, initialised when it is.
        let (mut window, info) = unsafe { (ffi::RSMPI_WIN_NULL, ffi::RSMPI_INFO_NULL) };
        // SAFETY: a valid communicator on which every rank makes the same call; the memory
        // is vouched for by the caller.
        let answer = unsafe {
            ffi::MPI_Win_create(start.cast(), len as ffi::MPI_Aint, 1, info, world.as_raw(), &raw mut window)
        };
        succeeded("MPI_Win_create", answer)?;
        Ok(Window(window))
    }

    fn fence(&self) -> Result<(), String> {
        // SAFETY: an open window; every rank makes the same call.
        succeeded("MPI_Win_fence", unsafe { ffi::MPI_Win_fence(0, self.0) })
    }

    fn close(mut self) -> Result<(), String> {
        // SAFETY: an open window, outside of an epoch with pending operations.
        succeeded("MPI_Win_free", unsafe { ffi::MPI_Win_free(&raw mut self.0) })
    }
}

/// What this MPI does with windows over a world like this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Windows {
    /// Any address will do.
    Anywhere,
    /// Bytes are wrong unless the window begins at a multiple of [`ALIGNED`]: so MPICH
    /// 4.0.2 over UCX 1.13, whose registration cache hands out keys of rounded addresses.
    /// That MPI ends a fence while the last fragments of a long MPI_Get are on their way, too,
    /// in about one of a hundred short runs on a busy machine.
    Aligned,
}

impl Windows {
    /// Bytes of one MPI_Get that a fence waits for.
    pub(crate) fn longest_get(self) -> usize {
        match self {
            Windows::Anywhere => c_int::MAX as usize,
            // Within a fragment of UCX over shared memory, of 8240 bytes.
            Windows::Aligned => 8192,
        }
    }
}

/// Where windows begin that any MPI gets right.
pub(crate) const ALIGNED: usize = 16;

/// Tries a window at an odd address. `Err` where the MPI makes none: Open MPI 4.1 has no
/// component for a world of one rank. Collective.
pub(crate) fn probe(world: &SimpleCommunicator) -> Result<Windows, String> {
    const LEN: usize = 256;
    let (mut memory, mut origin) = ([0u64; 2 * LEN / 8], [0u8; LEN]);
    let handler = |handler| {
        // SAFETY: a valid communicator and one of MPI's own handlers.
        unsafe { ffi::MPI_Comm_set_errhandler(world.as_raw(), handler) };
    };
    // SAFETY: constants of the library's.
    let (returns, is_fatal) = unsafe { (ffi::RSMPI_ERRORS_RETURN, ffi::RSMPI_ERRORS_ARE_FATAL) };
    handler(returns);
    let window: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
    let window = &mut window[3..3 + LEN];
    (0..=u8::MAX).cycle().zip(&mut *window).for_each(|(number, byte)| *byte = number);
    let expected = window.to_vec();
    let got = get(world, window, &mut origin, world.rank(), LEN);
    handler(is_fatal);
    got?;
    Ok(if origin[..] == expected { Windows::Anywhere } else { Windows::Aligned })
}

/// Opens a window over `window` on every rank, puts `origin` into that of rank `target`,
/// and closes it: then `window` has what another rank has put there. Collective; every
/// rank's two buffers are equally long.
pub(crate) fn put(
    world: &SimpleCommunicator,
    window: &mut [u8],
    origin: &[u8],
    target: i32,
) -> Result<(), String> {
    let len = origin.len().min(window.len()) as c_int;
    // SAFETY: borrowed mutably until this returns, and closed before.
    let open = unsafe { Window::open(world, window.as_mut_ptr(), window.len())? };
    open.fence()?;
    // SAFETY: `origin` is borrowed until the second fence, which completes the operation;
    // the target's window has as many bytes. The datatype is a constant of the library's.
    let answer = unsafe {
        let byte = ffi::RSMPI_UINT8_T;
        ffi::MPI_Put(origin.as_ptr().cast(), len, byte, target, 0, len, byte, open.0)
    };
    succeeded("MPI_Put", answer)?;
    open.fence()?;
    open.close()
}

/// The same, but gets the bytes of `target`'s window into `origin`, at most `longest` at once.
pub(crate) fn get(
    world: &SimpleCommunicator,
    window: &mut [u8],
    origin: &mut [u8],
    target: i32,
    longest: usize,
) -> Result<(), String> {
    let len = origin.len().min(window.len());
    // SAFETY: borrowed mutably until this returns, and closed before.
    let open = unsafe { Window::open(world, window.as_mut_ptr(), window.len())? };
    open.fence()?;
    for (number, piece) in origin[..len].chunks_mut(longest).enumerate() {
        let (at, bytes) = ((number * longest) as ffi::MPI_Aint, piece.len() as c_int);
        // SAFETY: `origin` is borrowed mutably until the second fence, which completes the
        // operations; the target's window has as many bytes.
        let answer = unsafe {
            let byte = ffi::RSMPI_UINT8_T;
            ffi::MPI_Get(piece.as_mut_ptr().cast(), bytes, byte, target, at, bytes, byte, open.0)
        };
        succeeded("MPI_Get", answer)?;
    }
    open.fence()?;
    open.close()
}
