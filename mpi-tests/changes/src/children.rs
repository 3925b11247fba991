//! Each row in a process of its own.

use crate::judge::{Judge, Verdict};
use crate::rows::{ROWS, Row};
use crate::setup::Setup;
use std::io::Read;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A row takes milliseconds; one that takes this long hangs.
const LIMIT: Duration = Duration::from_secs(20);
/// What the line with the verdict starts with: libraries may print others.
const MARK: &str = "verdict\t";

/// What came of one row, in the order of [`Setup::ALL`].
pub struct Report {
    /// Which row.
    pub row: &'static Row,
    /// A verdict for each set-up.
    pub verdicts: Vec<(Setup, Verdict)>,
}

impl Report {
    /// The verdict for `setup`; one that was not run is broken.
    pub fn verdict(&self, setup: Setup) -> Verdict {
        let found = self.verdicts.iter().find(|(of, _)| *of == setup).map(|(_, verdict)| verdict.clone());
        found.unwrap_or(Verdict::Broken("not run".to_owned()))
    }
}

/// Runs the rows whose name contains `wanted` in the given set-ups, each in a process that `command` starts with
/// the row's and the set-up's name; it calls [`run_here`]. `done` is called after each row.
pub fn run_all(
    wanted: &str,
    setups: &[Setup],
    command: impl Fn(&Row, Setup) -> Command,
    mut done: impl FnMut(&Report),
) -> Vec<Report> {
    let each = |row: &'static Row| {
        let run = |&setup: &Setup| {
            // Another thread of the row's may have mapped something at its addresses.
            let mut tries = (0..3).map(|_| run_child(command(row, setup), setup));
            let last = Verdict::Skipped("not tried".to_owned());
            let skipped = |verdict: &Verdict| matches!(verdict, Verdict::Skipped(_));
            let mut verdict = tries.next().unwrap_or(last);
            while skipped(&verdict)
                && let Some(another) = tries.next()
            {
                verdict = another;
            }
            (setup, verdict)
        };
        let verdicts = setups.iter().map(run).collect();
        let report = Report { row, verdicts };
        done(&report);
        report
    };
    ROWS.iter().filter(|row| row.name.contains(wanted)).map(each).collect()
}

fn run_child(mut command: Command, setup: Setup) -> Verdict {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).env_remove("PINYARD_HOOKS");
    if let Some(value) = setup.variable() {
        command.env("PINYARD_HOOKS", value);
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Verdict::Broken(format!("start of the row's process: {error}")),
    };
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() > LIMIT => {
                // It is a child of ours that has not been waited for.
                let _ = child.kill();
                let _ = child.wait();
                return Verdict::Broken(format!("nothing moved for {} s", LIMIT.as_secs()));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => return Verdict::Broken(format!("wait for the row's process: {error}")),
        }
    };
    let mut printed = String::new();
    if let Some(mut stdout) = child.stdout.take()
        && let Err(error) = stdout.read_to_string(&mut printed)
    {
        return Verdict::Broken(format!("read from the row's process: {error}"));
    }
    parse(&printed, status)
}

fn parse(printed: &str, status: ExitStatus) -> Verdict {
    let line = printed.lines().find_map(|line| line.strip_prefix(MARK));
    let verdict = line.and_then(|line| {
        let (word, why) = line.split_once('\t')?;
        Verdict::from_parts(word, why)
    });
    verdict.unwrap_or_else(|| Verdict::Broken(format!("the row's process ended with {status}")))
}

/// Runs one row in this process and returns the line that [`run_all`] reads from its
/// standard output; `None` if there is no such row or set-up.
pub fn run_here(row: &str, setup: &str) -> Option<String> {
    let row = ROWS.iter().find(|candidate| candidate.name == row)?;
    let setup = Setup::named(setup)?;
    let verdict = match Judge::new(setup).and_then(|mut judge| (row.run)(&mut judge)) {
        Ok(verdict) | Err(verdict) => verdict,
    };
    let why = verdict.reason().unwrap_or_default().replace(['\n', '\t'], " ");
    Some(format!("{MARK}{}\t{why}", verdict.word()))
}
