//! The tree's files.

use std::path::{Path, PathBuf};

/// Pages that are read on their own, outside the book.
const ALONE: [&str; 3] = ["README.md", "CONTRIBUTING.md", "slurm/README.md"];

/// A page as its reader has it.
pub(crate) struct Page {
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// The same, from the root.
    pub(crate) name: String,
    /// Its lines, each with its place: `FILE:LINE`, of the file that is included where one is.
    pub(crate) lines: Vec<(String, String)>,
}

impl Page {
    /// Its text, with what it includes.
    pub(crate) fn text(&self) -> String {
        self.lines.iter().map(|(_, line)| format!("{line}\n")).collect()
    }
}

/// The book's pages and those that are read on their own.
pub(crate) fn pages(root: &Path, problems: &mut Vec<String>) -> Vec<Page> {
    let mut paths = files(&root.join("docs/src"), "md");
    paths.extend(ALONE.map(|page| root.join(page)));
    let page = |path: PathBuf| Page { name: name(root, &path), lines: lines(root, &path, problems), path };
    paths.into_iter().map(page).collect()
}

/// What the file is called from the root.
fn name(root: &Path, path: &Path) -> String {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (root, path) = (whole(root), whole(path));
    path.strip_prefix(root).unwrap_or(&path).display().to_string()
}

/// The lines of a file, with those of the Markdown that it includes in their place. A picture
/// has nothing to check, and stays a line.
fn lines(root: &Path, path: &Path, problems: &mut Vec<String>) -> Vec<(String, String)> {
    let (mut found, name) = (Vec::new(), name(root, path));
    for (index, line) in read(path, problems).lines().enumerate() {
        match included(line).map(|file| path.with_file_name(file)) {
            Some(file) if file.extension().is_some_and(|ending| ending == "md") => {
                found.extend(lines(root, &file, problems));
            }
            Some(file) if !file.is_file() => {
                problems.push(format!("{name}:{}: there is no {} to include", index + 1, file.display()));
            }
            _ => found.push((format!("{name}:{}", index + 1), line.to_owned())),
        }
    }
    found
}

/// The file, where mdBook puts one in the line's place.
fn included(line: &str) -> Option<&str> {
    line.trim().strip_prefix("{{#include ")?.strip_suffix("}}").map(str::trim)
}

/// The text of a file; what it cannot be read for is a problem.
pub(crate) fn read(path: &Path, problems: &mut Vec<String>) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| {
        problems.push(format!("{}: {error}", path.display()));
        String::new()
    })
}

/// All files below `folder` with this ending.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    found.sort();
    let expand = |path: PathBuf| if path.is_dir() { files(&path, ending) } else { vec![path] };
    let all = found.into_iter().flat_map(expand);
    all.filter(|path| path.extension().is_some_and(|extension| extension == ending)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_included_page_stands_in_its_place() {
        let mut problems = Vec::new();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let all = pages(&root, &mut problems);
        let page = all.iter().find(|page| page.name == "docs/src/benchmarks.md");
        let text = page.map(Page::text).unwrap_or_default();
        assert!(!text.contains("{{#include ../benchmarks/bench.md}}") && text.contains("| "), "{text}");
        let included =
            page.and_then(|page| page.lines.iter().find(|(place, _)| place.contains("bench.md:1")));
        assert_eq!(included.map(|(place, _)| place.as_str()), Some("docs/benchmarks/bench.md:1"));
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[test]
    fn only_a_line_of_its_own_includes() {
        assert_eq!(included(" {{#include a/b.md}}"), Some("a/b.md"));
        assert_eq!(included("`{{#include a.md}}`"), None);
    }
}
