//! Runs the chosen steps: one of each lane at a time.

use crate::choose::{Chosen, Why};
use crate::counts::{self, Counts, End};
use crate::pace;
use crate::process;
use crate::skips::Skips;
use crate::steps::Size;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// A step that has run.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) chosen: Chosen,
    pub(crate) counts: Counts,
    pub(crate) cases: Vec<(String, End)>,
    /// User and system time.
    pub(crate) busy: Duration,
    pub(crate) took: Duration,
    /// Processor time of a fixed piece of work, before it.
    pub(crate) pace: Duration,
    /// What to show of a step that failed.
    pub(crate) said: String,
}

/// Where the steps run, and where their logs go.
pub(crate) struct Place {
    /// A path of the root without a space.
    pub(crate) root: PathBuf,
    pub(crate) logs: PathBuf,
    pub(crate) skips: Skips,
    /// For the scripts that choose by change: what the base is, and the seed.
    pub(crate) variables: Vec<(&'static str, String)>,
}

/// What has run, and what has not.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    pub(crate) done: Vec<Done>,
    /// Those that were drawn and had no room.
    pub(crate) left: Vec<Chosen>,
}

/// Runs all of `steps`, and hands each to `tell` as soon as it has ended. Those that were drawn come
/// last, each where `has_room` says so of what has run and of so many core-seconds more.
///
/// # Errors
/// The first step that could not be started, when those under way have ended.
pub(crate) fn all(
    place: Place,
    steps: Vec<Chosen>,
    has_room: impl Fn(&[Done], u64) -> bool,
    mut tell: impl FnMut(&Done),
) -> Result<Ran, String> {
    let place = Arc::new(place);
    let (send, ended) = channel();
    let mut waiting = steps;
    let mut under_way: Vec<Chosen> = Vec::new();
    let (mut ran, mut error) = (Ran::default(), None);
    loop {
        while let Some(next) = startable(&waiting, &under_way).filter(|_| error.is_none()) {
            let chosen = waiting.remove(next);
            let begun: u64 = under_way.iter().map(|chosen| chosen.step.cost).sum();
            if chosen.why == Why::Drawn && !has_room(&ran.done, begun + chosen.step.cost) {
                ran.left.push(chosen);
                continue;
            }
            under_way.push(chosen.clone());
            let (place, send) = (place.clone(), send.clone());
            thread::spawn(move || {
                let name = chosen.step.name.clone();
                // Nobody receives where this process ends.
                let _ = send.send((name, one(&place, chosen)));
            });
        }
        if under_way.is_empty() {
            break;
        }
        let (name, result) = ended.recv().map_err(|_| "a step's thread has ended".to_owned())?;
        under_way.retain(|other| other.step.name != name);
        match result {
            Ok(step) => {
                tell(&step);
                ran.done.push(step);
            }
            Err(text) => error = Some(format!("{name}: {text}")),
        }
    }
    match (error, waiting.first()) {
        (Some(error), _) => Err(error),
        (None, Some(chosen)) => Err(format!("{}: what it comes after never ran", chosen.step.name)),
        (None, None) => Ok(ran),
    }
}

/// The first step whose lane is free and that comes after none that is still to end: of those that
/// were drawn, when the others have ended.
fn startable(waiting: &[Chosen], under_way: &[Chosen]) -> Option<usize> {
    let to_end: Vec<&Chosen> = waiting.iter().chain(under_way).collect();
    let are_drawn = to_end.iter().all(|chosen| chosen.why == Why::Drawn);
    waiting.iter().position(|Chosen { step, why, .. }| {
        let is_drawn = *why == Why::Drawn;
        // A step of the list does not wait for one that was drawn.
        let goes_before =
            |other: &&Chosen| step.after.contains(&other.step.name) && (is_drawn || other.why != Why::Drawn);
        (are_drawn || !is_drawn)
            && !under_way.iter().any(|other| other.step.lane == step.lane)
            && !to_end.iter().any(goes_before)
    })
}

