//! The guards of a made-up tree: a package with one guarding line, and one that it depends on.

use super::choice::{self, Choice};
use super::git;
use super::lane::{Lane, Outcome};
use super::list::{Guard, List};
use super::run::{self, Folders, Report};
use clap::Parser;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const LIMIT: &str = "
/// At most ten more.
pub fn add(to: u32, more: u32) -> u32 {
    let more = more.min(10);
    base::sum(to, more)
}

/// The vector's length is read before the vector is borrowed.
pub fn push_length(all: &mut Vec<usize>) {
    let length = all.len();
    let last = all.last_mut().unwrap();
    *last += length;
}

#[cfg(test)]
mod inside {
    #[test]
    fn adds_one() {
        assert_eq!(super::add(1, 1), 2);
    }
}
";

const SCRIPT: &str = "#!/bin/sh
[ \"$1\" != skip ] || { echo 'skipped: the weather' && exit; }
grep -q 'min(10)' tiny/src/lib.rs || echo 'FAILED  no limit, none'
";

/// A test notices that the line is gone.
const NOTICED: &str = "line = 'more.min(10)'\nreplacement = 'more'\nnoticed_by = { package = 'tiny', test = '--test adds at_most' }";

struct Tree {
    folder: tempfile::TempDir,
    folders: Folders,
}

/// The tree with these guards: a name, and what follows the file.
fn tree(guards: &[(&str, &str)]) -> Tree {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("tree");
    let list = guards
        .iter()
        .map(|(name, rest)| format!("[[guard]]\nname = '{name}'\nfile = 'tiny/src/lib.rs'\n{rest}\n"));
    let counted = folder.path().join("builds-of-base");
    for (path, text) in [
        (".gitignore", "/target\n"),
        ("Cargo.toml", "[workspace]\nmembers = ['tiny', 'base']\nresolver = '3'\n"),
        ("base/Cargo.toml", "[package]\nname = 'base'\nedition = '2024'\n"),
        ("base/src/lib.rs", "pub fn sum(a: u32, b: u32) -> u32 {\n    a + b\n}\n"),
        (
            "base/build.rs",
            &format!(
                "use std::io::Write;\nfn main() {{\n    std::fs::File::options().create(true).append(true).open({counted:?}).unwrap().write_all(b\"x\").unwrap();\n}}\n"
            ),
        ),
        (
            "tiny/Cargo.toml",
            "[package]\nname = 'tiny'\nedition = '2024'\n[dependencies]\nbase = { path = '../base' }\n",
        ),
        ("tiny/src/lib.rs", LIMIT),
        ("tiny/tests/adds.rs", "#[test]\nfn at_most_ten() {\n    assert_eq!(tiny::add(1, 20), 11);\n}\n"),
        ("check.sh", SCRIPT),
        ("ci/guards.toml", &list.collect::<String>()),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::set_permissions(root.join("check.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let person = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
    for arguments in [&["init", "--quiet"][..], &["add", "."], &["commit", "--quiet", "-m", "first"]] {
        git(&root, &[&person, arguments].concat()).unwrap();
    }
    Tree { folders: Folders { target: root.join("target"), root }, folder }
}

impl Tree {
    fn root(&self) -> &Path {
        &self.folders.root
    }

    fn list(&self) -> Result<List, String> {
        List::read(self.root())
    }

    /// `cargo xtask guards ARGUMENTS`: whether it succeeds, and what it says.
    fn guards(&self, arguments: &[&str]) -> (bool, String) {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            arguments: super::Arguments,
        }
        let line = Line::try_parse_from([&["guards"], arguments].concat()).unwrap();
        let mut said = Vec::new();
        let ok = super::within(&self.folders, &line.arguments, &mut said).unwrap();
        (ok, String::from_utf8(said).unwrap())
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.root().join(path), text).unwrap();
    }
}

fn names<'a>(guards: &[&'a Guard]) -> Vec<&'a str> {
    guards.iter().map(|guard| guard.name.as_str()).collect()
}

