use super::*;
use crate::doctor::facts::{Facts, Version};
use crate::doctor::made_up::{answer, good_node, library};
use crate::shown;
use std::io::Write;

const PAPER: Paper = Paper { width: 80, colour: false };

fn node(name: &str) -> Facts {
    Facts { host: name.to_owned(), ..good_node() }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn nodes_that_are_alike() {
    let answers = ["n1", "n2", "n10"].map(|name| answer(node(name)));
    let comparison = Comparison::of(answers.into(), &names(&["n1", "n2.cluster.org", "n10"]));
    assert_eq!(comparison.exit(), 0);
    let text = comparison.text(PAPER);
    assert!(text.starts_with("3 nodes\n  n[1,2] n10\n"), "{text}");
    assert!(text.ends_with("\nThe nodes are alike, and nothing is to be fixed."), "{text}");
}

#[test]
fn the_book_shows_what_is_printed() {
    let mut odd = node("n17");
    odd.libfabric = vec![library("/usr/lib/libfabric.so.1", Version(1, 17, 0))];
    let others = (1..=64).filter(|number| *number != 17).map(|number| node(&format!("n{number:02}")));
    let answers = others.chain([odd]).map(answer).collect();
    let text = Comparison::of(answers, &[]).text(Paper { width: 100, ..PAPER });
    shown::assert_printed(&shown::page("xtask/ci/block.sh --printed docs/src/cluster.md nodes"), &text);
}

#[test]
fn a_node_with_another_libfabric_stands_out() {
    let mut odd = node("n3");
    odd.libfabric = vec![library("/usr/lib/libfabric.so.1", Version(2, 7, 0))];
    let answers = vec![answer(node("n1")), answer(node("n2")), answer(odd.clone()), answer(node("n4"))];
    let comparison = Comparison::of(answers, &[]);
    assert_eq!(comparison.exit(), 3);
    let [difference] = &comparison.differences[..] else { panic!("{:?}", comparison.differences) };
    assert_eq!(difference.label, "libfabric");
    assert_eq!(difference.values[0].1, names(&["n1", "n2", "n4"]));
    assert_eq!(difference.values[1].1, names(&["n3"]));
    let text = comparison.text(PAPER);
    assert!(text.contains("\n  libfabric  n[1,2,4]  2.6; "), "{text}");
    assert!(text.lines().any(|line| line.trim_start().starts_with("n3        2.7; ")), "{text}");
    assert!(text.ends_with("\n1 difference."), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // One that hangs is to be fixed, by name.
    odd.libfabric = vec![library("/usr/lib/libfabric.so.1", Version(1, 18, 0))];
    let comparison = Comparison::of(vec![answer(node("n1")), answer(odd.clone())], &[]);
    assert_eq!(comparison.exit(), 4);
    let text = comparison.text(PAPER);
    assert!(text.contains("\n   1. n3: libfabric 1.18: Open MPI #13149"), "{text}");
    assert!(text.ends_with("\nSomething to fix on n3; 1 difference."), "{text}");
    // Where all have it, none stands out.
    let other = Facts { host: "n1".to_owned(), ..odd.clone() };
    assert_eq!(Comparison::of(vec![answer(other), answer(odd)], &[]).exit(), 1);
}

#[test]
fn a_node_that_says_nothing_is_named() {
    let comparison = Comparison::of(vec![answer(node("n1"))], &names(&["n1", "n2"]));
    assert_eq!(comparison.exit(), 4);
    assert!(comparison.text(PAPER).ends_with("\nNo answer from n2."));
    assert_eq!(comparison.document()["missing"], serde_json::json!(["n2"]));
    let nobody = Comparison::of(Vec::new(), &[]);
    assert_eq!(nobody.exit(), 4);
    assert!(nobody.text(PAPER).ends_with("No node answered."));
}

#[test]
fn limits_that_one_node_has_are_seen_and_named() {
    let mut small = node("n2");
    small.limits.memlock = Some(64 << 10);
    let comparison = Comparison::of(vec![answer(node("n1")), answer(small)], &[]);
    assert_eq!(comparison.differences[0].label, "locked memory");
    let document = comparison.document();
    assert_eq!(document["differences"][0]["values"][0]["value"], "unlimited");
    assert_eq!(document["exit"], 4);
    assert!(comparison.text(PAPER).contains("n2: RLIMIT_MEMLOCK is 64 KiB"));
}

#[test]
fn answers_survive_the_way_through_files_among_other_lines() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let (one, two) = (answer(node("n1")), answer(node("n2")));
    let json = |answer: &Answer| serde_json::to_string(answer).unwrap();
    writeln!(file, "srun: job 7 queued\n{}\n{}", json(&one), json(&two)).unwrap();
    let files = [file.path().to_owned()];
    assert_eq!(read(&files).unwrap(), [one, two]);
    writeln!(file, "{{\"cut\":").unwrap();
    let why = read(&files).unwrap_err();
    assert!(why.contains(":4: not an answer of `pinyard doctor --job`"), "{why}");
    assert!(read(&[PathBuf::from("/nowhere/at/all")]).unwrap_err().starts_with("read /nowhere/at/all: "));
}

#[test]
fn host_lists() {
    for (list, text) in [
        (vec!["n1"], "n1"),
        (vec!["n1", "n2"], "n[1,2]"),
        (vec!["n3", "n1", "n2", "n5"], "n[1-3,5]"),
        (vec!["n08", "n09", "n10"], "n[08-10]"),
        (vec!["login", "n7"], "n7 login"),
        (vec!["a1", "b1"], "a1 b1"),
        (vec![], ""),
    ] {
        assert_eq!(compressed(&names(&list)), text);
    }
}
