//! Loaded objects: which one has an address, and what it asks for.
//!
//! Sources: the gABI's chapter on dynamic linking, `elf.h`, `link.h`, `dlfcn.h`, dladdr(3).

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::zeroed;
use core::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// `struct link_map`, its public part (`link.h`): the loader's record of an object.
#[repr(C)]
pub(crate) struct Object {
    base: usize,
    name: *const c_char,
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

/// `struct dl_find_object` (`dlfcn.h`), where unwinding needs no further base address.
#[repr(C)]
struct FoundObject {
    flags: u64,
    start: *mut c_void,
    end: *mut c_void,
    record: *mut c_void,
    frames: *mut c_void,
    reserved: [u64; 7],
}

type FindObject = extern "C" fn(*const c_void, *mut FoundObject) -> c_int;

unsafe extern "C" {
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

/// `_dl_find_object` of glibc 2.35 and later, which takes no lock: a constructor may hold the loader's
/// while it waits for the thread that asks.
fn find_object() -> Option<FindObject> {
    const ABSENT: usize = 1;
    static FUNCTION: AtomicUsize = AtomicUsize::new(0);
    let known = match FUNCTION.load(Acquire) {
        0 => {
            // SAFETY: a NUL-terminated name.
            let found =
                unsafe { libc::dlsym(libc::RTLD_NEXT, c"_dl_find_object".as_ptr()) }.addr().max(ABSENT);
            FUNCTION.store(found, Release);
            found
        }
        known => known,
    };
    // SAFETY: glibc's function of this name has this type, and glibc is never unloaded.
    (known != ABSENT).then(|| unsafe { core::mem::transmute::<usize, FindObject>(known) })
}

/// The object that has the code at `address`. Its record lives while it is loaded, as a caller's is, and
/// what a caller is linked with. Before glibc 2.35 this waits for the loader.
pub(crate) fn at(address: usize) -> Option<&'static Object> {
    const RTLD_DL_LINKMAP: c_int = 2;
    let mut record: *mut c_void = null_mut();
    match find_object() {
        Some(find) => {
            // SAFETY: numbers and pointers may be zero.
            let mut found: FoundObject = unsafe { zeroed() };
            if find(address as *const _, &raw mut found) == 0 {
                record = found.record;
            }
        }
        None => {
            // SAFETY: pointers may be zero.
            let mut info: libc::Dl_info = unsafe { zeroed() };
            // SAFETY: dladdr1 only compares the address; it fills `info` and `record`.
            if unsafe { dladdr1(address as *const _, &raw mut info, &raw mut record, RTLD_DL_LINKMAP) } == 0 {
                record = null_mut();
            }
        }
    }
    // SAFETY: the loader's own record, whose public part is the same in every glibc.
    unsafe { record.cast::<Object>().as_ref() }
}

/// This library.
pub(crate) fn ours() -> Option<&'static Object> {
    at(ours as *const () as usize)
}

/// The loader's name of the object that has the code at `address`; none for the program itself.
pub(crate) fn name_at(address: usize) -> Option<&'static CStr> {
    at(address)?.name()
}

/// An object, as long as nothing else is loaded in its place. Another run of the same file in the same
/// place counts as the same: it is linked with the same libraries.
pub(crate) struct Identity {
    record: usize,
    base: usize,
    dynamic: usize,
    name: Box<CStr>,
}

impl Identity {
    pub(crate) fn is(&self, object: &Object) -> bool {
        self.record == from_ref(object).addr()
            && self.base == object.base
            && self.dynamic == object.dynamic.addr()
            && *self.name == *object.name().unwrap_or_default()
    }
}

impl Object {
    /// What the loader calls it; the program itself has no name.
    pub(crate) fn name(&self) -> Option<&'static CStr> {
        // SAFETY: null, or the loader's own string, which lives as long as the object is loaded.
        let name = (!self.name.is_null()).then(|| unsafe { CStr::from_ptr(self.name) });
        name.filter(|name| !name.is_empty())
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity {
            record: from_ref(self).addr(),
            base: self.base,
            dynamic: self.dynamic.addr(),
            name: self.name().unwrap_or_default().into(),
        }
    }

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
    pub(crate) fn version_wanted(&self, name: &CStr) -> Option<&'static CStr> {
        let strings = self.find(DT_STRTAB)? as *const c_char;
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