#[test]
fn a_line_that_stands_twice_or_nowhere_is_reported_with_its_file() {
    let nowhere = NOTICED.replace("more.min(10)", "more.min(11)");
    let twice = NOTICED.replace("more.min(10)", "length");
    let tree = tree(&[("once", NOTICED), ("nowhere", &nowhere), ("twice", &twice)]);
    let list = tree.list().unwrap();
    let problem = |at: usize| list.problem(&list.guards[at]);
    assert_eq!(problem(0), None);
    assert_eq!(problem(1).unwrap(), "tiny/src/lib.rs: 0 places match the guard \"more.min(11)\"");
    assert!(problem(2).unwrap().starts_with("tiny/src/lib.rs: 4 places match"), "{:?}", problem(2));
    let (ok, said) = tree.guards(&["--check"]);
    assert!(!ok && said.ends_with("\n1 passed, 2 failed, 0 skipped\n"), "{said}");
    assert_eq!(tree.guards(&["--check", "once"]), (true, "1 passed, 0 failed, 0 skipped\n".to_owned()));
}

#[test]
fn a_name_that_two_guards_have_is_refused() {
    let error = tree(&[("same", NOTICED), ("other", NOTICED), ("same", NOTICED)]).list().err().unwrap();
    assert_eq!(error, "ci/guards.toml: two guards have the name \"same\"");
}

#[test]
fn a_guard_that_says_two_ways_to_be_noticed_is_refused() {
    let both = NOTICED.replace("package = ", "says = 'x', package = ");
    assert!(tree(&[("both", &both)]).list().is_err());
}

#[test]
fn a_test_that_is_not_there_is_reported() {
    let by = |noticed: &str| {
        NOTICED.split_inclusive('\n').take(2).collect::<String>() + &format!("noticed_by = {noticed}")
    };
    let wrong = [
        ("{ package = 'tiny', test = '--test subtracts' }", "tiny has no test \"--test subtracts\""),
        ("{ package = 'tiny', test = '--lib subtracts' }", "tiny has no test \"--lib subtracts\""),
        (
            "{ package = 'tiny', test = '--lib other::adds_one' }",
            "tiny has no test \"--lib other::adds_one\"",
        ),
        ("{ package = 'tiny', test = 'adds' }", "\"adds\" is neither"),
        ("{ package = 'none', test = '--test adds' }", "there is no package none"),
        ("{ must_not_compile = 'none' }", "there is no package none"),
        ("{ script = 'none.sh x', says = 'x' }", "there is no script none.sh"),
    ];
    let right = [
        "{ package = 'tiny', test = '--lib adds_' }",
        "{ must_not_compile = 'base' }",
        "{ script = 'check.sh x', says = 'x' }",
    ];
    let all = wrong
        .iter()
        .map(|(noticed, _)| *noticed)
        .chain(right)
        .map(|noticed| (noticed.replace('\'', ""), by(noticed)));
    let all: Vec<_> = all.collect();
    let tree = tree(&all.iter().map(|(name, rest)| (name.as_str(), rest.as_str())).collect::<Vec<_>>());
    let list = tree.list().unwrap();
    let problems: Vec<_> = list.guards.iter().map(|guard| list.problem(guard)).collect();
    for (at, (_, words)) in wrong.iter().enumerate() {
        assert!(problems[at].as_ref().unwrap().starts_with(words), "{:?}", problems[at]);
    }
    assert_eq!(problems[wrong.len()..], [None, None, None]);
}

/// Guards of `tiny` and `base`: by a test, a test inside, the compiler and a script.
fn four() -> Tree {
    let by = |noticed: &str| {
        NOTICED.split_inclusive('\n').take(2).collect::<String>() + &format!("noticed_by = {noticed}")
    };
    tree(&[
        ("test", NOTICED),
        ("inside", &by("{ package = 'tiny', test = '--lib adds_one' }")),
        ("compiler", &by("{ must_not_compile = 'base' }")),
        ("script", &by("{ script = 'check.sh', says = 'no limit' }")),
    ])
}

