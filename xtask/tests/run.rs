//! The command itself, on a made-up tree.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, budget: u64, steps: &[(&str, &str)]) -> Tree {
        let root = std::env::temp_dir().join(format!("xtask tree {name} {}", std::process::id()));
        fs::create_dir_all(root.join("xtask/ci")).unwrap();
        let mut text = format!("[budget]\ncore_minutes = {budget}\nsample_core_minutes = 1\n");
        for (name, more) in steps {
            text += &format!(
                "[[step]]\nname = '{name}'\nlane = 'cpu'\ncost = 600\nchecks = 7\npart = 'p'\n{more}\n"
            );
        }
        fs::write(root.join("xtask/ci/steps.toml"), text).unwrap();
        fs::write(root.join("xtask/ci/skips.txt"), "").unwrap();
        Tree(root)
    }

    fn git(&self, arguments: &[&str]) {
        let mut git = Command::new("git");
        git.current_dir(&self.0).args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(arguments);
        assert!(git.output().unwrap().status.success(), "{arguments:?}");
    }

    fn test(&self, arguments: &[&str]) -> (Output, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.arg("test").args(arguments).env("CARGO_MANIFEST_DIR", self.0.join("xtask"));
        let output = command.env_remove("CARGO_TARGET_DIR").env_remove("BASE").output().unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output, text)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn the_last_lines_say_what_was_left_and_what_was_counted() {
    let steps = [
        ("whole", "test = 'whole'\nrun = 'echo \"3 passed, 0 failed, 0 skipped\"'"),
        ("quick", "test = 'quick'\nrun = 'echo \"1 passed, 0 failed, 0 skipped, ${QUICK}0 left\"'"),
        ("rest", "run = 'false'"),
    ];
    let tree = Tree::new("last", 9, &steps);
    let (output, text) = tree.test(&[]);
    assert!(output.status.success(), "{text}");
    assert!(text.ends_with("17 left for test-all\n4 passed, 0 failed, 0 skipped\n"), "{text}");
    let junit = fs::read_to_string(tree.0.join("target/tests/junit.xml")).unwrap();
    assert!(junit.contains("<testsuite name=\"quick\""), "{junit}");
    let (output, text) = tree.test(&["--all"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.ends_with("0 left for test-all\n4 passed, 1 failed, 0 skipped\n"), "{text}");
}

#[test]
fn what_changed_since_the_base_runs_whole() {
    let steps = [("a", "touched_by = ['src/a']\nrun = 'echo 1 passed, 0 failed'"), ("b", "run = 'true'")];
    let tree = Tree::new("changed", 9, &steps);
    fs::create_dir(tree.0.join("src")).unwrap();
    fs::write(tree.0.join("src/a"), "1").unwrap();
    fs::write(tree.0.join(".gitignore"), "target\n").unwrap();
    for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-qm", "all"], &["tag", "v1"]] {
        tree.git(arguments);
    }
    assert!(tree.test(&["--list"]).1.starts_with("0 paths changed since v1"), "{}", tree.test(&["--list"]).1);
    fs::write(tree.0.join("src/a"), "2").unwrap();
    let (_, text) = tree.test(&["--list", "--base", "HEAD"]);
    assert!(text.contains("1 paths changed since HEAD") && text.contains("as src/a changed"), "{text}");
    assert!(tree.test(&[]).1.ends_with("7 left for test-all\n1 passed, 0 failed, 0 skipped\n"));
    let (output, text) = tree.test(&["--base", "nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("git diff --name-only --no-renames -z nowhere"), "{text}");
}

#[test]
fn a_budget_that_is_exceeded_fails() {
    let burn = "test = 'whole'\nrun = 'for ((i = 0; i < 20000; i++)); do :; done'";
    let tree = Tree::new("budget", 0, &[("burns", burn)]);
    let (output, text) = tree.test(&[]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("the budget of xtask/ci/steps.toml is exceeded") && text.contains("1 passed, 1 failed"),
        "{text}"
    );
    assert!(tree.test(&["--only", "burns"]).0.status.success(), "a step alone has no budget");
}

#[test]
fn daemons_are_counted_and_none_may_stay() {
    let burn = "i=0; while [ $i -lt 400000 ]; do i=$((i + 1)); done";
    let ends = format!("test = 'whole'\nrun = '''setsid sh -c \"{}\" & exit 0'''", burn.replace('$', "\\$"));
    // The next step waits until it is collected.
    let waits = "test = 'whole'\nrun = 'while pgrep -f [4]00000 -P $PPID > /dev/null; do sleep 0.1; done'";
    let tree = Tree::new("daemons", 9, &[("ends", &ends), ("waits", waits)]);
    let (output, text) = tree.test(&[]);
    assert!(output.status.success() && !text.contains("(0.0 core-s by"), "{text}");
    let stays = "test = 'whole'\nrun = 'setsid sleep 4321 > /dev/null & echo $! > pid'";
    let tree = Tree::new("stays", 9, &[("stays", stays)]);
    let (output, text) = tree.test(&[]);
    let pid = fs::read_to_string(tree.0.join("pid")).unwrap();
    assert!(Command::new("kill").arg(pid.trim()).status().unwrap().success());
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("left a process behind") && text.contains("sleep 4321"), "{text}");
}

#[test]
fn a_file_that_a_step_leaves_in_the_tree_fails() {
    let steps = [("tidy", "run = 'touch kept target/x'"), ("leaves", "run = 'touch \"a file\"'")];
    let tree = Tree::new("litter", 9, &steps);
    fs::write(tree.0.join(".gitignore"), "target\n").unwrap();
    fs::write(tree.0.join("kept"), "there before").unwrap();
    tree.git(&["init", "-q"]);
    let (output, text) = tree.test(&["--only", "tidy"]);
    assert!(output.status.success(), "{text}");
    let (output, text) = tree.test(&["--only", "leaves"]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("appeared in the tree while the steps ran: a file\n"), "{text}");
}
