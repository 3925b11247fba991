//! A picture of each benchmark, as SVG: a panel with lines where sizes vary, both axes
//! logarithmic, and dots for the cases that have no size. A thin line goes from a median
//! up to the 99th percentile.

use crate::bench::document::Document;
use crate::bench::number::{self, tick};
use crate::bench::row::{At, OURS, Row, Summary, Unit};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;

const WIDTH: u32 = 860;
const LEGEND: u32 = 24;
/// Of a figure's name, above the legend.
const TITLE: u32 = 36;
const PANEL: u32 = 290;
/// Of a case that has dots.
const LINE: u32 = 26;
/// Around the dots of a panel: its title and its axis.
const FRAME: u32 = 74;
/// Beside the dots, for the cases' names.
const NAMES: u32 = 330;
/// Between two labels of an axis at least.
const APART: f64 = 46.0;

/// Legible on white, and for eyes that mix red and green (Okabe and Ito, 2008): ours, and
/// the peers in the order of their first row.
const COLOURS: [RGBColor; 7] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(120, 120, 120),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(204, 121, 167),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
/// The drawing library's errors borrow nothing, but say so only of their text.
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// A file name and its SVG, for each benchmark of `document` that has figures.
///
/// # Errors
/// The drawing library's.
pub fn all(document: &Document) -> Outcome<Vec<(String, String)>> {
    let figures = document.rows.chunk_by(|a, b| a.benchmark == b.benchmark).filter_map(|rows| {
        let name = rows.first()?.benchmark.clone();
        Some(Figure::of(document, &name, rows).svg().map(|svg| (format!("{name}.svg"), svg)))
    });
    figures.collect()
}

/// The picture of one benchmark.
struct Figure<'a> {
    title: String,
    /// Names as in the rows, and with their versions.
    subjects: Vec<(&'a str, String)>,
    lines: Vec<Vec<&'a Row>>,
    dots: Vec<Vec<&'a Row>>,
}

impl<'a> Figure<'a> {
    fn of(document: &Document, name: &str, rows: &'a [Row]) -> Figure<'a> {
        let mut subjects: Vec<(&str, String)> = Vec::new();
        for subject in rows.iter().flat_map(|row| &row.of) {
            if !subjects.iter().any(|(known, _)| *known == subject.name) {
                subjects.push((&subject.name, document.named(&subject.name)));
            }
        }
        // Ours first, even where only a peer was in the first row.
        subjects.sort_by_key(|(name, _)| *name != OURS);
        let mut figure = Figure { title: name.to_owned(), subjects, lines: Vec::new(), dots: Vec::new() };
        for row in rows {
            let fellows = rows.iter().filter(|other| is_fellow(row, other)).count();
            let panels = if fellows > 1 { &mut figure.lines } else { &mut figure.dots };
            let belongs = |panel: &&mut Vec<&Row>| match fellows {
                0 | 1 => panel[0].unit == row.unit,
                _ => is_fellow(panel[0], row),
            };
            match panels.iter_mut().find(belongs) {
                Some(panel) => panel.push(row),
                None => panels.push(vec![row]),
            }
        }
        figure
    }

    fn svg(&self) -> Outcome<String> {
        let high = |rows: &[&Row]| FRAME + LINE * rows.len() as u32;
        let legend = self.legend();
        let lines_from = TITLE + LEGEND * (1 + legend.last().map_or(0, |(_, line)| *line));
        let dots_from = lines_from + PANEL * self.lines.len().div_ceil(2) as u32;
        let height = dots_from + self.dots.iter().map(|rows| high(rows)).sum::<u32>();
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            area.fill(&WHITE)?;
            self.draw_legend(&area, &legend)?;
            // A panel alone gets the whole width.
            let wide = if self.lines.len() == 1 { WIDTH } else { WIDTH / 2 };
            for (index, rows) in self.lines.iter().enumerate() {
                let at = ((index as u32 % 2) * wide, lines_from + (index as u32 / 2) * PANEL);
                self.panel(&area.clone().shrink(at, (wide, PANEL)), wide, rows)?;
            }
            let mut top = dots_from;
            for rows in &self.dots {
                self.cases(&area.clone().shrink((0, top), (WIDTH, high(rows))), rows)?;
                top += high(rows);
            }
            area.present()?;
        }
        Ok(svg)
    }

