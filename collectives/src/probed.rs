//! What `pinyard-mpi-probe` has found out, kept per MPI library for the programs that run
//! later.
//!
//! A file of one line per library in `$XDG_CACHE_HOME/pinyard` (or `~/.cache/pinyard`), mode
//! 0600: an answer that another user could write is not believed. A line holds for a
//! library's path and version and the settings that choose its transport.
#![allow(unsafe_code)]

use crate::variables::variable;
use libloading::os::unix::Library as Process;
use mpi::ffi;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Variables by which a user chooses what carries messages: with others a library may
/// answer otherwise.
const SETTINGS: [&str; 3] = ["OMPI_MCA_pml", "OMPI_MCA_btl", "UCX_TLS"];

/// An MPI library, as it is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Its file, without links.
    pub path: String,
    /// The first line of `MPI_Get_library_version`.
    pub version: String,
    /// `OMPI_MCA_pml`, `OMPI_MCA_btl` and `UCX_TLS` as far as they are set.
    pub settings: String,
}

/// What a probe has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Of which library.
    pub library: Library,
    /// Whether it took device pointers.
    pub takes: bool,
    /// What was tried, and how it ended.
    pub told: String,
}

/// Without what separates columns and lines.
fn plain(text: &str) -> String {
    text.replace(|letter: char| letter.is_control(), " ").trim().to_owned()
}

impl Library {
    /// The one that this process has loaded. `None` where its file cannot be told.
    pub fn loaded() -> Option<Library> {
        let process = Process::this();
        // SAFETY: only its address is used.
        let symbol = unsafe { process.get::<unsafe extern "C" fn()>(b"MPI_Init\0") }.ok()?;
        // SAFETY: plain data, for which zeros are a value.
        let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: stores where the address lies.
        if unsafe { libc::dladdr(*symbol as *const c_void, &mut found) } == 0 || found.dli_fname.is_null() {
            return None;
        }
        // SAFETY: the name of a loaded object, which stands while it is loaded.
        let name = unsafe { CStr::from_ptr(found.dli_fname) };
        let path = fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()?;
        let mut text = [0 as c_char; ffi::MPI_MAX_LIBRARY_VERSION_STRING as usize];
        let mut length: c_int = 0;
        // SAFETY: the buffer has the length that the standard asks for; callable at any time.
        unsafe { ffi::MPI_Get_library_version(text.as_mut_ptr(), &mut length) };
        let bytes: Vec<u8> = text.iter().take(length.max(0) as usize).map(|&byte| byte as u8).collect();
        let version = String::from_utf8_lossy(&bytes);
        let set = |name: &&str| std::env::var(name).ok().map(|value| format!("{name}={value}"));
        Some(Library {
            path: plain(&path.to_string_lossy()),
            version: plain(version.lines().next().unwrap_or("")),
            settings: plain(&SETTINGS.iter().filter_map(set).collect::<Vec<_>>().join(" ")),
        })
    }
}

impl Tried {
    /// As a line of the file.
    pub fn to_line(&self) -> String {
        let Library { path, version, settings } = &self.library;
        let takes = if self.takes { "yes" } else { "no" };
        [takes, path, version, settings, &self.told].map(plain).join("\t")
    }

    /// A line of the file; `None` if it is none.
    pub fn of_line(line: &str) -> Option<Tried> {
        let mut columns = line.split('\t').map(str::to_owned);
        let takes = match columns.next()?.as_str() {
            "yes" => true,
            "no" => false,
            _ => return None,
        };
        let library = Library { path: columns.next()?, version: columns.next()?, settings: columns.next()? };
        Some(Tried { library, takes, told: columns.next()? })
    }
}

/// Where answers are kept; `None` without a home, and in a program that runs with more rights
/// than its caller.
pub fn file() -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("pinyard").join("mpi-device-pointers"))
}

/// All answers of a file; none of one that others may write.
pub fn read(file: &Path) -> Vec<Tried> {
    let Ok(mut opened) = File::open(file) else { return Vec::new() };
    // SAFETY: asks for a number.
    let user = unsafe { libc::geteuid() };
    match opened.metadata() {
        Ok(data) if data.uid() == user && data.mode() & 0o022 == 0 => {}
        _ => {
            tracing::warn!(file = %file.display(), "not believed: others may write it");
            return Vec::new();
        }
    }
    let mut text = String::new();
    match opened.read_to_string(&mut text) {
        Ok(_) => text.lines().filter_map(Tried::of_line).collect(),
        Err(_) => Vec::new(),
    }
}

/// Keeps `tried` in place of what was known of its library. Whoever reads meanwhile finds
/// the old file or the new one.
pub fn record(file: &Path, tried: &Tried) -> io::Result<()> {
    let mut all = read(file);
    all.retain(|known| known.library != tried.library);
    all.push(tried.clone());
    if let Some(folder) = file.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let new = file.with_extension(std::process::id().to_string());
    let written = (|| {
        let mut opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        for tried in &all {
            writeln!(opened, "{}", tried.to_line())?;
        }
        opened.sync_all()?;
        fs::rename(&new, file)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// What is known of the library that this process has loaded.
pub(crate) fn of_loaded() -> Option<bool> {
    let library = Library::loaded()?;
    let known = read(&file()?).into_iter().find(|tried| tried.library == library)?;
    Some(known.takes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn tried(path: &str, takes: bool) -> Tried {
        let library =
            Library { path: path.to_owned(), version: "Some MPI 1.0".to_owned(), settings: String::new() };
        Tried { library, takes, told: "MPI_Bcast\tof\n64 bytes".to_owned() }
    }

    #[test]
    fn the_last_answer_of_a_library_counts_and_a_file_of_anybodys_none() {
        let folder = std::env::temp_dir().join(format!("pinyard-probed-{}", std::process::id()));
        let file = folder.join("a").join("answers");
        for (path, takes) in [("/one", false), ("/two", true), ("/one", true)] {
            record(&file, &tried(path, takes)).unwrap();
        }
        let all = read(&file);
        assert_eq!(
            all.iter().map(|t| (&*t.library.path, t.takes)).collect::<Vec<_>>(),
            [("/two", true), ("/one", true)]
        );
        assert_eq!(all[0].told, "MPI_Bcast of 64 bytes");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o620)).unwrap();
        assert_eq!(read(&file), []);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(read(&file), []);
    }

    #[test]
    fn a_line_that_is_none_is_left_out() {
        assert_eq!(Tried::of_line("perhaps\t/a\tb\tc\td"), None);
        assert_eq!(Tried::of_line("yes\t/a\tb"), None);
        let line = tried("/a", true).to_line();
        assert_eq!(Tried::of_line(&line).map(|tried| tried.to_line()), Some(line));
    }
}
