//! Rows in which the dynamic loader changes mappings.
#![allow(unsafe_code, clippy::disallowed_methods)]

use crate::judge::{Judge, Outcome, Verdict};
use crate::memory::{Memory, PAGE};
use std::ffi::CStr;

/// A library that every glibc has and nobody uses.
const LIBRARY: &CStr = c"libBrokenLocale.so.1";

fn open() -> Outcome<*mut libc::c_void> {
    // SAFETY: a NUL-terminated name; the library's constructors do nothing.
    let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        return Err(Verdict::Skipped(format!("dlopen({LIBRARY:?}) failed")));
    }
    Ok(handle)
}

/// The last page of the library's data, and its last byte, which nothing uses.
fn data_of_library() -> Outcome<(Memory, usize)> {
    extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, found: *mut libc::c_void) -> i32 {
        // SAFETY: the loader's own record, valid during the call; `found` is the
        // caller's word.
        unsafe {
            let info = &*info;
            if !CStr::from_ptr(info.dlpi_name).to_bytes().ends_with(LIBRARY.to_bytes()) {
                return 0;
            }
            for header in std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) {
                if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0 {
                    *found.cast::<usize>() = (info.dlpi_addr + header.p_vaddr + header.p_memsz) as usize;
                }
            }
            1
        }
    }
    let mut end = 0usize;
    // SAFETY: the callback writes to `end` and to nothing else.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut end).cast()) };
    if end.is_multiple_of(PAGE) {
        return Err(Verdict::Skipped("the library's data leaves no room at its end".to_owned()));
    }
    let page = end & !(PAGE - 1);
    Ok((Memory { at: page, len: PAGE }, page + PAGE - 1))
}

pub(crate) fn dlclose(judge: &mut Judge) -> Outcome<Verdict> {
    let handle = open()?;
    let (page, probe) = data_of_library()?;
    judge.before_at(page.at, page.len, probe)?;
    // SAFETY: opened above, nothing of it is in use.
    if unsafe { libc::dlclose(handle) } != 0 {
        return Err(Verdict::Skipped("dlclose failed".to_owned()));
    }
    page.map_again()?;
    judge.after_at(page.at, page.len, probe)
}

/// The loader maps and unmaps, but nothing of ours.
pub(crate) fn dlopen(judge: &mut Judge) -> Outcome<Verdict> {
    crate::pages::changed(judge, |_| open().map(drop))
}
