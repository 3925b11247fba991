//! Copies, builds and trials.

use super::super::copy;
use super::super::lane::{Lane, Outcome};
use super::super::list::Guard;
use super::super::run::{self, Report};
use super::{LIMIT, NOTICED, tree};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

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
    let lane = Lane::new(&tree.folder.path().join("lane"), tree.root()).unwrap();
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
    assert_eq!(fs::read_to_string(tree.folder.path().join("lane/tree/tiny/src/lib.rs")).unwrap(), LIMIT);
}

#[test]
fn lanes_and_runs_share_builds_and_a_test_that_passes_without_its_guard_fails_the_run() {
    let unnoticed = NOTICED.replace("--test adds at_most", "--lib adds_one");
    let checked = "line = 'more.min(10)'\nreplacement = 'more'\nnoticed_by = { must_not_compile = 'base' }";
    let tree =
        tree(&[("first", NOTICED), ("unnoticed", &unnoticed), ("second", NOTICED), ("checked", checked)]);
    let builds = || fs::read_to_string(tree.folder.path().join("builds-of-base")).unwrap();
    for run in 0..2 {
        let (ok, said) = tree.guards(&["first|second|unnoticed"]);
        assert!(!ok && said.ends_with("\n2 passed, 1 failed, 0 skipped, 1 left\n"), "{said}");
        let unnoticed = "FAILED  unnoticed: the test passes without the guard in tiny/src/lib.rs\n";
        assert!(said.contains(unnoticed) && said.contains("ok      first "), "{said}");
        assert_eq!(builds(), "x", "what is the same is built again");
        assert_eq!(said.contains("built with every guard"), run == 0, "{said}");
    }
    assert_eq!(fs::read_to_string(tree.root().join("tiny/src/lib.rs")).unwrap(), LIMIT, "the tree itself");
    for run in 0..2 {
        let (_, said) = tree.guards(&["first|checked"]);
        assert_eq!(said.contains("built with every guard"), run == 0, "a build of another kind: {said}");
    }
    tree.write("base/src/lib.rs", "pub fn sum(a: u32, b: u32) -> u32 {\n    b + a\n}\n");
    assert!(tree.guards(&["first"]).0);
    assert_eq!(builds(), "xx", "what is another is built");
    tree.write("base/src/lib.rs", "no Rust");
    let (ok, said) = tree.guards(&["first|second"]);
    assert!(!ok && said.ends_with("\n0 passed, 2 failed, 0 skipped, 2 left\n"), "{said}");
    // Other dependencies: the second lane begins anew with what the first has built.
    tree.write("Cargo.lock", "");
    let (ok, said) = tree.guards(&["first|second"]);
    assert!(!ok && said.contains("FAILED  with every guard in its place: tiny does not build\n"), "{said}");
    assert!(said.ends_with("\n0 passed, 3 failed, 0 skipped, 2 left\n"), "{said}");
}

#[test]
fn the_copy_is_as_the_tree_is_and_only_what_differs_is_written() {
    let tree = tree(&[("first", NOTICED)]);
    let to = tree.folder.path().join("copy");
    let update = || copy::bring_up_to_date(&to, tree.root()).unwrap();
    let read = |path: &str| fs::read_to_string(to.join(path)).ok();
    update();
    let written = || fs::metadata(to.join("tiny/src/lib.rs")).unwrap().modified().unwrap();
    let first = written();
    assert_eq!(fs::metadata(to.join("check.sh")).unwrap().permissions().mode() & 0o777, 0o755);
    fs::create_dir(tree.root().join("target")).unwrap();
    tree.write("target/ignored", "");
    tree.write("untracked", "one");
    tree.write("base/src/lib.rs", "changed");
    fs::remove_dir_all(tree.root().join("tiny/tests")).unwrap();
    fs::set_permissions(tree.root().join("check.sh"), fs::Permissions::from_mode(0o644)).unwrap();
    symlink("untracked", tree.root().join("link")).unwrap();
    update();
    assert_eq!((read("untracked"), read("link")), (Some("one".to_owned()), Some("one".to_owned())));
    assert_eq!((read("base/src/lib.rs"), read("target/ignored")), (Some("changed".to_owned()), None));
    assert!(!to.join("tiny/tests").exists() && to.join("link").is_symlink());
    assert_eq!(fs::metadata(to.join("check.sh")).unwrap().permissions().mode() & 0o777, 0o644);
    fs::write(to.join("tiny/Cargo.toml"), "of another").unwrap();
    fs::remove_file(tree.root().join("link")).unwrap();
    tree.write("link", "a file");
    update();
    assert!(!to.join("link").is_symlink() && read("link").as_deref() == Some("a file"));
    assert!(read("tiny/Cargo.toml").unwrap().contains("name = 'tiny'"));
    assert_eq!(written(), first);
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
