//! What the loader knows: the objects that it has loaded, and where it looks for one.
//!
//! Asked with no lock of ours: a constructor runs with the loader's.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::NonNull;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names of objects.
pub(crate) struct Names {
    wanted: fn(&Path) -> bool,
    /// The loader's words, each with its NUL.
    words: Vec<u8>,
    /// Some did not fit into `words`.
    cut: bool,
}

impl Names {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &CStr> {
        self.words.split_inclusive(|&byte| byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok())
    }
}

/// The objects that are loaded and `wanted`, by their names. Does not wait for constructors, but for
/// a thread that enters an object into the loader's list or takes one out.
pub(crate) fn loaded(wanted: fn(&Path) -> bool) -> Names {
    /// With a lock of the loader's, so it allocates nothing: an allocator may wait for the loader.
    extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, names: *mut c_void) -> c_int {
        // SAFETY: the loader's record and the `Names` below, for the time of the call.
        let (info, names) = unsafe { (&*info, &mut *names.cast::<Names>()) };
        if !info.dlpi_name.is_null() {
            // SAFETY: the loader's own string.
            let name = unsafe { CStr::from_ptr(info.dlpi_name) };
            if (names.wanted)(Path::new(OsStr::from_bytes(name.to_bytes()))) {
                let name = name.to_bytes_with_nul();
                let fits = names.words.capacity() - names.words.len() >= name.len();
                match fits {
                    true => names.words.extend_from_slice(name),
                    false => names.cut = true,
                }
            }
        }
        0
    }
    let mut room = 4 << 10;
    loop {
        let mut names = Names { wanted, words: Vec::with_capacity(room), cut: false };
        // SAFETY: `each` has this signature and uses `names` while the call lasts.
        unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut names).cast()) };
        if !names.cut {
            return names;
        }
        room *= 2;
    }
}

/// A handle of the object that the loader calls `object`, which counts until it is closed; `None` where
/// it is not loaded. `flags` are further ones of dlopen(3).
fn handle_of(object: &CStr, flags: c_int) -> Option<NonNull<c_void>> {
    // SAFETY: a NUL-terminated name; NOLOAD loads nothing, so it runs no constructor.
    NonNull::new(unsafe { libc::dlopen(object.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD | flags) })
}

/// The address that `name` has in the object of `handle`, or in one that it is linked with.
fn find(handle: NonNull<c_void>, name: &CStr) -> Option<usize> {
    // SAFETY: a live handle and a NUL-terminated name.
    let found = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
    (!found.is_null()).then_some(found.addr())
}

/// The function `name` of the object that the loader calls `object`, which stays loaded from then on:
/// what is found is called until the process ends.
pub(crate) fn in_object(object: &CStr, name: &CStr) -> Option<usize> {
    find(handle_of(object, libc::RTLD_NODELETE)?, name)
}

/// Whether the object that the loader calls `object` is loaded and has `name`, or is linked with what has.
pub(crate) fn has(object: &CStr, name: &CStr) -> bool {
    with(object, |handle| find(handle, name)).is_some()
}

/// What `look` finds by a handle of the object that the loader calls `object`, which is closed afterwards.
pub(crate) fn with<T>(object: &CStr, look: impl FnOnce(NonNull<c_void>) -> Option<T>) -> Option<T> {
    let handle = handle_of(object, 0)?;
    let found = look(handle);
    // SAFETY: the handle from above, used no more.
    unsafe { libc::dlclose(handle.as_ptr()) };
    found
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
/// glibc-hwcaps). What its cache names is [`cached`]'s.
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

/// The files of ldconfig(8)'s cache that are `wanted`. Its texts are paths and names of libraries, each
/// with its NUL, whatever version of the format it has.
pub(crate) fn cached(wanted: fn(&Path) -> bool) -> Vec<PathBuf> {
    paths_of(&std::fs::read("/etc/ld.so.cache").unwrap_or_default(), wanted)
}

fn paths_of(cache: &[u8], wanted: fn(&Path) -> bool) -> Vec<PathBuf> {
    let texts = cache.split(|&byte| byte == 0).map(|text| Path::new(OsStr::from_bytes(text)));
    texts.filter(|path| path.is_absolute() && wanted(path)).map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_cache_names_is_found() {
        let is_c = |path: &Path| path.file_name().is_some_and(|name| name == "libc.so.6");
        let found = cached(is_c);
        assert!(found.iter().any(|path| path.exists()), "{found:?}");
        let cache = b"glibc-ld.so.cache1.1\0\x02\0libc.so.6\0/opt/x/libc.so.6\0/opt/x/libm.so.6\0";
        assert_eq!(paths_of(cache, is_c), [Path::new("/opt/x/libc.so.6")]);
    }

    #[test]
    fn the_loader_says_where_it_looks() {
        let libc = c"libc.so.6";
        let folders = searched_by(libc);
        assert!(folders.iter().any(|folder| folder.join("libc.so.6").exists()), "{folders:?}");
        assert_eq!(searched_by(c"/nowhere/libx.so"), Vec::<PathBuf>::new());
    }
}
