//! A copy of the tree with a target folder of its own, and a guard's trial there.

use super::copy;
use super::list::{Compiler, Guard, NoticedBy, Test};
use crate::process::{self, with_mpi};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

const BUILD_LIMIT: Duration = Duration::from_secs(1800);
const TEST_LIMIT: Duration = Duration::from_secs(240);
/// Builds first.
const SCRIPT_LIMIT: Duration = Duration::from_secs(2200);

pub(crate) enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

/// What is built in a lane stays fresh for the next run: a file is written only where it is to
/// change, so the builds without a guard are older than the file that has it back.
pub(crate) struct Lane {
    folder: PathBuf,
    tree: PathBuf,
    target: PathBuf,
    log: PathBuf,
}

impl Lane {
    /// The folder's, with the tree as it is now.
    pub(crate) fn new(folder: &Path, root: &Path) -> Result<Lane, String> {
        copy::bring_up_to_date(&Lane::tree_of(folder), root)?;
        Ok(Lane::of(folder))
    }

    fn of(folder: &Path) -> Lane {
        let at = |name: &str| folder.join(name);
        Lane { folder: folder.to_owned(), tree: Lane::tree_of(folder), target: at("build"), log: at("log") }
    }

    pub(crate) fn tree_of(folder: &Path) -> PathBuf {
        folder.join("tree")
    }

    /// Builds what the guards' trials have in common, with every guard in its place: each package and
    /// its dependencies, with one of its tests. A trial builds its own test anyway. Gives what does
    /// not build.
    pub(crate) fn build(&self, guards: &[&Guard]) -> Result<Vec<String>, String> {
        let mut failed = Vec::new();
        for (what, guard) in in_common(guards) {
            let mut command = match &guard.noticed_by {
                NoticedBy::Test(test) => self.test(test, &["--no-run"]),
                NoticedBy::Compiler(compiler) => self.check(compiler),
                NoticedBy::Script(_) => continue,
            };
            if !self.run(&mut command, BUILD_LIMIT)?.success() {
                failed.push(format!("{what} does not build\n{}", self.last_words()?));
            }
        }
        Ok(failed)
    }

