//! What is printed of the steps, and the file for machines.

use crate::choose::{Chosen, Why};
use crate::counts::{Counts, End};
use crate::pace;
use crate::run::Done;
use crate::steps::{Budget, LIST, Size};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// One line of a step that has ended.
pub(crate) fn line(done: &Done) -> String {
    let Done { counts, took, busy, chosen, .. } = done;
    let size = match (chosen.size, &chosen.why) {
        (Size::Quick, _) => "quick",
        (_, Why::Touched(_)) => "touched",
        (_, Why::Drawn) => "drawn",
        _ => "",
    };
    let cores = busy.as_secs_f64() / took.as_secs_f64().max(0.001);
    format!(
        "{:<14} {:>5} passed {:>3} failed {:>3} skipped {:>4} left {:>5} s {:>6.1} core-s {:>4.1} cores  {size}",
        chosen.step.name,
        counts.passed,
        counts.failed,
        counts.skipped,
        counts.left,
        took.as_secs(),
        busy.as_secs_f64(),
        cores,
    )
    .trim_end()
    .to_owned()
}

/// How many of the reference's seconds a second of this run is worth.
fn worth(done: &[Done], budget: &Budget) -> f64 {
    let paces: Vec<Duration> = done.iter().map(|step| step.pace).collect();
    pace::worth(&paces, budget.reference_ms)
}

/// The reference's core-minutes of all that has run but what a change touched.
fn used(done: &[Done], orphans: Duration, budget: &Budget) -> f64 {
    let is_budgeted = |step: &&Done| !matches!(step.chosen.why, Why::Touched(_));
    let steps: Duration = done.iter().filter(is_budgeted).map(|step| step.busy).sum();
    minutes(steps + orphans) * worth(done, budget)
}

/// Whether so many core-seconds more, as the list has them, keep the budget.
pub(crate) fn has_room(done: &[Done], orphans: Duration, more: u64, budget: &Budget) -> bool {
    used(done, orphans, budget) + more as f64 / 60.0 <= budget.core_minutes as f64
}

fn minutes(time: Duration) -> f64 {
    time.as_secs_f64() / 60.0
}

/// What belongs to no step.
#[derive(Debug)]
pub(crate) struct Sum {
    /// Checks of steps that did not run.
    pub(crate) left: u64,
    /// Those that were drawn and for which the budget had no room.
    pub(crate) left_steps: Vec<Chosen>,
    pub(crate) took: Duration,
    /// Of processes that outlived their starters.
    pub(crate) orphans: Duration,
    /// Those that still do.
    pub(crate) alive: Vec<String>,
    /// Files that appeared in the tree, where git does not ignore them.
    pub(crate) litter: Vec<String>,
}

/// The last lines: what failed, what it took, what was left, and the counts; and whether all
/// passed. `budget` is for all but the steps that run because of a change.
pub(crate) fn end(done: &[Done], sum: &Sum, budget: Option<&Budget>) -> (String, bool) {
    let mut text = String::new();
    let left_steps = sum.left_steps.iter().map(|chosen| chosen.step.checks).sum::<u64>();
    let mut counts = Counts { left: sum.left + left_steps, ..Counts::default() };
    for step in done {
        counts += step.counts;
        for line in step.said.lines().take(20) {
            text += &format!("{}: {line}\n", step.chosen.step.name);
        }
    }
    for process in &sum.alive {
        counts.failed += 1;
        text += &format!("FAILED  the steps left a process behind: {process}\n");
    }
    for file in &sum.litter {
        counts.failed += 1;
        text += &format!("FAILED  a file appeared in the tree while the steps ran: {file}\n");
    }
    for Chosen { step, .. } in &sum.left_steps {
        text += &format!("left    {}: the budget has no room for its {} core-s\n", step.name, step.cost);
    }
    if let Some(budget) = budget {
        let (used, worth, allowed) =
            (used(done, sum.orphans, budget), worth(done, budget), budget.core_minutes);
        text += &format!(
            "{used:.1} core-minutes of the reference's, of {allowed}: a second here is worth {worth:.2} there\n"
        );
        if used > allowed as f64 {
            counts.failed += 1;
            text += &format!("FAILED  the budget of {LIST} is exceeded: move a step to test-all\n");
        }
    }
    let busy = minutes(done.iter().map(|step| step.busy).sum::<Duration>() + sum.orphans);
    text += &format!(
        "{busy:.1} core-minutes in {:.1} minutes ({:.1} core-s by processes that outlived their starters)\n\
         {} left for test-all\n{} passed, {} failed, {} skipped\n",
        minutes(sum.took),
        sum.orphans.as_secs_f64(),
        counts.left,
        counts.passed,
        counts.failed,
        counts.skipped,
    );
    (text, counts.failed == 0)
}

/// JUnit's form: a suite of each step, a case of each test that its log names.
///
/// # Errors
/// The file that could not be written.
pub(crate) fn junit(done: &[Done], path: &Path) -> Result<(), String> {
    let mut report = Report::new("pinyard");
    for step in done {
        let mut suite = TestSuite::new(step.chosen.step.name.as_str());
        suite.set_time(step.took);
        for (name, end) in &step.cases {
            let status = match end {
                End::Passed => TestCaseStatus::success(),
                End::Failed => TestCaseStatus::non_success(NonSuccessKind::Failure),
                End::Skipped(why) => {
                    let mut status = TestCaseStatus::skipped();
                    status.set_message(why.as_str());
                    status
                }
            };
            suite.add_test_case(TestCase::new(name.as_str(), status));
        }
        if !step.said.is_empty() {
            suite.set_system_out(step.said.as_str());
        }
        report.add_test_suite(suite);
    }
    let file = File::create(path).map_err(|error| format!("create {}: {error}", path.display()))?;
    report.serialize(file).map_err(|error| format!("write {}: {error}", path.display()))
}
