//! Why a device, or the library that speaks to it, could not be had.

use super::BackendError;
use thiserror::Error;

/// From the constructors of [`Verbs`](super::Verbs), [`Ucx`](super::Ucx),
/// [`Libfabric`](super::Libfabric) and [`Cuda`](super::Cuda).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The loader does not find or take the library.
    #[error("{library} cannot be opened: {loader}; install it (Debian: {package}), or name its file")]
    Absent {
        /// What was looked for.
        library: String,
        /// The loader's own words (dlerror(3)).
        loader: String,
        /// Debian's package.
        package: &'static str,
    },
    /// A path from the working directory, which is the caller's, in a process that has more
    /// rights than its caller.
    #[error(
        "{library} is not opened by a program with more rights than its caller (AT_SECURE): name the file \
         from /, or its soname"
    )]
    Relative {
        /// What was asked for.
        library: String,
    },
    /// The library lacks a function: another version, or another library.
    #[error("{library} has no {symbol}; {needs}")]
    Symbol {
        /// The library that was opened.
        library: String,
        /// The function.
        symbol: &'static str,
        /// Since which version it is there.
        needs: &'static str,
    },
    /// The library speaks another version of its interface.
    #[error("{library} is version {found}; {needed} is needed")]
    Version {
        /// The library.
        library: &'static str,
        /// What it says.
        found: String,
        /// What this backend was written for.
        needed: &'static str,
    },
    /// The machine has no such kind of device, or the process sees none.
    #[error("no RDMA device: {why}")]
    NoDevice {
        /// What was found instead, and what to do.
        why: String,
    },
    /// No device of that name.
    #[error("no RDMA device is called {name:?}; there {}", listed(.there))]
    NoSuchDevice {
        /// The name asked for.
        name: String,
        /// The names that there are.
        there: Vec<String>,
    },
    /// A port that is asked for is not there.
    #[error("RDMA device {device} has no port {port}: it has 1 to {ports}")]
    NoSuchPort {
        /// The device.
        device: String,
        /// The port asked for, from 1.
        port: u8,
        /// Ports of the device.
        ports: u8,
    },
    /// The device is there, but no port that was asked for is active.
    #[error(
        "RDMA device {device} has no active port ({states}); see `ibv_devinfo -d {device}` and `ip link`"
    )]
    PortDown {
        /// The device.
        device: String,
        /// Each port's state.
        states: String,
    },
    /// The process may not open the device.
    #[error(
        "RDMA device {device}: opening {path} is not permitted (errno {errno}); see its owner and mode, the udev rules of rdma-core, and in a container its device cgroup"
    )]
    Denied {
        /// The device.
        device: String,
        /// Its file.
        path: String,
        /// EACCES or EPERM.
        errno: i32,
    },
    /// Several devices, each unusable for a reason of its own.
    #[error("none of the RDMA devices is usable: {}", each(.0))]
    NoneUsable(Vec<OpenError>),
    /// No such libfabric provider, or none that fits.
    #[error("libfabric has no provider {name:?} here; there {}", listed(.there))]
    NoProvider {
        /// The name asked for.
        name: String,
        /// The names that there are.
        there: Vec<String>,
    },
    /// The device or the library cannot do what was asked for.
    #[error("{who} does not support {what}; {remedy}")]
    Unsupported {
        /// The device or library.
        who: String,
        /// What was asked for.
        what: &'static str,
        /// What the caller can do.
        remedy: &'static str,
    },
    /// A call failed.
    #[error(transparent)]
    Call(#[from] BackendError),
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "are none".to_owned(),
        [one] => format!("is {one}"),
        several => format!("are {}", several.join(", ")),
    }
}

fn each(errors: &[OpenError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
