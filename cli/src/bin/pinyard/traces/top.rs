//! `pinyard top`: the counters of a running job, a row per process.
//!
//! It reads the small files that the processes write every half second at most
//! (`pinyard_trace::counters`), and asks no process anything.

use crate::terminal::{complain, print, visible};
use anstyle::{AnsiColor, Style};
use comfy_table::{CellAlignment, Table, TableStyle};
use pinyard::prometheus::Page;
use pinyard_cli::place;
use pinyard_cli::text::{bytes, grouped};
use pinyard_trace::counters::{Counters, Document, SIGN_OF_LIFE};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Arguments of `pinyard top`.
#[derive(clap::Args)]
#[command(after_help = "\
Example: PINYARD_TRACE=traces PINYARD_TRACE_EVENTS=0 mpirun -n 4 ./solver & pinyard top traces

Ends when every process has ended, or with Ctrl-C.
For a dashboard: pinyard top traces --prometheus --output /var/lib/node_exporter/pinyard.prom")]
pub(crate) struct Options {
    /// What PINYARD_TRACE names
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Print one table and end, for scripts: rates are those of half a second
    #[arg(long)]
    once: bool,
    /// Print the processes that run as Prometheus reads it, and end
    #[arg(long, conflicts_with_all = ["once", "every"])]
    prometheus: bool,
    /// Put that into FILE instead, whole or not at all; others may read it (mode 0644 less the umask)
    #[arg(short, long, value_name = "FILE", requires = "prometheus")]
    output: Option<PathBuf>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    every: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let within = text.parse().ok().filter(|seconds| (0.2..=3600.0).contains(seconds));
    within.ok_or_else(|| "seconds, 0.2 to 3600".to_owned())
}

/// Later than this, a process that has not ended gives no sign of life.
const SILENT: Duration = SIGN_OF_LIFE.saturating_mul(3);

/// By file: what it said, and a moment earlier.
type Seen = BTreeMap<PathBuf, (Document, Option<Document>)>;

/// Shows until all have ended.
pub(crate) fn run(options: &Options) -> ExitCode {
    let mut seen = Seen::new();
    if let Err(reason) = look(&options.folder, &mut seen) {
        complain(format_args!("pinyard: {reason}"));
        return ExitCode::from(2);
    }
    if options.prometheus {
        return prometheus(&seen, options.output.as_deref());
    }
    if options.once {
        thread::sleep(Duration::from_millis(600));
        if look(&options.folder, &mut seen).is_err() {
            return ExitCode::from(2);
        }
        // Without colours where it is not a terminal.
        let _ = writeln!(anstream::stdout(), "{}", table(&seen, now(), usize::MAX).trim_end());
        return ExitCode::SUCCESS;
    }
    // Redrawn in place on a terminal, one table after the other elsewhere.
    let terminal = io::stdout().is_terminal();
    loop {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_row > 0);
        let rows = size.map_or(1000, |size| usize::from(size.ws_row).saturating_sub(6).max(1));
        let text = table(&seen, now(), rows);
        let place = if terminal { "\x1b[H\x1b[J" } else { "" };
        let mut out = anstream::stdout();
        if writeln!(out, "{place}{text}").and_then(|()| out.flush()).is_err() {
            return ExitCode::SUCCESS;
        }
        if seen.values().all(|(document, _)| document.ended) {
            return ExitCode::SUCCESS;
        }
        thread::sleep(Duration::from_secs_f64(options.every));
        if let Err(reason) = look(&options.folder, &mut seen) {
            complain(format_args!("pinyard: {reason}"));
            return ExitCode::from(2);
        }
    }
}

