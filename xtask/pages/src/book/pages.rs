//! What the pages name: other pages, tests, scenarios, planted mistakes, files of the tree,
//! functions in them, targets of make, and the steps of the tests.

use crate::files::{Page, files, pages, read};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Every link, test, scenario, planted mistake, function and step that a page lacks or names wrongly.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let sources = root.join("docs/src");
    let mut problems = Vec::new();
    let tests = tests(root);
    let makefile = read(&root.join("Makefile"), &mut problems);
    let summary = read(&sources.join("SUMMARY.md"), &mut problems);
    for page in pages(root, &mut problems) {
        let Page { path, name, .. } = &page;
        let text = page.text();
        if let Ok(inside) = path.strip_prefix(&sources)
            && !summary.contains(&format!("({})", inside.display()))
            && !inside.ends_with("SUMMARY.md")
        {
            problems.push(format!("{name}: not in the summary"));
        }
        for link in links(&text) {
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            if target.contains("://") {
                continue;
            }
            let to = if target.is_empty() { path.clone() } else { path.with_file_name(target) };
            if !to.exists() {
                problems.push(format!("{name}: the link to {link} leads nowhere"));
            } else if !anchor.is_empty() && !anchors(&read(&to, &mut problems)).any(|one| one == anchor) {
                problems.push(format!("{name}: the link to {link} names no heading of that page"));
            }
        }
        let missing = named_commands(&text).filter(|command| !exists(root, &makefile, command));
        problems.extend(missing.map(|command| format!("{name}: the tree has no `{command}`")));
        let undefined = named_functions(&text).filter(|(function, file)| !defines(root, file, function));
        problems.extend(undefined.map(|(function, file)| format!("{name}: {file} defines no {function}")));
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
    let steps = read(&root.join("xtask/ci/steps.toml"), &mut problems);
    let contributing = read(&root.join("CONTRIBUTING.md"), &mut problems);
    problems.extend(listed_steps(&steps, &contributing));
    let guards = read(&root.join("xtask/ci/guards.toml"), &mut problems);
    let mutations = read(&sources.join("mutations.md"), &mut problems);
    for name in guards.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')) {
        let listed = ["ordering: ", "check: ", "model: "].iter().any(|kind| name.starts_with(kind));
        if listed && !mutations.contains(&format!("| {name} |")) {
            problems.push(format!("mutations.md: does not list {name:?} of xtask/ci/guards.toml"));
        }
    }
    problems
}

/// What headings are called in links, as mdBook does it.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let headings = text
        .lines()
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')));
    headings.map(|heading| {
        let kept = heading.trim().chars().filter_map(|letter| match letter {
            letter if letter.is_alphanumeric() || "_-".contains(letter) => Some(letter.to_ascii_lowercase()),
            letter => letter.is_whitespace().then_some('-'),
        });
        kept.collect()
    })
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

/// The code in the text, but for blocks.
fn named_commands(text: &str) -> impl Iterator<Item = &str> {
    let outside = text.split("\n```").step_by(2);
    outside.flat_map(|text| text.split('`').skip(1).step_by(2))
}

/// Functions and their files, where the text has `` `FUNCTION` in `FILE` ``, a source or a script.
fn named_functions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let outside = text.split("\n```").step_by(2);
    outside.flat_map(|text| {
        let parts: Vec<&str> = text.split('`').collect();
        let pair = |parts: &[&'_ str]| parts[1].trim() == "in" && is_source(parts[2]);
        let pairs = parts.windows(3).skip(1).step_by(2).filter(|parts| pair(parts));
        pairs.map(|parts| (parts[0], parts[2])).collect::<Vec<_>>()
    })
}

fn is_source(path: &str) -> bool {
    path.contains('/') && (path.ends_with(".rs") || path.ends_with(".sh"))
}

/// Whether the file has the function: `name` or `Type::name` of Rust, `name` of a shell.
fn defines(root: &Path, file: &str, function: &str) -> bool {
    let name = function.rsplit("::").next().unwrap_or(function);
    std::fs::read_to_string(root.join(file)).is_ok_and(|text| {
        text.lines().any(|line| {
            let rust = line.split("fn ").nth(1).and_then(|rest| rest.split(['(', '<']).next());
            rust == Some(name) || line.strip_prefix(name).is_some_and(|rest| rest.starts_with("() {"))
        })
    })
}

/// What CONTRIBUTING.md's table of steps lacks, or has otherwise than `xtask/ci/steps.toml`.
fn listed_steps(steps: &str, page: &str) -> Vec<String> {
    let value = |line: &str, key: &str| {
        let quoted = line.strip_prefix(key)?.strip_prefix(" = ")?;
        Some(quoted.trim_matches(['"', '\'']).to_owned())
    };
    let (mut runs, mut name) = (BTreeMap::new(), String::new());
    for line in steps.lines() {
        name = value(line, "name").unwrap_or(name);
        if let Some(run) = value(line, "run") {
            runs.insert(name.clone(), run);
        }
    }
    let rows = page.lines().skip_while(|line| !line.starts_with("| step |")).skip(2);
    let mut problems = Vec::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let code: Vec<&str> = row.split('`').skip(1).step_by(2).take(2).collect();
        let &[step, command] = &code[..] else { continue };
        match runs.remove(step) {
            Some(run) if command.split(' ').all(|word| run.contains(word)) => {}
            Some(_) => problems.push(format!("CONTRIBUTING.md: the step {step} does not run {command}")),
            None => problems.push(format!("CONTRIBUTING.md: xtask/ci/steps.toml has no step {step}")),
        }
    }
    problems.extend(runs.keys().map(|step| format!("CONTRIBUTING.md: does not list the step {step}")));
    problems
}

