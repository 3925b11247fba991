#![allow(clippy::unwrap_used)]
use super::*;
use crate::doctor::compare::Comparison;
use crate::doctor::facts::{Facts, Limits, Version};
use crate::doctor::judge::judge;
use crate::doctor::lines::lines;
use crate::doctor::made_up::{good_node, gpu_node, library};
use crate::doctor::{Answer, SCHEMA};
use crate::shown;

const PLAIN: Paper = Paper { width: 80, colour: false };

fn rendered(facts: &Facts, paper: Paper) -> String {
    let findings = judge(facts);
    screen(facts, &lines(facts, &findings), &findings, paper)
}

fn bad_node() -> Facts {
    let mut facts = gpu_node();
    facts.limits.memlock = Some(64 << 10);
    facts.limits.memlock_hard = Some(64 << 10);
    facts.libfabric =
        vec![library("/opt/a/rather/long/prefix/of/some/site/lib/libfabric.so.1", Version(1, 18, 0))];
    facts.environment.insert("FI_MR_CACHE_MONITOR".to_owned(), "disabled".to_owned());
    facts.environment.insert("LD_PRELOAD".to_owned(), "/a/path/without/any/space".repeat(9));
    facts.nics[1].ports[0].state = "DOWN".to_owned();
    facts
}

#[test]
fn what_a_terminal_would_obey_is_not_handed_on() {
    let mut facts = bad_node();
    facts.environment.insert("LD_PRELOAD".to_owned(), "/lib/a.so:\u{1b}[2J\u{7}\u{9b}31m".to_owned());
    facts.environment.insert("FI_MR_CACHE_MONITOR".to_owned(), "dis\nabled\u{1b}]0;title\u{7}".to_owned());
    facts.host = "node\u{1b}[8m".to_owned();
    let findings = judge(&facts);
    let answer = Answer { schema: SCHEMA.to_owned(), facts, findings };
    let nothing_hidden = |text: &str| text.chars().all(|letter| letter == '\n' || !letter.is_control());
    let text = crate::doctor::screen(&answer, PLAIN).unwrap();
    assert!(text.contains("/lib/a.so:\\u001b[2J"), "{text}");
    assert!(nothing_hidden(&text), "{text:?}");
    // Nor of other nodes' answers.
    let answers = vec![
        crate::terminal::shown(&answer).unwrap(),
        Answer { facts: nothing(), findings: Vec::new(), ..answer },
    ];
    let text = Comparison::of(answers, &[]).text(PLAIN);
    assert!(text.contains("node\\u001b[8m") && nothing_hidden(&text), "{text:?}");
}

fn nothing() -> Facts {
    Facts { host: "bare".to_owned(), pinyard: "0.1.0".to_owned(), ..Facts::default() }
}

#[test]
fn no_line_is_wider_than_the_paper() {
    for facts in [good_node(), gpu_node(), bad_node(), nothing()] {
        for width in [NARROWEST, 80, 100, WIDEST] {
            for colour in [false, true] {
                let text = rendered(&facts, Paper { width, colour });
                for line in text.lines() {
                    assert!(visible(line) <= width, "{width}: {line}");
                    assert_eq!(line.trim_end(), line, "no space at the end");
                }
            }
        }
    }
}

#[test]
fn colour_changes_no_word() {
    let coloured = rendered(&bad_node(), Paper { colour: true, ..PLAIN });
    assert!(coloured.contains("\u{1b}["));
    assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), rendered(&bad_node(), PLAIN));
    assert!(!rendered(&bad_node(), PLAIN).contains('\u{1b}'));
}

