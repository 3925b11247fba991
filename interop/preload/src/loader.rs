//! What the loader knows: the objects that it has loaded, and where it looks for one.
//!
//! Asked with no lock of ours: a constructor runs with the loader's.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::NonNull;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Objects that the loader had loaded, ever, at the last [`Loaded::all_are_done`].
static SETTLED: AtomicU64 = AtomicU64::new(0);

/// Objects that are loaded.
pub(crate) struct Loaded {
    wanted: fn(&Path) -> bool,
    /// Objects that were ever loaded.
    adds: u64,
    /// The loader's names, each with its NUL.
    names: Vec<u8>,
    /// Some did not fit into `names`.
    cut: bool,
}

impl Loaded {
    pub(crate) fn names(&self) -> impl Iterator<Item = &CStr> {
        self.names.split_inclusive(|&byte| byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok())
    }

    /// Nothing is left to be done: [`loaded_since`] finds nothing until the next is loaded.
    pub(crate) fn all_are_done(&self) {
        SETTLED.store(self.adds, Release);
    }
}

/// The objects that are loaded and `wanted`, if any object has been loaded since
/// [`Loaded::all_are_done`].
pub(crate) fn loaded_since(wanted: fn(&Path) -> bool) -> Option<Loaded> {
    /// With the loader's lock, so it allocates nothing: an allocator may wait for the loader.
    extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, loaded: *mut c_void) -> c_int {
        // SAFETY: the loader's record and the `Loaded` below, for the time of the call.
        let (info, loaded) = unsafe { (&*info, &mut *loaded.cast::<Loaded>()) };
        loaded.adds = info.dlpi_adds;
        if SETTLED.load(Acquire) == info.dlpi_adds {
            return 1;
        }
        if !info.dlpi_name.is_null() {
            // SAFETY: the loader's own string.
            let name = unsafe { CStr::from_ptr(info.dlpi_name) };
            if (loaded.wanted)(Path::new(OsStr::from_bytes(name.to_bytes()))) {
                let name = name.to_bytes_with_nul();
                let fits = loaded.names.capacity() - loaded.names.len() >= name.len();
                match fits {
                    true => loaded.names.extend_from_slice(name),
                    false => loaded.cut = true,
                }
            }
        }
        0
    }
    let mut room = 4 << 10;
    loop {
        let mut loaded = Loaded { wanted, adds: 0, names: Vec::with_capacity(room), cut: false };
        // SAFETY: `each` has this signature and uses `loaded` while the call lasts.
        unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut loaded).cast()) };
        if SETTLED.load(Acquire) == loaded.adds {
            return None;
        }
        if !loaded.cut {
            return Some(loaded);
        }
        room *= 2;
    }
}

/// A handle of the object that the loader calls `object`, which counts until it is closed; `None` where
/// it is not loaded. `flags` are further ones of dlopen(3).
pub(crate) fn handle_of(object: &CStr, flags: c_int) -> Option<NonNull<c_void>> {
    // SAFETY: a NUL-terminated name; NOLOAD loads nothing, so it runs no constructor.
    NonNull::new(unsafe { libc::dlopen(object.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD | flags) })
}

/// `Dl_serpath` and `Dl_serinfo` (`dlfcn.h`).
#[repr(C)]
struct SearchPath {
    name: *const c_char,
    flags: u32,
}
#[repr(C)]
struct SearchInfo {
    size: usize,
    count: u32,
    /// `count` of them.
    paths: [SearchPath; 0],
}

unsafe extern "C" {
    fn dlinfo(handle: *mut c_void, request: c_int, answer: *mut c_void) -> c_int;
}

/// The folders in which the loader looks for what `object` opens by a name without a slash,
/// in its words (dlinfo(3), `RTLD_DI_SERINFO`): run paths, the `LD_LIBRARY_PATH` that the
/// process began with, the system's; and the folders of each for newer processors (ld.so(8),
/// glibc-hwcaps). The loader's cache (ldconfig(8)) is not among them.
pub(crate) fn searched_by(object: &CStr) -> Vec<PathBuf> {
    const SERINFO: c_int = 4;
    const SERINFO_SIZE: c_int = 5;
    // The handle counts for ever: libfabric is never unloaded once a monitor is in.
    let Some(handle) = handle_of(object, 0).map(NonNull::as_ptr) else { return Vec::new() };
    let mut wanted = SearchInfo { size: 0, count: 0, paths: [] };
    // SAFETY: a live handle, and room for the two numbers that the request stores.
    if unsafe { dlinfo(handle, SERINFO_SIZE, (&raw mut wanted).cast()) } != 0 {
        return Vec::new();
    }
    let mut memory = vec![0_u64; wanted.size.div_ceil(size_of::<u64>())];
    let info = memory.as_mut_ptr().cast::<SearchInfo>();
    // SAFETY: `memory` has the size that the loader asked for; its first fields say so again,
    // as dlinfo(3) wants it. The texts that the paths lead to lie in it as well.
    unsafe {
        (*info).size = wanted.size;
        (*info).count = wanted.count;
        if dlinfo(handle, SERINFO, info.cast()) != 0 {
            return Vec::new();
        }
        let paths = (&raw const (*info).paths).cast::<SearchPath>();
        let folder = |index| CStr::from_ptr((*paths.add(index)).name).to_bytes();
        let folders = (0..wanted.count as usize).map(|index| PathBuf::from(OsStr::from_bytes(folder(index))));
        folders.flat_map(|folder| for_processors(&folder).into_iter().chain([folder])).collect()
    }
}

/// The folders below `folder` for newer processors, all of them: which this one is does not matter to
/// who only reads files.
fn for_processors(folder: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(folder.join("glibc-hwcaps")).into_iter().flatten();
    found.flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_says_where_it_looks() {
        let libc = c"libc.so.6";
        let folders = searched_by(libc);
        assert!(folders.iter().any(|folder| folder.join("libc.so.6").exists()), "{folders:?}");
        assert_eq!(searched_by(c"/nowhere/libx.so"), Vec::<PathBuf>::new());
    }
}
