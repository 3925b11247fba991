//! The table: what came out as text, what is promised as Markdown.

use crate::children::Report;
use crate::rows::{ROWS, Row};
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

/// What the rows promise, and their test holds them to, as Markdown for the book.
pub fn promised() -> String {
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let rule = format!("| {}\n", "--- | ".repeat(1 + Setup::ALL.len()).trim_end());
    let header = ["change"].into_iter().chain(Setup::ALL.map(Setup::name)).collect();
    let row = |row: &Row| line([row.what].into_iter().chain(row.expected).collect());
    line(header) + &rule + &ROWS.iter().map(row).collect::<String>()
}
