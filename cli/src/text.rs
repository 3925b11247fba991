//! Numbers and names as people read them.

use std::path::Path;

/// `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index != 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 node`, `2 nodes`.
pub fn counted(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{} {what}s", grouped(number)) }
}

/// Bytes with a unit of 1024s: `812 B`, `64 KiB`, `1.4 MiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (number as f64, 0);
    // 1023.96 would be written as 1024.0.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let value = format!("{value:.1}");
    format!("{} {}", value.trim_end_matches(".0"), UNITS[unit])
}

/// `hits` of `hits + misses` in percent.
pub fn percent(hits: u64, misses: u64) -> String {
    match hits + misses {
        0 => "–".to_owned(),
        all => format!("{:.1} %", 100.0 * hits as f64 / all as f64),
    }
}

/// Microseconds with a unit: `3.1 µs`, `12 ms`.
pub fn microseconds(us: f64) -> String {
    match us {
        us if us <= 0.0 => "–".to_owned(),
        us if us < 10.0 => format!("{us:.1} µs"),
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e4 => format!("{:.1} ms", us / 1e3),
        us if us < 1e6 => format!("{:.0} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// A duration with three digits.
pub fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// Text in HTML.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            _ => safe.push(letter),
        }
    }
    safe
}

fn visible(letter: char) -> char {
    if letter.is_control() { '\u{fffd}' } else { letter }
}

/// A path, in one line, whatever others have named their files.
pub fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().map(visible).collect()
}

/// Some of a name that may be of any length.
pub fn short(text: &str) -> String {
    const MOST: usize = 80;
    let mut short: String = text.chars().take(MOST).map(visible).collect();
    if text.chars().nth(MOST).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_legible() {
        assert_eq!((grouped(7), grouped(1_234_567)), ("7".into(), "1,234,567".into()));
        assert_eq!((counted(1, "rank"), counted(2000, "rank")), ("1 rank".into(), "2,000 ranks".into()));
        for (number, text) in [
            (0, "0 B"),
            (812, "812 B"),
            (1536, "1.5 KiB"),
            (65536, "64 KiB"),
            ((1 << 20) - 1, "1 MiB"),
            (3 << 29, "1.5 GiB"),
            (10 << 30, "10 GiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
        assert_eq!((percent(1, 3), percent(0, 0)), ("25.0 %".into(), "–".into()));
        assert_eq!((microseconds(3.25), microseconds(12_000.0)), ("3.2 µs".into(), "12 ms".into()));
        assert_eq!(
            (time(999), time(1500), time(12_340_000)),
            ("999 ns".into(), "1.50 µs".into(), "12.3 ms".into())
        );
        assert_eq!(short(&"x".repeat(100)).chars().count(), 81);
        assert_eq!(escaped("<b a='1'>&"), "&lt;b a=&#39;1&#39;&gt;&amp;");
    }
}
