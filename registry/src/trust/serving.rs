//! Which mechanisms tell of changes, and why those: a line each, for reports.

use super::{Mechanism, RawCaller, raw_callers};
use pinyard_hooks::{Report, Why, userfaultfd};
use std::fmt;

/// Which mechanisms serve, each with its reason. [`Registry::serving`] has those of
/// a registry, [`serving`] those that one made now would get.
///
/// [`Registry::serving`]: crate::Registry::serving
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Serving {
    /// What `PINYARD_HOOKS` forces.
    pub forced: Option<Mechanism>,
    /// Patched entries.
    pub entries: Entries,
    /// The kernel's own events.
    pub userfaultfd: Watch,
}

/// Whether patched entries serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entries {
    /// Every function's calls are seen.
    Complete,
    /// The first of the functions whose calls escape, and why.
    Refused(&'static str, Why),
    /// None is asked for.
    Unused,
}

/// Whether userfaultfd watches each registration, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Nothing in the process makes such system calls past the entries.
    NotNeeded,
    /// These do.
    Against(Vec<RawCaller>),
    /// The entries cannot be patched.
    InPlaceOfEntries,
    /// `PINYARD_HOOKS` asks for it.
    Asked,
    /// It is needed, and the kernel refuses it: what is registered is not cached.
    Refused(Why),
    /// `PINYARD_HOOKS` keeps it out.
    KeptOut,
}

impl Serving {
    pub(super) fn find(forced: Option<Mechanism>, report: Option<Report>) -> Serving {
        let entries = match (forced, report) {
            (None | Some(Mechanism::Entry), Some(report)) => {
                report.missed().next().map_or(Entries::Complete, |line| {
                    let why = match line.seen {
                        pinyard_hooks::Seen::No(why) | pinyard_hooks::Seen::NotExercised(why) => why,
                        pinyard_hooks::Seen::Yes => Why { call: "seen", errno: 0 },
                    };
                    Entries::Refused(line.function.name(), why)
                })
            }
            _ => Entries::Unused,
        };
        let callers = raw_callers();
        let needed = match (forced, entries) {
            (Some(Mechanism::Entry | Mechanism::Notify), _) => Watch::KeptOut,
            (Some(_), _) => Watch::Asked,
            (None, Entries::Refused(..)) => Watch::InPlaceOfEntries,
            (None, _) if callers.is_empty() => Watch::NotNeeded,
            (None, _) => Watch::Against(callers),
        };
        let userfaultfd = match needed {
            Watch::KeptOut | Watch::NotNeeded => needed,
            _ => userfaultfd::start().map_or_else(Watch::Refused, |()| needed),
        };
        Serving { forced, entries, userfaultfd }
    }
}

/// Which mechanisms would serve a registry that was made now. Installs the hooks,
/// unless `PINYARD_HOOKS` keeps them out. The error is what that says, where it is no
/// mechanism.
pub fn serving() -> Result<Serving, String> {
    let forced = Mechanism::from_environment()?;
    let report = forced.is_none_or(Mechanism::patches).then(pinyard_hooks::install);
    Ok(Serving::find(forced, report))
}

/// What userfaultfd cannot see in time.
const LATE: &str = "             its events come some microseconds late: after an mmap past the entries, whose\n             \
                    addresses another thread may just have freed, call notify_unmapped\n";

impl fmt::Display for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.forced {
            Some(forced) => {
                writeln!(f, "chosen       {}: PINYARD_HOOKS, or the program, says so", forced.name())?
            }
            None => writeln!(f, "chosen       by self-test")?,
        }
        f.write_str("entries      ")?;
        match self.entries {
            Entries::Complete => writeln!(f, "on: every function's calls are seen")?,
            Entries::Refused(function, why) => writeln!(f, "off: {function}: {why}")?,
            Entries::Unused => writeln!(f, "off")?,
        }
        f.write_str("userfaultfd  ")?;
        match &self.userfaultfd {
            Watch::NotNeeded => writeln!(f, "off: no object here makes such system calls itself")?,
            Watch::Against(callers) => {
                writeln!(f, "on, beside the entries, because")?;
                for caller in callers {
                    writeln!(f, "             {caller}")?;
                }
            }
            Watch::InPlaceOfEntries => writeln!(f, "on, in place of the entries")?,
            Watch::Asked => writeln!(f, "on, as asked")?,
            Watch::Refused(why) => writeln!(f, "REFUSED, so nothing private is cached: {why}")?,
            Watch::KeptOut => writeln!(f, "off, as asked")?,
        }
        if matches!(self.userfaultfd, Watch::Against(_) | Watch::InPlaceOfEntries | Watch::Asked) {
            f.write_str(LATE)?;
        }
        writeln!(f, "notify       notify_unmapped and invalidate serve always")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mechanism_has_its_line() {
        let report = pinyard_hooks::install();
        let text = |forced| Serving::find(forced, Some(report)).to_string();
        assert!(text(None).contains("entries      on: every"), "{}", text(None));
        for (forced, line) in [
            (Mechanism::Entry, "userfaultfd  off, as asked"),
            (Mechanism::Userfaultfd, "userfaultfd  on, as asked"),
            (Mechanism::Notify, "entries      off\n"),
        ] {
            let text = text(Some(forced));
            assert_eq!(text.contains("notify_unmapped\n"), text.contains("userfaultfd  on"), "{text}");
            assert!(text.contains(line) || text.contains("REFUSED"), "{text}");
            assert!(text.contains(&format!("chosen       {}: ", forced.name())), "{text}");
        }
    }
}
