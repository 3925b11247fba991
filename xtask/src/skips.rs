//! May what a step has skipped be skipped? `xtask/ci/skips.txt` lists what a machine may lack.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Where the list is, below the root.
const LIST: &str = "xtask/ci/skips.txt";

/// A line of the list.
#[derive(Debug)]
struct Lack {
    /// A step, or `*`.
    step: String,
    /// Words of the reason.
    words: String,
}

/// The list.
#[derive(Debug)]
pub(crate) struct Skips(Vec<Lack>);

impl Skips {
    pub(crate) fn read(root: &Path) -> Result<Skips, String> {
        let path = root.join(LIST);
        let text = fs::read_to_string(&path).map_err(|error| format!("read {}: {error}", path.display()))?;
        Skips::parse(&text).map_err(|error| format!("{LIST}: {error}"))
    }

    fn parse(text: &str) -> Result<Skips, String> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let lack = |line: &str| match line.split('\t').collect::<Vec<_>>()[..] {
            [step, words, lacks] if !words.is_empty() && !lacks.is_empty() => {
                Ok(Lack { step: step.to_owned(), words: words.to_owned() })
            }
            _ => Err(format!("not a step, words and a reason, apart by tabs: {line}")),
        };
        lines.map(lack).collect::<Result<_, _>>().map(Skips)
    }

    /// Those of `reasons` that `step` may not give.
    pub(crate) fn unlisted<'r>(&self, step: &str, reasons: &'r BTreeSet<String>) -> Vec<&'r str> {
        let is_listed = |reason: &str| {
            self.0.iter().any(|lack| (lack.step == "*" || lack.step == step) && reason.contains(&lack.words))
        };
        reasons.iter().map(String::as_str).filter(|reason| !is_listed(reason)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::Steps;

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

    fn unlisted(step: &str, reason: &str) -> bool {
        let skips = Skips::read(Path::new(ROOT)).unwrap();
        !skips.unlisted(step, &BTreeSet::from([reason.to_owned()])).is_empty()
    }

    #[test]
    fn only_what_is_listed_may_be_skipped() {
        assert!(!unlisted("aarch64", "aarch64: rustup cannot add aarch64-unknown-linux-gnu"));
        assert!(!unlisted("unit", "transparent huge pages are off on this machine (never)"));
        assert!(unlisted("unit", "the weather is bad"));
        assert!(unlisted("unit", "aarch64: rustup cannot add it"), "another step may");
        assert!(unlisted("report", "there is no chromium in PATH"), "xtask/ci/deps.sh installs it");
    }

    #[test]
    fn the_list_has_steps_that_there_are_and_words_that_a_source_prints() {
        let root = Path::new(ROOT);
        let steps = Steps::read(root).unwrap();
        for lack in &Skips::read(root).unwrap().0 {
            let is_step = lack.step == "*" || steps.all.iter().any(|step| step.name == lack.step);
            assert!(is_step, "no step {}", lack.step);
            let mut grep = std::process::Command::new("git");
            grep.current_dir(root).args([
                "grep",
                "-qF",
                "-e",
                &lack.words,
                "--",
                ":!xtask/ci/skips.txt",
                ":!xtask/src/skips.rs",
            ]);
            assert!(grep.status().unwrap().success(), "nothing says: {}", lack.words);
        }
    }

    #[test]
    fn a_line_without_a_reason_is_refused() {
        assert!(Skips::parse("*\twords\t\n").unwrap_err().contains("words"));
        assert!(Skips::parse("# a comment\n*\twords\twhy\n").is_ok());
    }
}
