//! Where the programs lie that are no part of the command: in the folders that the user named,
//! and in no others; or beside the command, as cargo builds them, and where `make install` puts
//! them, `libexec/pinyard`. What is linked with an MPI is there once for each.

use crate::demo::Refusal;
use crate::demo::mpi::Kind;
use std::path::{Path, PathBuf};

/// From the folder above the command's.
const INSTALLED: &str = "libexec/pinyard";
/// From the same, the book.
const BOOK: &str = "share/doc/pinyard/html/index.html";
/// What is built for the standard ABI of MPI 5.0 runs with any MPI that has it.
const ABI: &str = "abi";

/// Folders, looked into in their order.
pub(crate) struct Folders(Vec<PathBuf>);

impl Folders {
    /// Of programs without an MPI.
    pub(crate) fn plain(named: &[PathBuf]) -> Result<Folders, Refusal> {
        Folders::or_named(named, |installed| vec![installed.to_owned()])
    }

    /// Of programs that are linked with `mpi`, or, where that is not known, with any.
    pub(crate) fn linked(named: &[PathBuf], mpi: Option<Kind>) -> Result<Folders, Refusal> {
        Folders::or_named(named, |installed| of_mpi(installed, mpi))
    }

    fn or_named(named: &[PathBuf], others: impl FnOnce(&Path) -> Vec<PathBuf>) -> Result<Folders, Refusal> {
        if !named.is_empty() {
            return Ok(Folders(named.to_owned()));
        }
        let own = own_folder()?;
        let others = others(&own.parent().unwrap_or(&own).join(INSTALLED));
        Ok(Folders(std::iter::once(own).chain(others).collect()))
    }

    /// Every program of that name, the one to take first.
    pub(crate) fn all(&self, name: &str) -> Vec<PathBuf> {
        self.0.iter().map(|folder| folder.join(name)).filter(|path| path.is_file()).collect()
    }

    /// The program of that name, or where there is none.
    pub(crate) fn find(&self, name: &str) -> Result<PathBuf, String> {
        self.all(name).into_iter().next().ok_or_else(|| {
            let folders: Vec<String> = self.0.iter().map(|folder| folder.display().to_string()).collect();
            format!("{name} is not in {}", folders.join(" or "))
        })
    }
}

/// The book's first page, where the command lies in an installation.
pub(crate) fn book() -> Option<PathBuf> {
    own_folder().ok()?.parent().map(|prefix| prefix.join(BOOK)).filter(|page| page.is_file())
}

/// The command's own folder.
pub(crate) fn own_folder() -> Result<PathBuf, Refusal> {
    let own = std::env::current_exe()
        .map_err(|error| Refusal::new(format!("readlink(/proc/self/exe): {error}"), "use --programs DIR"))?;
    Ok(own.parent().map(Path::to_owned).unwrap_or_default())
}

fn of_mpi(root: &Path, mpi: Option<Kind>) -> Vec<PathBuf> {
    let kinds = mpi.map_or(Kind::ALL.to_vec(), |kind| vec![kind]);
    kinds.into_iter().map(Kind::folder).chain([ABI]).map(|name| root.join(name)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    #[test]
    fn a_program_is_taken_from_the_first_named_folder_that_has_it() {
        let root = tempfile::tempdir().unwrap();
        let folders = ["one", "two"].map(|name| root.path().join(name));
        for (folder, programs) in folders.iter().zip([&["both"][..], &["both", "second"]]) {
            fs::create_dir(folder).unwrap();
            programs.iter().for_each(|name| fs::write(folder.join(name), "").unwrap());
        }
        let of = |named: &[PathBuf], name| Folders::plain(named).unwrap().find(name);
        assert_eq!(of(&folders, "both").unwrap(), folders[0].join("both"));
        assert_eq!(of(&folders, "second").unwrap(), folders[1].join("second"));
        let missing = of(&folders[..1], "second").unwrap_err();
        assert_eq!(missing, format!("second is not in {}", folders[0].display()));
    }

    #[test]
    fn an_installation_has_a_build_for_each_mpi_and_its_own_comes_first() {
        let root = tempfile::tempdir().unwrap();
        for name in ["mpich", "abi"] {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join("program"), "").unwrap();
        }
        let of = |mpi| Folders(of_mpi(root.path(), mpi)).find("program").unwrap();
        assert_eq!(of(Some(Kind::Mpich)), root.path().join("mpich/program"));
        // The other MPI's is not taken for it.
        assert_eq!(of(Some(Kind::OpenMpi)), root.path().join("abi/program"));
        assert_eq!(of(None), root.path().join("mpich/program"));
    }

    #[test]
    fn without_a_name_the_command_s_folder_is_first() {
        let own = own_folder().unwrap();
        let Folders(folders) = Folders::linked(&[], Some(Kind::OpenMpi)).unwrap();
        let installed = own.parent().unwrap().join("libexec/pinyard");
        assert_eq!(folders, [own, installed.join("openmpi"), installed.join("abi")]);
    }
}