#[test]
fn changed_paths_choose_guards_by_their_file_and_their_test() {
    let tree = four();
    let list = tree.list().unwrap();
    let of = || {
        let changed = Some(choice::changed(tree.root(), "HEAD").unwrap());
        names(&Choice { pattern: None, changed, sample: None }.of(&list).unwrap())
    };
    assert!(of().is_empty());
    tree.write("base/src/lib.rs", "");
    tree.write("untracked", "");
    assert!(of().is_empty(), "{:?}", of());
    tree.write("tiny/tests/adds.rs", "");
    assert_eq!(of(), ["test"]);
    fs::create_dir(tree.root().join("tiny/tests/adds")).unwrap();
    tree.write("tiny/tests/adds/module.rs", "");
    git(tree.root(), &["checkout", "--quiet", "tiny/tests/adds.rs"]).unwrap();
    assert_eq!(of(), ["test"], "by an untracked file of the test's folder");
    tree.write("check.sh", "");
    assert_eq!(of(), ["test", "script"]);
    tree.write("tiny/src/lib.rs", "");
    assert_eq!(of(), ["test", "inside", "compiler", "script"]);
}

#[test]
fn a_pattern_takes_what_all_leaves_to_it() {
    let tree = four();
    let list = tree.list().unwrap();
    let of = |pattern| {
        Choice { pattern, changed: None, sample: None }.of(&list).map(|chosen| names(&chosen).join(" "))
    };
    assert_eq!(of(None).unwrap(), "test inside compiler");
    assert_eq!(of(Some("script|insi")).unwrap(), "inside script");
    assert!(of(Some("none")).is_err());
}

#[test]
fn a_sample_is_of_its_seed_and_of_those_that_are_not_chosen() {
    let many: Vec<String> = (0..40).map(|number| format!("guard {number}")).collect();
    let tree = tree(&many.iter().map(|name| (name.as_str(), NOTICED)).collect::<Vec<_>>());
    let mut list = tree.list().unwrap();
    for guard in &mut list.guards[..10] {
        guard.file = "changed".to_owned();
    }
    let of = |changed: Option<&str>, number, seed: &str| {
        let changed = changed.map(|path| BTreeSet::from([path.to_owned()]));
        names(&Choice { pattern: None, changed, sample: Some((number, seed.to_owned())) }.of(&list).unwrap())
    };
    let six = of(Some("changed"), 6, "4711");
    assert_eq!(six[..10], many[..10], "those that changed, and in the order of the list");
    assert_eq!(six.iter().collect::<BTreeSet<_>>().len(), 16);
    assert_eq!(six, of(Some("changed"), 6, "4711"));
    assert_ne!(six, of(Some("changed"), 6, "4712"));
    assert_eq!(of(None, 6, "4711").len(), 6);
    assert_eq!(of(Some("changed"), 100, "4711"), many);
}

