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
use pinyard_registry::maps::{self, Mapping};
use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr, OsString, c_char, c_int, c_void};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Variables by which a user chooses what carries messages, and whether device pointers are looked
/// for: with others a library may answer otherwise.
const SETTINGS: [&str; 7] = [
    "OMPI_MCA_pml",
    "OMPI_MCA_btl",
    "OMPI_MCA_mtl",
    "OMPI_MCA_osc",
    "UCX_TLS",
    "MPICH_GPU_SUPPORT_ENABLED",
    "MV2_USE_CUDA",
];
/// What libfabric's begin with, whose providers have theirs.
const FABRIC: &str = "FI_";
/// Libraries that carry messages, which may be others than those an MPI was tried with.
const CARRIERS: [&str; 2] = ["libucp.so", "libfabric.so"];

/// An MPI library, as it is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Its file, without links.
    pub path: String,
    /// The first line of `MPI_Get_library_version`.
    pub version: String,
    /// What chooses its transport: `OMPI_MCA_pml`, `_btl`, `_mtl` and `_osc`, `UCX_TLS`,
    /// `MPICH_GPU_SUPPORT_ENABLED`, `MV2_USE_CUDA` and all of `FI_*` as far as they are set, and
    /// the UCX and libfabric that are loaded.
    pub settings: String,
}

/// With what a library took device pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// With none, or not with all messages and collectives.
    Nothing,
    /// With messages and collectives.
    Messages,
    /// With windows as well.
    Everything,
}

impl Takes {
    const ALL: [Takes; 3] = [Takes::Nothing, Takes::Messages, Takes::Everything];

    /// In the file.
    fn name(self) -> &'static str {
        match self {
            Takes::Nothing => "no",
            Takes::Messages => "messages",
            Takes::Everything => "everything",
        }
    }
}

/// What a probe has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Of which library.
    pub library: Library,
    /// Whether it took device pointers.
    pub takes: Takes,
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
        let carriers = maps::read().unwrap_or_default();
        Some(Library {
            path: plain(&path.to_string_lossy()),
            version: plain(version.lines().next().unwrap_or("")),
            settings: plain(&settings(std::env::vars_os(), &carriers)),
        })
    }
}

/// Those of `environment`, in their order, and the carriers among the mapped files of
/// proc_pid_maps(5).
fn settings(environment: impl Iterator<Item = (OsString, OsString)>, maps: &str) -> String {
    let chosen = environment.filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        let counts = SETTINGS.contains(&&*name) || name.starts_with(FABRIC);
        counts.then(|| format!("{name}={}", value.to_string_lossy()))
    });
    let loaded = maps::mappings(maps).filter_map(|Mapping { path, .. }| {
        let file = path.rsplit('/').next()?;
        CARRIERS.iter().any(|carrier| file.starts_with(carrier)).then(|| path.to_owned())
    });
    chosen.chain(loaded).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" ")
}

impl Tried {
    /// As a line of the file.
    pub fn to_line(&self) -> String {
        let Library { path, version, settings } = &self.library;
        [self.takes.name(), path, version, settings, &self.told].map(plain).join("\t")
    }

    /// A line of the file; `None` if it is none.
    pub fn of_line(line: &str) -> Option<Tried> {
        let mut columns = line.split('\t').map(str::to_owned);
        let word = columns.next()?;
        let takes = Takes::ALL.into_iter().find(|takes| takes.name() == word)?;
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
pub(crate) fn of_loaded() -> Option<Takes> {
    let library = Library::loaded()?;
    let known = read(&file()?).into_iter().find(|tried| tried.library == library)?;
    Some(known.takes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn tried(path: &str, takes: Takes) -> Tried {
        let library =
            Library { path: path.to_owned(), version: "Some MPI 1.0".to_owned(), settings: String::new() };
        Tried { library, takes, told: "MPI_Bcast\tof\n64 bytes".to_owned() }
    }

    #[test]
    fn the_last_answer_of_a_library_counts_and_a_file_of_anybodys_none() {
        let folder = std::env::temp_dir().join(format!("pinyard-probed-{}", std::process::id()));
        let file = folder.join("a").join("answers");
        let (none, everything) = (Takes::Nothing, Takes::Everything);
        for (path, takes) in [("/one", none), ("/two", everything), ("/one", Takes::Messages)] {
            record(&file, &tried(path, takes)).unwrap();
        }
        let all = read(&file);
        assert_eq!(
            all.iter().map(|t| (&*t.library.path, t.takes)).collect::<Vec<_>>(),
            [("/two", everything), ("/one", Takes::Messages)]
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
        assert_eq!(Tried::of_line("messages\t/a\tb"), None);
        // Of a probe that tried less.
        assert_eq!(Tried::of_line("yes\t/a\tb\tc\td"), None);
        let line = tried("/a", Takes::Everything).to_line();
        assert_eq!(Tried::of_line(&line).map(|tried| tried.to_line()), Some(line));
    }

    #[test]
    fn what_chooses_a_transport_is_part_of_the_key() {
        let maps = "7f1-7f2 r-xp 00000000 08:01 7  /opt/ucx/lib/libucp.so.0.0.0\n\
                    7f2-7f3 rw-p 00000000 08:01 7  /opt/ucx/lib/libucp.so.0.0.0\n\
                    7f3-7f4 rw-p 00000000 00:00 0 \n\
                    7f4-7f5 r-xp 00000000 08:01 9  /usr/lib/libucs.so.0.0.0\n";
        let environment = [
            ("PATH", "/usr/bin"),
            ("UCX_TLS", "rc"),
            ("MV2_USE_CUDA", "1"),
            ("MPICH_GPU_SUPPORT_ENABLED", "1"),
            ("FI_PROVIDER", "tcp"),
            ("OMPI_MCA_mtl", "ofi"),
            ("OMPI_MCA_osc", "ucx"),
            ("OMPI_MCA_rmaps", "seq"),
        ];
        let environment = environment.map(|(name, value)| (name.into(), value.into()));
        assert_eq!(
            settings(environment.into_iter(), maps),
            "/opt/ucx/lib/libucp.so.0.0.0 FI_PROVIDER=tcp MPICH_GPU_SUPPORT_ENABLED=1 MV2_USE_CUDA=1 \
             OMPI_MCA_mtl=ofi OMPI_MCA_osc=ucx UCX_TLS=rc"
        );
    }
}
