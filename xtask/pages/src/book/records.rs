//! The records of benchmarks: the page of benchmarks says what each is shown by.

use crate::files::read;
use glob::Pattern;
use std::path::{Path, PathBuf};

/// Where the records lie.
const RECORDS: &str = "docs/benchmarks/";
/// The page whose table lists them, and the table's heading.
const PAGE: &str = "docs/src/benchmarks.md";
const HEADING: &str = "## Records\n";

/// Every record that no row of the table names, and every name without a record.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let page = read(&root.join(PAGE), &mut problems);
    let records: Vec<String> = all(&root.join(RECORDS))
        .iter()
        .filter_map(|path| Some(path.strip_prefix(root).ok()?.to_str()?.to_owned()))
        .collect();
    problems.extend(unlisted(&page, &records));
    problems
}

fn unlisted(page: &str, records: &[String]) -> Vec<String> {
    let Some((_, table)) = page.split_once(HEADING) else {
        return vec![format!("{PAGE}: the heading Records is missing")];
    };
    let table = table.split("\n## ").next().unwrap_or_default();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let named = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let (mut patterns, mut problems) = (Vec::new(), Vec::new());
    for name in named {
        match Pattern::new(&format!("{RECORDS}{name}")) {
            Ok(pattern) => patterns.push(pattern),
            Err(error) => problems.push(format!("{PAGE}: {name}: {error}")),
        }
    }
    let options = glob::MatchOptions { require_literal_separator: true, ..Default::default() };
    let is_of = |pattern: &Pattern, record: &String| pattern.matches_with(record, options);
    for record in records {
        if !patterns.iter().any(|pattern| is_of(pattern, record)) {
            problems
                .push(format!("{PAGE}: no row of Records names {record}; a record that nothing shows goes"));
        }
    }
    for pattern in patterns {
        if !records.iter().any(|record| is_of(&pattern, record)) {
            problems.push(format!("{PAGE}: Records names {pattern}, and there is none"));
        }
    }
    problems
}

/// All files below `folder`.
fn all(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.flat_map(|path| if path.is_dir() { all(&path) } else { vec![path] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_without_a_row_and_a_row_without_a_record_are_told() {
        let page = "## Records\n\n| record | of |\n| --- | --- |\n| `a/*.json`, `b.md` | x |\n\n## Next\n| `c.md` | y |\n";
        let of = |records: &[&str]| {
            let records: Vec<String> = records.iter().map(|name| format!("{RECORDS}{name}")).collect();
            unlisted(page, &records)
        };
        assert!(of(&["a/1.json", "b.md"]).is_empty());
        // A star ends at a folder.
        assert!(matches!(&of(&["a/1.json", "b.md", "a/b/1.json"])[..], [one] if one.contains("a/b/1.json")));
        assert!(
            matches!(&of(&["a/1.json", "b.md", "c.md"])[..], [one] if one.contains("names docs/benchmarks/c.md"))
        );
        assert!(matches!(&of(&["a/1.json"])[..], [one] if one.contains("b.md")));
        assert!(matches!(&unlisted("", &[])[..], [one] if one.contains("heading")));
    }
}