#[test]
fn each_way_to_notice_is_tried() {
    let by = |line: &str, replacement: &str, noticed: &str| {
        format!("line = '{line}'\nreplacement = '{replacement}'\nnoticed_by = {noticed}")
    };
    let limit = |noticed: &str| by("more.min(10)", "more", noticed);
    let borrowed = "let length = all.len();\nlet last = all.last_mut().unwrap();\n".replace('\n', "\n    ");
    let too_late = "let last = all.last_mut().unwrap();\nlet length = all.len();\n".replace('\n', "\n    ");
    let multi = |text: &str| format!("''{}''", text.trim_end());
    let tree = tree(&[
        ("noticed", NOTICED),
        ("of another", &limit("{ package = 'tiny', test = '--lib adds_one' }")),
        ("no code", &by("more.min(10)", "more.min(", "{ package = 'tiny', test = '--test adds' }")),
        ("refused", &by(&multi(&borrowed), &multi(&too_late), "{ must_not_compile = 'tiny' }")),
        ("compiles", &limit("{ must_not_compile = 'tiny' }")),
        ("fails otherwise", &by("more.min(10)", "more.min(", "{ must_not_compile = 'tiny' }")),
        ("script", &limit("{ script = 'check.sh', says = 'no limit' }")),
        ("other words", &limit("{ script = 'check.sh', says = 'other words' }")),
        ("skips", &limit("{ script = 'check.sh skip', says = 'no limit' }")),
    ]);
    let list = tree.list().unwrap();
    let lane = Lane::new(&tree.folders, tree.folder.path(), "lane").unwrap();
    let outcomes: Vec<String> = (list.guards.iter())
        .map(|guard| match lane.trial(guard).unwrap() {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Failed(why) => format!("failed: {why}"),
            Outcome::Skipped(why) => format!("skipped: {why}"),
        })
        .collect();
    let expected = [
        "passed",
        "failed: the test passes without the guard in tiny/src/lib.rs",
        "failed: does not compile without its guard",
        "passed",
        "failed: it compiles, or fails otherwise",
        "failed: it compiles, or fails otherwise",
        "passed",
        "failed: check.sh does not notice that the guard in tiny/src/lib.rs is gone",
        "skipped: the weather",
    ];
    for (outcome, expected) in outcomes.iter().zip(expected) {
        assert!(outcome.starts_with(expected), "{outcome:?}, not {expected:?}");
    }
    assert_eq!(outcomes.len(), expected.len());
    assert_eq!(fs::read_to_string(tree.folder.path().join("lane/tiny/src/lib.rs")).unwrap(), LIMIT);
}

#[test]
fn two_lanes_share_one_build_and_a_guard_that_nobody_needs_fails_the_run() {
    let unnoticed = NOTICED.replace("--test adds at_most", "--lib adds_one");
    let tree = tree(&[("first", NOTICED), ("unnoticed", &unnoticed), ("second", NOTICED), ("left", NOTICED)]);
    let (ok, said) = tree.guards(&["first|second|unnoticed"]);
    assert!(!ok && said.ends_with("\n2 passed, 1 failed, 0 skipped, 1 left\n"), "{said}");
    let unnoticed = "\nFAILED  unnoticed: the test passes without the guard in tiny/src/lib.rs\n";
    assert!(said.contains(unnoticed) && said.contains("\nok      first "), "{said}");
    assert!(tree.root().join("target/guards1/debug").is_dir());
    let builds = fs::read_to_string(tree.folder.path().join("builds-of-base")).unwrap();
    assert_eq!(builds, "x", "the lane that got the builds made them again");
    assert_eq!(fs::read_to_string(tree.root().join("tiny/src/lib.rs")).unwrap(), LIMIT, "the tree itself");
}

#[test]
fn a_lane_that_dies_fails_its_guard_and_the_other_goes_on() {
    let tree = tree(&[("first", NOTICED), ("dies", NOTICED), ("third", NOTICED), ("fourth", NOTICED)]);
    let list = tree.list().unwrap();
    let guards: Vec<_> = list.guards.iter().collect();
    let ends: [fn(); 2] = [|| panic!("made up"), || {}];
    for end in ends {
        let mut said = Vec::new();
        let mut report = Report::new(&mut said);
        let trial = |(): &(), guard: &Guard| {
            if guard.name == "dies" {
                end();
                return Err("made up".to_owned());
            }
            Ok(Outcome::Passed)
        };
        run::in_turn(&guards, &[(), ()], trial, &mut report);
        assert_eq!(report.counts(), "3 passed, 1 failed, 0 skipped");
        let mut alone = Report::new(&mut said);
        run::in_turn(&guards, &[()], trial, &mut alone);
        assert_eq!(alone.counts(), "1 passed, 3 failed, 0 skipped");
    }
}
