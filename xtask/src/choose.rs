//! Which steps run, how much of each, and why.

use crate::steps::{Size, Step, Steps};
use crate::tree;
use std::collections::BTreeSet;
use std::path::Path;

/// A step that runs.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    pub(crate) step: Step,
    pub(crate) size: Size,
    pub(crate) why: Why,
}

/// Why a step runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It was asked for, or is part of what was.
    Asked,
    /// A path that changed.
    Touched(String),
    /// The commit's hash drew it.
    Drawn,
}

/// What a choice leaves.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) run: Vec<Chosen>,
    /// Checks of the steps that do not run, by their recorded counts.
    pub(crate) left: u64,
}

/// The steps of `make test`: those of the list; whole, where `changed` touches them; and of the
/// rest as many as fit, drawn by `seed`.
pub(crate) fn quick(steps: &Steps, changed: &BTreeSet<String>, seed: &str) -> Choice {
    let mut rest: Vec<(u64, &Step)> = Vec::new();
    let mut drawn: Vec<&str> = Vec::new();
    for step in &steps.all {
        if step.test == Size::None && touching(step, changed).is_none() {
            rest.push((tree::place(seed, &step.name), step));
        }
    }
    rest.sort_by_key(|(place, _)| *place);
    let mut room = steps.budget.sample_core_minutes * 60;
    for (_, step) in rest {
        if step.cost <= room {
            room -= step.cost;
            drawn.push(&step.name);
        }
    }
    let mut choice = Choice::default();
    for step in &steps.all {
        let (size, why) = match touching(step, changed) {
            Some(path) => (Size::Whole, Why::Touched(path.to_owned())),
            None if drawn.contains(&step.name.as_str()) => (Size::Whole, Why::Drawn),
            None => (step.test, Why::Asked),
        };
        choice.add(step, size, why);
    }
    choice
}

/// All of a part of `make test-all`, or of all parts.
pub(crate) fn all(steps: &Steps, part: Option<&str>) -> Result<Choice, String> {
    let parts = steps.parts();
    if let Some(part) = part.filter(|part| !parts.contains(part)) {
        return Err(format!("no part {part}: {}", parts.join(", ")));
    }
    let mut choice = Choice::default();
    for step in &steps.all {
        let size = if part.is_none_or(|part| part == step.part) { Size::Whole } else { Size::None };
        choice.add(step, size, Why::Asked);
    }
    Ok(choice)
}

impl Choice {
    fn add(&mut self, step: &Step, size: Size, why: Why) {
        match size {
            Size::None => self.left += step.checks,
            _ => self.run.push(Chosen { step: step.clone(), size, why }),
        }
    }

    /// Only the steps of `only`, if there are any, and none of `skip`.
    pub(crate) fn narrowed(
        mut self,
        steps: &Steps,
        only: &[String],
        skip: &[String],
    ) -> Result<Choice, String> {
        if let Some(name) =
            only.iter().chain(skip).find(|name| !steps.all.iter().any(|step| step.name == **name))
        {
            let names: Vec<&str> = steps.all.iter().map(|step| step.name.as_str()).collect();
            return Err(format!("no step {name}: {}", names.join(", ")));
        }
        if !only.is_empty() {
            // Those that the choice would have left as well.
            for step in steps.all.iter().filter(|step| only.contains(&step.name)) {
                if !self.run.iter().any(|chosen| chosen.step.name == step.name) {
                    self.left -= step.checks;
                    self.run.push(Chosen { step: step.clone(), size: Size::Whole, why: Why::Asked });
                }
            }
        }
        let goes =
            |step: &Step| (!only.is_empty() && !only.contains(&step.name)) || skip.contains(&step.name);
        self.left +=
            self.run.iter().filter(|chosen| goes(&chosen.step)).map(|chosen| chosen.step.checks).sum::<u64>();
        self.run.retain(|chosen| !goes(&chosen.step));
        Ok(self)
    }
}

/// The first changed path that touches the step.
fn touching<'c>(step: &Step, changed: &'c BTreeSet<String>) -> Option<&'c str> {
    let touches = |path: &&String| step.touched_by.iter().any(|start| is_below(path, start));
    changed.iter().find(touches).map(String::as_str)
}

