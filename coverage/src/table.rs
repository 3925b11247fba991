//! The table as text and as Markdown.

use crate::children::Report;
use crate::setup::Setup;

fn cells(report: &Report) -> Vec<String> {
    let words = Setup::ALL.map(|setup| report.verdict(setup).word().to_owned());
    [report.row.what.to_owned()].into_iter().chain(words).collect()
}

fn header() -> Vec<String> {
    let columns = Setup::ALL.map(|setup| setup.name().to_owned());
    ["change".to_owned()].into_iter().chain(columns).collect()
}

/// Aligned columns.
pub fn text(reports: &[Report]) -> String {
    let rows: Vec<Vec<String>> = [header()].into_iter().chain(reports.iter().map(cells)).collect();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..=Setup::ALL.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let padded = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// For the book.
pub fn markdown(reports: &[Report]) -> String {
    let line = |row: Vec<String>| format!("| {} |\n", row.join(" | "));
    let rule = format!("| {}\n", "--- | ".repeat(1 + Setup::ALL.len()).trim_end());
    let rows = reports.iter().map(|report| line(cells(report))).collect::<String>();
    line(header()) + &rule + &rows
}
