//! Whether a run ended as it had to: cleanly, or as the fault that was asked for ends.

use crate::stress::options::Fault;
use crate::stress::record::{Outcome, Rank, Refusal, Run};
use crate::text::counted;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Nothing wrong, and the ending the one that was due.
pub const CLEAN: u8 = 0;
/// Bytes were wrong.
pub const WRONG: u8 = 1;
/// The run could not begin.
pub const REFUSED: u8 = 2;
/// It ended otherwise than it had to: a hang, a rank lost, a fault without its effect.
pub const BAD_END: u8 = 3;
/// A signal ended the command.
pub const INTERRUPTED: u8 = 130;

/// A stall that shows that the link was cut.
const CUT: f64 = 1.0;

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The exit status: 0 clean, 1 wrong bytes, 2 could not begin, 3 ended badly.
    pub exit: u8,
    /// What registered memory; the ranks' backends where they differ. Empty where no rank says.
    pub backend: String,
    /// What was wrong; empty if nothing was.
    pub faults: Vec<String>,
    /// What was met and is as it should be.
    pub findings: Vec<String>,
}

impl Verdict {
    /// Nothing was wrong.
    pub fn is_clean(&self) -> bool {
        self.exit == CLEAN
    }

    fn blame(&mut self, exit: u8, fault: String) {
        // Wrong bytes are the gravest; a run that could not begin says nothing else.
        let gravity = |exit: u8| [0, 4, 2, 1].get(usize::from(exit)).copied().unwrap_or(3);
        if gravity(exit) > gravity(self.exit) {
            self.exit = exit;
        }
        self.faults.push(fault);
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.exit {
            CLEAN => "Clean",
            WRONG => "WRONG BYTES",
            REFUSED => "Could not run",
            _ => "Ended badly",
        };
        write!(f, "{word}")?;
        if !self.backend.is_empty() {
            write!(f, ", backend {}", self.backend)?;
        }
        for line in self.faults.iter().chain(&self.findings) {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

/// Judges a run.
pub fn of(run: &Run) -> Verdict {
    // Ranks that were lost left no word of their backend.
    let backends: BTreeSet<&str> =
        run.ranks.iter().map(|rank| rank.backend.as_str()).filter(|name| !name.is_empty()).collect();
    let backend = backends.into_iter().collect::<Vec<_>>().join(" and ");
    let mut verdict = Verdict { exit: CLEAN, backend, faults: Vec::new(), findings: Vec::new() };
    run.ranks.iter().for_each(|rank| bytes(rank, &mut verdict));
    refusals(run, &mut verdict);
    endings(run, &mut verdict);
    plans(run, &mut verdict);
    launcher(run, &mut verdict);
    verdict.findings.extend(run.ranks.first().and_then(|rank| rank.left_out.clone()));
    if run.ranks.iter().all(|rank| rank.counts.device_checks == 0) && verdict.exit == CLEAN {
        verdict.findings.push(match verdict.backend.as_str() {
            "" => "every rank was lost before it could say what its device saw".to_owned(),
            backend => format!(
                "no device looked at the registered pages (backend {backend}): only the messages were checked"
            ),
        });
    }
    verdict
}

fn bytes(rank: &Rank, verdict: &mut Verdict) {
    let first = rank.wrong.first().map(|wrong| format!("; first: step {}, {}", wrong.step, wrong.what));
    let first = first.unwrap_or_default();
    let Rank { rank, counts, .. } = rank;
    if counts.corrupt > 0 {
        let messages = counted(counts.corrupt, "message");
        verdict.blame(WRONG, format!("rank {rank}: {messages} not as sent{first}"));
    }
    if counts.stale > 0 {
        let times = counted(counts.stale, "time");
        verdict.blame(
            WRONG,
            format!("rank {rank}: {times} the device used other pages than the program{first}"),
        );
    }
}

fn refusals(run: &Run, verdict: &mut Verdict) {
    let expected: &[&str] = match run.options.fault {
        Some(Fault::Memlock) => &["memlock", "budget"],
        _ => &[],
    };
    for rank in &run.ranks {
        for refusal in &rank.refusals {
            let line = format!(
                "rank {}: {} refused from {:.1} s on: {}",
                rank.rank,
                counted(refusal.count, "registration"),
                refusal.at,
                refusal.first
            );
            match expected.contains(&refusal.kind.as_str()) {
                true => verdict.findings.push(line),
                false => verdict.blame(BAD_END, line),
            }
        }
    }
    let names_it = |refusal: &Refusal| refusal.after_fault && refusal.first.contains("RLIMIT_MEMLOCK");
    let named = |rank: &Rank| rank.refusals.iter().any(names_it);
    if run.options.fault == Some(Fault::Memlock) && begun(run) && !run.ranks.iter().any(named) {
        verdict.blame(BAD_END, "RLIMIT_MEMLOCK was lowered, and no refusal names it".to_owned());
    }
}

/// The run came as far as its fault.
fn begun(run: &Run) -> bool {
    !run.ranks.iter().any(|rank| matches!(rank.outcome, Outcome::Refused { .. }))
}

fn endings(run: &Run, verdict: &mut Verdict) {
    let victim = run.options.victim(run.ranks.len() as u32);
    let killed = run.options.fault == Some(Fault::KillRank);
    for rank in &run.ranks {
        let number = rank.rank;
        match &rank.outcome {
            Outcome::Completed if killed && number == victim => {
                verdict.blame(BAD_END, format!("rank {number} was to be killed, and completed"));
            }
            Outcome::Completed if killed => {
                verdict.blame(BAD_END, format!("rank {number} completed although rank {victim} was killed"));
            }
            Outcome::Completed => {}
            Outcome::Refused { why } => verdict.blame(REFUSED, format!("rank {number}: {why}")),
            Outcome::Stopped { why } => verdict.blame(BAD_END, format!("rank {number} stopped: {why}")),
            Outcome::Hung { doing, seconds } => {
                verdict.blame(BAD_END, format!("rank {number} hung for {seconds:.0} s in {doing}"));
            }
            Outcome::Lost | Outcome::LostIn { .. } | Outcome::Ended { .. } => {
                lost(run, rank, victim, verdict);
            }
        }
    }
    if run.options.fault == Some(Fault::Link) && begun(run) {
        link(run, verdict);
    }
}

/// A rank that was ended from outside, by the fault or because of it.
fn lost(run: &Run, rank: &Rank, victim: u32, verdict: &mut Verdict) {
    let (number, at) = (rank.rank, rank.seconds);
    let how = match &rank.outcome {
        Outcome::Ended { signal, doing } => format!("was ended by signal {signal} at {at:.1} s, in {doing}"),
        Outcome::LostIn { doing } => format!("was lost after {at:.1} s, in {doing}"),
        _ => "left nothing".to_owned(),
    };
    match run.options.fault {
        Some(Fault::KillRank) if number == victim => match rank.injected.first() {
            Some(killed) => {
                verdict
                    .findings
                    .push(format!("rank {number} was killed at {:.1} s, as asked; it {how}", killed.at));
            }
            None => verdict.blame(BAD_END, format!("rank {number} {how}, before it was to be killed")),
        },
        Some(Fault::KillRank) => verdict.findings.push(format!("rank {number} {how}")),
        // MPI may give up; what it says is in the launcher's last words.
        Some(Fault::Link)
            if run.launcher.as_ref().is_some_and(|launcher| !launcher.last_words.is_empty()) =>
        {
            verdict.findings.push(format!("rank {number} {how}"));
        }
        _ => verdict.blame(BAD_END, format!("rank {number} {how}")),
    }
}

fn link(run: &Run, verdict: &mut Verdict) {
    let longest = run.ranks.iter().flat_map(|rank| rank.stalls.iter().map(move |stall| (rank.rank, stall)));
    match longest.max_by(|(_, a), (_, b)| a.seconds.total_cmp(&b.seconds)) {
        Some((rank, stall)) if stall.seconds >= CUT => verdict.findings.push(format!(
            "the longest stall: {:.1} s from {:.1} s on, rank {rank} in {}",
            stall.seconds, stall.at, stall.doing
        )),
        _ if run.ranks.iter().all(|rank| rank.outcome == Outcome::Completed) => verdict.blame(
            BAD_END,
            format!("the link was to be cut, and nothing stood still for {CUT} s: was it cut, and is it the one that MPI uses?"),
        ),
        _ => {}
    }
}

fn plans(run: &Run, verdict: &mut Verdict) {
    let completed = || run.ranks.iter().filter(|rank| rank.outcome == Outcome::Completed);
    let Some(first) = completed().next() else { return };
    for rank in completed() {
        if (&rank.plan, &rank.executed) != (&first.plan, &first.executed) {
            let line = format!("ranks {} and {} did not run the same steps", first.rank, rank.rank);
            verdict.blame(BAD_END, line);
        }
    }
}

fn launcher(run: &Run, verdict: &mut Verdict) {
    let Some(launcher) = &run.launcher else { return };
    if launcher.overran {
        let line = format!("the run was not over after {:.0} s and was ended", launcher.seconds);
        verdict.blame(BAD_END, line);
    }
    if !launcher.left_behind.is_empty() {
        let processes: Vec<String> = launcher.left_behind.iter().map(u64::to_string).collect();
        verdict.blame(BAD_END, format!("processes {} outlived the run", processes.join(", ")));
    }
    let said = launcher.last_words.trim().replace('\n', " | ");
    let ending = format!("{}: {}", launcher.name, launcher.status);
    let line = if said.is_empty() { ending } else { format!("{ending}; it said: {said}") };
    match run.options.fault {
        Some(Fault::KillRank) if launcher.success => {
            verdict.blame(BAD_END, format!("{}, although a rank was killed", launcher.name));
        }
        Some(Fault::KillRank) => verdict.findings.push(line),
        Some(Fault::Link) if !launcher.success => verdict.findings.push(line),
        _ if !launcher.success && !launcher.overran => verdict.blame(BAD_END, line),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stress::options::Options;
    use crate::stress::record::{Counts, Injected, Launcher, Refusal, Stall};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn run(line: &str) -> Run {
        let rank = |rank| Rank {
            rank,
            ranks: 2,
            backend: "verbs".to_owned(),
            counts: Counts { steps: 9, device_checks: 9, ..Counts::default() },
            outcome: Outcome::Completed,
            ..Rank::default()
        };
        let launcher = Launcher { name: "mpirun".to_owned(), success: true, ..Launcher::default() };
        Run {
            options: Line::parse_from(std::iter::once("x").chain(line.split_whitespace())).options,
            launcher: Some(launcher),
            ranks: vec![rank(0), rank(1)],
        }
    }

    #[test]
    fn a_clean_run_is_clean_and_each_blemish_is_not() {
        let clean = Verdict { exit: CLEAN, backend: "verbs".to_owned(), faults: vec![], findings: vec![] };
        assert_eq!(of(&run("")), clean);
        assert_eq!(clean.to_string(), "Clean, backend verbs");
        type Spoil = fn(&mut Run);
        let blemishes: [(Spoil, u8, &str); 8] = [
            (|run| run.ranks[1].counts.corrupt = 1, WRONG, "1 message not as sent"),
            (|run| run.ranks[1].counts.stale = 2, WRONG, "2 times the device used other pages"),
            (|run| run.ranks[1].executed = "other".into(), BAD_END, "ranks 0 and 1"),
            (|run| run.ranks[1].outcome = Outcome::Lost, BAD_END, "left nothing"),
            (|run| run.ranks[0].outcome = Outcome::Refused { why: "no ring".into() }, REFUSED, "no ring"),
            (|run| run.ranks[0].outcome = Outcome::Stopped { why: "no slot".into() }, BAD_END, "no slot"),
            (
                |run| run.ranks[0].outcome = Outcome::Hung { doing: "MPI_Put".into(), seconds: 5.0 },
                BAD_END,
                "hung for 5 s in MPI_Put",
            ),
            (|run| run.launcher.as_mut().unwrap().left_behind = vec![7], BAD_END, "outlived"),
        ];
        for (spoil, exit, text) in blemishes {
            let mut run = run("");
            spoil(&mut run);
            let verdict = of(&run);
            assert_eq!(verdict.exit, exit, "{verdict}");
            assert!(verdict.to_string().contains(text), "{verdict}");
        }
    }

    /// A node without a NIC registers for another device than the others.
    #[test]
    fn the_verdict_names_every_backend() {
        let mut run = run("");
        run.ranks[1].backend = "io_uring".to_owned();
        assert_eq!(of(&run).to_string(), "Clean, backend io_uring and verbs");
        run.ranks.iter_mut().for_each(|rank| rank.backend.clear());
        assert_eq!(of(&run).to_string(), "Clean");
    }

    #[test]
    fn wrong_bytes_outweigh_a_bad_end() {
        let mut run = run("");
        run.ranks[0].outcome = Outcome::Lost;
        run.ranks[1].counts.corrupt = 1;
        assert_eq!(of(&run).exit, WRONG);
    }

    #[test]
    fn a_killed_rank_must_be_killed_and_the_others_end() {
        let mut run = run("--fault kill-rank");
        assert_eq!(of(&run).exit, BAD_END, "nobody was killed");
        run.launcher.as_mut().unwrap().success = false;
        run.ranks[0].outcome = Outcome::Ended { signal: 15, doing: "MPI_Bcast".into() };
        run.ranks[1].outcome = Outcome::LostIn { doing: "MPI_Put".into() };
        assert_eq!(of(&run).exit, BAD_END, "it died of something else");
        run.ranks[1].injected.push(Injected { at: 2.5, what: String::new() });
        let verdict = of(&run);
        assert_eq!(verdict.exit, CLEAN, "{verdict}");
        assert!(verdict.to_string().contains("rank 1 was killed at 2.5 s"), "{verdict}");
        run.launcher.as_mut().unwrap().overran = true;
        assert_eq!(of(&run).exit, BAD_END, "the others did not end");
    }

    #[test]
    fn a_lowered_limit_must_be_named() {
        let mut run = run("--fault memlock");
        assert_eq!(of(&run).exit, BAD_END, "no refusal");
        let refusal = |kind: &str, after_fault, first: &str| Refusal {
            kind: kind.into(),
            after_fault,
            count: 1,
            first: first.into(),
            at: 1.0,
        };
        run.ranks[0].refusals.push(refusal("memlock", false, "RLIMIT_MEMLOCK allows 8388608 bytes"));
        assert_eq!(of(&run).exit, BAD_END, "that was short before it was lowered");
        run.ranks[0].refusals.push(refusal("memlock", true, "RLIMIT_MEMLOCK allows 65536 bytes"));
        assert_eq!(of(&run).exit, CLEAN);
        run.ranks[0].refusals.push(refusal("other", true, "no slot"));
        assert_eq!(of(&run).exit, BAD_END, "another reason");
    }

    #[test]
    fn a_cut_link_must_show() {
        let mut run = run("--fault link");
        assert_eq!(of(&run).exit, BAD_END, "no stall");
        run.ranks[0].stalls.push(Stall { at: 3.0, seconds: 2.1, doing: "MPI_Bcast".into() });
        let verdict = of(&run);
        assert_eq!(verdict.exit, CLEAN, "{verdict}");
        assert!(verdict.to_string().contains("2.1 s from 3.0 s on, rank 0 in MPI_Bcast"), "{verdict}");
    }
}
