//! The `pinyard` command.

mod bars;
mod bench;
mod demo;
mod doctor;
mod info;
mod manual;
mod probe;
mod programs;
mod replay;
#[cfg(test)]
mod shown;
mod stress;
mod terminal;
mod traces;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Memory that stays registered for MPI programs.
#[derive(Parser)]
#[command(name = "pinyard", version, about, after_help = AFTER_HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Examples:
  pinyard doctor                                     is this machine fit?
  pinyard demo                                       what goes wrong without, under a real MPI
  PINYARD_TRACE=traces ./program; pinyard report traces -o run.html
Each command has examples of its own: pinyard help doctor";

#[derive(Subcommand)]
enum Command {
    /// Measure pinyard beside its peers: table, plots, comparison with a saved run
    Bench(bench::Options),
    /// Show the hang and the stale pages of other designs beside pinyard, under a real MPI
    Demo(demo::Options),
    /// Examine this machine, or compare many: what is to be fixed, and how
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

    /// Every command that is not hidden, with the words that name it.
    fn commands() -> Vec<(String, clap::Command)> {
        let mut main = Arguments::command();
        main.build();
        let mut found = vec![("pinyard".to_owned(), main)];
        let mut at = 0;
        while let Some((path, command)) = found.get(at).cloned() {
            let shown =
                command.get_subcommands().filter(|inner| !inner.is_hide_set() && inner.get_name() != "help");
            found.extend(shown.map(|inner| (format!("{path} {}", inner.get_name()), inner.clone())));
            at += 1;
        }
        found
    }

    /// What is wrong with words that follow `pinyard`, up to the shell's next command:
    /// subcommands and options that there are not. What is in quotes is another program's.
    fn mistake(words: &str) -> Option<String> {
        let mut main = Arguments::command();
        main.build();
        let own: String = words.split('"').step_by(2).collect();
        let words = own
            .split_whitespace()
            .take_while(|word| *word != "--" && !word.starts_with(['|', '>', '&', '#', ';']));
        let mut command = &main;
        for word in words.map(|word| word.trim_end_matches([';', ')'])) {
            let option = word.split('=').next().unwrap_or_default();
            let mut options = command.get_arguments();
            let known = match (option.strip_prefix("--"), option.strip_prefix('-')) {
                (Some(long), _) => options.any(|one| one.get_long() == Some(long)),
                (None, Some(short)) => options.any(|one| one.get_short() == short.chars().next()),
                (None, None) => match command.find_subcommand(word) {
                    Some(inner) => {
                        command = inner;
                        true
                    }
                    None => command.get_positionals().next().is_some() || command.get_name() != "pinyard",
                },
            };
            if !known {
                return Some(format!("`{}` has no {word}", command.get_name()));
            }
        }
        None
    }

    #[test]
    fn the_help_of_each_command_has_an_example_that_it_takes() {
        for (path, command) in commands() {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains("Example"), "the help of `{path}` has no example: {after:?}");
            assert!(after.contains(&path), "the help of `{path}` shows no use of it: {after:?}");
            for (at, _) in after.match_indices("pinyard ") {
                let line = after[at..].lines().next().unwrap_or_default();
                // Two spaces, and what it is for.
                let words = line.trim_start_matches("pinyard ").split("  ").next().unwrap_or_default();
                assert_eq!(mistake(words), None, "the help of `{path}`: {line}");
            }
        }
    }

    #[test]
    fn the_pages_name_commands_and_options_that_there_are() {
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let mut pages: Vec<_> = std::fs::read_dir(root.join("docs/src")).map_or_else(
            |error| panic!("docs/src: {error}"),
            |entries| entries.flatten().map(|entry| entry.path()).collect(),
        );
        pages.retain(|page| page.extension().is_some_and(|ending| ending == "md"));
        pages.extend(["README.md", "CONTRIBUTING.md", "slurm/README.md"].map(|page| root.join(page)));
        let mut looked_at = 0;
        for page in pages {
            let text = std::fs::read_to_string(&page).unwrap_or_default();
            let spans = text.split('`').skip(1).step_by(2).filter_map(|span| span.strip_prefix("pinyard "));
            // Not a table's column, nor a line of Cargo.toml.
            for span in spans
                .filter(|span| span.starts_with(|letter: char| letter.is_ascii_lowercase() || letter == '-'))
            {
                assert_eq!(mistake(span), None, "{}: `pinyard {span}`", page.display());
                looked_at += 1;
            }
        }
        assert!(looked_at > 30, "{looked_at}");
        assert!(
            mistake("docter").is_some()
                && mistake("doctor --jsno").is_some()
                && mistake("report x -z y").is_some()
        );
    }

    /// Every name, with two letters of it exchanged; a short one with its last letter twice.
    #[test]
    fn a_typo_in_a_command_or_an_option_gets_a_suggestion() {
        let typo = |name: &str| {
            let mut letters: Vec<char> = name.chars().collect();
            match (1..letters.len() - 1).rev().find(|&at| letters.len() > 4 && letters[at] != letters[at + 1])
            {
                Some(at) => letters.swap(at, at + 1),
                None => letters.extend(name.chars().last()),
            }
            letters.into_iter().collect::<String>()
        };
        let told = |words: &[String], meant: &str| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let text = refusal(&words);
            assert!(text.contains("similar") && text.contains(meant), "{words:?}: {text}");
        };
        let mut tried = 0;
        for (path, command) in commands() {
            let words: Vec<String> = path.split(' ').map(str::to_owned).collect();
            if let [before @ .., name] = words.as_slice()
                && !before.is_empty()
            {
                told(&[before, &[typo(name)]].concat(), &format!("'{name}'"));
                tried += 1;
            }
            let shown = command.get_arguments().filter(|one| !one.is_hide_set());
            for long in shown.filter_map(clap::Arg::get_long).filter(|long| long.len() > 3) {
                told(&[&words[..], &[format!("--{}", typo(long))]].concat(), &format!("--{long}"));
                tried += 1;
            }
        }
        assert!(tried > 60, "{tried}");
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
