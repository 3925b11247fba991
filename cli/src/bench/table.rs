//! Tables for a terminal of 80 columns.

use crate::bench::catalogue::Benchmark;
use crate::bench::compare::{Change, Comparison};
use crate::bench::document::Document;
use crate::bench::number::{at, figure};
use crate::bench::row::{OURS, Row, Unit};
use crate::bench::word::Absence;
use comfy_table::{CellAlignment, ContentArrangement, Table, TableStyle};

/// Columns of a terminal that shows every table whole.
const WIDTH: u16 = 80;

/// All figures, a block for each benchmark and a line for each subject.
pub fn of(document: &Document) -> String {
    let mut text = String::new();
    for rows in document.rows.chunk_by(|a, b| a.benchmark == b.benchmark) {
        let Some(first) = rows.first() else { continue };
        let mut table = table(["", "", "median", "p99", "pinyard / it"], 2);
        for (index, row) in rows.iter().enumerate() {
            let above = index.checked_sub(1).and_then(|above| rows.get(above));
            lines(document, row, above, &mut table);
        }
        text += &format!("{}\n{}\n\n", first.benchmark, indented(&table));
    }
    text + &absences(document)
}

fn lines(document: &Document, row: &Row, above: Option<&Row>, table: &mut Table) {
    // A case of several rows is written once.
    if row.at.is_some() && above.is_none_or(|above| (&above.case, above.threads) != (&row.case, row.threads))
    {
        table.add_row([case(row)]);
    }
    let mut name = match row.at {
        Some(point) => format!("  {}", at(point)),
        None => case(row),
    };
    for subject in &row.of {
        let ratio = match (subject.name == OURS, row.ratio(&subject.name)) {
            (true, _) => String::new(),
            (false, ratio) => ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
        };
        // One figure has no quantiles.
        let p99 = match subject.summary.samples {
            1 => String::new(),
            _ => figure(row.unit, subject.summary.p99),
        };
        let median = figure(row.unit, subject.summary.median);
        table.add_row([std::mem::take(&mut name), document.named(&subject.name), median, p99, ratio]);
    }
}

/// The case, with what is not plain from the figures.
fn case(row: &Row) -> String {
    let threads = match row.threads {
        1 => String::new(),
        threads => format!(", {threads} threads"),
    };
    let unit = match row.unit {
        Unit::Registrations => ": registrations",
        Unit::Instructions => ": instructions",
        _ => "",
    };
    format!("{}{threads}{unit}", row.case)
}

/// What did not run, each reason once.
fn absences(document: &Document) -> String {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for skipped in &document.skipped {
        let what = match &skipped.peer {
            Some(peer) => format!("{peer} in {}", skipped.benchmark),
            None => skipped.benchmark.clone(),
        };
        let why = skipped.absence.to_string();
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, of)) => of.push(what),
            None => reasons.push((why, vec![what])),
        }
    }
    let line = |(why, of): (String, Vec<String>)| format!("skipped: {}: {why}", of.join(", "));
    let failed = document.failed.iter().map(|failed| format!("FAILED: {}: {}", failed.benchmark, failed.why));
    reasons.into_iter().map(line).chain(failed).map(|line| wrapped(&line)).collect()
}

fn wrapped(line: &str) -> String {
    let options = textwrap::Options::new(usize::from(WIDTH)).subsequent_indent("  ");
    textwrap::fill(line, options) + "\n"
}

/// Our figures beside those of the saved run.
pub fn of_comparison(comparison: &Comparison) -> String {
    let mut table = table(["", "saved", "now", "now / saved", ""], 1);
    for compared in &comparison.rows {
        let row = &compared.row;
        let point = row.at.map_or_else(String::new, |point| format!(", {}", at(point)));
        let subject = compared.subject.strip_prefix(OURS).unwrap_or_default();
        table.add_row([
            format!("{}: {}{point}{subject}", row.benchmark, case(row)),
            figure(row.unit, compared.saved.median),
            figure(row.unit, compared.now.median),
            compared.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            match compared.change {
                Change::Same => "",
                Change::Slower => "slower",
                Change::Faster => "faster",
            }
            .to_owned(),
        ]);
    }
    let notes: String = comparison.notes.iter().map(|note| wrapped(&format!("note: {note}"))).collect();
    let new = match comparison.new {
        0 => String::new(),
        new => format!(", {new} not in the saved run"),
    };
    format!(
        "{}\n\n{notes}{} compared: {} slower, {} faster, {} within noise{new}",
        indented(&table),
        comparison.rows.len(),
        comparison.count(Change::Slower),
        comparison.count(Change::Faster),
        comparison.count(Change::Same),
    )
}

