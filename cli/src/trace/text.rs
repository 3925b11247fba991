//! Numbers and names as text.

use std::path::Path;

/// `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
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
pub(crate) fn counted(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{} {what}s", grouped(number)) }
}

pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A duration with three digits.
pub(crate) fn time(ns: u64) -> String {
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
pub(crate) fn escaped(text: &str) -> String {
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
pub(crate) fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().map(visible).collect()
}

/// Some of a name that may be of any length.
pub(crate) fn short(text: &str) -> String {
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
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(
            (bytes(17), bytes(1536), bytes(5 << 30)),
            ("17 B".into(), "1.5 KiB".into(), "5.0 GiB".into())
        );
        assert_eq!(
            (time(999), time(1500), time(12_340_000)),
            ("999 ns".into(), "1.50 µs".into(), "12.3 ms".into())
        );
        assert_eq!(short(&"x".repeat(100)).chars().count(), 81);
        assert_eq!(escaped("<b a='1'>&"), "&lt;b a=&#39;1&#39;&gt;&amp;");
    }
}
