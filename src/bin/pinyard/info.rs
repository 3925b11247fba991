//! `pinyard info`: what there is, and what the hooks see.

use crate::terminal::print;
use pinyard::environment::groups;
use pinyard::hooks::{FunctionReport, Owner, Report, Seen};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Arguments of `pinyard info`.
#[derive(clap::Args)]
#[command(after_help = "Example: pinyard info --json | jq .hooks")]
pub(crate) struct Options {
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// Installs and tests the hooks in this process and prints what came of it.
/// Fails if calls escape them.
pub(crate) fn run(options: &Options) -> ExitCode {
    let report = pinyard::hooks::install();
    if options.json {
        print(format_args!("{:#}", document(&report)));
    } else {
        print(text(&report).trim_end());
    }
    if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn value_of(variable: &str) -> Option<String> {
    std::env::var_os(variable).map(|value| value.to_string_lossy().into_owned())
}

fn text(report: &Report) -> String {
    let mut text = format!("pinyard {}\n\n", env!("CARGO_PKG_VERSION"));
    text += "Hooks: who owns each function that changes mappings, and whether its calls are seen\n";
    for line in report.functions {
        text += &format!("  {line}\n");
    }
    text += if report.is_complete() {
        "  complete: registrations may be cached in this process\n"
    } else {
        "  NOT complete: a registry with hooks refuses to start in this process\n"
    };
    text += "\nMechanisms that tell a registry of changes\n";
    text += &mechanisms();
    text += "\nMPI and device pointers, as `pinyard probe` has tried\n";
    match crate::probe::known() {
        Ok(lines) if lines.is_empty() => text += "  nothing was tried: each MPI's own word counts\n",
        Ok(lines) => text.extend(lines.iter().map(|line| format!("  {line}\n"))),
        Err(reason) => text += &format!("  not known: {reason}\n"),
    }
    for group in groups() {
        text += &format!("\nEnvironment: {}\n", group.title);
        for variable in group.variables {
            let value = value_of(variable.name)
                .map_or_else(|| format!("not set: {}", variable.default), |value| format!("{value:?}"));
            text += &format!("  {:<26} {value}\n", variable.name);
        }
    }
    text += "\nWhat each means, and its values: pinyard(1), or --json\n";
    text
}

/// Which mechanisms serve, and why those.
pub(crate) fn mechanisms() -> String {
    match pinyard_registry::serving() {
        Ok(serving) => serving.to_string().lines().map(|line| format!("  {line}\n")).collect(),
        Err(value) => format!("  PINYARD_HOOKS={value:?} is no mechanism\n"),
    }
}

fn document(report: &Report) -> Value {
    let groups = groups();
    let variables = groups.iter().flat_map(|group| {
        group.variables.iter().map(|variable| {
            json!({
                "part": group.title,
                "name": variable.name,
                "meaning": variable.meaning,
                "allowed": variable.allowed,
                "default": variable.default,
                "value": value_of(variable.name),
            })
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "mpi_device_pointers": crate::probe::known().unwrap_or_default(),
        "hooks": {
            "complete": report.is_complete(),
            "functions": report.functions.iter().map(function).collect::<Vec<_>>(),
        },
        "mechanisms": mechanisms().lines().map(str::trim).collect::<Vec<_>>(),
        "environment": variables.collect::<Vec<_>>(),
    })
}

pub(crate) fn function(line: &FunctionReport) -> Value {
    let owner = match &line.owner {
        Owner::Pinyard => "pinyard",
        Owner::Libc => "libc",
        Owner::Module(name) => name.as_str(),
        Owner::Absent => "absent",
        Owner::Interposed => "interposed",
    };
    let (seen, why) = match &line.seen {
        Seen::Yes => ("yes", None),
        Seen::No(why) => ("no", Some(why.to_string())),
        Seen::NotExercised(why) => ("not exercised", Some(why.to_string())),
    };
    json!({ "function": line.function.name(), "owner": owner, "seen": seen, "why": why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_and_every_variable_is_printed() {
        let report = pinyard::hooks::install();
        let text = text(&report);
        let document = document(&report);
        for (index, line) in report.functions.iter().enumerate() {
            assert!(text.contains(line.function.name()), "{text}");
            assert_eq!(document["hooks"]["functions"][index]["function"], line.function.name());
        }
        for (index, variable) in groups().iter().flat_map(|group| &group.variables).enumerate() {
            assert!(text.contains(&format!("  {} ", variable.name)), "{text}");
            assert_eq!(document["environment"][index]["name"], variable.name);
        }
        let fits = |line: &str| line.chars().count() <= 100 || line.contains('"');
        assert!(text.lines().all(fits), "what the user has set may be long, the rest not: {text}");
    }
}