    /// Where each subject's name begins, and in which line.
    fn legend(&self) -> Vec<(u32, u32)> {
        let (mut at, mut line) = (16, 0);
        let place = |(_, name): &(&str, String)| {
            let wide = 24 + 8 * name.chars().count() as u32 + 16;
            if at + wide > WIDTH && at > 16 {
                (at, line) = (16, line + 1);
            }
            let here = (at, line);
            at += wide;
            here
        };
        self.subjects.iter().map(place).collect()
    }

    fn draw_legend(&self, area: &Area<'_>, places: &[(u32, u32)]) -> Drawn {
        area.draw(&Text::new(self.title.clone(), (16, 12), ("sans-serif", 20)))?;
        for (index, ((_, name), (at, line))) in self.subjects.iter().zip(places).enumerate() {
            let (colour, at, high) = (colour(index), *at as i32, (TITLE + LEGEND * line) as i32);
            area.draw(&PathElement::new([(at, high + 9), (at + 18, high + 9)], colour.stroke_width(3)))?;
            area.draw(&Circle::new((at + 9, high + 9), 4, colour.filled()))?;
            area.draw(&Text::new(name.clone(), (at + 24, high + 2), ("sans-serif", 14)))?;
        }
        Ok(())
    }

    /// Lines over the sizes of one case.
    fn panel(&self, area: &Area<'_>, wide: u32, rows: &[&Row]) -> Drawn {
        let Some((first, axis)) = rows.first().and_then(|row| Some((row, row.at?.axis))) else {
            return Ok(());
        };
        let threads = if first.threads > 1 { format!(", {} threads", first.threads) } else { String::new() };
        let sizes = Named::of_sizes(rows, f64::from(wide) - 110.0);
        let figures = Named::of_figures(rows, first.unit);
        let (x_names, y_names) = (sizes.clone(), figures.clone());
        let mut chart = ChartBuilder::on(area)
            .caption(format!("{}{threads}", first.case), ("sans-serif", 14))
            .margin(8)
            .margin_right(26)
            .x_label_area_size(44)
            .y_label_area_size(66)
            .build_cartesian_2d(sizes, figures)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_label_formatter(&|place| x_names.name(*place))
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .y_label_formatter(&|place| y_names.name(*place))
            .x_desc(axis.name())
            .label_style(("sans-serif", 12))
            .draw()?;
        let range = Figures::of(rows);
        for (index, (name, _)) in self.subjects.iter().enumerate() {
            let colour = colour(index);
            let of = |row: &&Row| Some((place(row.at?, rows), *row.summary(name)?));
            let points: Vec<(f64, Summary)> = rows.iter().filter_map(of).collect();
            chart.draw_series(points.iter().map(|&(x, of)| {
                PathElement::new([(x, range.at(of.median)), (x, range.at(of.p99))], colour.mix(0.5))
            }))?;
            let medians = points.iter().map(|&(x, of)| (x, range.at(of.median)));
            chart.draw_series(LineSeries::new(medians.clone(), colour.stroke_width(2)))?;
            chart.draw_series(medians.map(|at| Circle::new(at, 3, colour.filled())))?;
        }
        Ok(())
    }

