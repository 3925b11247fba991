//! What statuses mean, and the text of a thread's last error.
#![allow(unsafe_code)] // names that C links to

use core::ffi::{c_char, c_int};
use pinyard_boundary::last_error;
pub(super) use pinyard_boundary::{Failure, at_boundary, at_quick_boundary, pny_status};

/// An error of a layer below, as C has it.
pub(super) trait IntoFailure {
    fn into_failure(self) -> Failure;
}

/// For `map_err`.
#[cold]
pub(super) fn failed(error: impl IntoFailure) -> Failure {
    error.into_failure()
}

/// What a status means, in general. A static text, never null, also for a number that
/// is no status. Any thread; not for signal handlers.
#[unsafe(no_mangle)]
pub extern "C" fn pny_strerror(status: c_int) -> *const c_char {
    let known = pny_status::all().into_iter().find(|known| *known as c_int == status);
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
    use std::ffi::CStr;

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
            pny_status::all().iter().map(|&status| text(pny_strerror(status as c_int))).collect();
        assert_eq!(texts.len(), pny_status::all().len());
        assert_eq!(pny_status::all().map(|status| status as usize), std::array::from_fn(|number| number));
        assert_eq!(text(pny_strerror(-7)), "not a status of pinyard");
        assert_eq!(text(pny_strerror(c_int::MAX)), "not a status of pinyard");
    }
}
