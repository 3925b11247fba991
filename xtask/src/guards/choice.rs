//! Which guards of the list are run.

use super::git;
use super::list::{Guard, List};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::path::Path;

pub(crate) struct Choice<'a> {
    /// Of all guards, those with this name.
    pub(crate) pattern: Option<&'a str>,
    /// Of these, those whose files are among the paths.
    pub(crate) changed: Option<BTreeSet<String>>,
    /// And so many others, by the seed.
    pub(crate) sample: Option<(usize, String)>,
}

impl Choice<'_> {
    /// In the order of the list.
    pub(crate) fn of<'l>(&self, list: &'l List) -> Result<Vec<&'l Guard>, String> {
        let named = |guard: &&Guard| guard.is_named(self.pattern);
        // A script builds several packages and runs for a minute.
        let asked = |guard: &&Guard| self.pattern.is_some() || !guard.is_scripted();
        let all: Vec<_> = list.guards.iter().filter(named).collect();
        if all.is_empty() {
            return Err(format!("no guard has {:?} in its name", self.pattern.unwrap_or_default()));
        }
        let (first, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|guard| match &self.changed {
            Some(paths) => list.is_touched(guard, paths),
            None => self.sample.is_none() && asked(guard),
        });
        let mut chosen: BTreeSet<&str> = first.iter().map(|guard| guard.name.as_str()).collect();
        if let Some((number, seed)) = &self.sample {
            let mut others: Vec<&str> =
                rest.into_iter().filter(asked).map(|guard| guard.name.as_str()).collect();
            // Its keys are fixed: the same seed chooses the same guards everywhere.
            others.sort_by_key(|name| BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, name)));
            chosen.extend(others.into_iter().take(*number));
        }
        Ok(list.guards.iter().filter(|guard| chosen.contains(guard.name.as_str())).collect())
    }
}

/// The paths that differ between the revision and the working tree, untracked ones as well.
pub(crate) fn changed(root: &Path, base: &str) -> Result<BTreeSet<String>, String> {
    let differ = git(root, &["diff", "--name-only", "--no-renames", "-z", base, "--"])?;
    let untracked = git(root, &["ls-files", "--others", "--exclude-standard", "-z"])?;
    Ok(differ
        .split('\0')
        .chain(untracked.split('\0'))
        .filter(|path| !path.is_empty())
        .map(str::to_owned)
        .collect())
}
