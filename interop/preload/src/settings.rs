//! What the environment says. Read when work begins, so a program that uses neither
//! libfabric nor UCX is never told of a misspelt variable.

use crate::say::say;
use std::ffi::OsStr;
use std::sync::OnceLock;

/// How much is said.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Level {
    Off,
    /// What is not as asked for.
    Error,
    /// What was found and is done.
    Info,
    /// And at the end what came of it.
    Debug,
}

/// What UCX is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ucx {
    Nothing,
    /// What its own hooks no longer hear.
    Auto,
    /// All that our hooks see: it needs no hooks of its own.
    Everything,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) on: bool,
    pub(crate) libfabric: bool,
    pub(crate) ucx: Ucx,
    pub(crate) log: Level,
}

const SWITCH: &[(&str, bool)] =
    &[("1", true), ("on", true), ("yes", true), ("0", false), ("off", false), ("no", false)];
const LEVELS: &[(&str, Level)] =
    &[("off", Level::Off), ("error", Level::Error), ("info", Level::Info), ("debug", Level::Debug)];
const UCX: &[(&str, Ucx)] = &[
    ("auto", Ucx::Auto),
    ("1", Ucx::Everything),
    ("on", Ucx::Everything),
    ("0", Ucx::Nothing),
    ("off", Ucx::Nothing),
];
/// Whether this library has the mechanism: the others are for registries.
const HOOKS: &[(&str, bool)] = &[("entry", true), ("userfaultfd", false), ("notify", false)];

/// The value that `words` have for what `variable` says; `None` where it says nothing.
fn find<T: Copy>(
    value: Option<&OsStr>,
    variable: &str,
    words: &[(&str, T)],
    complaints: &mut Vec<String>,
) -> Option<T> {
    let value = value.filter(|value| !value.is_empty())?.to_string_lossy();
    let found = words.iter().find(|(word, _)| *word == value);
    if found.is_none() {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        complaints.push(format!("{variable} is '{value}', not one of {}: ignored", known.join(", ")));
    }
    found.map(|(_, meaning)| *meaning)
}

fn read(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> (Settings, Vec<String>) {
    let mut complaints = Vec::new();
    let mut switch =
        |name: &str| find(variable(name).as_deref(), name, SWITCH, &mut complaints).unwrap_or(true);
    let (on, libfabric) = (switch("PINYARD_PRELOAD"), switch("PINYARD_LIBFABRIC"));
    let ucx = find(variable("PINYARD_UCX").as_deref(), "PINYARD_UCX", UCX, &mut complaints);
    let log = find(variable("PINYARD_LOG").as_deref(), "PINYARD_LOG", LEVELS, &mut complaints);
    let hooks = variable("PINYARD_HOOKS");
    if find(hooks.as_deref(), "PINYARD_HOOKS", HOOKS, &mut complaints) == Some(false) {
        complaints
            .push("PINYARD_HOOKS is for registries: this library patches entries all the same".to_owned());
    }
    let settings =
        Settings { on, libfabric, ucx: ucx.unwrap_or(Ucx::Auto), log: log.unwrap_or(Level::Error) };
    (settings, complaints)
}

/// The process's settings, read at the first call, which complains of what it cannot
/// read. Of two threads that come first both read, and none waits.
pub(crate) fn settings() -> Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    if let Some(settings) = SETTINGS.get() {
        return *settings;
    }
    let heeded = |name: &str| if pinyard_hooks::is_privileged() { None } else { std::env::var_os(name) };
    let (settings, complaints) = read(heeded);
    if SETTINGS.set(settings).is_ok() {
        for complaint in complaints {
            say(Level::Error, format_args!("{complaint}"));
        }
    }
    settings
}
