//! `cargo xtask test`: which steps run, and what is said of them.

use crate::choose::{self, Choice, Why};
use crate::orphans::Orphans;
use crate::process;
use crate::report;
use crate::run::{self, Link, Place};
use crate::skips::Skips;
use crate::steps::{Size, Steps};
use crate::tree::{self, Folders};
use clap::Args;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Args)]
pub(crate) struct Test {
    /// All steps, whole, and not those of `make test`.
    #[arg(long)]
    all: bool,
    /// The steps of one part, whole.
    #[arg(long)]
    part: Option<String>,
    /// Only these steps.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// None of these steps.
    #[arg(long, value_delimiter = ',')]
    skip: Vec<String>,
    /// What a change is judged by: a revision of git.
    #[arg(long, env = "BASE")]
    base: Option<String>,
    /// Says what would run, and why.
    #[arg(long)]
    list: bool,
    /// Where JUnit's form goes; in the folder of the logs unless set.
    #[arg(long)]
    junit: Option<PathBuf>,
}

impl Test {
    /// Whether all passed.
    pub(crate) fn run(self) -> Result<bool, String> {
        let Folders { root, target } = Folders::of_cargo()?;
        let steps = Steps::read(&root)?;
        let base = self.base.as_deref().filter(|base| !base.is_empty());
        let (words, changed) = choose::changed(&root, base)?;
        // Without a commit there is one sample.
        let seed = tree::head(&root).unwrap_or_default();
        let is_quick = !self.all && self.part.is_none();
        let choice = match is_quick {
            true => choose::quick(&steps, &changed, &seed),
            false => choose::all(&steps, self.part.as_deref())?,
        };
        let is_narrowed = !self.only.is_empty() || !self.skip.is_empty();
        let choice = choice.narrowed(&steps, &self.only, &self.skip)?;
        if is_quick {
            println!("{words}; the sample is {seed:.16}'s");
        }
        if self.list {
            list(&choice);
            return Ok(true);
        }
        let logs = target.join("tests");
        fs::create_dir_all(&logs).map_err(|error| format!("make the folder {}: {error}", logs.display()))?;
        let link = Link::to(&root)?;
        let place = Place {
            root: link.path(&root).to_owned(),
            logs: logs.clone(),
            skips: Skips::read(&root)?,
            variables: vec![("BASE", base.unwrap_or_default().to_owned())],
        };
        process::end_on_signals();
        // Without git nothing is known of the tree's files.
        let untracked = tree::untracked(&root).ok();
        let (began, left, orphans) = (Instant::now(), choice.left, Orphans::adopt()?);
        let budget = (is_quick && !is_narrowed).then_some(&steps.budget);
        let has_room = |done: &[run::Done], more: u64| {
            budget.is_none_or(|budget| report::has_room(done, orphans.busy(), more, budget))
        };
        let run::Ran { done, left: left_steps } = run::all(place, choice.run, has_room, |step| {
            println!("{}", report::line(step));
            if !step.said.is_empty() {
                println!("---- {}\n{}----", step.chosen.step.name, step.said);
            }
        })?;
        let (orphans, alive) = orphans.end();
        report::junit(&done, &self.junit.unwrap_or_else(|| logs.join("junit.xml")))?;
        let litter = match untracked {
            Some(before) => tree::untracked(&root)?.difference(&before).cloned().collect(),
            None => Vec::new(),
        };
        let sum = report::Sum { left, left_steps, took: began.elapsed(), orphans, alive, litter };
        let (end, is_good) = report::end(&done, &sum, budget);
        print!("\n{end}");
        Ok(is_good)
    }
}

fn list(choice: &Choice) {
    for chosen in &choice.run {
        let size = if chosen.size == Size::Quick { "quick" } else { "whole" };
        let why = match &chosen.why {
            Why::Asked => String::new(),
            Why::Touched(path) => format!("as {path} changed"),
            Why::Drawn => "drawn".to_owned(),
        };
        let (step, lane) = (&chosen.step, format!("{:?}", chosen.step.lane).to_lowercase());
        println!(
            "{:<14} {:<10} {size} {lane:<5} {:>5} core-s {:>5} checks  {why}",
            step.name, step.part, step.cost, step.checks
        );
    }
    println!("{} left", choice.left);
}
