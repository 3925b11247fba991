//! Two lanes take turns, each with a copy of the tree: a change of one crate keeps one core busy.

use super::lane::{Lane, Outcome, in_common};
use super::list::Guard;
use crate::process;
use crate::tree::Folders;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// Prints the outcomes, and counts them.
pub(crate) struct Report<'a> {
    out: &'a mut (dyn Write + Send),
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl<'a> Report<'a> {
    pub(crate) fn new(out: &'a mut (dyn Write + Send)) -> Report<'a> {
        Report { out, passed: 0, failed: 0, skipped: 0 }
    }

    /// A reader that is gone ends nothing.
    pub(crate) fn say(&mut self, line: &str) {
        let _ = writeln!(self.out, "{line}");
    }

    pub(crate) fn add(&mut self, name: &str, outcome: &Outcome, seconds: u64) {
        match outcome {
            Outcome::Passed => {
                self.passed += 1;
                self.say(&format!("ok      {name:72} {seconds:3} s"));
            }
            Outcome::Failed(why) => {
                self.failed += 1;
                self.say(&format!("FAILED  {name}: {}", why.trim_end().replace('\n', "\n        ")));
            }
            Outcome::Skipped(why) => {
                self.skipped += 1;
                self.say(&format!("skipped: {name}: {why}"));
            }
        }
    }

    /// The form of the last line of xtask/ci/checks.sh, which `cargo xtask test` adds up.
    pub(crate) fn counts(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }

    fn sum(&self) -> usize {
        self.passed + self.failed + self.skipped
    }
}

pub(crate) fn run(folders: &Folders, chosen: &[&Guard], report: &mut Report<'_>) -> Result<(), String> {
    process::end_on_signals();
    let builds = folders.target.join("guards");
    let of_builds = |error| format!("lock {}: {error}", builds.display());
    fs::create_dir_all(&builds).map_err(of_builds)?;
    // Another run with this target folder ends first.
    let lock = File::create(builds.join("lock")).map_err(of_builds)?;
    lock.lock().map_err(of_builds)?;
    let (scripted, others): (Vec<&Guard>, Vec<&Guard>) = chosen.iter().partition(|guard| guard.is_scripted());
    if !others.is_empty() {
        let mut lanes = vec![Lane::new(&builds.join("0"), &folders.root)?];
        if others.len() > 1 {
            lanes.push(second(&builds.join("1"), &lanes[0], &folders.root, &others, report)?);
        }
        in_turn(&others, &lanes, Lane::trial, report);
    }
    if !scripted.is_empty() {
        // Scripts start ranks of MPI on every core: nothing runs beside them.
        in_turn(&scripted, &[Lane::new(&builds.join("scripts"), &folders.root)?], Lane::trial, report);
    }
    Ok(())
}

/// The second lane begins with what is built in the first, unless it has that already.
fn second(
    folder: &Path,
    first: &Lane,
    root: &Path,
    guards: &[&Guard],
    report: &mut Report<'_>,
) -> Result<Lane, String> {
    let dependencies = fs::read_to_string(root.join("Cargo.lock")).unwrap_or_default();
    let note = folder.join("begun-with");
    let noted = fs::read_to_string(&note).unwrap_or_default();
    let (of_builds, of_dependencies) = noted.split_once("\n\n").unwrap_or_default();
    let mut builds: BTreeSet<_> = in_common(guards).into_keys().collect();
    if of_dependencies == dependencies {
        let has: BTreeSet<_> = of_builds.lines().map(str::to_owned).collect();
        if builds.is_subset(&has) {
            return Lane::new(folder, root);
        }
        builds.extend(has);
    }
    let began = Instant::now();
    let failed = first.build(guards)?;
    let lane = first.copy(folder)?;
    if failed.is_empty() {
        let noted = format!("{}\n\n{dependencies}", Vec::from_iter(builds).join("\n"));
        fs::write(&note, noted).map_err(|error| format!("write {}: {error}", note.display()))?;
    }
    for failed in failed {
        report.add("with every guard in its place", &Outcome::Failed(failed), 0);
    }
    report.say(&format!("built with every guard in its place: {} s", began.elapsed().as_secs()));
    Ok(lane)
}

/// Tries the guards in the lanes. A guard whose lane does not come to its end has failed.
pub(crate) fn in_turn<L: Sync>(
    guards: &[&Guard],
    lanes: &[L],
    trial: impl Fn(&L, &Guard) -> Result<Outcome, String> + Sync,
    report: &mut Report<'_>,
) {
    let wanted = report.sum() + guards.len();
    // Relaxed: it says only which guard is next.
    let next = AtomicUsize::new(0);
    let shared = Mutex::new(report);
    let work = |lane| {
        while let Some(guard) = guards.get(next.fetch_add(1, Relaxed)) {
            let began = Instant::now();
            let outcome = trial(lane, guard)?;
            let mut report = shared.lock().unwrap_or_else(PoisonError::into_inner);
            report.add(&guard.name, &outcome, began.elapsed().as_secs());
        }
        Ok(())
    };
    let ended = thread::scope(|scope| {
        let running: Vec<_> = lanes.iter().map(|lane| scope.spawn(|| work(lane))).collect();
        let ended =
            running.into_iter().map(|lane| lane.join().unwrap_or_else(|_| Err("it panicked".to_owned())));
        ended.collect::<Vec<Result<(), String>>>()
    });
    let report = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    for error in ended.into_iter().filter_map(Result::err) {
        report.say(&format!("FAILED  a lane ended: {error}"));
    }
    let lost = wanted - report.sum();
    if lost > 0 {
        report.say(&format!("FAILED  {lost} guards were not tried to the end"));
        report.failed += lost;
    }
}
