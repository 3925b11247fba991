//! The environment variables that pinyard reads: one table, from which the
//! command line takes the names and `pinyard info` the text.

/// A variable of the environment.
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    /// What it sets, in a line.
    pub(crate) meaning: &'static str,
    /// What holds where it is not set.
    pub(crate) default: &'static str,
}

/// The launcher of `pinyard demo` and `pinyard stress`.
pub(crate) const MPIRUN: &str = "PINYARD_MPIRUN";
/// The programs of both.
pub(crate) const PROGRAMS: &str = "PINYARD_PROGRAMS";

/// All of them.
pub(crate) const VARIABLES: &[Variable] = &[
    Variable { name: MPIRUN, meaning: "mpirun of `pinyard demo` and `stress`", default: "mpirun, from PATH" },
    Variable {
        name: PROGRAMS,
        meaning: "folder with the programs of both",
        default: "the command's own folder",
    },
    Variable {
        name: pinyard_registry::MECHANISM_VARIABLE,
        meaning: "entry|userfaultfd|ucm|opal|notify: only it",
        default: "pinyard chooses",
    },
    Variable {
        name: "FI_MR_CACHE_MONITOR",
        meaning: "libfabric's: set, no monitor is imported",
        default: "pinyard's may be",
    },
];
