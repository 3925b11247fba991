//! Which MPI the launcher belongs to, and how it wants to be called.

use super::Refusal;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An MPI whose launcher is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Kind {
    #[serde(rename = "Open MPI")]
    OpenMpi,
    #[serde(rename = "MPICH")]
    Mpich,
}

impl Kind {
    pub(crate) const ALL: [Kind; 2] = [Kind::OpenMpi, Kind::Mpich];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::OpenMpi => "Open MPI",
            Kind::Mpich => "MPICH",
        }
    }

    /// The folder of an installation's programs for it.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Kind::OpenMpi => "openmpi",
            Kind::Mpich => "mpich",
        }
    }
}

/// A launcher that answered.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Mpirun {
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) version: String,
}

const REMEDY: &str = "install one (Debian: apt-get install openmpi-bin), or name it with --mpirun";

impl Mpirun {
    /// Asks `path` for its version.
    pub(crate) fn find(path: &Path) -> Result<Mpirun, Refusal> {
        let name = path.display();
        let mut command = Command::new(path);
        as_root(&mut command);
        let output = command.arg("--version").stdin(Stdio::null()).output().map_err(|error| {
            let why = match error.kind() {
                io::ErrorKind::NotFound if path.components().count() == 1 => format!("no {name} in PATH"),
                _ => format!("exec {name}: {error}"),
            };
            Refusal::new(why, REMEDY)
        })?;
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let (kind, version) = recognise(&text).ok_or_else(|| {
            let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim();
            let why = format!("{name} is neither Open MPI's nor MPICH's: --version says {first:?}");
            Refusal::new(why, "name one of theirs with --mpirun")
        })?;
        Ok(Mpirun { path: path.to_owned(), kind, version })
    }

    /// The launcher without arguments.
    pub(crate) fn bare(&self) -> Command {
        let mut command = Command::new(&self.path);
        as_root(&mut command);
        command
    }

    /// A command that starts `ranks` ranks of `program` on this machine.
    pub(crate) fn command(&self, ranks: u32, program: &Path) -> Command {
        let mut command = self.bare();
        match self.kind {
            Kind::OpenMpi => {
                // More ranks than cores are fine here; nothing listens beyond this machine.
                command.args(["--oversubscribe", "--bind-to", "none"]);
                command.env("OMPI_MCA_oob_tcp_if_include", "lo").env("OMPI_MCA_btl_tcp_if_include", "lo");
            }
            Kind::Mpich => {
                command.args(["-iface", "lo"]).env("UCX_NET_DEVICES", "lo").env("FI_TCP_IFACE", "lo");
            }
        }
        command.arg("-n").arg(ranks.to_string()).arg(program);
        command
    }
}

/// Open MPI refuses root otherwise; the ranks touch nothing but their own folder.
fn as_root(command: &mut Command) {
    if rustix::process::geteuid().is_root() {
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    }
}

/// The kind and the version in the words of `mpirun --version`.
fn recognise(text: &str) -> Option<(Kind, String)> {
    let first = text.lines().find(|line| !line.trim().is_empty())?;
    if first.contains("Open MPI") || first.contains("OpenRTE") {
        return Some((Kind::OpenMpi, first.split_whitespace().next_back()?.to_owned()));
    }
    if first.contains("HYDRA") {
        let version = text.lines().find_map(|line| line.trim().strip_prefix("Version:"))?;
        return Some((Kind::Mpich, version.trim().to_owned()));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_recognised() {
        let open = "mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/\n";
        assert_eq!(recognise(open), Some((Kind::OpenMpi, "4.1.4".into())));
        assert_eq!(recognise("mpirun (Open MPI) 5.0.7\n"), Some((Kind::OpenMpi, "5.0.7".into())));
        let hydra = "HYDRA build details:\n    Version:                                 4.0.2\n    CC: gcc\n";
        assert_eq!(recognise(hydra), Some((Kind::Mpich, "4.0.2".into())));
        assert_eq!(recognise("slurm 22.05.8\n"), None);
        assert_eq!(recognise(""), None);
    }

    #[test]
    fn a_launcher_that_is_not_there_is_named() {
        let refusal = Mpirun::find(Path::new("/nowhere/mpirun")).unwrap_err();
        assert!(
            refusal.why.contains("/nowhere/mpirun") && refusal.remedy.contains("--mpirun"),
            "{refusal:?}"
        );
        let refusal = Mpirun::find(Path::new("/bin/true")).unwrap_err();
        assert!(refusal.why.contains("neither"), "{refusal:?}");
    }
}