    /// A line for each case that has no size, with a dot for each subject.
    fn cases(&self, area: &Area<'_>, rows: &[&Row]) -> Drawn {
        let Some(unit) = rows.first().map(|row| row.unit) else { return Ok(()) };
        let cases = Named::of_cases(rows);
        let figures = Named::of_figures(rows, unit);
        let (x_names, y_names) = (figures.clone(), cases.clone());
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(30)
            .x_label_area_size(44)
            .y_label_area_size(NAMES)
            .build_cartesian_2d(figures, cases)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .x_label_formatter(&|place| x_names.name(*place))
            .y_label_formatter(&|place| y_names.name(*place))
            .x_desc(number::unit(unit))
            .label_style(("sans-serif", 12))
            .draw()?;
        let range = Figures::of(rows);
        for (index, (name, _)) in self.subjects.iter().enumerate() {
            let colour = colour(index);
            let of = |(line, row): (usize, &&Row)| Some((line as f64, *row.summary(name)?));
            let points: Vec<(f64, Summary)> = rows.iter().enumerate().filter_map(of).collect();
            chart.draw_series(points.iter().map(|&(y, of)| {
                PathElement::new([(range.at(of.median), y), (range.at(of.p99), y)], colour.mix(0.5))
            }))?;
            let dots =
                points.iter().map(|&(y, of)| Circle::new((range.at(of.median), y), 4, colour.filled()));
            chart.draw_series(dots)?;
        }
        Ok(())
    }
}

/// Of the subject with this number.
fn colour(index: usize) -> RGBColor {
    COLOURS.get(index).copied().unwrap_or(BLACK)
}

/// An axis whose labels stand where there are figures.
#[derive(Clone)]
struct Named {
    /// Where, in the order of the axis, and the text there.
    labels: Vec<(f64, String)>,
    range: Range<f64>,
    /// The first label is at the end of the pixels: downwards, that is the top.
    reversed: bool,
}

impl Named {
    /// The sizes of `rows`, as far as `pixels` have room for their labels.
    fn of_sizes(rows: &[&Row], pixels: f64) -> Named {
        let mut sizes: Vec<At> = rows.iter().filter_map(|row| row.at).collect();
        sizes.sort_by_key(|at| at.value);
        let range = ends(sizes.iter().map(|at| place(*at, rows)));
        let apart = APART * (range.end - range.start) / pixels;
        let mut labels: Vec<(f64, String)> = Vec::new();
        for at in sizes {
            let here = place(at, rows);
            if labels.last().is_none_or(|(last, _)| here - last >= apart) {
                labels.push((here, tick(at)));
            }
        }
        Named { labels, range, reversed: false }
    }

    /// Round figures in the range of those of `rows`, more of them where it is narrow.
    fn of_figures(rows: &[&Row], unit: Unit) -> Named {
        let Figures(range) = Figures::of(rows);
        let steps: &[f64] = match range.end - range.start {
            decades if decades > 3.0 => &[1.0],
            decades if decades > 1.2 => &[1.0, 2.0, 5.0],
            decades if decades > 0.5 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
            _ => &[1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        };
        let powers = range.start.floor() as i32..=range.end.ceil() as i32;
        let places = powers.flat_map(|power| steps.iter().map(move |step| f64::from(power) + step.log10()));
        let labels = places.filter(|place| range.contains(place));
        let labels = labels.map(|place| (place, number::round(unit, 10f64.powf(place)))).collect();
        Named { labels, range, reversed: false }
    }

    /// A line for each case, the first one at the top.
    fn of_cases(rows: &[&Row]) -> Named {
        let name = |row: &Row| {
            let threads = if row.threads > 1 { format!(", {} threads", row.threads) } else { String::new() };
            let at = row.at.map_or_else(String::new, |at| format!(", {}", number::at(at)));
            format!("{}{threads}{at}", row.case)
        };
        let labels = rows.iter().enumerate().map(|(line, row)| (line as f64, name(row))).collect();
        Named { labels, range: -0.5..rows.len() as f64 - 0.5, reversed: true }
    }

    fn name(&self, place: f64) -> String {
        let label = self.labels.iter().find(|(here, _)| (here - place).abs() < 1e-9);
        label.map_or_else(String::new, |(_, name)| name.clone())
    }
}

impl ValueFormatter<f64> for Named {}

impl Ranged for Named {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        let part = if self.reversed { 1.0 - part } else { part };
        limit.0 + (f64::from(limit.1 - limit.0) * part).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.labels.iter().map(|(place, _)| *place).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// Whether both are points of the same line.
fn is_fellow(a: &Row, b: &Row) -> bool {
    let key = |row: &Row| row.at.map(|at| (at.axis, row.case.clone(), row.threads, row.unit));
    a.at.is_some() && key(a) == key(b)
}

/// The logarithm; nothing at all lies a decade before the least that is something.
fn place(at: At, rows: &[&Row]) -> f64 {
    let values = rows.iter().filter_map(|row| row.at).map(|at| at.value).filter(|value| *value > 0);
    let least = values.min().unwrap_or(1) as f64;
    if at.value == 0 { least.log10() - 1.0 } else { (at.value as f64).log10() }
}

/// The least and the greatest; half a decade around one value, a decade around none.
fn ends(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), x| (least.min(x), most.max(x)));
    match most - least {
        wide if wide > 0.0 => least..most,
        0.0 => least - 0.25..least + 0.25,
        _ => 0.0..1.0,
    }
}

