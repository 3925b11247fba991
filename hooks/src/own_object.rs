//! The object that this code is in: a library, or the program.
#![allow(unsafe_code)]

/// Forbids dlclose of the object that this code is in. Not under a lock.
pub(crate) fn keep_loaded() {
    let mut info = libc::Dl_info {
        dli_fname: core::ptr::null(),
        dli_fbase: core::ptr::null_mut(),
        dli_sname: core::ptr::null(),
        dli_saddr: core::ptr::null_mut(),
    };
    // SAFETY: dladdr fills `info` for an address of our own; dlopen with NOLOAD
    // only adds a flag to the object that is loaded already. For a static
    // executable's own name it fails, and there is nothing to keep.
    unsafe {
        if libc::dladdr(keep_loaded as *const _, &raw mut info) != 0 && !info.dli_fname.is_null() {
            libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}
