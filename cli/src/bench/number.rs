//! Figures as text, short enough for a column.

use crate::bench::row::{At, Axis, Unit};
use crate::text::grouped;

/// Three digits that count, or the whole number above a thousand, with commas.
pub fn plain(value: f64) -> String {
    match value {
        value if value >= 1000.0 => grouped(value.round() as u64),
        value if value >= 100.0 || value == 0.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 0.005 => format!("{value:.2}"),
        value => format!("{value:.1e}"),
    }
}

/// A figure with its unit, the time in the one that fits: `27.8 ns`, `3.99 ms`.
pub fn figure(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Nanoseconds => scaled(value, 1000.0, &["ns", "us", "ms", "s"]),
        Unit::Bytes => scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB"]),
        Unit::Registrations | Unit::Instructions | Unit::Failures => plain(value),
        Unit::Times | Unit::Calls => format!("{value:.2}"),
    }
}

/// The same of a round figure beside an axis: `20 ns`.
pub fn round(unit: Unit, value: f64) -> String {
    let text = figure(unit, value);
    let (number, name) = text.split_once(' ').map_or((text.as_str(), ""), |(number, name)| (number, name));
    let number = match number.contains('.') && !number.contains('e') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => number,
    };
    format!("{number} {name}").trim_end().to_owned()
}

fn scaled(value: f64, factor: f64, names: &[&str]) -> String {
    let mut value = value;
    let mut names = names.iter();
    let mut name = names.next();
    // 999.6 would be written as 1,000.
    while value >= factor - 0.5 && names.len() > 0 {
        value /= factor;
        name = names.next();
    }
    format!("{} {}", plain(value), name.unwrap_or(&""))
}

/// What a unit is called above a column or beside an axis.
pub fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Nanoseconds => "time",
        Unit::Bytes => "bytes",
        Unit::Registrations => "registrations",
        Unit::Instructions => "instructions",
        Unit::Failures => "failures",
        Unit::Calls => "calls",
        Unit::Times => "times",
    }
}

/// A point of an axis: `10,000 regions`, `64 KiB`.
pub fn at(at: At) -> String {
    match at.axis {
        Axis::Bytes => tick(at),
        axis if at.value == 1 => format!("1 {}", axis.name().trim_end_matches('s')),
        axis => format!("{} {}", grouped(at.value), axis.name()),
    }
}

/// The same beside an axis that is named: `10k`, `64 KiB`.
pub fn tick(At { axis, value }: At) -> String {
    match (axis, value) {
        (Axis::Bytes, _) => {
            let power = (63 - value.max(1).leading_zeros() as usize) / 10;
            let name = ["B", "KiB", "MiB", "GiB", "TiB"].get(power).unwrap_or(&"");
            let value = value as f64 / 1024f64.powi(power as i32);
            if value.fract() == 0.0 { format!("{value:.0} {name}") } else { format!("{value:.1} {name}") }
        }
        (_, value) if value >= 1_000_000 && value % 1_000_000 == 0 => format!("{}M", value / 1_000_000),
        (_, value) if value >= 1000 && value % 1000 == 0 => format!("{}k", value / 1000),
        (_, value) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_have_their_unit() {
        for (value, text) in [
            (27.84, "27.8 ns"),
            (8528.0, "8.53 us"),
            (3_986_686.0, "3.99 ms"),
            (12e9, "12.0 s"),
            (0.0, "0 ns"),
        ] {
            assert_eq!(figure(Unit::Nanoseconds, value), text);
        }
        assert_eq!(figure(Unit::Nanoseconds, 999.7), "1.00 us");
        let rounds = [(100.0, "100 ns"), (20.0, "20 ns"), (1.5, "1.5 ns"), (10e3, "10 us")];
        rounds.iter().for_each(|(value, text)| assert_eq!(round(Unit::Nanoseconds, *value), *text));
        assert_eq!(figure(Unit::Bytes, 122.1), "122 B");
        assert_eq!(figure(Unit::Registrations, 4096.0), "4,096");
    }

    #[test]
    fn points_are_named() {
        let of = |axis, value| (at(At { axis, value }), tick(At { axis, value }));
        assert_eq!(of(Axis::Regions, 1), ("1 region".into(), "1".into()));
        assert_eq!(of(Axis::Regions, 10_000), ("10,000 regions".into(), "10k".into()));
        assert_eq!(of(Axis::Bytes, 65_536), ("64 KiB".into(), "64 KiB".into()));
        assert_eq!(of(Axis::Bytes, 258_048), ("252 KiB".into(), "252 KiB".into()));
        assert_eq!(of(Axis::Pending, 100_064), ("100,064 pending invalidations".into(), "100064".into()));
    }
}
