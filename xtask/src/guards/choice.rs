//! Which guards of the list are run.

use super::list::{Guard, List};
use crate::tree;
use std::collections::BTreeSet;

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
            others.sort_by_key(|name| tree::place(seed, name));
            chosen.extend(others.into_iter().take(*number));
        }
        Ok(list.guards.iter().filter(|guard| chosen.contains(guard.name.as_str())).collect())
    }
}
