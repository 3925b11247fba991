//! What the loader knows about an address. Not under a lock: see `libc_functions.rs`.

use super::ModuleName;

/// The file name of the object that `address` lies in.
pub(crate) fn module_of(address: usize) -> ModuleName {
    let Some((info, _)) = look_up(address) else { return ModuleName::UNKNOWN };
    if info.dli_fname.is_null() {
        return ModuleName::UNKNOWN;
    }
    // SAFETY: a non-null dli_fname is the loader's own NUL-terminated string,
    // which lives as long as the object is loaded; it is copied at once.
    ModuleName::from_path(unsafe { core::ffi::CStr::from_ptr(info.dli_fname) }.to_bytes())
}

/// One past the last byte of the exported function at `entry`.
pub(crate) fn end_of(entry: usize) -> Option<usize> {
    let (info, symbol) = look_up(entry)?;
    if symbol.is_null() || info.dli_saddr.addr() != entry {
        return None;
    }
    // SAFETY: a non-null entry of the symbol table of an object that is loaded
    // for good (libc's).
    let size = unsafe { (*symbol).st_size } as usize;
    (size > 0).then_some(entry + size)
}

fn look_up(address: usize) -> Option<(libc::Dl_info, *const libc::Elf64_Sym)> {
    const RTLD_DL_SYMENT: i32 = 1;
    let mut info = libc::Dl_info {
        dli_fname: core::ptr::null(),
        dli_fbase: core::ptr::null_mut(),
        dli_sname: core::ptr::null(),
        dli_saddr: core::ptr::null_mut(),
    };
    let mut symbol: *mut libc::c_void = core::ptr::null_mut();
    // SAFETY: dladdr1 only compares the address; it fills `info` and `symbol`.
    let found = unsafe { dladdr1(address as *const _, &raw mut info, &raw mut symbol, RTLD_DL_SYMENT) };
    (found != 0).then_some((info, symbol.cast_const().cast()))
}

unsafe extern "C" {
    fn dladdr1(
        address: *const libc::c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut libc::c_void,
        flags: i32,
    ) -> i32;
}
