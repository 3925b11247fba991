//! A second copy of pinyard in the process: this crate as a shared library, loaded
//! beside the one that is linked in. Each row then registers with both, and is
//! stale if one of them is.
#![allow(unsafe_code)]

use crate::judge::{Judge, Outcome, Verdict};
use crate::setup::Setup;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;

/// Names the library to load.
pub const LIBRARY: &str = "PINYARD_COVERAGE_COPY";
/// Set: it is loaded into a namespace of its own, with a C library of its own.
pub const NAMESPACE: &str = "PINYARD_COVERAGE_NAMESPACE";

type Call = extern "C" fn(usize, usize, usize) -> i32;

const STALE: i32 = 0;
const RIGHT: i32 = 1;
const BROKEN: i32 = 2;

/// The other copy's functions.
pub(crate) struct Copy {
    before: Call,
    after: Call,
}

impl Copy {
    /// The copy that the environment names, if it does.
    pub(crate) fn load() -> Outcome<Option<Copy>> {
        let Some(path) = std::env::var_os(LIBRARY) else { return Ok(None) };
        let broken = |what: &str| Verdict::Broken(format!("{what} of {}", path.display()));
        let name = CString::new(path.as_bytes()).map_err(|_| broken("the name"))?;
        let namespace =
            if std::env::var_os(NAMESPACE).is_some() { libc::LM_ID_NEWLM } else { libc::LM_ID_BASE };
        // SAFETY: a library of ours, whose constructors do nothing; it stays loaded.
        let handle = unsafe { libc::dlmopen(namespace, name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(broken("dlmopen"));
        }
        let function = |name: &std::ffi::CStr| {
            // SAFETY: a live handle and a NUL-terminated name.
            let at = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if at.is_null() {
                return Err(broken("dlsym"));
            }
            // SAFETY: the functions below have this signature.
            Ok(unsafe { std::mem::transmute::<*mut libc::c_void, Call>(at) })
        };
        let before = function(c"pinyard_coverage_before")?;
        Ok(Some(Copy { before, after: function(c"pinyard_coverage_after")? }))
    }

    pub(crate) fn before(&self, at: usize, len: usize, probe: usize) -> Outcome {
        match (self.before)(at, len, probe) {
            RIGHT => Ok(()),
            _ => Err(Verdict::Broken("the second copy, before the change".to_owned())),
        }
    }

    pub(crate) fn after(&self, at: usize, len: usize, probe: usize, first: Verdict) -> Verdict {
        match (self.after)(at, len, probe) {
            RIGHT => first,
            STALE => Verdict::Stale,
            _ => Verdict::Broken("the second copy, after the change".to_owned()),
        }
    }
}

/// The judge of this copy, where it is the second.
static JUDGE: Mutex<Option<Judge>> = Mutex::new(None);

fn answer(verdict: &Verdict) -> i32 {
    match verdict {
        Verdict::Seen | Verdict::Kept | Verdict::Uncached(_) => RIGHT,
        Verdict::Stale => STALE,
        Verdict::Refused(why) | Verdict::Skipped(why) | Verdict::Broken(why) => {
            eprintln!("the second copy: {why}");
            BROKEN
        }
    }
}

/// Installs this copy's hooks and nothing else. Whether they see every change.
#[unsafe(no_mangle)]
extern "C" fn pinyard_coverage_install() -> i32 {
    i32::from(pinyard_hooks::install().is_complete())
}

/// For the first copy: see [`Judge::before_at`].
#[unsafe(no_mangle)]
extern "C" fn pinyard_coverage_before(at: usize, len: usize, probe: usize) -> i32 {
    let registered = Judge::alone(Setup::Default).and_then(|mut judge| {
        judge.before_at(at, len, probe)?;
        Ok(judge)
    });
    match (registered, JUDGE.lock()) {
        (Ok(judge), Ok(mut kept)) => {
            *kept = Some(judge);
            RIGHT
        }
        (Err(verdict), _) => answer(&verdict),
        (Ok(_), Err(_)) => BROKEN,
    }
}

/// For the first copy: see [`Judge::after_at`].
#[unsafe(no_mangle)]
extern "C" fn pinyard_coverage_after(at: usize, len: usize, probe: usize) -> i32 {
    let Ok(judge) = JUDGE.lock() else { return BROKEN };
    let Some(judge) = &*judge else { return BROKEN };
    answer(&judge.after_at(at, len, probe).unwrap_or_else(|verdict| verdict))
}
