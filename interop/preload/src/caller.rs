//! What a caller would have got without us.
//!
//! The loader looks a name up in the global scope first, then among the objects that
//! the caller's was opened with. `dlsym(RTLD_NEXT)` is the one without us, a handle
//! of the caller's object the other. Where the caller's object names a version of
//! the symbol (`DT_VERNEED`), it is that version that has to be found: libfabric has
//! one `fi_getinfo` for each layout of `struct fi_info`.
//!
//! Sources: the gABI's chapter on dynamic linking, `elf.h`, `link.h`, dlvsym(3).

use crate::loader;
use core::ffi::{CStr, c_void};
use core::ptr::{null, null_mut};

/// `struct link_map`, its public part (`link.h`).
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const libc::c_char,
    dynamic: *const Dynamic,
}

/// `Elf64_Dyn`.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// `Elf64_Verneed` and `Elf64_Vernaux`.
#[repr(C)]
struct Needed {
    version: u16,
    count: u16,
    file: u32,
    aux: u32,
    next: u32,
}
#[repr(C)]
struct NeededVersion {
    hash: u32,
    flags: u16,
    other: u16,
    name: u32,
    next: u32,
}

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_HASH: i64 = 4;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;
const DT_VERNEED: i64 = 0x6fff_fffe;
/// Not part of a version's number: the symbol is hidden.
const HIDDEN: u16 = 0x8000;

/// The object that has the code at `address`. Its record lives while it is loaded,
/// and a caller is.
fn object_of(address: usize) -> Option<&'static LinkMap> {
    const RTLD_DL_LINKMAP: i32 = 2;
    let mut info = no_info();
    let mut map: *mut c_void = null_mut();
    // SAFETY: dladdr1 only compares the address; it fills `info` and `map`.
    let found = unsafe { dladdr1(address as *const _, &raw mut info, &raw mut map, RTLD_DL_LINKMAP) };
    // SAFETY: the loader's own record, whose public part is the same in every glibc.
    if found == 0 { None } else { unsafe { map.cast::<LinkMap>().as_ref() } }
}

fn no_info() -> libc::Dl_info {
    libc::Dl_info { dli_fname: null(), dli_fbase: null_mut(), dli_sname: null(), dli_saddr: null_mut() }
}

/// What the loader calls the object that has the code at `address`.
pub(crate) fn object_name(address: usize) -> Option<&'static CStr> {
    let mut info = no_info();
    // SAFETY: dladdr only compares the address and fills `info`.
    if unsafe { libc::dladdr(address as *const _, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, which lives as long as the object is loaded.
    Some(unsafe { CStr::from_ptr(info.dli_fname) })
}

impl LinkMap {
    /// The value of a tag of the dynamic section, as an address.
    fn find(&self, tag: i64) -> Option<usize> {
        let mut at = self.dynamic;
        loop {
            // SAFETY: the section ends with a null tag, where this stops.
            let entry = unsafe { at.as_ref() }?;
            if entry.tag == 0 {
                return None;
            }
            if entry.tag == tag {
                // glibc relocates these in place, but not where the section is
                // read-only.
                let value = entry.value;
                return Some(if value < self.base { self.base + value } else { value });
            }
            at = at.wrapping_add(1);
        }
    }

    /// The version of `name` that the object asks for, where it refers to `name` and
    /// to a version of it.
    fn version_wanted(&self, name: &CStr) -> Option<&'static CStr> {
        let strings = self.find(DT_STRTAB)? as *const libc::c_char;
        let symbols = self.find(DT_SYMTAB)? as *const libc::Elf64_Sym;
        let versions = self.find(DT_VERSYM)? as *const u16;
        let text = |at: u32| {
            // SAFETY: an offset into the object's own table of NUL-terminated strings.
            unsafe { CStr::from_ptr(strings.wrapping_add(at as usize)) }
        };
        let refers = |&index: &usize| {
            // SAFETY: below the count of symbols.
            let symbol = unsafe { symbols.wrapping_add(index).read() };
            symbol.st_shndx == 0 && text(symbol.st_name) == name
        };
        let index = (1..self.undefined_symbols()?).find(refers)?;
        // SAFETY: the table of versions has an element for each symbol.
        let wanted = unsafe { versions.wrapping_add(index).read() } & !HIDDEN;
        let mut file = self.find(DT_VERNEED)?;
        loop {
            // SAFETY: the records are linked by their own offsets, and 0 ends them.
            let needed = unsafe { &*(file as *const Needed) };
            let mut at = file + needed.aux as usize;
            for _ in 0..needed.count {
                // SAFETY: as above; `count` says how many there are.
                let version = unsafe { &*(at as *const NeededVersion) };
                if version.other == wanted {
                    return Some(text(version.name));
                }
                at += version.next as usize;
            }
            if needed.next == 0 {
                return None;
            }
            file += needed.next as usize;
        }
    }

    /// One past the last symbol that may be undefined.
    fn undefined_symbols(&self) -> Option<usize> {
        if let Some(hash) = self.find(DT_GNU_HASH) {
            // The second word is the first symbol that is hashed; undefined ones are not.
            // SAFETY: the header has four words.
            return Some(unsafe { (hash as *const u32).add(1).read() } as usize);
        }
        // The second word is the count of symbols.
        let hash = self.find(DT_HASH)? as *const u32;
        // SAFETY: the header has two words.
        Some(unsafe { hash.add(1).read() } as usize)
    }
}

/// The function `name` that the code at `caller` would call if this library were not
/// there. `None` where there is none.
pub(crate) fn real(name: &CStr, caller: usize) -> Option<usize> {
    let object = object_of(caller);
    let version = object.and_then(|object| object.version_wanted(name));
    let next = look_up(libc::RTLD_NEXT, name, version);
    next.or_else(|| {
        let object = object.filter(|object| !object.name.is_null())?;
        // SAFETY: the loader's own string, which lives as long as the object is loaded.
        let handle = loader::handle_of(unsafe { CStr::from_ptr(object.name) }, 0)?;
        let found = look_up(handle.as_ptr(), name, version);
        // SAFETY: the handle from above, used no more. The caller itself keeps what was found.
        unsafe { libc::dlclose(handle.as_ptr()) };
        found
    })
}

/// Keeps the object that has the code at `address` loaded until the process ends.
pub(crate) fn keep(address: usize) {
    let _ = object_name(address).and_then(|name| loader::handle_of(name, libc::RTLD_NODELETE));
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
    let ours = object_of(look_up as *const () as usize).map(|object| object.base);
    let theirs = object_of(found.addr()).map(|object| object.base);
    (!found.is_null() && theirs != ours).then_some(found.addr())
}

/// The function `name` of the object that the loader calls `object`.
pub(crate) fn in_object(object: &CStr, name: &CStr) -> Option<usize> {
    // What is found is called until the process ends.
    let handle = loader::handle_of(object, libc::RTLD_NODELETE)?;
    // SAFETY: a live handle and a NUL-terminated name.
    let found = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
    (!found.is_null()).then_some(found.addr())
}

unsafe extern "C" {
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: i32,
    ) -> libc::c_int;
}
