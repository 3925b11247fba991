//! Which mechanism tells of changes: what `PINYARD_HOOKS` may say.

/// A way of hearing of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Patched entries of the C library, whatever else the process contains.
    Entry,
    /// userfaultfd for every registration, no patched entry.
    Userfaultfd,
    /// Nothing but `notify_unmapped` and `invalidate`.
    Notify,
}

/// The environment variable.
pub const VARIABLE: &str = "PINYARD_HOOKS";

impl Mechanism {
    /// All of them.
    pub const ALL: [Mechanism; 3] = [Mechanism::Entry, Mechanism::Userfaultfd, Mechanism::Notify];

    /// What the variable calls it.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Entry => "entry",
            Mechanism::Userfaultfd => "userfaultfd",
            Mechanism::Notify => "notify",
        }
    }

    /// Whether patched entries serve.
    pub(crate) fn patches(self) -> bool {
        self == Mechanism::Entry
    }

    /// What the environment asks for: `Ok(None)` where it says nothing,
    /// `Err` with what it says where that is no mechanism. A privileged process does not
    /// look.
    pub fn from_environment() -> Result<Option<Mechanism>, String> {
        if pinyard_hooks::is_privileged() {
            return Ok(None);
        }
        std::env::var_os(VARIABLE).map_or(Ok(None), |value| Mechanism::parse(&value.to_string_lossy()))
    }

    fn parse(value: &str) -> Result<Option<Mechanism>, String> {
        if value.is_empty() {
            return Ok(None);
        }
        let found = Mechanism::ALL.into_iter().find(|mechanism| mechanism.name() == value);
        found.map(Some).ok_or_else(|| value.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_mechanism_and_nothing_else_is() {
        for mechanism in Mechanism::ALL {
            assert_eq!(Mechanism::parse(mechanism.name()), Ok(Some(mechanism)));
        }
        assert_eq!(Mechanism::parse(""), Ok(None));
        for other in ["Entry", "ucm", "opal", "preload"] {
            assert_eq!(Mechanism::parse(other), Err(other.to_owned()));
        }
    }
}
