//! What the environment asks for, by one table, which the book and `pinyard info` print.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use thiserror::Error;

/// What every name begins with.
pub const PREFIX: &str = "PINYARD_TRACE";

/// A variable.
#[derive(Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What it sets.
    pub meaning: &'static str,
    /// Which values it may have.
    pub allowed: &'static str,
    /// What holds where it is not set.
    pub default: &'static str,
}

/// All of them. They are not read by a program that runs with more rights than its caller
/// (`AT_SECURE`, getauxval(3)).
pub const TABLE: &[Setting] = &[
    Setting {
        name: "PINYARD_TRACE",
        meaning: "folder for the trace of each process; it is made if it is not there",
        allowed: "a path",
        default: "no trace",
    },
    Setting {
        name: "PINYARD_TRACE_EVENTS",
        meaning: "events that wait in memory to be written; 0: counters only",
        allowed: "0, or 1024 to 16777216",
        default: "65536",
    },
    Setting {
        name: "PINYARD_TRACE_MIB",
        meaning: "MiB at which the file of a process ends",
        allowed: "1 to 1048576",
        default: "1024",
    },
];

/// What they say.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// Where the files go.
    pub folder: PathBuf,
    /// Events of the ring, 88 bytes each; 0: nothing is recorded.
    pub events: usize,
    /// Bytes of a file at most.
    pub bytes: u64,
}

/// A variable that is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingError {
    /// There is no such variable.
    #[error("there is no variable {name}: there are {}", names())]
    Unknown {
        /// The name.
        name: String,
    },
    /// The value is not allowed.
    #[error("{name} is {value:?}: it must be {allowed}, or unset")]
    Value {
        /// The name.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

fn names() -> String {
    TABLE.iter().map(|setting| setting.name).collect::<Vec<_>>().join(", ")
}

impl Settings {
    /// From this process's environment; none if no trace is asked for, or the process runs
    /// with more rights than its caller.
    pub fn from_environment() -> Result<Option<Settings>, SettingError> {
        if crate::hooks::is_privileged() {
            return Ok(None);
        }
        Settings::from_variables(std::env::vars_os())
    }

    /// From variables, of which those that do not begin with [`PREFIX`] are none of ours.
    pub fn from_variables(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Option<Settings>, SettingError> {
        let mut folder = None;
        let mut settings = Settings { folder: PathBuf::new(), events: 1 << 16, bytes: 1 << 30 };
        for (name, value) in variables {
            let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
            let Some(row) = TABLE.iter().find(|row| row.name == name) else {
                return Err(SettingError::Unknown { name: name.to_owned() });
            };
            let Setting { name, allowed, .. } = *row;
            let text = value.to_string_lossy().into_owned();
            let within = |range: RangeInclusive<u64>| {
                text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| SettingError::Value {
                    name,
                    value: text.clone(),
                    allowed,
                })
            };
            match name {
                "PINYARD_TRACE_EVENTS" if text == "0" => settings.events = 0,
                "PINYARD_TRACE_EVENTS" => settings.events = within(1024..=1 << 24)? as usize,
                "PINYARD_TRACE_MIB" => settings.bytes = within(1..=1 << 20)? << 20,
                _ if value.is_empty() => return Err(SettingError::Value { name, value: text, allowed }),
                _ => folder = Some(PathBuf::from(value)),
            }
        }
        Ok(folder.map(|folder| Settings { folder, ..settings }))
    }
}

/// The table as the book has it.
pub fn markdown() -> String {
    let mut text = "| variable | values | default | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for Setting { name, meaning, allowed, default } in TABLE {
        text += &format!("| `{name}` | {allowed} | {default} | {meaning} |\n");
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Option<Settings>, SettingError> {
        Settings::from_variables(pairs.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn without_a_folder_there_is_no_trace() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("PINYARD_TRACE_EVENTS", "0"), ("HOME", "/")]), Ok(None));
        let set = of(&[("PINYARD_TRACE", "/x"), ("PINYARD_TRACE_MIB", "2")]).unwrap().unwrap();
        assert_eq!((set.folder, set.events, set.bytes), ("/x".into(), 65536, 2 << 20));
    }

    #[test]
    fn what_is_refused_is_named_with_what_is_allowed() {
        for (name, value) in [
            ("PINYARD_TRACE", ""),
            ("PINYARD_TRACE_EVENTS", "7"),
            ("PINYARD_TRACE_EVENTS", "many"),
            ("PINYARD_TRACE_MIB", "0"),
        ] {
            let text = of(&[(name, value)]).unwrap_err().to_string();
            assert!(text.starts_with(&format!("{name} is {value:?}: it must be ")), "{text}");
        }
        let text = of(&[("PINYARD_TRACE_FILE", "x")]).unwrap_err().to_string();
        assert!(text.contains("PINYARD_TRACE_FILE") && text.contains("PINYARD_TRACE_MIB"), "{text}");
    }
}
