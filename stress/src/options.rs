//! The command line of a rank.

use clap::Parser;
use pinyard_stress_report::Options;
use pinyard_stress_report::options::Outputs;
use std::path::PathBuf;

/// A rank of the stress test: `mpirun -n 4 pinyard-stress …`, `srun pinyard-stress …`,
/// or alone. `pinyard stress` starts it and judges what comes of it.
#[derive(Clone, Debug, Parser)]
#[command(name = "pinyard-stress", version)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(flatten)]
    pub(crate) outputs: Outputs,
    /// Folder for the ranks' files, on a file system that all machines share; read it with
    /// `pinyard stress --merge DIR` if the run is ended from outside [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Started by `pinyard stress`, which shows the progress, judges and reports
    #[arg(long, hide = true)]
    pub(crate) launched: bool,
}
