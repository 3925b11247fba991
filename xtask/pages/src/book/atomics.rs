//! Every atomic of hooks/ and registry/ has its row in the page of orderings.

use crate::files::{files, read};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Compares the atomics of each file with the first column of its section.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let page = read(&root.join("docs/src/ordering.md"), &mut problems);
    let mut sections: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for section in page.split("\n### ").skip(1) {
        let (file, rows) = section.split_once('\n').unwrap_or((section, ""));
        let cells = rows.lines().filter_map(|row| row.strip_prefix("| `")?.split('|').next());
        sections.insert(
            file,
            cells
                .flat_map(|cell| cell.split('`').step_by(2))
                .filter(|name| !name.trim().is_empty())
                .collect(),
        );
    }
    for file in ["hooks/src", "registry/src"].iter().flat_map(|folder| files(&root.join(folder), "rs")) {
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        let text = read(&file, &mut problems);
        // Those of tests are the tests' own.
        let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let atomics: BTreeSet<&str> = text.lines().filter_map(declared_atomic).collect();
        let rows = sections.remove(name.as_str()).unwrap_or_default();
        problems
            .extend(atomics.difference(&rows).map(|at| format!("ordering.md: no row for {at} of {name}")));
        problems
            .extend(rows.difference(&atomics).map(|at| format!("ordering.md: {name} has no atomic {at}")));
    }
    problems.extend(sections.keys().map(|file| format!("ordering.md: there is no file {file}")));
    problems
}

/// The name, where a line declares a static or a field whose type has an atomic.
fn declared_atomic(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let visible = ["pub(crate) ", "pub(super) ", "pub "];
    let line = visible.into_iter().find_map(|word| line.strip_prefix(word)).unwrap_or(line);
    if let Some(tuple) = line.strip_prefix("struct ") {
        let (name, fields) = tuple.split_once('(')?;
        return fields.starts_with("Atomic").then_some(name);
    }
    let (declares, what) = match line.strip_prefix("static ") {
        Some(rest) => (true, rest),
        None => (line.ends_with(',') && !line.contains("::"), line),
    };
    let (name, kind) = what.split_once(": ")?;
    let is_name = name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    (declares && is_name && kind.split('=').next()?.contains("Atomic")).then_some(name)
}
