//! The list, and which of it is chosen.

use super::super::choice::Choice;
use super::{NOTICED, Tree, names, tree};
use crate::tree::{self, git};
use std::collections::BTreeSet;
use std::fs;

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
    assert_eq!(error, "xtask/ci/guards.toml: two guards have the name \"same\"");
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
        let changed = Some(tree::changed(tree.root(), "HEAD").unwrap());
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