/// A whole name, or a folder above it.
fn is_below(path: &str, start: &str) -> bool {
    path.strip_prefix(start.trim_end_matches('/'))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The paths that differ from `base`, else from the newest tag; none where there is neither.
pub(crate) fn changed(root: &Path, base: Option<&str>) -> Result<(String, BTreeSet<String>), String> {
    let newest = tree::git(root, &["describe", "--tags", "--abbrev=0"]).ok();
    let Some(base) = base.map(str::to_owned).or(newest.map(|tag| tag.trim().to_owned())) else {
        return Ok(("no base and no tag: the steps of the list".to_owned(), BTreeSet::new()));
    };
    let paths = tree::changed(root, &base)?;
    Ok((format!("{} paths changed since {base}", paths.len()), paths))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `whole` and `quick` belong to `make test`; `a` to `f`, of a minute each, to test-all.
    fn steps() -> Steps {
        let mut text = "[budget]\ncore_minutes = 9\nsample_core_minutes = 2\n".to_owned();
        for (name, test) in [("whole", "whole"), ("quick", "quick")] {
            text += &format!(
                "[[step]]\nname = '{name}'\npart = 'one'\ntest = '{test}'\nlane = 'cpu'\nrun = 'true'\ncost = 60\n\
                 checks = 1\ntouched_by = ['src/{name}']\n"
            );
        }
        for name in ["a", "b", "c", "d", "e", "f"] {
            text += &format!(
                "[[step]]\nname = '{name}'\npart = 'two'\nlane = 'cpu'\nrun = 'true'\ncost = 60\nchecks = 10\n\
                 touched_by = ['src/{name}']\n"
            );
        }
        Steps::parse(&text).unwrap()
    }

    fn names(choice: &Choice, why: impl Fn(&Why) -> bool) -> Vec<&str> {
        choice.run.iter().filter(|chosen| why(&chosen.why)).map(|chosen| chosen.step.name.as_str()).collect()
    }

    #[test]
    fn what_a_change_touches_runs_whole() {
        let choice = quick(&steps(), &["src/quick/x.rs", "src/b", "src/cx"].map(str::to_owned).into(), "1");
        assert_eq!(names(&choice, |why| matches!(why, Why::Touched(_))), ["quick", "b"]);
        assert!(choice.run.iter().all(|chosen| chosen.size == Size::Whole), "{choice:?}");
    }

    #[test]
    fn the_sample_keeps_its_room_and_changes_with_the_commit() {
        let drawn = |seed: u32| {
            let choice = quick(&steps(), &BTreeSet::new(), &seed.to_string());
            assert_eq!(choice.left, 40, "two of six run");
            names(&choice, |why| *why == Why::Drawn).join("")
        };
        let samples: Vec<String> = (0..40).map(drawn).collect();
        assert!(samples.iter().all(|sample| sample.len() == 2), "{samples:?}");
        for name in ["a", "b", "c", "d", "e", "f"] {
            assert!(samples.iter().any(|sample| sample.contains(name)), "{name} is never drawn: {samples:?}");
        }
        assert_eq!(drawn(7), drawn(7));
    }

    #[test]
    fn a_part_has_all_of_its_steps() {
        let choice = all(&steps(), Some("one")).unwrap();
        assert_eq!(names(&choice, |_| true), ["whole", "quick"]);
        assert_eq!(choice.left, 60);
        assert_eq!(all(&steps(), None).unwrap().run.len(), 8);
        assert_eq!(all(&steps(), Some("three")).unwrap_err(), "no part three: one, two");
    }

    #[test]
    fn only_and_skip_count_what_they_leave() {
        let narrowed = |only: &[&str], skip: &[&str]| {
            let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<String>>();
            all(&steps(), None).unwrap().narrowed(&steps(), &list(only), &list(skip))
        };
        let only = narrowed(&["a"], &[]).unwrap();
        assert_eq!((names(&only, |_| true), only.left), (vec!["a"], 52));
        assert_eq!(narrowed(&[], &["a", "whole"]).unwrap().left, 11);
        assert!(narrowed(&["z"], &[]).unwrap_err().starts_with("no step z: whole, quick, a"));
        let left = quick(&steps(), &BTreeSet::new(), "1")
            .narrowed(&steps(), &["a".to_owned(), "f".to_owned()], &[])
            .unwrap();
        assert_eq!((left.run.len(), left.left), (2, 42));
    }
}
