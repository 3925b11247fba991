//! The command line of a rank.

use clap::Parser;
use pinyard_cli::stress::Options;
use pinyard_cli::stress::options::Outputs;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Example: srun -n 64 pinyard-stress --time 60 --seed 7 --folder /shared/run --report stress.html
Exit status: 0 clean, 1 wrong bytes, 2 cannot run, 3 ended badly";

/// A rank of the stress test: `mpirun -n 4 pinyard-stress …`, `srun pinyard-stress …`,
/// or alone. `pinyard stress` starts it and judges what comes of it.
#[derive(Clone, Debug, Parser)]
#[command(name = "pinyard-stress", version, after_help = AFTER_HELP)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_help_has_an_example_that_is_taken_and_a_typo_a_suggestion() {
        let line = AFTER_HELP.lines().next().unwrap_or_default();
        let words = line.split_whitespace().skip_while(|word| *word != "pinyard-stress");
        assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        let typo = Cli::try_parse_from(["pinyard-stress", "--tiem", "3"]).map_err(|error| error.to_string());
        assert!(
            typo.as_ref().is_err_and(|text| text.contains("similar") && text.contains("--time")),
            "{typo:?}"
        );
        Cli::command().debug_assert();
    }
}
