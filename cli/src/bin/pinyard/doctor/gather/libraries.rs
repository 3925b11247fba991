//! The MPI, libfabric and UCX libraries that programs here may come to use.

use super::Root;
use super::probe::{Kind, MpiAnswer, Question};
use crate::doctor::facts::{Library, Mpi, Version};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Sonames: Open MPI's and MPICH's, and Intel MPI's, which is MPICH's by the common ABI.
const MPI: [&str; 2] = ["libmpi.so.", "libmpich.so."];
const LIBFABRIC: [&str; 1] = ["libfabric.so."];
const UCX: [&str; 1] = ["libucp.so."];
/// Whose folder in PATH is `PREFIX/bin` of one that may have libraries.
const COMMANDS: [&str; 4] = ["mpirun", "mpiexec", "fi_info", "ucx_info"];
const PRELOAD: &str = "libpinyard_preload.so";

/// Libraries that have been asked.
pub(super) struct Asked {
    mpi: Vec<(String, Question)>,
    libfabric: Vec<(String, Question)>,
    ucx: Vec<(String, Question)>,
}

impl Asked {
    pub(super) fn ask(root: &Root) -> Asked {
        let variable = |name: &str| std::env::var_os(name).unwrap_or_default();
        let folders = folders(
            root,
            std::env::split_paths(&variable("LD_LIBRARY_PATH")),
            std::env::split_paths(&variable("PATH")),
        );
        let ask = |kind: Kind, names: &[&str]| {
            let found = find(root, &folders, names).into_iter();
            found.map(|path| (path.clone(), Question::of(kind, &path))).collect()
        };
        Asked {
            mpi: ask(Kind::Mpi, &MPI),
            libfabric: ask(Kind::Libfabric, &LIBFABRIC),
            ucx: ask(Kind::Ucx, &UCX),
        }
    }

    pub(super) fn answers(self) -> (Vec<Mpi>, Vec<Library>, Vec<Library>) {
        let mpi = |(path, question): (String, Question)| match question.answer::<MpiAnswer>() {
            Ok(answer) => Mpi { path, name: Some(short(&answer.name)), silent: None, cuda: answer.cuda },
            Err(why) => Mpi { path, silent: Some(why), ..Mpi::default() },
        };
        let library = |(path, question): (String, Question)| match question.answer::<Version>() {
            Ok(version) => Library { path, version: Some(version), silent: None },
            Err(why) => Library { path, silent: Some(why), version: None },
        };
        (
            self.mpi.into_iter().map(mpi).collect(),
            self.libfabric.into_iter().map(library).collect(),
            self.ucx.into_iter().map(library).collect(),
        )
    }
}

/// `Open MPI v4.1.4` of `Open MPI v4.1.4, package: …`; `MPICH Version: 4.0.2` of what
/// goes on in further lines.
pub(super) fn short(name: &str) -> String {
    let line = name.lines().next().unwrap_or_default();
    let words = line.split(',').next().unwrap_or_default();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Where the loader looks (ld.so(8)), and the folders of installations that are in PATH.
pub(super) fn folders(
    root: &Root,
    library_path: impl Iterator<Item = PathBuf>,
    path: impl Iterator<Item = PathBuf>,
) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = library_path.collect();
    for bin in path {
        let of_installation = COMMANDS.iter().any(|command| root.path(bin.join(command)).exists());
        if let Some(prefix) = bin.parent().filter(|_| of_installation) {
            folders.extend(["lib", "lib64"].map(|lib| prefix.join(lib)));
        }
    }
    configured(root, Path::new("/etc/ld.so.conf"), &mut folders);
    folders.extend(["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from));
    folders.retain(|folder| folder.is_absolute());
    folders
}

/// The folders of an ld.so.conf and of what it includes.
fn configured(root: &Root, file: &Path, folders: &mut Vec<PathBuf>) {
    for line in root.text(file).unwrap_or_default().lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        match line.strip_prefix("include ") {
            // `include folder/*.conf` is the one that distributions have.
            Some(pattern) => {
                let pattern = Path::new("/etc").join(pattern.trim());
                let Some(folder) = pattern.parent().filter(|_| pattern.ends_with("*.conf")) else { continue };
                for name in root.names(folder).iter().filter(|name| name.ends_with(".conf")) {
                    configured(root, &folder.join(name), folders);
                }
            }
            None if !line.is_empty() => folders.push(PathBuf::from(line)),
            None => {}
        }
    }
}

/// Files whose names are one of the prefixes and a number, each once.
pub(super) fn find(root: &Root, folders: &[PathBuf], prefixes: &[&str]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let soname = |name: &str| {
        let number = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    for folder in folders {
        for name in root.names(folder).into_iter().filter(|name| soname(name)) {
            let path = folder.join(name);
            if let Ok(real) = fs::canonicalize(root.path(&path))
                && seen.insert(real)
            {
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// Beside this command, or in the `lib` next to its `bin`.
pub(super) fn preload() -> Option<String> {
    let own = std::env::current_exe().ok()?;
    let bin = own.parent()?;
    let mut places = vec![bin.join(PRELOAD)];
    if let Some(prefix) = bin.parent() {
        places.extend(["lib", "lib64"].map(|lib| prefix.join(lib).join(PRELOAD)));
    }
    places.into_iter().find(|path| path.is_file()).map(|path| path.to_string_lossy().into_owned())
}
