//! Builds the book into `docs/book`, after checking what a reader relies on:
//! links between pages lead somewhere, every page is in the summary, every test
//! and function that a page names exists, CONTRIBUTING.md lists the steps of
//! `xtask/ci/steps.toml`, every scenario's test is named, every atomic has its row
//! in the page of orderings, every planted mistake of `xtask/ci/guards.toml` in that of
//! mutations, every variable of the environment is in a table, every block of code is
//! compiled or run, or says why not, every record below `docs/benchmarks` is listed with
//! what shows it, and the tables are those that the code makes
//! (`--update` writes them). Links and blocks of README.md, CONTRIBUTING.md and
//! slurm/README.md are checked as those of the book.
//!
//! `--html FOLDER` builds it there, for `make install`, and checks nothing; `--blocks FOLDER` writes the blocks there instead, for `xtask/ci/book-commands.sh`.

mod atomics;
mod blocks;
mod files;
mod pages;
mod records;
mod tables;
mod variables;

use mdbook_driver::MDBook;
use pinyard::allocator::config::{self, Pools};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let problems = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => book(&root, false),
        ["--update"] => book(&root, true),
        ["--html", folder] => html(&root, Path::new(folder)).err().into_iter().collect(),
        ["--blocks", folder] => blocks::write(&root, Path::new(folder)),
        _ => vec!["usage: pinyard-book [--update | --html FOLDER | --blocks FOLDER]".to_owned()],
    };
    for problem in &problems {
        eprintln!("book: {problem}");
    }
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn book(root: &Path, update: bool) -> Vec<String> {
    let mut problems = pages::check(root);
    problems.extend(atomics::check(root));
    problems.extend(variables::check(root));
    problems.extend(blocks::check(root));
    problems.extend(records::check(root));
    for (page, mark, wanted) in [
        ("hooks.md", "table", pinyard_coverage::promised()),
        ("pools.md", "settings", config::markdown(Pools::Device)),
        ("pools.md", "host settings", config::markdown(Pools::Host)),
        ("reports.md", "trace", pinyard_trace::settings::markdown()),
        ("tuning.md", "variables", pinyard::environment::markdown()),
        ("tuning.md", "test variables", variables::markdown()),
    ] {
        problems.extend(tables::table(&root.join("docs/src").join(page), mark, &wanted, update));
    }
    // Where `book.toml` says.
    problems.extend(html(root, Path::new("book")).err());
    problems
}

/// Builds the book, into `folder` of `docs` or a whole path.
fn html(root: &Path, folder: &Path) -> Result<(), String> {
    let mut book = MDBook::load(root.join("docs")).map_err(|error| error.to_string())?;
    book.config.build.build_dir = folder.to_owned();
    book.build().map_err(|error| format!("the book into {}: {error}", folder.display()))
}
