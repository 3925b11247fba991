//! The steps of all tests, as `xtask/ci/steps.toml` lists them.

use serde::Deserialize;
use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// Where the list is, below the root.
pub(crate) const LIST: &str = "xtask/ci/steps.toml";

/// The list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Steps {
    pub(crate) budget: Budget,
    #[serde(rename = "step")]
    pub(crate) all: Vec<Step>,
}

/// What `make test` may cost.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Budget {
    /// User and system time of all steps but those that run because of a change.
    pub(crate) core_minutes: u64,
    /// What `pace::sample` takes on the machine that the core-minutes are of, in milliseconds.
    pub(crate) reference_ms: Option<f64>,
    /// What the sample may cost, by the steps' recorded costs.
    pub(crate) sample_core_minutes: u64,
}

/// A command with tests of its own, or one test.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) name: String,
    /// The part of `make test-all` that runs it whole.
    pub(crate) part: String,
    /// How `make test` runs it, where no change touches it.
    #[serde(default)]
    pub(crate) test: Size,
    /// Steps of a lane run one after the other.
    pub(crate) lane: Lane,
    /// A command line of bash, in the root.
    pub(crate) run: String,
    /// Steps that come first, where they run.
    #[serde(default)]
    pub(crate) after: Vec<String>,
    /// Paths, or their beginnings: where one of them changes, `make test` runs the step whole.
    #[serde(default)]
    pub(crate) touched_by: Vec<String>,
    /// User and system seconds of the whole step, measured.
    pub(crate) cost: u64,
    /// Checks of the whole step, counted.
    pub(crate) checks: u64,
    /// Seconds of wall time after which it is ended.
    #[serde(default = "default_limit")]
    pub(crate) limit: u64,
}

fn default_limit() -> u64 {
    1500
}

/// How much of a step runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Size {
    /// Nothing.
    #[default]
    None,
    /// With `QUICK=1` in its environment: one check of each kind.
    Quick,
    /// All.
    Whole,
}

/// What a step needs most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Lane {
    /// Compilers and tests that compute.
    Cpu,
    /// Processes that wait for each other, for a network or for time.
    Waits,
    /// A share of the memory that may be pinned; or daemons of which a machine has one.
    Pins,
}

impl Steps {
    pub(crate) fn read(root: &Path) -> Result<Steps, String> {
        let path = root.join(LIST);
        let text = fs::read_to_string(&path).map_err(|error| format!("read {}: {error}", path.display()))?;
        Steps::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    pub(crate) fn parse(text: &str) -> Result<Steps, String> {
        let steps: Steps = toml::from_str(text).map_err(|error| error.to_string())?;
        let mut names = HashSet::new();
        for step in &steps.all {
            // Before its own name: nobody waits for itself, or for one further down.
            if let Some(after) = step.after.iter().find(|after| !names.contains(after.as_str())) {
                return Err(format!("step {} comes after {after}, which is not above it", step.name));
            }
            if !names.insert(step.name.as_str()) {
                return Err(format!("two steps are called {}", step.name));
            }
        }
        Ok(steps)
    }

    /// The parts of `make test-all`, in the order of the list.
    pub(crate) fn parts(&self) -> Vec<&str> {
        let mut parts: Vec<&str> = Vec::new();
        for step in &self.all {
            if !parts.contains(&step.part.as_str()) {
                parts.push(&step.part);
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: &str = "part = 'p'\nlane = 'cpu'\nrun = 'true'\ncost = 1\nchecks = 1\n";

    fn list(steps: &str) -> Result<Steps, String> {
        Steps::parse(&format!("[budget]\ncore_minutes = 1\nsample_core_minutes = 1\n{steps}"))
    }

    #[test]
    fn the_list_of_the_tree_is_read() {
        let steps = Steps::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
        assert!(steps.all.iter().any(|step| step.test == Size::Whole));
        for step in &steps.all {
            for path in &step.touched_by {
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
                assert!(path.exists(), "{}: no {}", step.name, path.display());
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let twice = list(&format!("[[step]]\nname = 'a'\n{STEP}[[step]]\nname = 'a'\n{STEP}"));
        assert_eq!(twice.unwrap_err(), "two steps are called a");
        let later = list(&format!("[[step]]\nname = 'a'\nafter = ['b']\n{STEP}[[step]]\nname = 'b'\n{STEP}"));
        assert_eq!(later.unwrap_err(), "step a comes after b, which is not above it");
        let own = list(&format!("[[step]]\nname = 'a'\nafter = ['a']\n{STEP}"));
        assert_eq!(own.unwrap_err(), "step a comes after a, which is not above it");
        assert!(list(&format!("[[step]]\nname = 'a'\nlanes = 'x'\n{STEP}")).is_err());
    }
}
