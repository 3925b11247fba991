//! `pinyard info`: what there is, and what the hooks see.

use crate::terminal::print;
use pinyard::environment::groups;
use pinyard::hooks::{FunctionReport, Owner, Report, Seen};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Arguments of `pinyard info`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Options {
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    /// Start COMMAND for it, and show how a communicator of its ranks carries operations on device
    /// memory out, as `pinyard probe --plan` does
    #[arg(long, value_name = "COMMAND")]
    launch: Option<String>,
}

const AFTER_HELP: &str = "\
Example: pinyard info --json | jq .hooks
         pinyard info --launch \"srun -n 8 --gpus-per-task 1\"";

/// Installs and tests the hooks in this process and prints what came of it.
/// Fails if calls escape them.
pub(crate) fn run(options: &Options) -> ExitCode {
    let report = pinyard::hooks::install();
    let plan = options.launch.as_deref().map(crate::probe::planned);
    if options.json {
        print(format_args!("{:#}", document(&report, plan.as_ref())));
    } else {
        print(text(&report, plan.as_ref()).trim_end());
    }
    if report.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn value_of(variable: &str) -> Option<String> {
    std::env::var_os(variable).map(|value| value.to_string_lossy().into_owned())
}

/// What `--launch` found out, if it was given.
type Planned = Result<String, String>;

fn text(report: &Report, plan: Option<&Planned>) -> String {
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
    text += "\nMPI on device memory, how it is carried out\n";
    match plan {
        Some(Ok(plan)) => text += &format!("  {plan}\n"),
        Some(Err(why)) => text += &format!("  not known: {why}\n"),
        None => text += "  chosen by the ranks of a job: --launch \"mpirun -n 4\" shows it for such ranks\n",
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

fn document(report: &Report, plan: Option<&Planned>) -> Value {
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
        "mpi_plan": plan.map(|plan| plan.as_ref().map_or_else(|why| json!({ "error": why }), |plan| json!(plan))),
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
        let text = text(&report, None);
        let document = document(&report, None);
        for (index, line) in report.functions.iter().enumerate() {
            assert!(text.contains(line.function.name()), "{text}");
            assert_eq!(document["hooks"]["functions"][index]["function"], line.function.name());
        }
        for (index, variable) in groups().iter().flat_map(|group| &group.variables).enumerate() {
            assert!(text.contains(&format!("  {} ", variable.name)), "{text}");
            assert_eq!(document["environment"][index]["name"], variable.name);
        }
        let plan = Ok("ipc: because".to_owned());
        assert!(super::text(&report, Some(&plan)).contains("\n  ipc: because\n"));
        assert_eq!(super::document(&report, Some(&plan))["mpi_plan"], "ipc: because");
        let unknown = Err("no such program".to_owned());
        assert_eq!(super::document(&report, Some(&unknown))["mpi_plan"]["error"], "no such program");
        assert!(document["mpi_plan"].is_null());
        // This program, without optimisation, may make system calls itself, and its path is long.
        let own = std::env::current_exe().unwrap().display().to_string();
        let fits = |line: &str| line.replace(&own, "").chars().count() <= 100 || line.contains('"');
        assert!(text.lines().all(fits), "what the user has set may be long, the rest not: {text}");
    }
}
