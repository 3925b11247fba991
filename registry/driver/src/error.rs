//! What can go wrong: the call with its arguments, the driver's code and words.

use thiserror::Error;

/// A driver call that failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{call} failed: {text} (code {code})")]
pub struct DriverError {
    /// The function with its arguments.
    pub call: String,
    /// The driver's code, `CUresult`.
    pub code: i32,
    /// The driver's name and words for the code.
    pub text: String,
}

/// `CUresult` values that are told apart (cuda.h).
pub(crate) mod code {
    pub(crate) const INVALID_VALUE: i32 = 1;
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const DEINITIALIZED: i32 = 4;
    pub(crate) const INVALID_CONTEXT: i32 = 201;
    pub(crate) const INVALID_PTX: i32 = 218;
    pub(crate) const NOT_FOUND: i32 = 500;
    pub(crate) const NOT_READY: i32 = 600;
    pub(crate) const INVALID_HANDLE: i32 = 400;
    pub(crate) const CONTEXT_IS_DESTROYED: i32 = 709;
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: i32 = 712;
    pub(crate) const HOST_MEMORY_NOT_REGISTERED: i32 = 713;
    pub(crate) const NOT_PERMITTED: i32 = 800;
    pub(crate) const NOT_SUPPORTED: i32 = 801;
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: i32 = 900;
    pub(crate) const TIMEOUT: i32 = 909;
    /// Uncorrectable errors of memory and of NVLink (214, 220) and one that was contained (226); an
    /// illegal address, a launch that took too long, an assertion (700, 702, 710); broken stacks,
    /// instructions, addresses and program counters (714 to 718), any other exception (719), tensor
    /// memory that was not freed (721); a client that MPS ended (810).
    pub(crate) const FAULTS: [i32; 14] =
        [214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810];
}

impl DriverError {
    pub(crate) fn new(call: impl Into<String>, code: i32, text: impl Into<String>) -> DriverError {
        DriverError { call: call.into(), code, text: text.into() }
    }

    /// Whether the device has no memory for it: giving some back may help.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == code::OUT_OF_MEMORY
    }

    /// Whether the device's context is no more or broken, or the driver has ended: nothing of the
    /// device can be used again in this process. (`cuIpcOpenMemHandle` says
    /// `CUDA_ERROR_INVALID_CONTEXT` of a handle of the same process as well.)
    pub fn is_context_lost(&self) -> bool {
        self.is_context_destroyed() || self.is_fault()
    }

    /// Whether the context is no more, by a reset or the driver's end, and what the driver had
    /// allocated, opened or registered in it is gone too.
    pub fn is_context_destroyed(&self) -> bool {
        matches!(self.code, code::DEINITIALIZED | code::INVALID_CONTEXT | code::CONTEXT_IS_DESTROYED)
    }

    /// Whether a kernel or the hardware has failed, which every later call reports again, whatever
    /// it is of: the driver API's manual asks for a new process after these (CUresult).
    pub fn is_fault(&self) -> bool {
        code::FAULTS.contains(&self.code)
    }

    /// Whether the stream or event, or its context, is no more.
    pub fn is_stale_handle(&self) -> bool {
        matches!(self.code, code::INVALID_HANDLE | code::CONTEXT_IS_DESTROYED)
    }
}

/// Why there is no driver, or none for that device.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Absent {
    /// The loader did not find the library.
    #[error("no CUDA driver: {reason}; is this a machine with a GPU?")]
    Library {
        /// What was asked for.
        library: &'static str,
        /// The loader's words, which name the file that it lacks.
        reason: String,
    },
    /// The library lacks a function: an old driver.
    #[error("the CUDA driver has no {symbol}: {reason}; it is older than 11.7, or no driver")]
    Symbol {
        /// The function.
        symbol: &'static str,
        /// The loader's words.
        reason: String,
    },
    /// The driver does not start, or has no such device.
    #[error("the CUDA driver refuses: {0}")]
    Refused(#[from] DriverError),
}
