//! The plots over time.

use crate::stress::plot::{Line, Mark, Plot};
use crate::stress::record::Run;
use crate::stress::series::Point;
use crate::text::{self, escaped};

/// How far a line may go without a point; a longer gap is drawn as it is.
type Value = fn(&Point) -> f64;

struct Figure {
    title: &'static str,
    unit: &'static str,
    lines: &'static [(&'static str, Value)],
    write: fn(f64) -> String,
    filled: bool,
}

fn number(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} M", short(value / 1e6)),
        value if value >= 1e4 => format!("{} k", short(value / 1e3)),
        value => short(value),
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn megabytes(value: f64) -> String {
    short(value / 1e6)
}

const FIGURES: [Figure; 6] = [
    Figure {
        title: "Operations",
        unit: "per second",
        lines: &[("operations", |point| point.steps)],
        write: number,
        filled: true,
    },
    Figure {
        title: "Messages checked",
        unit: "MB per second, all ranks",
        lines: &[("bytes", |point| point.bytes)],
        write: megabytes,
        filled: true,
    },
    Figure {
        title: "Lookups",
        unit: "per second, all ranks",
        lines: &[("hits", |point| point.hits), ("misses", |point| point.misses)],
        write: number,
        filled: false,
    },
    Figure {
        title: "Invalidations",
        unit: "per second, all ranks",
        lines: &[("invalidations", |point| point.invalidations)],
        write: number,
        filled: true,
    },
    Figure {
        title: "Pinned memory",
        unit: "MB, sum of the ranks",
        lines: &[("pinned", |point| point.pinned as f64)],
        write: megabytes,
        filled: true,
    },
    Figure {
        title: "Time of a registration",
        unit: "upper bounds within twice the time",
        lines: &[("median", |point| point.register_p50_us), ("99 %", |point| point.register_p99_us)],
        write: |us| if us > 0.0 { text::microseconds(us) } else { "0".to_owned() },
        filled: false,
    },
];

/// The plots, or nothing where there are no samples.
pub(super) fn section(
    run: &Run,
    series: &[Point],
) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let Some(last) = series.last() else { return Ok(String::new()) };
    let marks = marks(run);
    let mut figures = String::new();
    for figure in &FIGURES {
        let lines = figure.lines.iter().map(|&(name, value)| Line {
            name,
            points: series.iter().map(|point| (point.at, value(point))).collect(),
        });
        let plot = Plot {
            lines: lines.collect(),
            marks: &marks,
            seconds: last.at,
            write: figure.write,
            filled: figure.filled,
        };
        let legend: String = match &plot.lines[..] {
            [_] => String::new(),
            lines => {
                let entry = |(index, line): (usize, &Line<'_>)| {
                    format!("<span><i class=\"{}\"></i>{}</span>", ["", "two"][index % 2], escaped(line.name))
                };
                lines.iter().enumerate().map(entry).collect()
            }
        };
        figures += &format!(
            "<figure class=\"card\"><figcaption>{} <span>{}</span>{legend}</figcaption>{}</figure>\n",
            figure.title,
            figure.unit,
            plot.svg()?
        );
    }
    Ok(format!("<h2>Over time</h2>\n<div class=\"plots\">\n{figures}</div>"))
}

/// Faults and the longest stalls, those of several ranks at one time once.
fn marks(run: &Run) -> Vec<Mark> {
    const MOST: usize = 6;
    const APART: f64 = 1.0;
    let faults = run.ranks.iter().flat_map(|rank| &rank.injected).map(|injected| Mark {
        from: injected.at,
        until: injected.at,
        label: "fault".to_owned(),
    });
    let stalls = run.ranks.iter().flat_map(|rank| &rank.stalls).map(|stall| Mark {
        from: stall.at,
        until: stall.at + stall.seconds,
        label: format!("stall, {:.1} s", stall.seconds),
    });
    let mut stalls: Vec<Mark> = stalls.collect();
    stalls.sort_by(|a, b| (b.until - b.from).total_cmp(&(a.until - a.from)));
    let mut marks: Vec<Mark> = Vec::new();
    for mark in faults.chain(stalls) {
        let near = |other: &Mark| mark.from < other.until + APART && other.from < mark.until + APART;
        if marks.len() < MOST && !marks.iter().any(near) {
            marks.push(mark);
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_short() {
        assert_eq!(
            (number(12_500.0), number(2.5), number(1e6)),
            ("12.5 k".into(), "2.5".into(), "1 M".into())
        );
        assert_eq!(megabytes(250e6), "250");
    }
}
