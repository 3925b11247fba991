//! Variables of the environment: each name in the sources is in a table, each row's name
//! and values are in the source that reads them.

use crate::files::{files, read};
use pinyard::environment::{Variable, groups};
use std::collections::BTreeSet;
use std::path::Path;

/// Those of pinyard's own tests, and what they say.
const OF_TESTS: &[(&str, &str)] = &[
    ("PINYARD_CLUSTER_KERNEL", "a kernel for the emulated nodes, in place of the machine's"),
    ("PINYARD_COVERAGE_COPY", "the second copy of the hooks that a row's process loads"),
    ("PINYARD_COVERAGE_NAMESPACE", "loads it with dlmopen, in a namespace of its own"),
    ("PINYARD_COVERAGE_ROW", "the row that a process of the table of hooks tries"),
    ("PINYARD_COVERAGE_SETUP", "the set-up in which it does"),
    ("PINYARD_FLIPS", "how often the test of patching beside running threads patches"),
    ("PINYARD_OPENMPI5", "the folder of PyPI's Open MPI 5"),
    ("PINYARD_SOAK_PROGRAMS", "the soak's programs, in place of those that it builds"),
    ("PINYARD_SOAK_SECONDS", "how long each of the soak's programs runs"),
    ("PINYARD_TEST_CONSTRUCTOR_CALLS", "what the constructor of a test's library calls"),
    ("PINYARD_TEST_CHILD", "what the process of a test does that was started for it"),
    ("PINYARD_TEST_DRIVER", "`cuda`: the pools' conformance suite runs on a real device"),
    ("PINYARD_TEST_IN_PROCESS", "tests that would start processes of their own stay in one"),
    ("PINYARD_TEST_IPC_HANDLE", "the handle that a test's second process opens"),
    ("PINYARD_TEST_LIBFABRIC", "the libfabric provider of the backends' tests"),
    ("PINYARD_TEST_NOTIFY", "registries of tests hear of changes by notification alone"),
    ("PINYARD_TEST_PATIENCE", "by how much an emulated machine is slower"),
    ("PINYARD_TEST_REQUIRE", "devices whose absence fails a test in place of skipping it"),
    ("PINYARD_TEST_ROUNDS", "rounds of the pools' thread tests"),
    ("PINYARD_TEST_SECONDS", "how long the random use of pools runs"),
    ("PINYARD_TEST_SPOILED", "the verbs device that a test may spoil"),
    ("PINYARD_TEST_UCX", "the UCX transports of the backends' tests"),
    ("PINYARD_TEST_VERBS", "the verbs device of the backends' tests"),
];

/// Names that are no variables, and what they are.
const NO_VARIABLES: &[(&str, &str)] = &[
    ("PINYARD_0", "a symbol version, PINYARD_0.1"),
    ("PINYARD_MPI_0", "the same of libpinyard_mpi"),
    ("PINYARD_H", "an include guard"),
    ("PINYARD_HPP", "an include guard"),
    ("PINYARD_MPI_H", "an include guard"),
    ("PINYARD_ABI_MPI_H", "an include guard"),
    ("PINYARD_MPI", "a manual page's title"),
    ("PINYARD_POOL", "what every setting of a device pool begins with"),
    ("PINYARD_HOST_POOL", "the same of host pools"),
    ("PINYARD_COMPLETELY_MADE_UP_NAME", "a name of which doctor warns"),
    ("PINYARD_HOOK", "a misspelt name of which doctor warns"),
    ("PINYARD_LIBFABRICS", "a misspelt name of which doctor warns"),
    ("PINYARD_MPI_CHUNK", "a misspelt name of which doctor warns"),
    ("PINYARD_HOST_POOL_LIMITS", "a misspelt name that must be refused"),
    ("PINYARD_HOST_POOL_MARKS", "a setting that host pools do not have"),
    ("PINYARD_POOL_LIMITS", "a misspelt name that must be refused"),
    ("PINYARD_POOL_SLAB", "a misspelt name that must be refused"),
    ("PINYARD_TRACE_FILE", "a misspelt name that must be refused"),
    ("PINYARD_TRACE_FOLDER", "a misspelt name that must be refused"),
];

