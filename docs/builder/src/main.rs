//! Builds the book into `docs/book`, after checking what a reader relies on:
//! links between pages lead somewhere, every page is in the summary, every test
//! that a page names exists, every scenario's test is named, every atomic has its row
//! in the page of orderings, every planted mistake of `ci/guards.sh` in that of
//! mutations, the table of the hooks is the one that the rows' test checks, and that of
//! a pool's and of a trace's settings those that are read (`--update` writes them).

use mdbook_driver::MDBook;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut problems = check(&root);
    let update = std::env::args().any(|argument| argument == "--update");
    let (hooks, settings) = (pinyard_coverage::promised(), pinyard_allocator::config::markdown());
    problems.extend(table(&root.join("docs/src/hooks.md"), "table", &hooks, update));
    problems.extend(table(&root.join("docs/src/pools.md"), "settings", &settings, update));
    let trace = pinyard_trace::settings::markdown();
    problems.extend(table(&root.join("docs/src/reports.md"), "trace", &trace, update));
    for problem in &problems {
        eprintln!("book: {problem}");
    }
    let built = MDBook::load(root.join("docs")).and_then(|book| book.build());
    if let Err(error) = &built {
        eprintln!("book: {error}");
    }
    if problems.is_empty() && built.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check(root: &Path) -> Vec<String> {
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
    let orderings = read(&sources.join("ordering.md"), &mut problems);
    problems.extend(atomics_without_row(root, &orderings));
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

/// Compares the atomics of each file with the first column of its section.
fn atomics_without_row(root: &Path, page: &str) -> Vec<String> {
    let mut problems = Vec::new();
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
    let line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
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

/// Functions under a `#[test]`.
fn marked_tests(text: &str) -> impl Iterator<Item = &str> {
    let function = |rest: &'_ str| rest.find("fn ").map(|at| at + 3);
    text.split("#[test]").skip(1).filter_map(move |rest| rest[function(rest)?..].split('(').next())
}

/// What stands between the marks in `page` is `wanted`; otherwise a problem, or the
/// new page if it is to be updated.
fn table(page: &Path, mark: &str, wanted: &str, update: bool) -> Option<String> {
    let (begin, end) = (format!("<!-- {mark} -->\n"), format!("<!-- end of {mark} -->"));
    let text = match std::fs::read_to_string(page) {
        Ok(text) => text,
        Err(error) => return Some(format!("{}: {error}", page.display())),
    };
    let parts = text.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?)));
    let Some((before, (_, behind))) = parts else {
        return Some(format!("{}: the marks of the {mark} are missing", page.display()));
    };
    let right = format!("{before}{begin}\n{wanted}\n{end}{behind}");
    if right == text {
        return None;
    }
    if update {
        return std::fs::write(page, right).err().map(|error| format!("{}: {error}", page.display()));
    }
    Some(format!("{}: the {mark} are old; cargo run -p pinyard-book -- --update", page.display()))
}

fn read(path: &Path, problems: &mut Vec<String>) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| {
        problems.push(format!("{}: {error}", path.display()));
        String::new()
    })
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

/// All files below `folder` with this ending.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    found.sort();
    let expand = |path: PathBuf| if path.is_dir() { files(&path, ending) } else { vec![path] };
    let all = found.into_iter().flat_map(expand);
    all.filter(|path| path.extension().is_some_and(|extension| extension == ending)).collect()
}
