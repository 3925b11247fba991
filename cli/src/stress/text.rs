//! Numbers as people read them.

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

/// Bytes with a unit of 1024s: `812 B`, `1.4 MiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let (mut value, mut unit) = (number as f64 / 1024.0, 0);
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
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

/// `hits` of `hits + misses` in percent.
pub fn percent(hits: u64, misses: u64) -> String {
    match hits + misses {
        0 => "–".to_owned(),
        all => format!("{:.1} %", 100.0 * hits as f64 / all as f64),
    }
}

/// `1 message`, `3 messages`.
pub fn counted(number: u64, one: &str) -> String {
    format!("{} {one}{}", grouped(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!((grouped(7), grouped(1_234_567)), ("7".into(), "1,234,567".into()));
        assert_eq!(
            (bytes(812), bytes(1 << 20), bytes((1 << 20) - 1)),
            ("812 B".into(), "1.0 MiB".into(), "1.0 MiB".into())
        );
        assert_eq!((microseconds(3.25), microseconds(12_000.0)), ("3.2 µs".into(), "12 ms".into()));
        assert_eq!((percent(1, 3), percent(0, 0)), ("25.0 %".into(), "–".into()));
        assert_eq!((counted(1, "rank"), counted(2, "rank")), ("1 rank".into(), "2 ranks".into()));
    }
}
