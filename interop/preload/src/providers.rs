//! Providers that libfabric loads from files of their own.
//!
//! Each is built with a copy of libfabric's cache, its lock and its monitors, whether
//! it uses them or not. Most export `ofi_open_mr_cache`, and with it the way in. A
//! provider that is built with hidden symbols has no way in. It counts as caching under
//! whatever name (Intel MPI's `libverbs-1.12-fi.so` caches), unless the source of its
//! namesake never does: caches are switched off before libfabric starts it, by the one
//! setting that every copy reads then.

use crate::elf::exports;
use crate::loader::{cached, searched_by};
use crate::say::say;
use crate::settings::Level;
use core::ffi::CStr;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What libfabric takes for a provider's file (`src/fabric.c`, `FI_LIB_SUFFIX`).
const SUFFIX: &str = "-fi.so";
/// Those whose source, in libfabric 1.17 to 2.6, has none of `ofi_mr_cache_init`,
/// `ofi_monitors_add_cache` and the cache of IPC handles. PyPI's Open MPI 5 ships
/// `libpsmx2-fi.so`, which hides all its symbols.
const NEVER_CACHING: [&str; 11] =
    ["psmx2", "psm3", "rxd", "rxm", "tcp", "sockets", "udp", "usnic", "ucx", "mrail", "lnx"];
/// How many registrations a cache may hold; 0 is none.
const MAX_COUNT: &CStr = c"FI_MR_CACHE_MAX_COUNT";

/// Whether libfabric takes the file for a provider's, whatever stands before the suffix.
pub(crate) fn is_provider(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.as_bytes().ends_with(SUFFIX.as_bytes()))
}

/// Whether the provider in this file, of whatever version, may use libfabric's cache.
pub(crate) fn may_cache(file: &Path) -> bool {
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let name = name.strip_prefix("lib").and_then(|name| name.strip_suffix(SUFFIX)).unwrap_or_default();
    let version = |letter: char| letter.is_ascii_digit() || letter == '.';
    let name = match name.rsplit_once('-') {
        Some((name, rest)) if rest.chars().all(version) => name,
        _ => name,
    };
    !NEVER_CACHING.contains(&name)
}

/// Whether no copy of libfabric's cache holds a registration in this process.
pub(crate) fn are_off() -> bool {
    // SAFETY: NUL-terminated texts; see `switch_off_unreachable`.
    let value = unsafe { libc::getenv(MAX_COUNT.as_ptr()) };
    // SAFETY: getenv gives null or a NUL-terminated text.
    let value = if value.is_null() { c"" } else { unsafe { CStr::from_ptr(value) } };
    value.to_str().is_ok_and(|value| value.trim().parse() == Ok(0_u32))
}

/// The providers' files that libfabric will load, and some that it will not. It goes where
/// `said` (`FI_PROVIDER_PATH`) leads. Where that names no folder, it looks in a folder of its
/// own (`PROVDLDIR` is `$libdir/libfabric`), and asks the loader for each by its name:
/// Intel MPI's lie beside libfabric, others in the folders that the loader has `searched`, or where its
/// cache says (`cached`).
/// What a folder holds is a provider's by its name, what is named itself (`+FILE`, with a
/// leading slash) by whatever name.
fn files(
    libfabric: &Path,
    said: Option<&OsStr>,
    searched: Vec<PathBuf>,
    cached: Vec<PathBuf>,
) -> Vec<PathBuf> {
    let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
    let said = said.unwrap_or_default().as_bytes();
    let said = said.strip_prefix(b"@").unwrap_or(said).split(|&byte| byte == b':');
    let (named, folders): (Vec<&[u8]>, Vec<&[u8]>) =
        said.filter(|part| !part.is_empty()).partition(|part| part.starts_with(b"+"));
    let mut files: Vec<PathBuf> = named.into_iter().map(|part| path(&part[1..])).collect();
    files.retain(|file| file.is_absolute());
    let mut folders: Vec<PathBuf> = folders.into_iter().map(path).collect();
    if folders.is_empty() {
        folders.extend(libfabric.parent().map(|folder| folder.join("libfabric")));
        folders.extend(libfabric.parent().map(Path::to_owned));
        folders.extend(searched);
        files.extend(cached);
    }
    for folder in folders {
        // A folder that is not there has no providers.
        let all = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        files.extend(all.filter(|file| is_provider(file)));
    }
    files
}

/// Before `libfabric` starts its providers: where one has no way to its cache, none of its
/// copies of the cache holds a registration. What is `loaded` has read its settings.
pub(crate) fn switch_off_unreachable(libfabric: &CStr, loaded: impl Fn(&Path) -> bool) {
    // SAFETY: a NUL-terminated name.
    if !unsafe { libc::getenv(MAX_COUNT.as_ptr()) }.is_null() {
        return;
    }
    // A program that runs with more rights than its caller opens nothing that the
    // environment names.
    let said = std::env::var_os("FI_PROVIDER_PATH").filter(|_| !pinyard_hooks::is_privileged());
    // One of another name is not found by `loaded_since`, so nothing goes into it.
    let is_closed =
        |file: &PathBuf| may_cache(file) && (!is_provider(file) || !has_way_in(file)) && !loaded(file);
    let path = Path::new(OsStr::from_bytes(libfabric.to_bytes()));
    let mut files = files(path, said.as_deref(), searched_by(libfabric), cached(is_provider)).into_iter();
    let Some(closed) = files.find(is_closed) else { return };
    // SAFETY: NUL-terminated texts. Another thread that reads the environment at this
    // moment may read a table that is being replaced, as beside any setenv; libfabric's
    // first caller is the thread that starts MPI.
    unsafe { libc::setenv(MAX_COUNT.as_ptr(), c"0".as_ptr(), 0) };
    say(
        Level::Error,
        format_args!(
            "{}: its cache, if it has one, cannot be reached, because it hides ofi_open_mr_cache or is no \
             lib…-fi.so: FI_MR_CACHE_MAX_COUNT set to 0, so what {} starts from here on caches no \
             registration; set it yourself to keep that provider's own monitor",
            closed.display(),
            path.display()
        ),
    );
}