/// The logarithms that an axis of figures shows, with some room.
struct Figures(Range<f64>);

impl Figures {
    fn of(rows: &[&Row]) -> Figures {
        let figures = rows.iter().flat_map(|row| &row.of).flat_map(|of| [of.summary.median, of.summary.p99]);
        let Range { start, end } = ends(figures.filter(|figure| *figure > 0.0).map(f64::log10));
        // What hardly differs is not to look as if it did.
        let room = (0.1f64).max((0.4 - (end - start)) / 2.0);
        Figures(start - room..end + room)
    }

    /// Where a figure lies; zero is at the lower end.
    fn at(&self, figure: f64) -> f64 {
        figure.log10().max(self.0.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::document::tests::hits;
    use crate::bench::row::Axis;

    #[test]
    fn a_picture_has_a_line_for_each_subject_and_a_label_for_each_size() {
        let pictures = all(&hits(27.5)).unwrap();
        assert_eq!(pictures.len(), 1);
        let (name, svg) = &pictures[0];
        assert_eq!(name, "cache.hit.svg");
        let lines = |colour: &str| {
            svg.lines().filter(|line| line.contains("<polyline") && line.contains(colour)).count()
        };
        // The line, the legend's, and whiskers up to the 99th percentile of three points.
        assert_eq!((lines("#D55E00"), lines("#0072B2")), (5, 5), "{svg}");
        for text in ["UCX 1.13.1", "pinyard", "get and release, 2 threads", "10k", "regions"] {
            assert!(svg.contains(text), "no {text} in {svg}");
        }
    }

    #[test]
    fn cases_without_a_size_get_dots_and_a_panel_for_each_unit() {
        let mut document = hits(27.5);
        document.rows.truncate(1);
        document.rows[0].at = None;
        let mut bytes = document.rows[0].clone().unit(Unit::Bytes);
        bytes.case = "a region".to_owned();
        document.rows.push(bytes);
        let (_, svg) = &all(&document).unwrap()[0];
        let dots = |colour: &str| {
            svg.lines().filter(|line| line.contains("<circle") && line.contains(colour)).count()
        };
        assert_eq!((dots("#D55E00"), dots("#0072B2")), (3, 3), "{svg}");
        assert!(svg.contains("a region") && svg.contains("bytes") && svg.contains("time"), "{svg}");
    }

    #[test]
    fn figures_of_zero_and_sizes_of_zero_are_drawn() {
        let mut document = hits(27.5);
        document.rows[0].at = Some(At { axis: Axis::Regions, value: 0 });
        document.rows[0].of[0].summary = Summary::counted(0.0);
        let (_, svg) = &all(&document).unwrap()[0];
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.contains(">\n0\n<"), "{svg}");
    }
}