/// The tests' table as the book has it.
pub(crate) fn markdown() -> String {
    let mut text = "| variable | what it says to tests |\n| --- | --- |\n".to_owned();
    for (name, meaning) in OF_TESTS {
        text += &format!("| `{name}` | {meaning} |\n");
    }
    text
}

/// Names without a row, rows without a reader, and values that the reader does not have.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let variables: Vec<Variable> = groups().into_iter().flat_map(|group| group.variables).collect();
    let mut known: BTreeSet<&str> = variables.iter().map(|variable| variable.name).collect();
    let others = OF_TESTS.iter().chain(NO_VARIABLES).map(|(name, _)| *name);
    known.extend(others.clone());
    // This file and the table name all of them.
    let tables = ["xtask/pages/src/book/variables.rs", "src/environment.rs"].map(|file| root.join(file));
    let mut met = BTreeSet::new();
    for file in sources(root) {
        let text = read(&file, &mut problems);
        for name in names(&text) {
            if !known.contains(name) {
                let place = file.strip_prefix(root).unwrap_or(&file).display();
                problems.push(format!("{place}: {name} is in no table (src/environment.rs, {})", file!()));
            }
            if !tables.contains(&file) {
                met.insert(name.to_owned());
            }
        }
    }
    for name in others.filter(|name| !met.contains(*name)) {
        problems.push(format!("{}: nothing names {name} any more", file!()));
    }
    for Variable { name, allowed, source, .. } in &variables {
        if source.is_empty() {
            continue;
        }
        let text = read(&root.join(source), &mut problems);
        if !text.contains(name) {
            problems.push(format!("tuning.md: {source} does not read {name}"));
        }
        // Words stand there as such, ranges in the error that refuses others; a path has no values.
        let words = allowed.split('|').all(|word| text.contains(&format!("\"{word}\"")));
        let is_path = ["a command", "a file", "a folder"].contains(&&**allowed);
        let is_computed = *source == "allocator/src/config/table.rs";
        if !(words || text.contains(&**allowed) || is_path || is_computed) {
            problems
                .push(format!("tuning.md: {name} has the values {allowed}, of which {source} has not all"));
        }
    }
    problems
}

/// The tree's sources: what a build or a run has left is none.
fn sources(root: &Path) -> Vec<std::path::PathBuf> {
    let listed = std::process::Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output();
    let listed = listed.map(|output| output.stdout).unwrap_or_default();
    let endings = ["rs", "sh", "sbatch", "c", "h", "hpp", "cpp", "f90", "py", "toml", "map"];
    let of_git: Vec<_> = listed
        .split(|&byte| byte == 0)
        .filter_map(|name| Some(root.join(std::str::from_utf8(name).ok()?)))
        .filter(|path| {
            path.is_file() && path.extension().is_some_and(|it| endings.iter().any(|end| it == *end))
        })
        .collect();
    // An archive has no git: then what lies there is the tree.
    if of_git.is_empty() { endings.iter().flat_map(|ending| files(root, ending)).collect() } else { of_git }
}

/// Every word that begins as our variables do.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("PINYARD_").filter_map(move |(at, _)| {
        let inside = text[..at].ends_with(|letter: char| letter.is_ascii_alphanumeric() || letter == '_');
        let rest = &text[at..];
        let end = rest
            .find(|letter: char| !(letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == '_'));
        let name = rest[..end.unwrap_or(rest.len())].trim_end_matches('_');
        (!inside && name.len() > "PINYARD_".len()).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_whole_word_without_what_follows() {
        let text = "export PINYARD_LOG=info; X_PINYARD_NO=1 \"PINYARD_POOL_*\" (PINYARD_) PINYARD_HOOKS";
        assert_eq!(names(text).collect::<Vec<_>>(), ["PINYARD_LOG", "PINYARD_POOL", "PINYARD_HOOKS"]);
    }
}
