//! Statuses, and the text of a thread's last error.
#![allow(unsafe_code, non_camel_case_types)]

use core::ffi::{CStr, c_char, c_int};
use std::cell::RefCell;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
    /// The mapping kept changing while it was being registered.
    PNY_ERR_UNSTABLE = 13,
    /// The object belongs to the process that this one was forked from.
    PNY_ERR_FORKED = 14,
    /// The backend failed for a reason of its own.
    PNY_ERR_BACKEND = 15,
    /// There is none.
    PNY_ERR_NOT_FOUND = 16,
}

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

/// A status other than `PNY_OK`, with the exact cause.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: pny_status,
    pub(super) cause: String,
}

impl Failure {
    pub(super) fn new(status: pny_status, cause: impl Into<String>) -> Failure {
        Failure { status, cause: cause.into() }
    }

    /// An argument that is null.
    pub(super) fn null(argument: &str) -> Failure {
        Failure::new(PNY_ERR_INVALID, format!("{argument} is a null pointer"))
    }
}

thread_local! {
    /// `None` where the last call succeeded.
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
}

fn remember(cause: Option<String>) {
    let text = cause.map(|cause| {
        let mut bytes = cause.into_bytes();
        bytes.retain(|&byte| byte != 0);
        CString::new(bytes).unwrap_or_default()
    });
    // Fails only in a thread's destructors that run after this variable's own.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
}

/// Runs the body of the function `name`.
#[inline]
pub(super) fn at_boundary(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> pny_status {
    // Nothing of the body's state is used after a panic.
    match catch_unwind(AssertUnwindSafe(body)) {
        // No text to forget, as a rule: then nothing is written.
        Ok(Ok(())) => {
            if LAST_ERROR.try_with(|last| last.borrow().is_some()).unwrap_or(false) {
                remember(None);
            }
            PNY_OK
        }
        Ok(Err(failure)) => failed(name, failure),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            failed(name, Failure::new(PNY_ERR_INTERNAL, format!("panic inside pinyard: {text}")))
        }
    }
}

#[cold]
fn failed(name: &str, Failure { status, cause }: Failure) -> pny_status {
    remember(Some(format!("{name}: {cause}")));
    status
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
    let text = LAST_ERROR.try_with(|last| {
        // SAFETY: the variable is this thread's own and only replaced by
        // `remember`, which this function does not call.
        let last = unsafe { &*last.as_ptr() };
        last.as_ref().map(|text| text.as_ptr())
    });
    text.ok().flatten().unwrap_or(c"".as_ptr())
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

    #[test]
    fn a_panic_becomes_a_status_with_its_text() {
        let status = at_boundary("pny_x", || -> Result<(), Failure> { panic!("slot {}", 3) });
        assert_eq!(
            (status, last_error().as_str()),
            (PNY_ERR_INTERNAL, "pny_x: panic inside pinyard: slot 3")
        );
        assert_eq!((at_boundary("pny_x", || Ok(())), last_error().as_str()), (PNY_OK, ""));
    }

    #[test]
    fn the_text_belongs_to_the_thread() {
        assert_eq!(at_boundary("pny_x", || Err(Failure::null("it"))), PNY_ERR_INVALID);
        assert_eq!(last_error(), "pny_x: it is a null pointer");
        assert_eq!(std::thread::spawn(last_error).join().unwrap(), "");
    }
}