/// Whether the provider exports the way to its cache. What is no library of this machine's kind
/// has no cache; a library that does not say has no way to one.
fn has_way_in(file: &Path) -> bool {
    contents(file).ok().and_then(|file| exports(&file, "ofi_open_mr_cache")).unwrap_or(true)
}

/// Bytes of a provider's file at most; Intel's largest has 3 MiB.
const MOST: u64 = 256 << 20;

/// What a regular file holds. A FIFO of a provider's name would keep the program waiting
/// (fifo(7)), and a device might never end.
fn contents(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(file)?;
    let mut bytes = Vec::new();
    if file.metadata()?.is_file() {
        file.take(MOST).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_known_by_its_suffix_whatever_version_it_names() {
        for name in ["libverbs-fi.so", "libverbs-1.12-fi.so", "libverbs-1.1-fi.so", "libmlx-fi.so", "x-fi.so"]
        {
            assert!(is_provider(&Path::new("/opt/mpi/libfabric/lib/prov").join(name)), "{name}");
        }
        for name in
            ["libverbs-fi.so.1", "libverbs-fi.so.bak", "libfabric.so.1", "verbs-1.12-fi.so/readme", ""]
        {
            assert!(!is_provider(&Path::new("/opt/mpi").join(name)), "{name}");
        }
    }

    #[test]
    fn who_never_caches_is_known_in_every_version_and_nobody_else_is() {
        for name in ["libpsmx2-fi.so", "libtcp-fi.so", "librxm-1.12-fi.so", "libpsm3-2.1.0-fi.so"] {
            assert!(!may_cache(Path::new(name)), "{name}");
        }
        let names =
            ["libverbs-fi.so", "libverbs-1.12-fi.so", "libverbs-1.1-fi.so", "libmlx-fi.so", "libefa-fi.so"];
        for name in
            names.into_iter().chain(["libtcp-new-fi.so", "tcp-fi.so", "tcp", "libtcp.so", "lib-fi.so"])
        {
            assert!(may_cache(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn what_is_no_regular_file_is_not_waited_for() {
        let fifo = std::env::temp_dir().join(format!("pinyard-{}-fi.so", std::process::id()));
        let name = std::ffi::CString::new(fifo.as_os_str().as_bytes()).unwrap();
        // SAFETY: a NUL-terminated path.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let read = contents(&fifo).map(|bytes| bytes.len());
        std::fs::remove_file(&fifo).unwrap();
        assert_eq!(read.ok(), Some(0));
        assert_eq!(contents(Path::new("/dev/zero")).ok(), Some(vec![]));
        assert!(has_way_in(Path::new("/dev/null")));
    }

    #[test]
    fn every_provider_of_the_folders_is_looked_at_and_every_named_file() {
        let folder = std::env::temp_dir().join(format!("pinyard-providers-{}", std::process::id()));
        let (own, other) = (folder.join("libfabric"), folder.join("other"));
        std::fs::create_dir_all(&own).unwrap();
        std::fs::create_dir_all(&other).unwrap();
        for file in
            ["libfabric/libefa-fi.so", "libfabric/readme.txt", "libverbs-1.12-fi.so", "other/libx-fi.so"]
        {
            std::fs::write(folder.join(file), "").unwrap();
        }
        let cached = vec![PathBuf::from("/opt/cached/liby-fi.so")];
        let looked_at = |said: Option<&str>, searched: &[&Path]| {
            let searched = searched.iter().map(|folder| folder.to_path_buf()).collect();
            let mut files =
                files(&folder.join("libfabric.so.1"), said.map(OsStr::new), searched, cached.clone());
            files.sort();
            files
        };
        let (efa, verbs) = (own.join("libefa-fi.so"), folder.join("libverbs-1.12-fi.so"));
        let x = other.join("libx-fi.so");
        let beside = [cached[0].clone(), efa.clone(), verbs.clone()];
        for nothing in [None, Some(""), Some("@"), Some("+below/it-fi.so")] {
            assert_eq!(looked_at(nothing, &[]), beside, "{nothing:?}");
        }
        let all = [cached[0].clone(), efa, verbs, x.clone()];
        assert_eq!(looked_at(None, &[Path::new("/nowhere"), &other]), all);
        let path = other.to_str().unwrap();
        assert_eq!(looked_at(Some(path), &[]), std::slice::from_ref(&x));
        assert_eq!(looked_at(Some(&format!("@{path}:/nowhere:below")), &[&folder]), std::slice::from_ref(&x));
        let named = Path::new("/opt/verbs.so");
        assert_eq!(looked_at(Some(&format!("+/opt/verbs.so:{path}")), &[]), [named.to_owned(), x]);
        // From the working directory, which is where libfabric looks.
        let here = std::env::current_dir().unwrap();
        let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
        let relative = up.join(other.strip_prefix("/").unwrap());
        let found = looked_at(relative.to_str(), &[]);
        assert_eq!(found, [relative.join("libx-fi.so")], "from {}", here.display());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
