//! What the environment says.

use std::ffi::OsString;

/// A variable; none where the program runs with more rights than its caller, as for all of
/// pinyard.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    if pinyard_hooks::is_privileged() { None } else { std::env::var_os(name) }
}

/// The same as text; what is none counts as its lossy form, which no setting takes.
pub(crate) fn text(name: &str) -> Option<String> {
    variable(name).map(|value| value.to_string_lossy().into_owned())
}
