//! What the command says. Names of hosts, variables, paths, other programs' words and saved
//! files may hold what a terminal would obey: none of it gets there.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::fmt::Display;
use std::io::{self, Write};

/// `text` with its control characters as JSON writes them, `\u001b`: nothing is left that
/// moves a cursor, and a document stays what it was.
pub(crate) fn visible(text: &str) -> String {
    escaped(text, &[])
}

/// `value` with all its texts [`visible`].
pub(crate) fn shown<T: Serialize + DeserializeOwned>(value: &T) -> serde_json::Result<T> {
    fn texts(value: Value) -> Value {
        match value {
            Value::String(text) => visible(&text).into(),
            Value::Array(values) => values.into_iter().map(texts).collect(),
            Value::Object(map) => map.into_iter().map(|(key, value)| (visible(&key), texts(value))).collect(),
            other => other,
        }
    }
    serde_json::from_value(texts(serde_json::to_value(value)?))
}

fn escaped(text: &str, kept: &[char]) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() && !kept.contains(&letter) {
            true => safe += &format!("\\u{:04x}", u32::from(letter)),
            false => safe.push(letter),
        }
    }
    safe
}

/// What lays out pages and documents.
const LAYOUT: [char; 2] = ['\n', '\t'];

/// Prints lines on stdout, with what is not ours made visible.
pub(crate) fn print(text: impl Display) {
    print_painted(escaped(&text.to_string(), &LAYOUT));
}

/// Prints lines on stdout that have colours; what is not ours is [`visible`] already. A
/// reader that has gone (`pinyard info | head`) wants no more; any other failure ends the
/// command, whose whole product it is.
pub(crate) fn print_painted(text: impl Display) {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(format_args!("pinyard: write to stdout: {error}"));
            std::process::exit(2);
        }
        _ => {}
    }
}

/// Says lines on stderr, with what is not ours made visible. A stderr that is closed has
/// nobody to tell.
pub(crate) fn complain(text: impl Display) {
    let _ = writeln!(io::stderr(), "{}", escaped(&text.to_string(), &LAYOUT));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_of_it() {
        let hostile = "a\u{1b}[2J\u{7}\u{9b}31m\r\n\u{7f}é";
        assert_eq!(visible(hostile), "a\\u001b[2J\\u0007\\u009b31m\\u000d\\u000a\\u007fé");
        assert_eq!(escaped("a\tb\nc\r", &LAYOUT), "a\tb\nc\\u000d");
    }

    #[test]
    fn a_document_stays_what_it_was() {
        let value = serde_json::json!({ "host": "a\u{9b}31m\u{1b}\n\u{7f}" });
        let printed = escaped(&format!("{value:#}"), &LAYOUT);
        assert!(printed.chars().all(|letter| letter == '\n' || !letter.is_control()));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&printed).ok(), Some(value));
    }
}
