//! Plots over time, as SVG that takes its colours from the page: each colour here is a
//! token that the page's style replaces, in light and in dark.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

/// Colours as they stand in the SVG; `page.css` has a rule for each.
const TEXT: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(2, 2, 2);
const MARK: RGBColor = RGBColor(3, 3, 3);
const LINES: [RGBColor; 2] = [RGBColor(4, 4, 4), RGBColor(5, 5, 5)];

const SIZE: (u32, u32) = (520, 230);

/// A line of a plot.
pub struct Line<'a> {
    /// What it is, for the legend.
    pub name: &'a str,
    /// Seconds and values.
    pub points: Vec<(f64, f64)>,
}

/// A moment or a time to be marked.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// Seconds.
    pub from: f64,
    /// Seconds; the same for a moment.
    pub until: f64,
    /// A word.
    pub label: String,
}

/// A plot: at most two lines over the same axis from 0.
pub struct Plot<'a> {
    /// The lines.
    pub lines: Vec<Line<'a>>,
    /// Common to all plots of the page.
    pub marks: &'a [Mark],
    /// The time axis ends here.
    pub seconds: f64,
    /// How a value is written.
    pub write: fn(f64) -> String,
    /// The first line's area is filled.
    pub filled: bool,
}

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

impl Plot<'_> {
    /// The plot, an `svg` element without a legend.
    ///
    /// # Errors
    /// The drawing library's.
    pub fn svg(&self) -> Outcome<String> {
        let mut svg = String::new();
        self.draw(&SVGBackend::with_string(&mut svg, SIZE).into_drawing_area())
            .map_err(|error| error.to_string())?;
        let scales = format!("viewBox=\"0 0 {} {}\" preserveAspectRatio=\"xMidYMid meet\"", SIZE.0, SIZE.1);
        let fixed =
            format!("width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\"", SIZE.0, SIZE.1, SIZE.0, SIZE.1);
        Ok(svg.replacen(&fixed, &scales, 1))
    }

    fn draw(
        &self,
        area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    ) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>> {
        let highest = self.lines.iter().flat_map(|line| &line.points).map(|&(_, y)| y).fold(0.0, f64::max);
        let (top, step) = scale(highest);
        let mut chart = ChartBuilder::on(area)
            .margin_top(14)
            .margin_right(14)
            .x_label_area_size(24)
            .y_label_area_size(66)
            .build_cartesian_2d(0.0..self.seconds.max(0.5), Axis { top, step })?;
        let (write, font) = (self.write, ("sans-serif", 12).into_font());
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(7)
            .x_label_formatter(&|at| {
                if at.fract() == 0.0 { format!("{at:.0} s") } else { format!("{at:.1} s") }
            })
            .y_label_formatter(&|value| write(*value))
            .label_style(font.clone().color(&TEXT))
            .axis_style(GRID)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for mark in self.marks {
            let until = mark.until.max(mark.from + self.seconds * 0.002);
            let band = [(mark.from, 0.0), (until, top)];
            chart.draw_series(std::iter::once(Rectangle::new(band, MARK.mix(0.25).filled())))?;
            let style = font.clone().color(&MARK).pos(Pos::new(HPos::Left, VPos::Bottom));
            let label = Text::new(mark.label.clone(), (mark.from, top), style);
            chart.plotting_area().draw(&label)?;
        }
        for (line, colour) in self.lines.iter().zip(LINES) {
            let points = || line.points.iter().copied();
            if self.filled {
                chart.draw_series(AreaSeries::new(points(), 0.0, colour.mix(0.18)))?;
            }
            chart.draw_series(LineSeries::new(points(), colour.stroke_width(2)))?;
        }
        area.present()
    }
}

/// The first round number above `highest`, and a step that divides it into few parts.
fn scale(highest: f64) -> (f64, f64) {
    if highest.is_nan() || highest <= 0.0 || highest.is_infinite() {
        return (1.0, 1.0);
    }
    let power = 10f64.powf((highest / 4.0).log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power).into_iter();
    let step = step.filter(|step| (highest / step).ceil() <= 5.0).fold(f64::INFINITY, f64::min);
    let step = if step.is_finite() { step } else { 10.0 * power };
    ((highest / step).ceil() * step, step)
}

/// From 0 to `top`, a line at every `step`.
struct Axis {
    top: f64,
    step: f64,
}

impl ValueFormatter<f64> for Axis {}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + ((limit.1 - limit.0) as f64 * value / self.top) as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        (0..=(self.top / self.step).round() as u32).map(|index| f64::from(index) * self.step).collect()
    }

    fn range(&self) -> Range<f64> {
        0.0..self.top
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_on_round_numbers_above_the_highest_value() {
        for highest in [0.3, 1.0, 7.0, 99.0, 101.0, 1234.0, 1e9] {
            let (top, step) = scale(highest);
            assert!(top >= highest && top <= 1.7 * highest, "{highest}: {top}");
            assert!((2.0..=5.0).contains(&(top / step).round()), "{highest}: {top} by {step}");
        }
        assert_eq!(scale(0.0), (1.0, 1.0));
    }

    #[test]
    fn a_plot_has_its_lines_marks_and_no_size_of_its_own() {
        let mark = Mark { from: 3.0, until: 5.0, label: "cut".into() };
        let plot = Plot {
            lines: vec![Line { name: "steps", points: vec![(0.0, 1.0), (9.0, 4.0)] }],
            marks: &[mark],
            seconds: 9.0,
            write: |value| format!("{value:.0}"),
            filled: true,
        };
        let svg = plot.svg().unwrap();
        assert!(svg.starts_with("<svg viewBox=") && svg.contains("cut") && svg.contains("#040404"), "{svg}");
        let empty = Plot { lines: vec![], marks: &[], seconds: 0.0, ..plot };
        assert!(empty.svg().unwrap().contains("</svg>"));
    }
}
