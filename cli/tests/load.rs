//! Traces into a run, and the run as JSON: what is there, what is missing, and that no
//! name becomes markup.
#![allow(clippy::unwrap_used)]

use pinyard_cli::trace::{LoadError, load};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const EVIL: &str = "</script><b>\"x\" & 'y'\u{2028}";

fn write(folder: &Path, rank: u32, lines: &[Value]) {
    let process = json!({ "host": EVIL, "pid": 1, "rank": rank, "wall_ns": 1_000_000 * u64::from(rank) });
    let header = json!({ "format": "pinyard-trace", "version": 2, "process": process });
    let text: String = std::iter::once(&header).chain(lines).map(|line| format!("{line}\n")).collect();
    fs::write(folder.join(format!("r{rank}.trace")), text).unwrap();
}

fn lines() -> Vec<Value> {
    vec![
        json!({ "t": 100, "thread": 1, "event": "grow", "bytes": 4096, "address": 65536, "of": 2, "name": EVIL }),
        json!({ "t": 200, "thread": 1, "event": "register", "bytes": 4096, "address": 65536, "took": 50, "of": 1, "name": EVIL }),
        json!({ "t": 300, "thread": 1, "event": "alloc", "bytes": 100, "block_bytes": 128, "address": 65664, "block": 65664, "of": 2, "stream": 5, "name": EVIL }),
        json!({ "t": 900, "thread": 1, "event": "free", "address": 65664, "block": 65664, "of": 2, "stream": 5, "name": EVIL }),
        json!({ "t": 1000, "thread": 1, "event": "mpi", "bytes": 7, "took": 30, "name": "MPI_Bcast", "path": EVIL }),
    ]
}

#[test]
fn the_run_as_chrome_trace_json() {
    let folder = tempfile::tempdir().unwrap();
    let end = json!({ "t": 2000, "thread": 0, "event": "end" });
    for rank in [1, 0] {
        write(folder.path(), rank, &[lines(), vec![end.clone()]].concat());
    }
    let mut run = load(&[folder.path().to_owned()]).unwrap();
    assert_eq!((run.events(), run.warnings()), (10, &[][..]));
    let mut text = Vec::new();
    run.write_perfetto(&mut text).unwrap();
    let document: Value = serde_json::from_slice(&text).unwrap();
    let events = document["traceEvents"].as_array().unwrap();
    let of = |name: &str, pid: u64| {
        let found = |event: &&Value| event["cat"] == name && event["pid"] == pid;
        events.iter().find(found).unwrap_or_else(|| panic!("no {name} of {pid} in {document:#}"))
    };
    assert_eq!(
        of("register", 0),
        &json!({ "name": "register", "cat": "register", "ph": "X", "ts": 0.2, "dur": 0.05, "pid": 0, "tid": 2, "args": { "bytes": 4096 } })
    );
    // A millisecond later, by the clocks of their nodes.
    assert_eq!(of("register", 1)["ts"], 1000.2);
    let alloc = of("alloc", 0);
    assert_eq!(
        (&alloc["ph"], &alloc["args"]["offset"], &alloc["args"]["lived_us"]),
        (&json!("i"), &json!(128), &json!(0.6))
    );
    assert_eq!(of("mpi", 0)["name"], format!("MPI_Bcast, {}", EVIL));
    assert!(events.iter().any(|event| event["ph"] == "C" && event["args"]["bytes"] == 4096), "{document:#}");
    for event in events {
        assert!(event["ts"].is_f64() && event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
    }
    let page = run.page(EVIL);
    assert!(!page.contains("</script><b>") && !page.contains("<b>\"x\""), "a name is markup");
    assert!(page.contains("&lt;/script&gt;&lt;b&gt;") && page.contains("\\u003c/script>\\u003cb>"));
}

#[test]
fn what_is_missing_is_told_and_the_rest_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let lost = json!({ "t": 950, "thread": 0, "event": "lost", "bytes": 17 });
    write(folder.path(), 0, &[lines(), vec![lost]].concat());
    fs::write(
        folder.path().join("cut.trace"),
        "{\"format\":\"pinyard-trace\",\"version\":1,\"events\":3}\n{\"t\":1,\"thr",
    )
    .unwrap();
    fs::write(folder.path().join("other.trace"), "\u{0}").unwrap();
    fs::write(folder.path().join("notes.txt"), "no trace").unwrap();
    let run = load(&[folder.path().to_owned()]).unwrap();
    assert_eq!(run.events(), 5);
    let told = run.warnings().join("\n");
    for words in [
        "cut.trace: line 2, column",
        "other.trace: line 1",
        "r0.trace: the file ends after line 7",
        "17 events were lost",
    ] {
        assert!(told.contains(words), "{words:?} is not in {told}");
    }
    assert_eq!(run.warnings().len(), 4, "{told}");
}

#[test]
fn nothing_to_show_is_an_error_that_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let error = |path: &Path| load(&[path.to_owned()]).err().unwrap();
    assert!(error(folder.path()).to_string().contains("PINYARD_TRACE"));
    assert!(matches!(error(&folder.path().join("x")), LoadError::Path { call: "stat", .. }));
    fs::write(folder.path().join("x.trace"), "").unwrap();
    let text = error(folder.path()).to_string();
    assert!(text.contains("x.trace") && text.contains("the file is empty"), "{text}");
}

/// Folders of traces come from others: what they call a file is no line of ours.
#[test]
fn a_file_s_name_stays_in_its_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a\npinyard: all is well\u{1b}[2K\n.trace"), b"none").unwrap();
    let error = load(&[folder.path().to_owned()]).unwrap_err().to_string();
    let lines: Vec<&str> = error.lines().collect();
    assert!(lines.len() == 2 && lines[1].contains("all is well"), "{error:?}");
    assert!(!error.contains('\u{1b}'), "{error:?}");
}

/// A page of processes on nodes, each with its program and the second at which it began.
fn page_of(processes: &[(&str, &str, u64)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (rank, (host, program, second)) in processes.iter().enumerate() {
        let process = json!({ "host": host, "pid": 1, "rank": rank, "program": program, "wall_ns": second * 1_000_000_000 });
        let header = json!({ "format": "pinyard-trace", "version": 2, "process": process });
        fs::write(folder.path().join(format!("r{rank}.trace")), format!("{header}\n")).unwrap();
    }
    load(&[folder.path().to_owned()]).unwrap().page("/scratch/traces")
}

#[test]
fn the_heading_is_the_program_and_when_it_ran() {
    let page = page_of(&[("n1", "solver", 1_700_000_060), ("n2", "solver", 1_700_000_000)]);
    assert!(page.contains("<h1>solver, 2023-11-14 22:13 UTC</h1>"), "{}", &page[..4000]);
    assert!(page.contains("<title>solver, 2023-11-14 22:13 UTC, pinyard report</title>"));
    assert!(page.contains("pinyard report of /scratch/traces") && page.contains("</b>processes on 2 nodes<"));
    let page = page_of(&[("n1", "solver", 0)]);
    assert!(page.contains("<h1>solver</h1>") && page.contains("</b>process on 1 node<"));
    assert!(page_of(&[("n1", "", 0)]).contains("<h1>A run</h1>"));
    let page = page_of(&[("n1", "a", 0), ("n1", "b", 0), ("n1", "c", 0), ("n1", EVIL, 0)]);
    assert!(page.contains("and 2 more</h1>") && !page.contains("<b>\"x\""));
    assert!(page.contains("</b>processes on 1 node<"));
}
