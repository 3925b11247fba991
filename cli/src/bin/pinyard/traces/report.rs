//! `pinyard report`: the traces of a run as one page.

use crate::terminal::{complain, print};
use pinyard_cli::place;
use pinyard_cli::text::grouped;
use pinyard_cli::trace::{Run, load};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `pinyard report`.
#[derive(clap::Args)]
#[command(after_help = "\
Example: PINYARD_TRACE=traces mpirun -n 4 ./solver && pinyard report traces -o run.html

Exits with 0; with 1 if a trace was cut short or spoilt: the page has what stands before that,
and says so; with 2 if there is nothing to show, or it cannot be written.")]
pub(crate) struct Options {
    /// Traces, or folders of them: what PINYARD_TRACE named, or a job's folder
    #[arg(value_name = "FOLDER|FILE", required = true)]
    paths: Vec<PathBuf>,
    /// The page: one HTML file that fetches nothing [default: pinyard-report.html, unless
    /// --perfetto is given]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The run as Chrome trace JSON as well, for ui.perfetto.dev or about:tracing
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
}

/// Loads, writes, and says what is missing.
pub(crate) fn run(options: &Options) -> ExitCode {
    let mut run = match load(&options.paths) {
        Ok(run) => run,
        Err(error) => {
            complain(format_args!("pinyard: {error}"));
            return ExitCode::from(2);
        }
    };
    for warning in run.warnings() {
        complain(format_args!("pinyard: {warning}"));
    }
    let page = match (&options.output, &options.perfetto) {
        (None, None) => Some(Path::new("pinyard-report.html")),
        (output, _) => output.as_deref(),
    };
    let title = options.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let outputs: [(Option<&Path>, Writes<'_>); 2] = [
        (page, &|run, to| to.write_all(run.page(&title).as_bytes())),
        (options.perfetto.as_deref(), &|run, to| run.write_perfetto(to)),
    ];
    for (path, write) in outputs {
        let Some(path) = path else { continue };
        let written = place::put_in_place(path, |file| write(&mut run, file));
        match written {
            Ok(_) => print(format_args!("{}: {} events", path.display(), grouped(run.events()))),
            Err(error) => {
                complain(format_args!("pinyard: write({}) failed: {error}", path.display()));
                return ExitCode::from(2);
            }
        }
    }
    if run.warnings().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes a run to a file.
type Writes<'a> = &'a dyn Fn(&mut Run, &mut BufWriter<&mut File>) -> io::Result<()>;