/// The processes that run, for a scraper.
fn prometheus(seen: &Seen, output: Option<&Path>) -> ExitCode {
    let mut page = Page::new();
    for (document, _) in seen.values().filter(|(document, _)| state(document, now()) == "runs") {
        page.process(document);
    }
    let Some(path) = output else {
        // The text ends its last line itself.
        print(page.to_string().trim_end());
        return ExitCode::SUCCESS;
    };
    // node_exporter runs as a user of its own, and reads at any moment.
    match place::publish_in_place(path, |file| write!(file, "{page}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("pinyard: write({}) failed: {error}", path.display()));
            ExitCode::from(2)
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Reads what is new.
fn look(folder: &Path, seen: &mut Seen) -> Result<(), String> {
    let entries =
        fs::read_dir(folder).map_err(|error| format!("readdir({}) failed: {error}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_none_or(|extension| extension != "counters") {
            continue;
        }
        // One that is being written is whole a moment later; at the next look, at worst.
        let read = || Document::read(&path).ok();
        let Some(document) = read().or_else(|| {
            thread::sleep(Duration::from_millis(2));
            read()
        }) else {
            continue;
        };
        let before = seen.remove(&path).map(|(before, earlier)| {
            // Not written since: nothing has changed.
            if before.time_ns == document.time_ns { earlier.unwrap_or(before) } else { before }
        });
        seen.insert(path, (document, before));
    }
    if seen.is_empty() {
        return Err(format!(
            "no process has left counters in {}: start the program with PINYARD_TRACE set to it",
            folder.display()
        ));
    }
    Ok(())
}

/// What a counter grew by in a second.
fn rate(document: &Document, before: Option<&Document>, of: fn(&Counters) -> u64, now: u64) -> Option<f64> {
    let before = before?;
    // Where nothing was written for longer than a period, nothing has happened since.
    let idle = now.saturating_sub(document.time_ns) > 2_000_000_000;
    let ns = document.time_ns.checked_sub(before.time_ns).filter(|&ns| ns > 0)?;
    let grown = of(&document.counters).saturating_sub(of(&before.counters));
    Some(if idle { 0.0 } else { grown as f64 * 1e9 / ns as f64 })
}

/// A number of a second, short.
fn per_second(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(rate) if rate < 9_999.5 => format!("{rate:.0}"),
        Some(rate) if rate < 9_999_500.0 => format!("{:.0} k", rate / 1e3),
        Some(rate) => format!("{:.0} M", rate / 1e6),
    }
}

fn state(document: &Document, now: u64) -> &'static str {
    let age = Duration::from_nanos(now.saturating_sub(document.time_ns));
    match document.ended {
        true => "ended",
        false if age > SILENT => "silent",
        false => "runs",
    }
}

/// At most `most` rows: those of the lowest ranks.
fn table(seen: &Seen, now: u64, most: usize) -> String {
    let mut all: Vec<&(Document, Option<Document>)> = seen.values().collect();
    all.sort_by_key(|(document, _)| {
        let process = &document.process;
        (process.rank.is_none(), process.rank, process.host.clone(), process.pid)
    });
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    table.set_header([
        "rank",
        "node",
        "pid",
        "",
        "hits",
        "per s",
        "misses",
        "per s",
        "evicted",
        "pinned",
        "pools",
        "in use",
        "allocs per s",
    ]);
    let printable = |text: &str| visible(&text.chars().take(24).collect::<String>());
    for (document, before) in all.iter().take(most) {
        let Document { process, counters, .. } = document;
        let rate = |of| per_second(rate(document, before.as_ref(), of, now));
        table.add_row([
            process.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string()),
            printable(&process.host),
            process.pid.to_string(),
            state(document, now).to_owned(),
            grouped(counters.hits),
            rate(|of| of.hits),
            grouped(counters.misses),
            rate(|of| of.misses),
            grouped(counters.evictions),
            bytes(counters.pinned_bytes),
            bytes(counters.pool_bytes),
            bytes(counters.live_bytes),
            rate(|of| of.allocations),
        ]);
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        let text = at == 1 || at == 3;
        column.set_cell_alignment(if text { CellAlignment::Left } else { CellAlignment::Right });
    }
    let mut text = coloured(&table.trim_fmt());
    let count = |what| all.iter().filter(|(document, _)| state(document, now) == what).count();
    let pinned: u64 = all.iter().map(|(document, _)| document.counters.pinned_bytes).sum();
    if all.len() > most {
        text += &format!("\nand {} more", grouped((all.len() - most) as u64));
    }
    text + &format!(
        "\n{} run, {} ended, {} silent; {} pinned\n",
        count("runs"),
        count("ended"),
        count("silent"),
        bytes(pinned)
    )
}