    /// Another lane, with all that is built in this one. Times are copied: Cargo compares those of
    /// sources with those of builds.
    pub(crate) fn copy(&self, folder: &Path) -> Result<Lane, String> {
        let (from, part) = (&self.folder, folder.with_extension("part"));
        let failed =
            |error: &dyn Display| format!("copy {} to {}: {error}", from.display(), folder.display());
        for old in [folder, &part] {
            match fs::remove_dir_all(old) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(&error)),
                _ => {}
            }
        }
        if !self.run(Command::new("cp").arg("-a").args([from, &part]), BUILD_LIMIT)?.success() {
            return Err(failed(&self.last_words()?));
        }
        // A copy that ends early is none.
        fs::rename(&part, folder).map_err(|error| failed(&error))?;
        Ok(Lane::of(folder))
    }

    /// Takes the guard out, looks whether that is noticed, and puts the guard back.
    pub(crate) fn trial(&self, guard: &Guard) -> Result<Outcome, String> {
        let is_root = || fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
        if matches!(&guard.noticed_by, NoticedBy::Test(Test { root: true, .. })) && !is_root() {
            return Ok(Outcome::Skipped("this guard needs root".to_owned()));
        }
        let path = self.tree.join(&guard.file);
        let text = fs::read_to_string(&path).map_err(|error| format!("read {}: {error}", path.display()))?;
        let write =
            |text: &str| fs::write(&path, text).map_err(|error| format!("write {}: {error}", path.display()));
        match guard.taken_out(&text) {
            Ok(without) => write(&without)?,
            Err(problem) => return Ok(Outcome::Failed(problem)),
        }
        let outcome = self.outcome(guard);
        write(&text)?;
        outcome
    }

    fn outcome(&self, guard: &Guard) -> Result<Outcome, String> {
        let failed = match &guard.noticed_by {
            NoticedBy::Test(test) => {
                if !self.run(&mut self.test(test, &["--no-run"]), BUILD_LIMIT)?.success() {
                    "does not compile without its guard".to_owned()
                } else {
                    let status = self.run(&mut self.test(test, &[]), TEST_LIMIT)?;
                    let said = self.said()?;
                    if status.success() {
                        return Ok(Outcome::Failed(format!(
                            "the test passes without the guard in {}",
                            guard.file
                        )));
                    // The last is of a test that hangs, which its own alarm(2) has ended.
                    } else if ["FAILED", "panicked", "SIGALRM"].iter().any(|word| said.contains(word)) {
                        return Ok(Outcome::Passed);
                    }
                    format!("ended with {status}, but no test failed")
                }
            }
            NoticedBy::Compiler(compiler) => {
                self.run(&mut self.check(compiler), BUILD_LIMIT)?;
                // The borrow checker's: borrowed as mutable as well, or twice as mutable.
                let said = self.said()?;
                if said.contains("E0502") || said.contains("E0499") {
                    return Ok(Outcome::Passed);
                }
                "it compiles, or fails otherwise".to_owned()
            }
            NoticedBy::Script(script) => {
                let words: Vec<_> = script.script.split(' ').collect();
                let mut command = self.command(self.tree.join(words[0]));
                let status = self.run(with_mpi(command.args(&words[1..])), SCRIPT_LIMIT)?;
                let said = self.said()?;
                if said.lines().any(|line| {
                    line.strip_prefix("FAILED  ").is_some_and(|rest| rest.starts_with(&script.says))
                }) {
                    return Ok(Outcome::Passed);
                } else if let Some(reason) = said.lines().find_map(|line| line.strip_prefix("skipped: ")) {
                    return Ok(Outcome::Skipped(reason.to_owned()));
                }
                format!("{} does not notice that the guard in {} is gone: {status}", words[0], guard.file)
            }
        };
        Ok(Outcome::Failed(format!("{failed}\n{}", self.last_words()?)))
    }

    fn test(&self, test: &Test, more: &[&str]) -> Command {
        let mut command = self.command("cargo");
        command.args(["test", "--quiet", "-p", &test.package]).args(test.test.split(' ')).args(more);
        if test.loom {
            // Three preemptions a run find every guard that is taken out.
            command.arg("--release").env("RUSTFLAGS", "--cfg loom").env("LOOM_MAX_PREEMPTIONS", "3");
            command.env("CARGO_TARGET_DIR", self.target.join("loom"));
        }
        if test.mpi {
            with_mpi(&mut command);
        }
        command
    }

    fn check(&self, compiler: &Compiler) -> Command {
        let mut command = self.command("cargo");
        command.args(["check", "--quiet", "-p", &compiler.must_not_compile]);
        command
    }

    /// Runs in the copy, and builds in its target folder.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.tree).env("CARGO_INCREMENTAL", "1").env("CARGO_TARGET_DIR", &self.target);
        process::without_own_folders(&mut command);
        command
    }

    fn run(&self, command: &mut Command, limit: Duration) -> Result<ExitStatus, String> {
        let program = command.get_program().to_owned();
        let ended = process::run(command, &self.log, limit);
        let ended = ended.map_err(|error| format!("run {}: {error}", program.display()))?;
        if let Some(stacks) = &ended.stacks {
            let text = format!("{}not ended after {} s:\n{stacks}", self.said()?, limit.as_secs());
            fs::write(&self.log, text).map_err(|error| format!("write {}: {error}", self.log.display()))?;
        }
        Ok(ended.status)
    }

    /// What the last command said.
    fn said(&self) -> Result<String, String> {
        let bytes = fs::read(&self.log).map_err(|error| format!("read {}: {error}", self.log.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn last_words(&self) -> Result<String, String> {
        let said = self.said()?;
        let lines: Vec<_> = said.lines().collect();
        Ok(lines[lines.len().saturating_sub(20)..].join("\n"))
    }
}

/// A guard for each build that the guards' trials begin with.
pub(crate) fn in_common<'g>(guards: &[&'g Guard]) -> BTreeMap<String, &'g Guard> {
    let build = |guard: &Guard| match &guard.noticed_by {
        NoticedBy::Test(Test { package, loom: true, .. }) => format!("{package} with loom"),
        NoticedBy::Test(test) => test.package.clone(),
        NoticedBy::Compiler(compiler) => format!("check of {}", compiler.must_not_compile),
        NoticedBy::Script(script) => script.script.clone(),
    };
    guards.iter().map(|guard| (build(guard), *guard)).collect()
}
