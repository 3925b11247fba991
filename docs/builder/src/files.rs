//! The tree's files.

use std::path::{Path, PathBuf};

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