/// Folders of what is built or measured, which a fresh tree has not.
const MADE: [&str; 3] = ["target/", "carried/", "docs/book/"];

/// Whether a file of the tree, a target of make or a program of tests is there; what is neither is not
/// judged.
fn exists(root: &Path, makefile: &str, command: &str) -> bool {
    let mut words = command.split_whitespace();
    if let Some((_, test)) = command.split_once(" --test ").filter(|_| command.starts_with("cargo ")) {
        return has_test_program(root, test.split(' ').next().unwrap_or(test));
    }
    match (words.next(), words.next()) {
        (Some("make"), Some(target)) if target.chars().all(char::is_alphanumeric) => {
            makefile.lines().any(|line| line.strip_prefix(target).is_some_and(|rest| rest.starts_with(':')))
        }
        (Some(path), _) => match path.split_once('/') {
            Some((folder, _))
                if !folder.is_empty()
                    && !MADE.iter().any(|made| path.starts_with(made))
                    && folder.chars().all(|letter| letter.is_ascii_lowercase() || letter == '-') =>
            {
                let is_pattern = path.contains(['*', '…', '{', '<', '$', ':']);
                is_pattern || !root.join(folder).is_dir() || root.join(path).exists()
            }
            _ => true,
        },
        (None, _) => true,
    }
}

/// Whether some crate has `tests/NAME.rs`.
fn has_test_program(root: &Path, name: &str) -> bool {
    let crates =
        ["hooks", "registry", "registry/driver", "allocator", "mpi", "mpi-tests/changes", "cli", "xtask"];
    crates.iter().any(|folder| root.join(folder).join("tests").join(format!("{name}.rs")).is_file())
}

/// What stands between `` test `…` ``'s back-quotes.
fn named_tests(text: &str) -> impl Iterator<Item = &str> {
    text.split("test `").skip(1).filter_map(|rest| rest.split_once('`').map(|(name, _)| name))
}

/// Every function that follows a `#[test]`, or stands in a test folder.
fn tests(root: &Path) -> BTreeSet<String> {
    let folders = ["hooks", "registry", "allocator", "interop", "src", "mpi-tests"];
    let sources = folders.iter().flat_map(|folder| files(&root.join(folder), "rs"));
    let function = |line: &str| {
        let name = line.trim_start().strip_prefix("fn ")?.split(['(', '<']).next()?;
        Some(name.to_owned())
    };
    let texts = sources.filter_map(|path| std::fs::read_to_string(path).ok());
    texts.flat_map(|text| text.lines().filter_map(function).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_targets_that_a_page_names_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = "a `xtask/ci/unit.sh x`, `make demo`\n```sh\nmake nothing `xtask/ci/none.sh`\n```\nand `xtask/ci/none.sh`, `make tea`, `xtask/ci/*.sh`";
        let wrong: Vec<_> = named_commands(text).filter(|one| !exists(&root, "demo: x\n", one)).collect();
        assert_eq!(wrong, ["xtask/ci/none.sh", "make tea"]);
        assert!(exists(&root, "", "user/repository") && exists(&root, "", "text"));
        // What is built is not looked for: a fresh tree has not got it.
        assert!(exists(&root, "", "docs/book/not-built.html") && !exists(&root, "", "docs/none.html"));
    }

    #[test]
    fn a_function_that_a_page_names_is_in_its_file() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let file = "xtask/pages/src/book/pages.rs";
        let text = format!(
            "`x` is `check` in `{file}`, `pages::gone`\nin `{file}`, `counts`\nin `xtask/ci/checks.sh`, `pinyard` in `PATH`"
        );
        let named: Vec<_> = named_functions(&text).collect();
        assert_eq!(named, [("check", file), ("pages::gone", file), ("counts", "xtask/ci/checks.sh")]);
        let wrong: Vec<_> = named.iter().filter(|(name, file)| !defines(&root, file, name)).collect();
        assert_eq!(wrong, [&("pages::gone", file)]);
        assert!(
            exists(&root, "", "cargo test -p xtask --test run x")
                && !exists(&root, "", "cargo test --test none")
        );
    }

    #[test]
    fn steps_are_listed_with_what_they_run() {
        let steps = "[[step]]\nname = \"unit\"\nrun = 'ci/unit.sh'\n[[step]]\nname = \"fuzz\"\nrun = 'ci/fuzz.sh 180'\n";
        let page = |rows: &str| format!("text\n| step | runs |\n| --- | --- |\n{rows}\n");
        assert_eq!(
            listed_steps(steps, &page("| `unit` | `ci/unit.sh` |\n| `fuzz` | `ci/fuzz.sh 180` |")),
            [""; 0]
        );
        let wrong = listed_steps(steps, &page("| `unit` | `ci/none.sh` |\n| `deps` | `ci/deps.sh` |"));
        assert_eq!(wrong.len(), 3, "{wrong:?}");
    }

    #[test]
    fn a_heading_is_linked_as_mdbook_does() {
        let text = "# vLLM #24264, UCX #5131\nno # heading\n### What `get` does\n";
        assert_eq!(anchors(text).collect::<Vec<_>>(), ["vllm-24264-ucx-5131", "what-get-does"]);
    }
}
