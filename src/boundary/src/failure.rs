//! Where C's calls begin and end: failures become statuses, and a text of the thread's.
#![allow(unsafe_code)]

use crate::codes::pny_status::{self, *};
use core::ffi::c_char;
use pinyard_hooks::Uncancelled;
use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A status other than `PNY_OK`, with the exact cause.
#[derive(Debug)]
pub struct Failure {
    /// What the function returns.
    pub status: pny_status,
    /// What failed, with which arguments, and what the user can do.
    pub cause: String,
}

impl Failure {
    /// A failure of this cause.
    pub fn new(status: pny_status, cause: impl Into<String>) -> Failure {
        Failure { status, cause: cause.into() }
    }

    /// An argument that cannot be used.
    pub fn invalid(cause: impl Into<String>) -> Failure {
        Failure::new(PNY_ERR_INVALID, cause)
    }

    /// An argument that is null.
    pub fn null(argument: &str) -> Failure {
        Failure::new(PNY_ERR_INVALID, format!("{argument} is a null pointer"))
    }
}

thread_local! {
    /// `None` where the last call succeeded.
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
    /// `LAST_ERROR` is a text. A thread that never failed does not touch that one: its destructor is
    /// registered with the loader's lock, for which a constructor may keep the thread waiting.
    static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
}

fn remember(cause: Option<String>) {
    HAS_FAILED.set(cause.is_some());
    let text = cause.map(|cause| {
        let mut bytes = cause.into_bytes();
        bytes.retain(|&byte| byte != 0);
        CString::new(bytes).unwrap_or_default()
    });
    // Fails only in a thread's destructors that run after this variable's own.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
}

/// Runs the body of the function `name`. The thread is not cancelled meanwhile (pthread_cancel(3)).
#[inline]
pub fn at_boundary(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> pny_status {
    let _uncancelled = Uncancelled::now();
    at_quick_boundary(name, body)
}

/// The same for a body that takes some nanoseconds, as a rule: where it takes longer, and may come to a
/// cancellation point (pthreads(7)), it keeps off cancellation itself.
#[inline]
pub fn at_quick_boundary(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> pny_status {
    // Nothing of the body's state is used after a panic.
    match catch_unwind(AssertUnwindSafe(body)) {
        // No text to forget, as a rule: then nothing is written.
        Ok(Ok(())) => {
            if HAS_FAILED.get() {
                remember(None);
            }
            PNY_OK
        }
        Ok(Err(failure)) => failed(name, failure),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            let failure = Failure::new(PNY_ERR_INTERNAL, format!("panic inside pinyard: {text}"));
            // Its drop may be the program's code, and panic in its turn.
            std::mem::forget(panic);
            failed(name, failure)
        }
    }
}

#[cold]
fn failed(name: &str, Failure { status, cause }: Failure) -> pny_status {
    remember(Some(format!("{name}: {cause}")));
    status
}

/// The text of this thread's last failure, "" where its last call succeeded: valid until the thread's next
/// call of [`at_boundary`].
pub fn last_error() -> *const c_char {
    if !HAS_FAILED.get() {
        return c"".as_ptr();
    }
    let text = LAST_ERROR.try_with(|last| {
        // SAFETY: the variable is this thread's own and only replaced by
        // `remember`, which this function does not call.
        let last = unsafe { &*last.as_ptr() };
        last.as_ref().map(|text| text.as_ptr())
    });
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn told() -> String {
        // SAFETY: terminated, and not replaced meanwhile.
        unsafe { CStr::from_ptr(last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_with_its_text() {
        let status = at_boundary("pny_x", || -> Result<(), Failure> { panic!("slot {}", 3) });
        assert_eq!((status, told().as_str()), (PNY_ERR_INTERNAL, "pny_x: panic inside pinyard: slot 3"));
        assert_eq!((at_boundary("pny_x", || Ok(())), told().as_str()), (PNY_OK, ""));
    }

    #[test]
    fn the_text_belongs_to_the_thread() {
        assert_eq!(at_boundary("pny_x", || Err(Failure::null("it"))), PNY_ERR_INVALID);
        assert_eq!(told(), "pny_x: it is a null pointer");
        assert_eq!(std::thread::spawn(told).join().unwrap(), "");
    }
}
