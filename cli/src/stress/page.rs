//! The report as one HTML page: nothing is fetched, and it follows the reader's choice
//! of light or dark.

mod plots;
mod tables;

use crate::stress::document::SCHEMA;
use crate::stress::options::word;
use crate::stress::record::{Rank, Run};
use crate::stress::series::Point;
use crate::stress::verdict::Verdict;
use crate::text::{bytes, escaped, grouped, percent};

/// The page's style.
const STYLE: &str = include_str!("page.css");

/// The page of a run.
///
/// # Errors
/// A plot could not be drawn.
pub fn of(
    run: &Run,
    verdict: &Verdict,
    series: &[Point],
) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let parts = [
        heading(run),
        self::verdict(verdict),
        figures(run),
        plots::section(run, series)?,
        tables::operations(run),
        tables::ranks(run),
        tables::changes(run),
        tables::events(run),
        tables::machines(run),
        tables::options(run),
        foot(run),
    ];
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>pinyard stress, seed {}</title>\n\
         <style>\n{STYLE}</style>\n<main>\n{}\n</main>\n</html>\n",
        run.options.seed,
        parts.join("\n")
    ))
}

fn heading(run: &Run) -> String {
    let first = run.ranks.first();
    let hosts: std::collections::BTreeSet<&str> =
        run.ranks.iter().map(|rank| rank.machine.host.as_str()).filter(|host| !host.is_empty()).collect();
    let fault = run.options.fault.map_or_else(String::new, |fault| format!(", fault {}", word(&fault)));
    format!(
        "<h1>pinyard stress</h1>\n<p class=\"soft\">{} ranks on {}, {}, backend {}, allocator {}, seed {}{}</p>",
        run.ranks.len(),
        escaped(&hosts.into_iter().collect::<Vec<_>>().join(", ")),
        escaped(first.map_or("", |rank| &rank.mpi)),
        escaped(first.map_or("", |rank| &rank.backend)),
        escaped(first.map_or("", |rank| &rank.allocator)),
        run.options.seed,
        fault,
    )
}

fn verdict(verdict: &Verdict) -> String {
    let text = verdict.to_string();
    let mut lines = text.lines();
    let word = lines.next().unwrap_or_default();
    let items: String = lines.map(|line| format!("<li>{}</li>", escaped(line.trim()))).collect();
    let class = if verdict.is_clean() { "" } else { " bad" };
    let items = if items.is_empty() { items } else { format!("<ul>{items}</ul>") };
    format!("<div class=\"card verdict{class}\"><b>{word}</b>{items}</div>")
}

fn figures(run: &Run) -> String {
    let sum = |count: fn(&Rank) -> u64| run.ranks.iter().map(count).sum::<u64>();
    let steps = run.ranks.iter().map(|rank| rank.counts.steps).min().unwrap_or(0);
    let figures = [
        (grouped(steps), "steps, all ranks together"),
        (bytes(sum(|rank| rank.counts.bytes)), "of messages checked"),
        (grouped(sum(|rank| rank.counts.corrupt)), "messages not as sent"),
        (grouped(sum(|rank| rank.counts.stale)), "stale pages seen by the device"),
        (percent(sum(|rank| rank.counts.hits), sum(|rank| rank.counts.misses)), "of gets were hits"),
        (grouped(sum(|rank| rank.counts.invalidations)), "registrations invalidated"),
        (bytes(sum(|rank| rank.counts.peak_pinned)), "pinned at most, sum of the ranks"),
    ];
    let cards = figures.map(|(value, what)| {
        format!("<div class=\"card\"><b>{value}</b><span class=\"soft\">{what}</span></div>")
    });
    format!("<div class=\"figures\">{}</div>", cards.join(""))
}

fn foot(run: &Run) -> String {
    let command = run
        .launcher
        .as_ref()
        .map(|launcher| format!("<p>Started as <code>{}</code></p>", escaped(&launcher.command)));
    format!(
        "<h2>Reproduce</h2>\n<div class=\"card\">{}<p class=\"soft\">Plan {}, executed {}; schema {SCHEMA}, pinyard {}. \
         The plan is the same wherever seed, options and number of ranks are.</p></div>",
        command.unwrap_or_default(),
        escaped(run.ranks.first().map_or("", |rank| &rank.plan)),
        escaped(run.ranks.first().map_or("", |rank| &rank.executed)),
        env!("CARGO_PKG_VERSION"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stress::options::Options;
    use crate::stress::record::{Machine, Outcome, Sample, Wrong};
    use crate::stress::{series, verdict};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn the_page_is_whole_fetches_nothing_and_escapes_what_it_is_told() {
        let machine = Machine { host: "<script>".into(), ..Machine::default() };
        let wrong = Wrong { step: 3, at: 0.4, what: "byte 7 is <b>".into() };
        let mut rank = Rank { machine, outcome: Outcome::Completed, wrong: vec![wrong], ..Rank::default() };
        rank.counts.corrupt = 1;
        rank.samples = (1..20)
            .map(|n| Sample { at: 0.5 * f64::from(n), seconds: 0.5, steps: 9, ..Sample::default() })
            .collect();
        let run = Run { options: Line::parse_from(["x"]).options, launcher: None, ranks: vec![rank] };
        let page = of(&run, &verdict::of(&run), &series::of(&run.ranks)).unwrap();
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
        assert_eq!(page.matches("<svg").count(), 6);
        assert!(page.contains("WRONG BYTES") && page.contains("byte 7 is &lt;b&gt;"), "{page}");
        let elsewhere = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("http") && !page.contains("<script"), "{page}");
    }
}
