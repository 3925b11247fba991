//! What a caller would have got without us.
//!
//! The loader looks a name up in the global scope first, then among the objects that
//! the caller's was opened with. `dlsym(RTLD_NEXT)` is the one without us, a handle
//! of the caller's object the other. Where the caller's object names a version of
//! the symbol (`DT_VERNEED`), it is that version that has to be found: libfabric has
//! one `fi_getinfo` for each layout of `struct fi_info`.
//!
//! The loader is asked once for each object that calls, as it binds a call once. Its lock may
//! belong to a thread whose constructor waits for the caller (group *constructors*).
//!
//! Source: dlvsym(3).

use crate::loader;
use crate::object::{self, Identity, Object};
use core::ffi::{CStr, c_void};
use core::ptr::from_ref;

/// What was found for the calls of one object.
struct Binding {
    function: &'static CStr,
    caller: Identity,
    real: usize,
    /// The object that has `real`.
    callee: Identity,
}

/// Never shrinks, so it is bounded: a plugin may come and go in ever other places.
static BINDINGS: boxcar::Vec<Binding> = boxcar::Vec::new();
const MOST: usize = 1024;

/// What was found before, if both objects are still what they were.
fn bound(function: &CStr, caller: &Object) -> Option<usize> {
    let mut found = BINDINGS.iter().map(|(_, binding)| binding);
    let found = found.find(|known| known.caller.is(caller) && known.function == function)?;
    object::at(found.real).is_some_and(|callee| found.callee.is(callee)).then_some(found.real)
}

/// The function `name` that the code at `caller` would call if this library were not
/// there. `None` where there is none.
pub(crate) fn real(function: &'static CStr, caller: usize) -> Option<usize> {
    // None: code that no object has, as a compiler at run time makes it.
    let Some(caller) = object::at(caller) else { return look_up(libc::RTLD_NEXT, function, None) };
    bound(function, caller).or_else(|| {
        let real = search(function, caller)?;
        if let Some(callee) = object::at(real).filter(|_| BINDINGS.count() < MOST) {
            BINDINGS.push(Binding { function, caller: caller.identity(), real, callee: callee.identity() });
        }
        Some(real)
    })
}

fn search(function: &CStr, caller: &Object) -> Option<usize> {
    let version = caller.version_wanted(function);
    // The caller itself keeps what is found loaded.
    look_up(libc::RTLD_NEXT, function, version)
        .or_else(|| loader::with(caller.name()?, |handle| look_up(handle.as_ptr(), function, version)))
}

/// Not ours: a handle of the program itself begins with the preloaded libraries.
fn look_up(handle: *mut c_void, name: &CStr, version: Option<&CStr>) -> Option<usize> {
    // SAFETY: a live handle and NUL-terminated names.
    let found = unsafe {
        match version {
            Some(version) => libc::dlvsym(handle, name.as_ptr(), version.as_ptr()),
            None => libc::dlsym(handle, name.as_ptr()),
        }
    };
    let (ours, theirs) = (object::ours().map(from_ref), object::at(found.addr()).map(from_ref));
    (!found.is_null() && theirs != ours).then_some(found.addr())
}
