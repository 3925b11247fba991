//! Values and how they are written.

use crate::pressure::Bound;
use std::path::PathBuf;

/// Bytes, or a part of the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes.
    Bytes(usize),
    /// Of the device's memory.
    Percent(u8),
}

impl From<Part> for Bound {
    fn from(part: Part) -> Bound {
        match part {
            Part::Bytes(bytes) => Bound::Bytes(bytes),
            Part::Percent(part) => Bound::Fraction(f64::from(part) / 100.0),
        }
    }
}

/// What kind of value a setting has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Bytes from, to.
    Bytes(u64, u64),
    /// Bytes at least, or a part.
    Part(u64),
    /// A number from, to; or 0.
    CountOrNone(u64, u64),
    Milliseconds(u64),
    Flag,
    /// One of two words.
    Choice(&'static [&'static str; 2]),
    Path,
}

pub(crate) enum Value {
    Number(u64),
    Part(Part),
    Flag(bool),
    Choice(usize),
    Path(PathBuf),
}

impl Kind {
    pub(crate) fn parse(self, text: &str) -> Option<Value> {
        let within = |number: u64, least, most| (least..=most).contains(&number).then_some(number);
        match self {
            Kind::Bytes(least, most) => within(bytes(text)?, least, most).map(Value::Number),
            Kind::Part(least) => match text.strip_suffix('%') {
                Some(part) => {
                    let part = part.trim().parse().ok().filter(|part| (1..=100).contains(part))?;
                    Some(Value::Part(Part::Percent(part)))
                }
                None => {
                    within(bytes(text)?, least, MOST).map(|bytes| Value::Part(Part::Bytes(bytes as usize)))
                }
            },
            Kind::CountOrNone(least, most) => {
                let number = text.parse().ok()?;
                if number == 0 {
                    Some(Value::Number(0))
                } else {
                    within(number, least, most).map(Value::Number)
                }
            }
            Kind::Milliseconds(most) => within(text.parse().ok()?, 0, most).map(Value::Number),
            Kind::Flag => match text {
                "0" => Some(Value::Flag(false)),
                "1" => Some(Value::Flag(true)),
                _ => None,
            },
            Kind::Choice(words) => words.iter().position(|&word| word == text).map(Value::Choice),
            Kind::Path => (!text.is_empty() && !text.contains('\0')).then(|| Value::Path(text.into())),
        }
    }

    pub(crate) fn allowed(self) -> String {
        const UNITS: &str = "with K, M, G or T for powers of 1024";
        match self {
            Kind::Bytes(least, most) => format!("bytes from {least} to {most}, {UNITS}"),
            Kind::Part(least) => format!("bytes from {least}, {UNITS}, or 1% to 100% of what there is"),
            Kind::CountOrNone(least, most) => format!("0 for none, or {least} to {most}"),
            Kind::Milliseconds(most) => format!("milliseconds, 0 to {most}"),
            Kind::Flag => "0 or 1".to_owned(),
            Kind::Choice([one, two]) => format!("{one} or {two}"),
            Kind::Path => "a path".to_owned(),
        }
    }
}

/// More than any device has; no sum of two overflows.
pub(crate) const MOST: u64 = 1 << 46;

/// `64M`, `64MiB`, `64m` and `67108864` alike.
fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}