/// The catalogue, with why one cannot run here.
pub fn of_catalogue(benchmarks: &[(&Benchmark, Option<Absence>)]) -> String {
    let mut table = table(["name", "what it measures", "beside", "needs"], 4);
    let mut reasons: Vec<String> = Vec::new();
    for (benchmark, absence) in benchmarks {
        let Benchmark { name, measures, peers, needs, .. } = benchmark;
        let needs = match absence {
            None => (*needs).to_owned(),
            Some(absence) => {
                let reason = absence.to_string();
                if !reasons.contains(&reason) {
                    reasons.push(reason);
                }
                "(not here)".to_owned()
            }
        };
        table.add_row([name, measures, peers, needs.as_str()]);
    }
    let reasons = reasons.iter().map(|reason| wrapped(&format!("not here: {reason}")));
    let lines =
        table.trim_fmt().lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n");
    (lines + "\n\n" + &reasons.collect::<String>()).trim_end().to_owned()
}

/// Columns from the one with number `right` on are figures.
fn table<const N: usize>(header: [&str; N], right: usize) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH - 2);
    table.set_header(header);
    for column in table.column_iter_mut().skip(right) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn indented(table: &Table) -> String {
    let lines: Vec<String> = table.trim_fmt().lines().map(|line| format!("  {}", line.trim_end())).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::compare::NOISE;
    use crate::bench::document::tests::hits;
    use crate::bench::{Absence, catalogue, document};

    fn fits(text: &str) -> bool {
        text.lines().all(|line| line.chars().count() <= usize::from(WIDTH))
    }

    #[test]
    fn each_subject_has_a_line_and_all_fit() {
        let text = of(&hits(27.5));
        assert!(fits(&text), "{text}");
        let line = |words: &str| {
            text.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") == words)
        };
        assert!(line("1 region pinyard 27.5 ns 28.0 ns"), "{text}");
        assert!(line("UCX 1.13.1 90.0 ns 91.7 ns 0.31"), "{text}");
        assert!(text.contains("get and release, 2 threads") && text.contains("10,000 regions"), "{text}");
        assert!(text.contains("skipped: pools.pinned: no device; install a driver"), "{text}");
    }

    #[test]
    fn a_row_that_we_lose_stands_like_the_others() {
        let text = of(&hits(180.0));
        assert!(text.lines().any(|line| line.trim_end().ends_with(" 2.00")), "{text}");
    }

    #[test]
    fn a_reason_is_written_once_for_all_that_it_stopped() {
        let mut document = hits(27.5);
        for benchmark in ["cache.hit", "cache.event"] {
            let absence = Absence::new("libucs.so.0: no such file", "install libucx0");
            let peer = Some("UCX".to_owned());
            document.skipped.push(document::Skipped { benchmark: benchmark.into(), peer, absence });
        }
        let text = of(&document);
        let text = text.replace("\n  ", " ");
        assert!(text.contains("skipped: UCX in cache.hit, UCX in cache.event: libucs.so.0"), "{text}");
    }

    #[test]
    fn a_comparison_names_what_changed_and_fits() {
        let (saved, mut now) = (hits(30.0), hits(30.0));
        now.rows[2] = hits(60.0).rows[2].clone();
        let text = of_comparison(&Comparison::of(&saved, &now, NOISE));
        assert!(fits(&text), "{text}");
        let slower: Vec<&str> = text.lines().filter(|line| line.trim_end().ends_with("slower")).collect();
        assert_eq!(slower.len(), 1, "{text}");
        assert!(text.contains("3 compared: 1 slower, 0 faster, 2 within noise"), "{text}");
    }

    #[test]
    fn the_catalogue_fits() {
        let all: Vec<_> = catalogue::ALL.iter().map(|benchmark| (benchmark, None)).collect();
        let text = of_catalogue(&all);
        assert!(fits(&text), "{text}");
        assert!(catalogue::ALL.iter().all(|benchmark| text.contains(benchmark.name)), "{text}");
    }
}
