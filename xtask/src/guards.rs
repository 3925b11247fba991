//! Each invariant has a line that guards it and a test that notices when the line is gone
//! (xtask/ci/guards.toml). `cargo xtask guards` takes the line out, in a copy of the tree, and the test
//! must fail. A test that still passes proves nothing.
//!
//! list.rs    reads and checks the list
//! choice.rs  chooses guards: by name, by changed paths, at random
//! run.rs     two lanes, which begin with one build
//! lane.rs    a copy of the tree with a target folder of its own, and a guard's trial there
//! copy.rs    makes the copy

mod choice;
mod copy;
mod lane;
mod list;
mod run;
#[cfg(test)]
mod tests;

use self::choice::Choice;
use self::lane::Outcome;
use self::list::List;
use self::run::Report;
use crate::tree::{self, Folders};
use std::io::{self, Write};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).multiple(true)))]
pub(crate) struct Arguments {
    /// Only guards whose names hold this text; `a|b` for either
    #[arg(group = "which")]
    pattern: Option<String>,
    /// Every guard but those that a script notices, which build several packages: a PATTERN takes them
    #[arg(long, group = "which", conflicts_with_all = ["changed", "sample"])]
    all: bool,
    /// The guards whose file, or whose test's file, differs between this revision and the working tree
    #[arg(long, group = "which", value_name = "BASE")]
    changed: Option<String>,
    /// So many guards more, chosen by the seed
    #[arg(long, group = "which", value_name = "N")]
    sample: Option<usize>,
    /// The seed of the sample [default: the commit of HEAD]
    #[arg(long, value_name = "HASH", requires = "sample")]
    seed: Option<String>,
    /// Lists the chosen guards and runs none
    #[arg(long, group = "which", conflicts_with = "check")]
    list: bool,
    /// Checks that each guard's line stands once in its file and that its test is there; builds nothing
    #[arg(long, group = "which", conflicts_with_all = ["all", "changed", "sample"])]
    check: bool,
}

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let mut out = io::stdout();
    match Folders::of_cargo().and_then(|folders| within(&folders, arguments, &mut out)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("FAILED  guards: {error}\n0 passed, 1 failed, 0 skipped");
            ExitCode::FAILURE
        }
    }
}

/// Whether no guard failed.
fn within(folders: &Folders, arguments: &Arguments, out: &mut (dyn Write + Send)) -> Result<bool, String> {
    let list = List::read(&folders.root)?;
    let pattern = arguments.pattern.as_deref();
    let mut report = Report::new(out);
    if arguments.check {
        for guard in list.guards.iter().filter(|guard| guard.is_named(pattern)) {
            match list.problem(guard) {
                None => report.passed += 1,
                Some(problem) => report.add(&guard.name, &Outcome::Failed(problem), 0),
            }
        }
        report.say(&report.counts());
        return Ok(report.failed == 0 && report.passed > 0);
    }
    let changed = arguments.changed.as_ref().map(|base| tree::changed(&folders.root, base)).transpose()?;
    let sample = match (arguments.sample, &arguments.seed) {
        (None, _) => None,
        (Some(number), Some(seed)) => Some((number, seed.clone())),
        (Some(number), None) => Some((number, tree::head(&folders.root)?)),
    };
    let chosen = Choice { pattern, changed, sample }.of(&list)?;
    if arguments.list {
        chosen.iter().for_each(|guard| report.say(&guard.to_string()));
        return Ok(true);
    }
    run::run(folders, &chosen, &mut report)?;
    report.say(&format!("{}, {} left", report.counts(), list.guards.len() - chosen.len()));
    Ok(report.failed == 0)
}
