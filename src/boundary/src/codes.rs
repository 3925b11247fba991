//! The statuses.
#![allow(non_camel_case_types)]

use core::ffi::CStr;
use pny_status::*;

/// What a function returns. Numbers are never given another meaning.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum pny_status {
    /// Done.
    PNY_OK = 0,
    /// An argument cannot be used: a null pointer, a size that is wrong, a range that
    /// wraps around.
    PNY_ERR_INVALID = 1,
    /// Calls of some function that changes mappings escape the hooks.
    PNY_ERR_HOOKS_INCOMPLETE = 2,
    /// A library or a device is not there, or the library is too old.
    PNY_ERR_ABSENT = 3,
    /// Somebody else has what was asked for, or what was to be destroyed is in use.
    PNY_ERR_BUSY = 4,
    /// The environment, a library or the system refuses.
    PNY_ERR_REFUSED = 5,
    /// No thread, no memory, or no place for another one is to be had.
    PNY_ERR_RESOURCES = 6,
    /// Something has to be done first: see the function.
    PNY_ERR_NOT_READY = 7,
    /// A defect of pinyard; what was asked for may be half done.
    PNY_ERR_INTERNAL = 8,
    /// The handle or the lease is none, or was given back before.
    PNY_ERR_STALE = 9,
    /// A page of the range is not mapped.
    PNY_ERR_UNMAPPED = 10,
    /// The pages cannot be written, and the registration needs that.
    PNY_ERR_READ_ONLY = 11,
    /// A limit is used up: the budget, the number of regions, RLIMIT_MEMLOCK.
    PNY_ERR_LIMIT = 12,
    /// Given by no function: what keeps changing while it is being registered is
    /// registered for its caller alone.
    PNY_ERR_UNSTABLE = 13,
    /// The object belongs to the process that this one was forked from.
    PNY_ERR_FORKED = 14,
    /// The backend failed for a reason of its own.
    PNY_ERR_BACKEND = 15,
    /// There is none.
    PNY_ERR_NOT_FOUND = 16,
}

impl pny_status {
    /// All of them, by their numbers.
    pub fn all() -> [pny_status; 17] {
        [
            PNY_OK,
            PNY_ERR_INVALID,
            PNY_ERR_HOOKS_INCOMPLETE,
            PNY_ERR_ABSENT,
            PNY_ERR_BUSY,
            PNY_ERR_REFUSED,
            PNY_ERR_RESOURCES,
            PNY_ERR_NOT_READY,
            PNY_ERR_INTERNAL,
            PNY_ERR_STALE,
            PNY_ERR_UNMAPPED,
            PNY_ERR_READ_ONLY,
            PNY_ERR_LIMIT,
            PNY_ERR_UNSTABLE,
            PNY_ERR_FORKED,
            PNY_ERR_BACKEND,
            PNY_ERR_NOT_FOUND,
        ]
    }

    /// What it means, in a few words.
    pub fn text(self) -> &'static CStr {
        match self {
            PNY_OK => c"done",
            PNY_ERR_INVALID => c"an argument cannot be used",
            PNY_ERR_HOOKS_INCOMPLETE => c"calls that change mappings escape the hooks",
            PNY_ERR_ABSENT => c"a library or a device is not there, or too old",
            PNY_ERR_BUSY => c"in use, or somebody else has it",
            PNY_ERR_REFUSED => c"the environment, a library or the system refuses",
            PNY_ERR_RESOURCES => c"no thread, no memory or no place for another one is to be had",
            PNY_ERR_NOT_READY => c"something has to be done first",
            PNY_ERR_INTERNAL => c"a defect of pinyard",
            PNY_ERR_STALE => c"not a handle or a lease, or no longer one",
            PNY_ERR_UNMAPPED => c"a page of the range is not mapped",
            PNY_ERR_READ_ONLY => c"the pages cannot be written",
            PNY_ERR_LIMIT => c"a limit is used up",
            PNY_ERR_UNSTABLE => c"the mapping kept changing",
            PNY_ERR_FORKED => c"it belongs to the parent process",
            PNY_ERR_BACKEND => c"the backend failed",
            PNY_ERR_NOT_FOUND => c"there is none",
        }
    }
}
