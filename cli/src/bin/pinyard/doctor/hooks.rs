//! `pinyard doctor hooks`: every way of changing a mapping, tried on this machine.

use crate::terminal::{complain, print};
use indicatif::{ProgressBar, ProgressStyle};
use pinyard::hooks::Report as Functions;
use pinyard_coverage::{ROWS, Report, Setup, Verdict, run_all, run_here, text};
use pinyard_registry::raw_callers;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::{Command, ExitCode};

/// Arguments of `pinyard doctor hooks`.
#[derive(clap::Args)]
#[command(after_help = "Example: pinyard doctor hooks --json > hooks.json")]
pub(crate) struct Options {
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    /// Run one row in this process: what the command starts for each
    #[arg(long, hide = true, num_args = 2, value_names = ["ROW", "SETUP"])]
    row: Option<Vec<String>>,
}

/// Fails if a change goes unnoticed in the default set-up.
pub(crate) fn run(hooks: &Options) -> ExitCode {
    if let Some([row, setup]) = hooks.row.as_deref() {
        return match run_here(row, setup) {
            Some(line) => {
                print(line);
                ExitCode::SUCCESS
            }
            None => {
                complain(format_args!("pinyard: there is no row {row:?} or no set-up {setup:?}"));
                ExitCode::FAILURE
            }
        };
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            complain(format_args!(
                "pinyard: the path of this program, which runs the rows, is not known: {error}"
            ));
            return ExitCode::FAILURE;
        }
    };
    let bar = ProgressBar::new(ROWS.len() as u64).with_style(style());
    let reports = run_all(
        "",
        &Setup::ALL,
        |row, setup| {
            let mut command = Command::new(&program);
            command.args(["doctor", "hooks", "--row", row.name, setup.name()]);
            command
        },
        |report| {
            bar.set_message(report.row.what);
            bar.inc(1);
        },
    );
    bar.finish_and_clear();
    let functions = pinyard::hooks::install();
    if hooks.json {
        print(format_args!("{:#}", document(&reports, &functions)));
    } else {
        print(page(&reports, &functions).trim_end());
    }
    if unnoticed(&reports).next().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{pos:>3}/{len} {wide_bar} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn unnoticed(reports: &[Report]) -> impl Iterator<Item = &Report> {
    let bad = |report: &&Report| match report.verdict(Setup::Default) {
        Verdict::Stale => report.row.known.is_none(),
        Verdict::Broken(_) => true,
        _ => false,
    };
    reports.iter().filter(bad)
}

/// What goes unnoticed here as the documentation says.
fn documented(reports: &[Report]) -> impl Iterator<Item = (&Report, &'static str)> {
    let stale = |report: &&Report| report.verdict(Setup::Default) == Verdict::Stale;
    reports.iter().filter(stale).filter_map(|report| report.row.known.map(|remedy| (report, remedy)))
}

/// What could not be tried here.
fn untried(reports: &[Report]) -> Vec<&'static str> {
    let skipped = |report: &&Report| matches!(report.verdict(Setup::Default), Verdict::Skipped(_));
    reports.iter().filter(skipped).map(|report| report.row.name).collect()
}

/// The reasons that the verdicts give, and the rows of each.
fn reasons(reports: &[Report]) -> BTreeMap<String, Vec<&'static str>> {
    let mut reasons: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    for report in reports {
        for (_, verdict) in &report.verdicts {
            if let Some(why) = verdict.reason() {
                let rows = reasons.entry(format!("{}: {why}", verdict.word())).or_default();
                if rows.last() != Some(&report.row.name) {
                    rows.push(report.row.name);
                }
            }
        }
    }
    reasons
}

fn page(reports: &[Report], functions: &Functions) -> String {
    let mut page =
        "Who owns each function that changes mappings, and whether its calls are seen\n".to_owned();
    for line in functions.functions {
        page += &format!("  {line}\n");
    }
    page += "\nMechanisms that tell a registry of changes\n";
    page += &crate::info::mechanisms();
    page += "\n";
    page += &text(reports);
    page += "\n\n";
    for (why, rows) in reasons(reports) {
        page += &format!("{why}\n  ({})\n", rows.join(", "));
    }
    for (report, remedy) in documented(reports) {
        page += &format!("\nGoes unnoticed, and is documented: {}: {remedy}\n", report.row.what);
    }
    let untried = untried(reports);
    if !untried.is_empty() {
        page += &format!("\nCould not be tried here: {}\n", untried.join(", "));
    }
    let others = if documented(reports).next().is_some() { "no other" } else { "no" };
    match unnoticed(reports).count() {
        0 => page += &format!("\nIn the default set-up {others} change that was tried goes unnoticed.\n"),
        count => page += &format!("\nIn the default set-up {count} changes go UNNOTICED.\n"),
    }
    page
}

fn document(reports: &[Report], functions: &Functions) -> Value {
    let row = |report: &Report| {
        let verdicts = report.verdicts.iter().map(|(setup, verdict)| {
            (setup.name().to_owned(), json!({ "is": verdict.word(), "why": verdict.reason() }))
        });
        json!({
            "name": report.row.name,
            "change": report.row.what,
            "verdicts": verdicts.collect::<serde_json::Map<_, _>>(),
        })
    };
    json!({
        "functions": functions.functions.iter().map(crate::info::function).collect::<Vec<_>>(),
        "mechanisms": crate::info::mechanisms().lines().map(str::trim).collect::<Vec<_>>(),
        "raw_callers": raw_callers().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "rows": reports.iter().map(row).collect::<Vec<_>>(),
        "documented": documented(reports).map(|(report, _)| report.row.name).collect::<Vec<_>>(),
        "untried": untried(reports),
        "unnoticed": unnoticed(reports).map(|report| report.row.name).collect::<Vec<_>>(),
    })
}
