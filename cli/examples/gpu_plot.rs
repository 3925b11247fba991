//! Time over bytes for each path, and bandwidth over bytes, all on logarithmic scales, from the
//! JSON lines that gpu-bandwidth writes: two SVG files for an operation.
//!
//! ```sh
//! # mpi-gpu-bcast-2.svg, mpi-gpu-bcast-2-bandwidth.svg and the like
//! cargo run --release -p pinyard-cli --example gpu_plot -- docs/benchmarks/mpi-gpu/2-bandwidth-aware.jsonl docs/src
//! ```

use plotters::prelude::*;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::error::Error;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

/// A line of the measurement: other members are not for the plot.
#[derive(Deserialize)]
struct Row {
    operation: String,
    path: String,
    ranks: u32,
    bytes: f64,
    median_us: f64,
}

/// Paths in the order of the legend, with their colours: legible on white, and for eyes
/// that mix red and green (Okabe and Ito, 2008).
const PATHS: [(&str, &str, RGBColor); 5] = [
    ("copy-then-mpi", "copy, MPI on the host, copy", RGBColor(120, 120, 120)),
    ("staged", "pinyard, staged", RGBColor(230, 159, 0)),
    ("ipc", "pinyard, ipc", RGBColor(213, 94, 0)),
    ("direct", "pointer to MPI (UCX for CUDA)", RGBColor(0, 114, 178)),
    ("nccl", "NCCL", RGBColor(0, 158, 115)),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, folder] = &arguments[..] else {
        eprintln!("usage: gpu_plot FILE.jsonl FOLDER");
        return ExitCode::from(2);
    };
    match plot(input, Path::new(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_plot: {input}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn plot(input: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut operations: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for line in std::fs::read_to_string(input)?.lines() {
        let row: Row = serde_json::from_str(line)?;
        operations.entry(row.operation.clone()).or_default().push(row);
    }
    for (operation, rows) in operations {
        let ranks = rows.first().map_or(0, |row| row.ranks);
        for of in [Of::Time, Of::Bandwidth] {
            let file = folder.join(format!("mpi-gpu-{operation}-{ranks}{}.svg", of.suffix()));
            std::fs::write(&file, svg(&operation, &rows, of)?)?;
            println!("{}", file.display());
        }
    }
    Ok(())
}

/// What is over the length.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Time,
    Bandwidth,
}

impl Of {
    fn suffix(self) -> &'static str {
        if self == Of::Time { "" } else { "-bandwidth" }
    }

    fn title(self) -> &'static str {
        if self == Of::Time { "median time" } else { "length by median time" }
    }

    /// Microseconds, or gigabytes (of 10^9) in a second.
    fn value(self, row: &Row) -> f64 {
        if self == Of::Time { row.median_us } else { row.bytes / row.median_us / 1e3 }
    }

    fn label(self, value: &f64) -> String {
        if self == Of::Time { time(value) } else { format!("{value} GB/s") }
    }
}

/// From the power of ten below the least to the one above the greatest.
fn decades(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) =
        values.fold((f64::MAX, 0f64), |(least, most), value| (least.min(value), most.max(value)));
    10f64.powf(least.log10().floor())..10f64.powf(most.log10().ceil())
}

fn bytes(count: &f64) -> String {
    match *count {
        count if count >= 1e9 => format!("{} GB", count / 1e9),
        count if count >= 1e6 => format!("{} MB", count / 1e6),
        count if count >= 1e3 => format!("{} kB", count / 1e3),
        count => format!("{count} B"),
    }
}

fn time(micros: &f64) -> String {
    match *micros {
        micros if micros >= 1e6 => format!("{} s", micros / 1e6),
        micros if micros >= 1e3 => format!("{} ms", micros / 1e3),
        micros => format!("{micros} us"),
    }
}

fn svg(operation: &str, rows: &[Row], of: Of) -> Result<String, Box<dyn Error>> {
    let ranks = rows.first().map_or(0, |row| row.ranks);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (760, 460)).into_drawing_area();
        area.fill(&WHITE)?;
        let x = decades(rows.iter().map(|row| row.bytes));
        // A bandwidth of less than 10 MB/s is a latency, which is the other plot's.
        let least = if of == Of::Time { 0.0 } else { 0.01 };
        let y = decades(rows.iter().map(|row| of.value(row).max(least)));
        let title = format!("{operation} of device memory, {ranks} ranks: {}", of.title());
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .margin_right(36)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(x.log_scale(), y.log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .x_label_formatter(&bytes)
            .y_label_formatter(&|value| of.label(value))
            .x_desc("length")
            .label_style(("sans-serif", 13))
            .draw()?;
        for (path, name, colour) in PATHS {
            let points: Vec<(f64, f64)> = rows
                .iter()
                .filter(|row| row.path == path && of.value(row) >= least)
                .map(|row| (row.bytes, of.value(row)))
                .collect();
            if points.is_empty() {
                continue;
            }
            let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3);
            chart
                .draw_series(line)?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], colour.stroke_width(3)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.9))
            .border_style(BLACK.mix(0.3))
            .legend_area_size(30)
            .label_font(("sans-serif", 13))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_a_line_for_each_path_that_was_measured() {
        let row = |path: &str, bytes, median_us| Row {
            operation: "bcast".to_owned(),
            path: path.to_owned(),
            ranks: 2,
            bytes,
            median_us,
        };
        let rows =
            [row("ipc", 4.0, 10.0), row("ipc", 1e6, 20.0), row("nccl", 4.0, 15.0), row("nccl", 1e6, 30.0)];
        let svg = svg("bcast", &rows, Of::Time).unwrap();
        assert!(svg.contains("pinyard, ipc") && svg.contains("NCCL") && !svg.contains("staged"));
        assert!(svg.contains("bcast of device memory, 2 ranks"));
        let lines = |colour: &'static str| {
            svg.lines().filter(move |line: &&str| line.contains("<polyline") && line.contains(colour))
        };
        // The line, and the legend's.
        assert_eq!((lines("#D55E00").count(), lines("#009E73").count(), lines("#E69F00").count()), (2, 2, 0));
    }

    #[test]
    fn a_bandwidth_is_length_by_time_and_a_latency_is_left_out() {
        let row = |bytes, median_us| Row {
            operation: "bcast".to_owned(),
            path: "ipc".to_owned(),
            ranks: 2,
            bytes,
            median_us,
        };
        let (short, long) = (row(4.0, 10.0), row(1e9, 2500.0));
        assert_eq!((Of::Bandwidth.value(&long), Of::Bandwidth.label(&100.0)), (400.0, "100 GB/s".to_owned()));
        let svg = svg("bcast", &[short, long], Of::Bandwidth).unwrap();
        assert!(svg.contains("length by median time") && svg.contains("1000 GB/s"));
        // One point is left: no line, but the legend's.
        assert_eq!(svg.matches("<circle").count(), 1);
    }

    #[test]
    fn axes_end_at_powers_of_ten() {
        assert_eq!(decades([11.0, 999.0].into_iter()), 10.0..1000.0);
        assert_eq!((bytes(&1e6), time(&1e3)), ("1 MB".to_owned(), "1 ms".to_owned()));
    }
}
