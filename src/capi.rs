//! The C interface: what `include/pinyard.h` declares, with the same words.
//!
//! No panic leaves a function: it becomes `PNY_ERR_INTERNAL`. Where nothing can
//! panic (`pny_notify_unmapped`, which also runs in signal handlers), nothing is
//! caught.
#![allow(unsafe_code)]

use crate::libfabric::{self, ImportError};
use core::ffi::{CStr, c_char, c_int, c_void};
use std::cell::RefCell;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `pny_status`.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ok = 0,
    Invalid = 1,
    HooksIncomplete = 2,
    Absent = 3,
    Busy = 4,
    Refused = 5,
    Resources = 6,
    NotReady = 7,
    Internal = 8,
}

impl Status {
    const ALL: [Status; 9] = [
        Status::Ok,
        Status::Invalid,
        Status::HooksIncomplete,
        Status::Absent,
        Status::Busy,
        Status::Refused,
        Status::Resources,
        Status::NotReady,
        Status::Internal,
    ];

    fn text(self) -> &'static CStr {
        match self {
            Status::Ok => c"done",
            Status::Invalid => c"an argument cannot be used",
            Status::HooksIncomplete => c"calls that change mappings escape the hooks",
            Status::Absent => c"a library is not there, or is too old",
            Status::Busy => c"somebody else has what was asked for",
            Status::Refused => c"the environment or a library refuses",
            Status::Resources => c"no thread or no place for another subscriber is to be had",
            Status::NotReady => c"something has to be done first",
            Status::Internal => c"a defect of pinyard",
        }
    }
}

/// A status other than `Ok`, with the exact cause.
struct Failure {
    status: Status,
    cause: String,
}

impl Failure {
    fn new(status: Status, cause: impl Into<String>) -> Failure {
        Failure { status, cause: cause.into() }
    }
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Failure {
        let status = match &error {
            ImportError::Absent { .. } | ImportError::TooOld { .. } => Status::Absent,
            ImportError::MonitorChosen { .. } | ImportError::Call { .. } => Status::Refused,
            ImportError::HooksIncomplete { .. } => Status::HooksIncomplete,
            ImportError::Busy { .. } => Status::Busy,
            ImportError::NoSink | ImportError::Thread(_) => Status::Resources,
        };
        Failure::new(status, error.to_string())
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

/// Runs the body of a function of the interface.
fn at_boundary(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    // Nothing of the body's state is used after a panic.
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Failure::new(Status::Internal, format!("panic inside pinyard: {text}")))
    });
    let (status, cause) = match result {
        Ok(()) => (Status::Ok, None),
        Err(Failure { status, cause }) => (status, Some(cause)),
    };
    remember(cause);
    status as c_int
}

/// `const char *pny_strerror(int status)`: what a status means in general. A
/// static text, also for numbers that are none.
#[unsafe(no_mangle)]
extern "C" fn pny_strerror(status: c_int) -> *const c_char {
    let known = Status::ALL.into_iter().find(|known| *known as c_int == status);
    known.map_or(c"not a status of pinyard", Status::text).as_ptr()
}

