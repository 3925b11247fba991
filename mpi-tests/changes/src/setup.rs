//! How the registry of a row hears of changes.

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// As a program gets it that says nothing.
    Default,
    /// `PINYARD_HOOKS=entry`: patched entries and nothing else.
    Entry,
    /// `PINYARD_HOOKS=userfaultfd`: what the kernel tells and nothing else.
    Userfaultfd,
    /// Nobody tells the registry anything. What is not stale here did not replace
    /// pinned pages.
    Deaf,
}

impl Setup {
    /// In the order of the table's columns.
    pub const ALL: [Setup; 4] = [Setup::Default, Setup::Entry, Setup::Userfaultfd, Setup::Deaf];

    /// The column's heading, and the word for it on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Setup::Default => "default",
            Setup::Entry => "entry",
            Setup::Userfaultfd => "userfaultfd",
            Setup::Deaf => "no-hooks",
        }
    }

    /// The set-up of this name.
    pub(crate) fn named(name: &str) -> Option<Setup> {
        Setup::ALL.into_iter().find(|setup| setup.name() == name)
    }

    /// The value of `PINYARD_HOOKS`, where the set-up has one.
    pub(crate) fn variable(self) -> Option<&'static str> {
        match self {
            Setup::Entry => Some("entry"),
            Setup::Userfaultfd => Some("userfaultfd"),
            Setup::Default | Setup::Deaf => None,
        }
    }
}