#[test]
fn each_line_has_its_mark_and_each_thing_to_mend_its_remedy() {
    let text = rendered(&bad_node(), PLAIN);
    for line in [
        "  FAIL  locked memory  64 KiB",
        "  FAIL  libfabric  1.18; known faults: Open MPI #13149",
        "  FAIL  FI_MR_CACHE_MONITOR",
        "  FAIL  mlx5_1",
        "  OK    mlx5_0",
        "  OK    CUDA driver  works",
        "  OK    GPU's NIC    0000:3e:00.0 to mlx5_0:1 (same PCIe switch)",
        "\nTo fix\n   1. RLIMIT_MEMLOCK is 64 KiB\n      then  ",
        "      fix   unset FI_MR_CACHE_MONITOR\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let number = judge(&bad_node()).iter().filter(|finding| finding.weight == Weight::Fail).count();
    assert!(text.ends_with(&format!("\n{number} things to fix.")), "{text}");
    assert!(rendered(&good_node(), PLAIN).ends_with("Nothing to fix."));
}

#[test]
fn what_was_tried_and_how_far_the_nics_are_is_shown() {
    let tried = "Open MPI v4.1.4 (\"/usr/lib/libmpi.so.40\"): takes device pointers: path ipc; tried: well";
    let text = rendered(&Facts { tried: vec![tried.to_owned()], ..gpu_node() }, PLAIN);
    assert!(text.contains("  OK    MPI, tried  Open MPI v4.1.4"), "{text}");
    for line in ["NUMA distances: mlx5_0 10, mlx5_1 21", "NUMA distances: mlx5_0 21, mlx5_1 10"] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

#[test]
fn functions_that_are_not_pinyard_s_are_named_with_their_owner() {
    let mut facts = good_node();
    let owners = |facts: &Facts| {
        let text = rendered(facts, Paper { width: WIDEST, ..PLAIN });
        text.split_once("owners: ").map(|(_, rest)| rest.lines().next().unwrap_or_default().to_owned())
    };
    assert_eq!(owners(&facts).unwrap(), "absent 1 (process_madvise), pinyard 15");
    facts.hooks.owners = [("libucm.so.0".to_owned(), 2), ("pinyard".to_owned(), 14)].into();
    for function in ["munmap", "brk"] {
        facts.hooks.owner_of.insert(function.to_owned(), "libucm.so.0".to_owned());
    }
    assert_eq!(owners(&facts).unwrap(), "libucm.so.0 2 (brk munmap), pinyard 14");
    // Of an earlier version's answer, how many there are.
    let mut earlier = serde_json::to_value(&facts).unwrap();
    earlier["hooks"].as_object_mut().unwrap().remove("owner_of").unwrap();
    let earlier: Facts = serde_json::from_value(earlier).unwrap();
    assert_eq!(owners(&earlier).unwrap(), "libucm.so.0 2, pinyard 14");
}

#[test]
fn faults_that_nothing_here_has_are_counted_and_not_named() {
    let mut facts =
        Facts { libfabric: vec![library("/lib/libfabric.so.1", Version(1, 18, 0))], ..good_node() };
    facts.nics.clear();
    let text = rendered(&facts, Paper { width: WIDEST, ..PLAIN });
    assert!(text.contains("1.18; 5 known faults with other hardware or programs: the book's page"), "{text}");
    assert!(!text.contains("#13149"), "{text}");
}

/// The node of the book's screen.
fn shown_node() -> Facts {
    let mut facts = good_node();
    facts.host = "n7".to_owned();
    facts.under_slurm = true;
    facts.limits =
        Limits { memory: 252 << 30, memlock: Some(64 << 10), memlock_hard: Some(64 << 10), ..facts.limits };
    facts.hooks.owners = [("libc".to_owned(), 1), ("pinyard".to_owned(), 15)].into();
    facts.hooks.owner_of = [("sbrk".to_owned(), "libc".to_owned())].into();
    facts.libfabric = vec![library("/usr/lib/libfabric.so.1", Version(1, 17, 0))];
    facts
}

#[test]
fn the_book_shows_what_is_printed() {
    let shown = shown::page("xtask/ci/block.sh docs/src/cluster.md screen");
    shown::assert_printed(&shown, &rendered(&shown_node(), Paper { width: 96, ..PLAIN }));
    // Of a node with nothing to fix the page's screen is not.
    let fit = rendered(&good_node(), Paper { width: 96, ..PLAIN });
    assert!(std::panic::catch_unwind(|| shown::assert_printed(&shown, &fit)).is_err());
}

#[test]
fn a_machine_with_nothing_says_so() {
    let text = rendered(&nothing(), PLAIN);
    for what in ["MPI", "libfabric", "UCX", "NIC", "GPU"] {
        let line = text.lines().find(|line| line.starts_with("  -   ") && line.contains(what));
        assert!(line.is_some_and(|line| line.ends_with("none found")), "{what}\n{text}");
    }
}
