//! What the pages name: other pages, tests, scenarios, planted mistakes.

use crate::files::{files, read};
use std::collections::BTreeSet;
use std::path::Path;

/// Every link, test, scenario and planted mistake that a page lacks or names wrongly.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let sources = root.join("docs/src");
    let mut problems = Vec::new();
    let tests = tests(root);
    let summary = read(&sources.join("SUMMARY.md"), &mut problems);
    for page in files(&sources, "md") {
        let name = page.strip_prefix(&sources).unwrap_or(&page).display().to_string();
        let text = read(&page, &mut problems);
        if name != "SUMMARY.md" && !summary.contains(&format!("({name})")) {
            problems.push(format!("{name}: not in the summary"));
        }
        let folder = page.parent().unwrap_or(&sources);
        for link in links(&text) {
            let target = link.split('#').next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") && !folder.join(target).exists() {
                problems.push(format!("{name}: the link to {link} leads nowhere"));
            }
        }
        for test in named_tests(&text) {
            if !tests.contains(test) {
                problems.push(format!("{name}: there is no test {test}"));
            }
        }
    }
    let scenarios = read(&sources.join("scenarios.md"), &mut problems);
    for file in files(&root.join("registry/tests"), "rs") {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let text = if name.starts_with("scenarios_") { read(&file, &mut problems) } else { String::new() };
        for test in marked_tests(&text) {
            if !scenarios.contains(&format!("test `{test}`")) {
                problems.push(format!("scenarios.md: does not name the test {test} of {name}"));
            }
        }
    }
    let guards = read(&root.join("ci/guards.sh"), &mut problems);
    let mutations = read(&sources.join("mutations.md"), &mut problems);
    for name in guards.lines().filter_map(|line| line.strip_prefix("guard '")?.split('\'').next()) {
        let listed = ["ordering: ", "check: ", "model: "].iter().any(|kind| name.starts_with(kind));
        if listed && !mutations.contains(&format!("| {name} |")) {
            problems.push(format!("mutations.md: does not list {name:?} of ci/guards.sh"));
        }
    }
    problems
}

/// Functions under a `#[test]`.
fn marked_tests(text: &str) -> impl Iterator<Item = &str> {
    let function = |rest: &'_ str| rest.find("fn ").map(|at| at + 3);
    text.split("#[test]").skip(1).filter_map(move |rest| rest[function(rest)?..].split('(').next())
}

/// Targets of `](…)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link))
}

/// What stands between `` test `…` ``'s back-quotes.
fn named_tests(text: &str) -> impl Iterator<Item = &str> {
    text.split("test `").skip(1).filter_map(|rest| rest.split_once('`').map(|(name, _)| name))
}

/// Every function that follows a `#[test]`, or stands in a test folder.
fn tests(root: &Path) -> BTreeSet<String> {
    let folders = ["hooks", "registry", "allocator", "coverage", "libfabric", "src", "mpi-tests"];
    let sources = folders.iter().flat_map(|folder| files(&root.join(folder), "rs"));
    let function = |line: &str| {
        let name = line.trim_start().strip_prefix("fn ")?.split(['(', '<']).next()?;
        Some(name.to_owned())
    };
    let texts = sources.filter_map(|path| std::fs::read_to_string(path).ok());
    texts.flat_map(|text| text.lines().filter_map(function).collect::<Vec<_>>()).collect()
}