/// The header bold; `silent` stands out.
fn coloured(text: &str) -> String {
    let bold = Style::new().bold();
    let bad = AnsiColor::Yellow.on_default();
    let mut lines = text.lines();
    let head = lines.next().map(|line| format!("{bold}{line}{bold:#}")).unwrap_or_default();
    let rest = lines.map(|line| line.replacen(" silent ", &format!(" {bad}silent{bad:#} "), 1));
    std::iter::once(head).chain(rest).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(rank: u32, hits: u64, seconds: u64, ended: bool) -> Document {
        let text = format!(
            "{{\"format\":\"pinyard-counters\",\"version\":1,\"time_ns\":{},\"ended\":{ended},\"process\":{{\"host\":\"n1\",\"pid\":7,\"rank\":{rank},\"wall_ns\":0}},\"counters\":{{\"hits\":{hits},\"pinned_bytes\":3145728}}}}",
            seconds * 1_000_000_000
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn ranks_are_rows_with_rates_and_their_state() {
        let seen: Seen = [
            ("c".into(), (document(10, 1, 100, true), None)),
            ("b".into(), (document(2, 5_000, 100, false), Some(document(2, 1_000, 98, false)))),
            ("a".into(), (document(3, 1, 50, false), None)),
        ]
        .into();
        let text = table(&seen, 100_500_000_000, 10);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1][..6], ["2", "n1", "7", "runs", "5,000", "2000"], "{text}");
        assert!(rows[2].iter().any(|word| word.contains("silent")), "{text}");
        assert_eq!(rows[3][..6], ["10", "n1", "7", "ended", "1", "-"], "{text}");
        assert!(text.contains("1 run, 1 ended, 1 silent; 9 MiB pinned"), "{text}");
        assert!(table(&seen, 0, 1).contains("and 2 more"));
    }

    #[test]
    fn the_book_shows_what_is_printed() {
        let of = |hits, misses, allocations, seconds| {
            let mut document = document(0, hits, seconds, false);
            document.process.pid = 4711;
            document.counters.misses = misses;
            document.counters.allocations = allocations;
            (document.counters.pinned_bytes, document.counters.pool_bytes) = (9 << 20, 8 << 20);
            document.counters.live_bytes = 21 * (1 << 20) / 10;
            document
        };
        let seen: Seen = [("a".into(), (of(5_210, 11, 5_200, 110), Some(of(0, 1, 0, 100))))].into();
        let printed = anstream::adapter::strip_str(&table(&seen, 110_000_000_000, 10)).to_string();
        let shown = crate::shown::page("xtask/ci/block.sh docs/src/reports.md table");
        assert_eq!(shown.trim_end(), printed.trim_end());
    }

    #[test]
    fn a_folder_without_counters_is_an_error_that_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("x.counters"), "{").unwrap();
        let error = look(folder.path(), &mut Seen::new()).unwrap_err();
        assert!(error.contains("PINYARD_TRACE"), "{error}");
        assert!(
            look(Path::new("/nonexistent"), &mut Seen::new()).unwrap_err().contains("readdir(/nonexistent)")
        );
    }

    #[test]
    fn the_page_is_put_in_its_place_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pinyard.prom");
        fs::write(&path, "of an earlier look").unwrap();
        let open = fs::File::open(&path).unwrap();
        let seconds = now() / 1_000_000_000;
        let seen: Seen = [
            ("a".into(), (document(3, 41, seconds, false), None)),
            ("b".into(), (document(4, 42, seconds, true), None)),
        ]
        .into();
        assert_eq!(prometheus(&seen, Some(&path)), ExitCode::SUCCESS);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("pinyard_process_hits_total{") && text.ends_with('\n'), "{text}");
        assert!(text.contains("rank=\"3\"") && !text.contains("rank=\"4\""), "the other has ended: {text}");
        // Who reads the old one reads all of it.
        assert_eq!(io::read_to_string(open).unwrap(), "of an earlier look");
        assert_eq!(prometheus(&seen, Some(&folder.path().join("none/a.prom"))), ExitCode::from(2));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