fn one(place: &Place, chosen: Chosen) -> Result<Done, String> {
    let step = &chosen.step;
    let pace = pace::sample();
    let log = place.logs.join(format!("{}.log", step.name));
    let now = place.logs.join(format!("{}.now", step.name));
    let mut command = Command::new("bash");
    command.args(["-c", &step.run]).current_dir(&place.root).env("PWD", &place.root);
    process::without_own_folders(&mut command);
    command.env("CARGO_INCREMENTAL", "0").env("CHECK_NOW", &now);
    process::with_mpi(&mut command);
    match chosen.size {
        Size::Quick => command.env("QUICK", "1"),
        _ => command.env_remove("QUICK"),
    };
    command.envs(place.variables.iter().map(|(name, value)| (name, value)));
    let ended = process::run(&mut command, &log, Duration::from_secs(step.limit))
        .map_err(|error| format!("bash -c '{}': {error}", step.run))?;
    let text = fs::read(&log).map_err(|error| format!("read {}: {error}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let read = counts::read(&text);
    let (mut counts, mut faults) = (read.counts, Vec::new());
    for reason in place.skips.unlisted(&step.name, &read.reasons) {
        faults.push(format!("not in xtask/ci/skips.txt: skipped: {reason}"));
    }
    if counts.skipped > read.reasons.len() as u64 && read.reasons.is_empty() {
        faults.push(format!("{} skipped, none with a reason", counts.skipped));
    }
    if let Some(stacks) = &ended.stacks {
        let check = fs::read_to_string(&now).map(|name| format!(" in the check \"{}\"", name.trim()));
        faults.push(format!(
            "ended after {} s{}; where its processes stood:\n{stacks}",
            step.limit,
            check.unwrap_or_default()
        ));
    }
    let _ = fs::remove_file(&now);
    counts.failed += faults.len() as u64;
    let is_good = ended.status.success();
    if counts == Counts::default() {
        // A step without tests of its own is one.
        counts.passed += u64::from(is_good);
        counts.failed += u64::from(!is_good);
    } else if !is_good && counts.failed == 0 {
        faults.push(format!("{}, though no test failed", ended.status));
        counts.failed += 1;
    }
    let said = if counts.failed == 0 { String::new() } else { shown(&faults, &text, &log) };
    Ok(Done { counts, cases: read.cases, busy: ended.busy, took: ended.took, pace, said, chosen })
}

/// Whether a line tells of a test that failed, with its name where cargo-nextest and the scripts do.
/// Not `panicked at`: tests that expect a panic pass.
fn tells_of_failure(line: &str) -> bool {
    let begins = ["FAIL [", "SIG", "TIMEOUT [", "error:", "error["];
    let has = ["FAILED", "WARNING: ThreadSanitizer", ": error:", " error["];
    begins.iter().any(|words| line.trim_start().starts_with(words))
        || has.iter().any(|words| line.contains(words))
}

/// The faults, the lines that tell of failures with three behind each, and the end.
fn shown(faults: &[String], text: &str, log: &Path) -> String {
    const LINES: usize = 60;
    let lines: Vec<&str> = text.lines().collect();
    let mut shown: Vec<String> = faults.iter().map(|fault| format!("FAILED  {fault}")).collect();
    let mut last = 0;
    for (number, line) in lines.iter().enumerate() {
        if tells_of_failure(line) && shown.len() < LINES {
            let first = last.max(number);
            last = (number + 4).min(lines.len());
            shown.extend(lines.get(first..last).unwrap_or_default().iter().map(|line| (*line).to_owned()));
        }
    }
    let end = lines.len().saturating_sub(40).max(last);
    shown.extend(lines.get(end..).unwrap_or_default().iter().map(|line| (*line).to_owned()));
    shown.push(format!("all of it: {}", log.display()));
    shown.into_iter().map(|line| line.chars().take(300).collect::<String>() + "\n").collect()
}

/// The root by a path without a space: LD_PRELOAD separates its files by spaces and cannot quote
/// one (ld.so(8)).
pub(crate) struct Link(Option<PathBuf>);

impl Link {
    pub(crate) fn to(root: &Path) -> Result<Link, String> {
        if !root.to_string_lossy().contains(char::is_whitespace) {
            return Ok(Link(None));
        }
        let link = std::env::temp_dir().join(format!("pinyard-tree-{}", std::process::id()));
        let made = std::os::unix::fs::symlink(root, &link);
        made.map_err(|error| format!("symlink({}, {}): {error}", root.display(), link.display()))?;
        Ok(Link(Some(link)))
    }

    pub(crate) fn path<'a>(&'a self, root: &'a Path) -> &'a Path {
        self.0.as_deref().unwrap_or(root)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(link) = &self.0 {
            // A link in a temporary folder that stays does no harm.
            let _ = fs::remove_file(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::choose;
    use crate::steps::Steps;

    /// Runs made-up steps, each with its lane and its script.
    fn run(steps: &[(&str, &str, &str)], limit: u64) -> Vec<Done> {
        run_in(u64::MAX, steps, limit)
    }

    /// The same with room for so many steps; a name tells of those that were drawn.
    fn run_in(room: u64, steps: &[(&str, &str, &str)], limit: u64) -> Vec<Done> {
        let mut text = "[budget]\ncore_minutes = 1\nsample_core_minutes = 0\n".to_owned();
        for (name, lane, script) in steps {
            text += &format!(
                "[[step]]\nname = '{name}'\npart = 'p'\nlane = '{lane}'\nrun = '''{script}'''\ncost = 1\nchecks = 1\n\
                 limit = {limit}\n"
            );
        }
        let steps = Steps::parse(&text).unwrap();
        let logs = std::env::temp_dir().join(format!(
            "xtask-run-{}-{:?}",
            std::process::id(),
            thread::current().id()
        ));
        fs::create_dir_all(&logs).unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let skips = Skips::read(&root).unwrap();
        let place = Place { root, logs: logs.clone(), skips, variables: vec![("BASE", "v1".to_owned())] };
        let mut told = 0;
        let mut chosen = choose::all(&steps, None).unwrap().run;
        for chosen in chosen.iter_mut().filter(|chosen| chosen.step.name.starts_with("drawn")) {
            chosen.why = Why::Drawn;
        }
        let has_room = |done: &[Done], more: u64| done.len() as u64 + more <= room;
        let ran = all(place, chosen, has_room, |_| told += 1).unwrap();
        assert_eq!(told, ran.done.len());
        assert_eq!(told + ran.left.len(), steps.all.len());
        fs::remove_dir_all(&logs).unwrap();
        ran.done
    }

    fn of<'d>(done: &'d [Done], name: &str) -> &'d Done {
        done.iter().find(|step| step.chosen.step.name == name).unwrap()
    }

    #[test]
    fn steps_are_counted_by_what_they_say_and_by_their_status() {
        let done = run(
            &[
                ("counts", "cpu", "echo '3 passed, 0 failed, 0 skipped, 2 left'"),
                ("fails", "cpu", "echo 'FAILED  a check'; echo '1 passed, 1 failed'; exit 1"),
                ("quiet", "cpu", "exit 0"),
                ("dies", "cpu", "echo '3 passed, 0 failed'; kill -SEGV $$"),
                ("mute", "cpu", "exit 4"),
                ("skips", "cpu", "echo 'skipped: the weather is bad'; echo '1 passed, 0 failed, 1 skipped'"),
                ("silent", "cpu", "echo '1 passed, 0 failed, 1 skipped'"),
                ("sees", "cpu", "[ \"$BASE\" = v1 ] && [ -z \"${QUICK:-}\" ]"),
            ],
            600,
        );
        let counts = |name| of(&done, name).counts;
        assert_eq!(counts("counts"), Counts { passed: 3, left: 2, ..Counts::default() });
        assert_eq!(counts("fails"), Counts { passed: 1, failed: 1, ..Counts::default() });
        assert!(of(&done, "fails").said.contains("FAILED  a check"));
        assert_eq!(counts("quiet"), Counts { passed: 1, ..Counts::default() });
        assert_eq!(counts("dies"), Counts { passed: 3, failed: 1, ..Counts::default() });
        assert_eq!(counts("mute"), Counts { failed: 1, ..Counts::default() });
        assert_eq!(counts("skips"), Counts { passed: 1, failed: 1, skipped: 1, left: 0 });
        assert!(of(&done, "skips").said.contains("not in xtask/ci/skips.txt: skipped: the weather is bad"));
        assert_eq!(counts("silent"), Counts { passed: 1, failed: 1, skipped: 1, left: 0 });
        assert_eq!(counts("sees"), Counts { passed: 1, ..Counts::default() });
    }

    #[test]
    fn what_failed_is_shown_by_its_name_and_what_passed_is_not() {
        let has =
            |line| shown(&[], &format!("{line}\n{}", "x\n".repeat(50)), Path::new("log")).contains(line);
        assert!(has("        FAIL [   0.66s] (155/968) pinyard-allocator::device_footprint busy_streams"));
        assert!(has("     SIGSEGV [   0.10s] (1/2) pinyard-hooks::table a"));
        assert!(
            has("test src/lib.rs - (line 3) ... FAILED") && has("FAILED  scancel") && has("error[E0308]: no")
        );
        assert!(!has("   7: do_call<pinyard_allocator::device::error::DeviceError>"));
    }

    #[test]
    fn a_step_that_hangs_is_shown_with_its_check_and_its_processes() {
        let done = run(&[("hangs", "cpu", "echo 'two ranks' > \"$CHECK_NOW\"; sleep 1000")], 1);
        let said = &of(&done, "hangs").said;
        assert!(
            said.contains("ended after 1 s in the check \"two ranks\"") && said.contains("sleep 1000"),
            "{said}"
        );
        assert_eq!(of(&done, "hangs").counts.failed, 1);
    }

    #[test]
    fn a_lane_has_one_step_at_a_time_and_lanes_go_side_by_side() {
        let folder = std::env::temp_dir().join(format!("xtask-lanes-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let folder_name = folder.display();
        // Each of the two meets the other; the third finds neither.
        let meets = |own: &str, other: &str| {
            format!("touch {folder_name}/{own}; until [ -e {folder_name}/{other} ]; do sleep 0.01; done")
        };
        let (a, b) = (meets("a", "b"), meets("b", "a"));
        let alone = format!("mkdir {folder_name}/alone && sleep 0.1 && rmdir {folder_name}/alone");
        let done =
            run(&[("a", "cpu", &a), ("b", "waits", &b), ("c", "pins", &alone), ("d", "pins", &alone)], 600);
        assert!(done.iter().all(|step| step.counts.failed == 0), "{done:?}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_was_drawn_comes_last_and_where_there_is_room() {
        let steps = [
            ("drawn-1", "cpu", "true"),
            ("drawn-2", "cpu", "true"),
            ("a", "cpu", "true"),
            ("b", "waits", "sleep 0.2"),
        ];
        let names = |room: u64| -> Vec<String> {
            run_in(room, &steps, 600).into_iter().map(|done| done.chosen.step.name).collect()
        };
        assert_eq!(names(4), ["a", "b", "drawn-1", "drawn-2"]);
        assert_eq!(names(3), ["a", "b", "drawn-1"]);
        assert_eq!(names(0), ["a", "b"]);
    }

    #[test]
    fn a_step_waits_for_none_that_was_drawn() {
        let text = "[budget]\ncore_minutes = 1\nsample_core_minutes = 0\n[[step]]\nname = 'a'\npart = 'p'\nlane = 'cpu'\n\
                    run = 'true'\ncost = 1\nchecks = 1\n[[step]]\nname = 'b'\npart = 'p'\nlane = 'cpu'\nrun = 'true'\n\
                    cost = 1\nchecks = 1\nafter = ['a']\n";
        let mut chosen = choose::all(&Steps::parse(text).unwrap(), None).unwrap().run;
        assert_eq!(startable(&chosen, &[]), Some(0));
        chosen[0].why = Why::Drawn;
        assert_eq!(startable(&chosen, &[]), Some(1));
        chosen[1].why = Why::Drawn;
        assert_eq!(startable(&chosen, &[]), Some(0), "of two that were drawn one waits for the other");
    }
}
