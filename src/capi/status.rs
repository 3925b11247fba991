//! What statuses mean, and the text of a thread's last error.
#![allow(unsafe_code)] // names that C links to

use super::boundary::last_error;
pub(super) use super::boundary::{Failure, at_boundary};
pub(super) use super::codes::pny_status;
use core::ffi::{CStr, c_char, c_int};
use pny_status::*;

impl pny_status {
    const ALL: [pny_status; 17] = [
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
    ];

    fn text(self) -> &'static CStr {
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

/// What a status means, in general. A static text, never null, also for a number that
/// is no status. Any thread; not for signal handlers.
#[unsafe(no_mangle)]
pub extern "C" fn pny_strerror(status: c_int) -> *const c_char {
    let known = pny_status::ALL.into_iter().find(|known| *known as c_int == status);
    known.map_or(c"not a status of pinyard", pny_status::text).as_ptr()
}

/// Why the calling thread's last call failed: the function, the call that failed with
/// its errno, and what can be done about it; "" where that call succeeded. Never null;
/// valid until the thread's next call of a function that returns a status.
#[unsafe(no_mangle)]
pub extern "C" fn pny_last_error() -> *const c_char {
    last_error()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::capi) fn text(of: *const c_char) -> String {
        // SAFETY: the interface returns NUL-terminated text, and none is replaced meanwhile.
        unsafe { CStr::from_ptr(of) }.to_str().unwrap().to_owned()
    }

    pub(in crate::capi) fn last_error() -> String {
        text(pny_last_error())
    }

    #[test]
    fn every_status_has_a_text_of_its_own() {
        let texts: std::collections::HashSet<String> =
            pny_status::ALL.iter().map(|&status| text(pny_strerror(status as c_int))).collect();
        assert_eq!(texts.len(), pny_status::ALL.len());
        assert_eq!(pny_status::ALL.map(|status| status as usize), std::array::from_fn(|number| number));
        assert_eq!(text(pny_strerror(-7)), "not a status of pinyard");
        assert_eq!(text(pny_strerror(c_int::MAX)), "not a status of pinyard");
    }
}
