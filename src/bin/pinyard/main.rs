//! The `pinyard` command.

mod bench;
mod demo;
mod doctor;
mod info;
mod manual;
mod probe;
mod replay;
mod report;
mod stress;
mod terminal;
mod traces;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Memory that stays registered for MPI programs.
#[derive(Parser)]
#[command(name = "pinyard", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure pinyard beside its peers: table, plots, comparison with a saved run
    Bench(bench::Options),
    /// Show the hang and the stale pages of other designs beside pinyard, under a real MPI
    Demo(demo::Options),
    /// Examine this machine, or compare many: what is to be mended, and how
    Doctor(doctor::Options),
    /// Print the version, what the hooks see in this process, and the environment variables
    Info(info::Options),
    /// Try out whether an MPI takes device pointers, and keep the answer for its programs
    Probe(probe::Options),
    /// Run a device pool's trace through other configurations, on a simulated device
    Replay(replay::Options),
    /// Make a page of the traces of a run: timeline, slabs, latencies, ranks side by side
    Report(traces::report::Options),
    /// Stress MPI, the registry and the pool on this machine or a cluster, and report
    Stress(Box<stress::Options>),
    /// Show the counters of a running job, a row per process
    Top(traces::top::Options),
    /// Write the manual's pages of this command into a folder
    #[command(hide = true)]
    WriteManual(manual::Options),
}

fn main() -> ExitCode {
    // Variables and PATH name the programs that some commands start.
    if pinyard::hooks::is_privileged() {
        terminal::complain(
            "pinyard: this file is set-user-ID or has capabilities (AT_SECURE), and the command starts what its \
             caller's environment names: install it without (chmod 755, setcap -r)",
        );
        return ExitCode::from(2);
    }
    match Arguments::parse().command {
        Command::Bench(options) => bench::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Info(options) => info::run(&options),
        Command::Probe(options) => probe::run(&options),
        Command::Replay(options) => replay::run(&options),
        Command::Report(options) => traces::report::run(&options),
        Command::Stress(options) => stress::run(&options),
        Command::Top(options) => traces::top::run(&options),
        Command::WriteManual(options) => manual::run(&options, Arguments::command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(words: &[&str]) -> String {
        match Arguments::try_parse_from(words) {
            Ok(_) => panic!("{words:?} is taken"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_help_of_each_subcommand_has_an_example() {
        let example = |command: &clap::Command, path: &str| {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains(path), "the help of `{path}` shows no use of it: {after:?}");
        };
        let main = Arguments::command();
        for command in main.get_subcommands().filter(|command| !command.is_hide_set()) {
            let path = format!("pinyard {}", command.get_name());
            example(command, &path);
            for inner in command.get_subcommands() {
                example(inner, &format!("{path} {}", inner.get_name()));
            }
        }
    }

    #[test]
    fn a_typo_gets_a_suggestion() {
        for (words, meant) in [
            (&["pinyard", "docter"][..], "'doctor'"),
            (&["pinyard", "doctor", "hoks"], "'hooks'"),
            (&["pinyard", "doctor", "--jsno"], "'--json'"),
            (&["pinyard", "doctor", "--comapre", "x"], "'--compare'"),
            (&["pinyard", "bnech"], "'bench'"),
            (&["pinyard", "bench", "--comapre", "x"], "'--compare'"),
            (&["pinyard", "stres"], "'stress'"),
            (&["pinyard", "stress", "--tiem", "3"], "'--time'"),
            (&["pinyard", "info", "--jso"], "'--json'"),
            (&["pinyard", "reprot", "x"], "'report'"),
            (&["pinyard", "report", "x", "--perfeto", "y"], "'--perfetto'"),
            (&["pinyard", "top", "x", "--onec"], "'--once'"),
            (&["pinyard", "top", "x", "--promtheus"], "'--prometheus'"),
        ] {
            let text = refusal(words);
            assert!(text.contains("similar") && text.contains(meant), "{words:?}: {text}");
        }
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        for words in [
            &["pinyard", "doctor", "--job", "--json"][..],
            &["pinyard", "doctor", "--job", "--compare", "x"],
            &["pinyard", "doctor", "--expect", "n1"],
            &["pinyard", "doctor", "--json", "hooks"],
            &["pinyard", "bench", "--list", "--save", "x"],
            &["pinyard", "bench", "--from", "x", "--quick"],
            &["pinyard", "bench", "--noise", "5"],
            &["pinyard", "bench", "--compare", "x", "--noise", "-5"],
            &["pinyard", "bench", "--ranks", "1"],
        ] {
            assert!(!refusal(words).is_empty());
        }
    }
}