/// `const char *pny_last_error(void)`: why the calling thread's last call
/// failed. Valid until the thread's next call that returns a status.
#[unsafe(no_mangle)]
extern "C" fn pny_last_error() -> *const c_char {
    let text = LAST_ERROR.try_with(|last| {
        // SAFETY: the variable is this thread's own and only replaced by
        // `remember`, which this function does not call.
        let last = unsafe { &*last.as_ptr() };
        last.as_ref().map(|text| text.as_ptr())
    });
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

/// `void pny_notify_unmapped(const void *address, size_t length)`: a change of a
/// mapping that no hook sees. Before the change; also in a signal handler.
#[unsafe(no_mangle)]
extern "C" fn pny_notify_unmapped(address: *const c_void, length: usize) {
    pinyard_hooks::notify_unmapped(address.cast(), length);
}

/// `pny_status pny_hooks_install(void)`.
#[unsafe(no_mangle)]
extern "C" fn pny_hooks_install() -> c_int {
    at_boundary(|| complete(&pinyard_hooks::install()))
}

/// `pny_status pny_hooks_verify(void)`.
#[unsafe(no_mangle)]
extern "C" fn pny_hooks_verify() -> c_int {
    at_boundary(|| {
        let intact = libfabric::verify_hooks();
        let report = pinyard_hooks::report().ok_or_else(|| {
            Failure::new(Status::NotReady, "the hooks are not installed: pny_hooks_install")
        })?;
        if intact { Ok(()) } else { complete(&report) }
    })
}

fn complete(report: &pinyard_hooks::Report) -> Result<(), Failure> {
    if report.is_complete() {
        return Ok(());
    }
    Err(ImportError::HooksIncomplete { report: Box::new(*report) }.into())
}

/// `pny_status pny_libfabric_import_monitor(void)`.
#[unsafe(no_mangle)]
extern "C" fn pny_libfabric_import_monitor() -> c_int {
    at_boundary(|| Ok(libfabric::import_monitor()?))
}

/// `struct pny_libfabric_monitor_counts`.
#[repr(C)]
struct MonitorCounts {
    size: usize,
    valid_calls: u64,
    stale_answers: u64,
    subscriptions: u64,
    refusals: u64,
    events: u64,
    deliveries: u64,
    keys: u64,
}

/// `pny_status pny_libfabric_monitor_stats(pny_libfabric_monitor_counts *counts)`.
///
/// # Safety
/// `counts` is null or points to a writable structure whose `size` is set to the
/// bytes that may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn pny_libfabric_monitor_stats(counts: *mut MonitorCounts) -> c_int {
    at_boundary(|| {
        if counts.is_null() {
            return Err(Failure::new(Status::Invalid, "pny_libfabric_monitor_stats(counts): a null pointer"));
        }
        // SAFETY: not null; the caller vouches that `size` can be read.
        let size = unsafe { (&raw const (*counts).size).read() };
        if size != size_of::<MonitorCounts>() {
            let cause = format!(
                "pny_libfabric_monitor_stats(counts): counts->size is {size}, this library's is {}",
                size_of::<MonitorCounts>()
            );
            return Err(Failure::new(Status::Invalid, cause));
        }
        let stats = libfabric::monitor_stats().ok_or_else(|| {
            Failure::new(Status::NotReady, "no monitor was imported: pny_libfabric_import_monitor")
        })?;
        let filled = MonitorCounts {
            size,
            valid_calls: stats.valid_calls,
            stale_answers: stats.stale_answers,
            subscriptions: stats.subscriptions,
            refusals: stats.refusals,
            events: stats.events,
            deliveries: stats.deliveries,
            keys: stats.keys,
        };
        // SAFETY: not null, as large as the structure: the caller vouches for it.
        unsafe { counts.write(filled) };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(of: *const c_char) -> String {
        // SAFETY: the interface returns NUL-terminated text, and none is replaced meanwhile.
        unsafe { CStr::from_ptr(of) }.to_str().unwrap().to_owned()
    }

    /// The header is written by hand: its numbers are these.
    #[test]
    fn the_header_has_the_same_statuses() {
        let header = include_str!("../include/pinyard.h");
        let mut in_header = Vec::new();
        for line in header.lines().filter(|line| line.trim_start().starts_with("PNY_")) {
            if let Some((_, number)) = line.split_once('=') {
                in_header.push(number.trim().trim_end_matches(',').parse::<c_int>().unwrap());
            }
        }
        assert_eq!(in_header, Status::ALL.map(|status| status as c_int));
        assert_eq!(text(pny_strerror(0)), "done");
        assert_eq!(text(pny_strerror(-7)), "not a status of pinyard");
    }

    #[test]
    fn a_panic_becomes_a_status_with_its_text() {
        let status = at_boundary(|| -> Result<(), Failure> { panic!("slot {}", 3) });
        assert_eq!((status, text(pny_last_error()).as_str()), (8, "panic inside pinyard: slot 3"));
        assert_eq!((at_boundary(|| Ok(())), text(pny_last_error()).as_str()), (0, ""));
    }

    #[test]
    fn the_text_belongs_to_the_thread() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { pny_libfabric_monitor_stats(core::ptr::null_mut()) }, Status::Invalid as c_int);
        assert!(text(pny_last_error()).contains("null pointer"));
        let elsewhere = std::thread::spawn(|| text(pny_last_error())).join().unwrap();
        assert_eq!(elsewhere, "");
    }

    #[test]
    fn a_structure_of_another_size_is_refused() {
        // SAFETY: all-zero is a valid structure of integers.
        let mut counts: MonitorCounts = unsafe { core::mem::zeroed() };
        counts.size = 8;
        // SAFETY: a writable structure with its size.
        assert_eq!(unsafe { pny_libfabric_monitor_stats(&raw mut counts) }, Status::Invalid as c_int);
        assert!(text(pny_last_error()).contains("size is 8"));
    }
}
