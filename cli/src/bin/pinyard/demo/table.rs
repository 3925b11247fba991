//! The table at the end, at most 100 columns wide.

use super::row::Row;
use comfy_table::{CellAlignment, Table, TableStyle};
use pinyard_cli::text::grouped;

const HEADER: [&str; 10] = [
    "",
    "allocator",
    "rounds",
    "hits",
    "misses",
    "invali-\ndations",
    "registrations\nafter warm-up",
    "stale",
    "hangs",
    "ns per\nhit",
];

/// All rows side by side.
pub(crate) fn of(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    table.set_header(HEADER);
    for (index, row) in rows.iter().enumerate() {
        if index != 0 && rows.get(index - 1).is_some_and(|above| above.allocator != row.allocator) {
            table.add_row([""]);
        }
        table.add_row([
            row.name.to_owned(),
            row.allocator.to_owned(),
            grouped(row.rounds),
            grouped(row.counts.hits),
            grouped(row.counts.misses),
            grouped(row.counts.invalidations),
            row.registrations_after_warm_up.map_or_else(|| "-".to_owned(), grouped),
            grouped(row.stale),
            grouped(row.hangs),
            row.ns_per_hit.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.1}")),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    ruled(&table.trim_fmt())
}

/// A rule above, one below the header's two lines, and one at the end.
fn ruled(table: &str) -> String {
    let lines: Vec<&str> = table.lines().collect();
    let rule = "─".repeat(lines.iter().map(|line| line.chars().count()).max().unwrap_or(0) + 1);
    let (header, body) = lines.split_at(lines.len().min(2));
    [&[rule.as_str()], header, &[rule.as_str()], body, &[rule.as_str()]].concat().join("\n")
}

/// How to read the numbers, and which rows the time limit ended.
pub(crate) fn notes(rows: &[Row], ranks: u32) -> String {
    let mut notes = format!(
        "Sums over {ranks} ranks. Stale: rounds whose bytes, sent through the registered pages, were not \
         those\nthat the program had written. ns per hit: a repeated get and its drop, the slower rank's \
         median.\nThe pool looks nothing up: a buffer's key is its slab's, and the ns are those of reading it.",
    );
    for row in rows {
        if row.cut_short {
            notes += &format!("\n{} on {}: the time limit ended the rounds early.", row.name, row.allocator);
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::row::tests::clean;

    #[test]
    fn digits_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn the_table_is_aligned_and_fits() {
        let mut rows = clean();
        rows[0].counts.hits = 1_649_999;
        rows[0].rounds = 100_000;
        let table = of(&rows);
        let widths: Vec<usize> = table.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width <= 100), "{table}");
        let stale = table.lines().find_map(|line| line.find("stale")).unwrap() + "stale".len();
        let first = table.lines().find(|line| line.contains("no hooks")).unwrap();
        assert!(first[..stale].ends_with(" 198"), "{table}");
        assert!(table.lines().any(|line| line.contains("naive cache") && line.trim_end().ends_with('-')));
    }

    #[test]
    fn rows_that_were_cut_short_are_noted() {
        let mut rows = clean();
        rows[2].cut_short = true;
        let notes = notes(&rows, 2);
        assert!(notes.contains("pinyard on purging: the time limit"), "{notes}");
        assert!(super::notes(&clean(), 2).lines().all(|line| line.chars().count() <= 100));
    }
}
