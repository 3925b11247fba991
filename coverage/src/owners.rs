//! Libraries that own the entries of functions that change mappings, brought up
//! as far as their hooks need it.
#![allow(unsafe_code)]

use crate::judge::{Outcome, Verdict};
use std::ffi::CStr;
use std::ptr::null_mut;

fn load(library: &CStr) -> Outcome<*mut libc::c_void> {
    // SAFETY: a NUL-terminated name; the library's constructors run here.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        return Err(Verdict::Skipped(format!("{} is not installed", library.to_string_lossy())));
    }
    Ok(handle)
}

/// UCX hooks when the first handler is set; libucm comes with libucs.
pub(crate) fn load_ucx() -> Outcome {
    load(c"libucs.so.0").map(drop)
}

/// Open MPI hooks when a transport asks for it, which opens this framework.
pub(crate) fn load_open_mpi() -> Outcome {
    type Init = extern "C" fn(*mut i32, *mut *mut *mut libc::c_char) -> i32;
    type Open = extern "C" fn(*mut libc::c_void, i32) -> i32;
    let handle = load(c"libopen-pal.so.40")?;
    let symbol = |name: &CStr| {
        // SAFETY: a live handle and a NUL-terminated name.
        let at = unsafe { libc::dlsym(handle, name.as_ptr()) };
        if at.is_null() { Err(Verdict::Skipped(format!("{name:?} is not in Open MPI"))) } else { Ok(at) }
    };
    let framework = symbol(c"opal_memory_base_framework")?;
    // SAFETY: functions of Open MPI 4 with these signatures.
    let (init, open) = unsafe {
        let init = std::mem::transmute::<*mut libc::c_void, Init>(symbol(c"opal_init")?);
        let open = std::mem::transmute::<*mut libc::c_void, Open>(symbol(c"mca_base_framework_open")?);
        (init, open)
    };
    match (init(null_mut(), null_mut()), open(framework, 0)) {
        (0, 0) => Ok(()),
        (init, open) => Err(Verdict::Skipped(format!("Open MPI's start answers {init} and {open}"))),
    }
}
