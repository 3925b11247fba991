//! What a pool can be told, by one table: from the environment (`PINYARD_POOL_*` for device
//! pools, `PINYARD_HOST_POOL_*` for host and pinned ones), and as `key=value` from a command line.
//! The builders' methods of the same names set the same things.
//!
//! The environment has the last word: who runs a program knows the machine. It is not
//! read by a program that runs with more rights than its caller (`AT_SECURE`,
//! getauxval(3)), nor where the builder's `ignore_environment` says so.

mod table;
mod value;

pub use self::table::{OfHost, Setting, TABLE, markdown};
pub use self::value::Part;
use self::value::Value;
use crate::device::MarkKind;
use crate::pressure::{Bound, Watermarks};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// What the names for device pools begin with.
pub const PREFIX: &str = "PINYARD_POOL_";
/// What those for host pools begin with.
pub const HOST_PREFIX: &str = "PINYARD_HOST_POOL_";

/// Whose settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pools {
    /// Of [`DevicePool`](crate::device::DevicePool)s.
    Device,
    /// Of [`Pool`](crate::Pool)s, pinned ones too.
    Host,
}

/// A setting that is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no such setting.
    #[error("there is no setting {name:?}: there are {known}")]
    Unknown {
        /// The name that was given.
        name: String,
        /// All names.
        known: String,
    },
    /// The value is not one of those allowed.
    #[error("{name}={value:?} is refused: {allowed}")]
    Value {
        /// The name.
        name: String,
        /// The value that was given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
}

/// Settings that were given; the others are as the builder has them.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Overrides {
    /// Bytes of all slabs at most, or a part of the device's.
    pub limit: Option<Part>,
    /// Bytes of a slab at most.
    pub slab_bytes: Option<usize>,
    /// How long an allocation that would fail waits.
    pub patience: Option<Duration>,
    /// How long a stream is behind before it is left alone; zero: streams share nothing.
    pub stall: Option<Duration>,
    /// Age at which what is idle is given back; zero: it is kept.
    pub keep_idle: Option<Duration>,
    /// Memory left, in bytes or of the device's, below which it is short. One mark alone is
    /// both, where the builder has none.
    pub low_mark: Option<Part>,
    /// Memory left above which it is short no more.
    pub high_mark: Option<Part>,
    /// How streams tell how far they have come.
    pub marks: Option<MarkKind>,
    /// Events of the trace; 0 for none.
    pub trace: Option<usize>,
    /// Keep the stack of each event.
    pub stacks: Option<bool>,
    /// Where the trace is written when the last handle goes.
    pub trace_file: Option<PathBuf>,
    /// Freed memory is filled, and looked at.
    pub poison: Option<bool>,
    /// Blocks that outlive the pool are told on stderr.
    pub leaks: Option<bool>,
}

impl Overrides {
    /// From this process's environment, for these pools: nothing if it runs with more rights
    /// than its caller.
    pub fn from_environment(pools: Pools) -> Result<Overrides, ConfigError> {
        if pinyard_hooks::is_privileged() {
            return Ok(Overrides::default());
        }
        Overrides::from_variables(pools, std::env::vars_os())
    }

    /// From variables, of which those that do not begin with [`PREFIX`] (of host pools:
    /// [`HOST_PREFIX`]) are none of ours.
    pub fn from_variables(
        pools: Pools,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Overrides, ConfigError> {
        let prefix = match pools {
            Pools::Device => PREFIX,
            Pools::Host => HOST_PREFIX,
        };
        let mut overrides = Overrides::default();
        for (name, value) in variables {
            if let Some(name) = name.to_str().filter(|name| name.starts_with(prefix)) {
                overrides.set(name, &value.to_string_lossy())?;
            }
        }
        Ok(overrides)
    }

    /// From `key=value,key=value`; keys are the names in lower case, less the prefix.
    pub fn from_pairs(text: &str) -> Result<Overrides, ConfigError> {
        let mut overrides = Overrides::default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            overrides.set(key.trim(), value.trim())?;
        }
        Ok(overrides)
    }

    /// The marks, where `before` are those of the builder. One alone is both.
    pub(crate) fn watermarks(&self, before: Option<Watermarks>) -> Option<Watermarks> {
        let low = self.low_mark.map(Bound::from).or(before.map(|marks| marks.low));
        let high = self.high_mark.map(Bound::from).or(before.map(|marks| marks.high));
        Some(Watermarks { low: low.or(high)?, high: high.or(low)? })
    }

    /// Sets one, by its name or its key.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let as_given = |setting: &Setting| {
            if name.starts_with(HOST_PREFIX) {
                setting.name_for(Pools::Host).map(str::to_owned)
            } else if name.starts_with(PREFIX) {
                Some(setting.name.to_owned())
            } else {
                Some(setting.key())
            }
        };
        let Some(setting) = TABLE.iter().find(|setting| as_given(setting).as_deref() == Some(name)) else {
            let known = TABLE.iter().filter_map(as_given).collect::<Vec<_>>().join(", ");
            return Err(ConfigError::Unknown { name: name.to_owned(), known });
        };
        let refused = || ConfigError::Value {
            name: name.to_owned(),
            value: value.to_owned(),
            allowed: setting.allowed(),
        };
        match (setting.key().as_str(), setting.kind.parse(value).ok_or_else(refused)?) {
            ("limit", Value::Part(part)) => self.limit = Some(part),
            ("slab_bytes", Value::Number(bytes)) => self.slab_bytes = Some(bytes as usize),
            ("patience_ms", Value::Number(ms)) => self.patience = Some(Duration::from_millis(ms)),
            ("stall_ms", Value::Number(ms)) => self.stall = Some(Duration::from_millis(ms)),
            ("keep_idle_ms", Value::Number(ms)) => self.keep_idle = Some(Duration::from_millis(ms)),
            ("low_mark", Value::Part(part)) => self.low_mark = Some(part),
            ("high_mark", Value::Part(part)) => self.high_mark = Some(part),
            ("marks", Value::Choice(at)) => {
                self.marks = Some(if at == 0 { MarkKind::Best } else { MarkKind::Events });
            }
            ("trace", Value::Number(events)) => self.trace = Some(events as usize),
            ("stacks", Value::Flag(on)) => self.stacks = Some(on),
            ("trace_file", Value::Path(path)) => self.trace_file = Some(path),
            ("poison", Value::Flag(on)) => self.poison = Some(on),
            ("leaks", Value::Flag(on)) => self.leaks = Some(on),
            // A row of the table that nothing reads: `every_row_sets_something`.
            _ => return Err(refused()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Overrides::from_pairs(text).unwrap_err().to_string()
    }

    #[test]
    fn every_row_sets_something() {
        for setting in TABLE {
            let mut overrides = Overrides::default();
            overrides.set(setting.name, setting.example).unwrap();
            assert_ne!(overrides, Overrides::default(), "{}", setting.name);
            let mut again = Overrides::default();
            again.set(&setting.key(), setting.example).unwrap();
            assert_eq!(again, overrides);
            let Some(of_host) = setting.name_for(Pools::Host) else { continue };
            assert_eq!(of_host.strip_prefix(HOST_PREFIX), setting.name.strip_prefix(PREFIX));
            let mut host = Overrides::default();
            host.set(of_host, setting.example).unwrap();
            assert_eq!(host, overrides);
        }
    }

    #[test]
    fn what_host_pools_do_not_have_is_refused_for_them_alone() {
        let variables = || {
            [("PINYARD_HOST_POOL_LIMIT", "1G"), ("PINYARD_POOL_MARKS", "events")]
                .map(|(name, value)| (name.into(), value.into()))
        };
        let of_host = Overrides::from_variables(Pools::Host, variables()).unwrap();
        assert_eq!(of_host, Overrides { limit: Some(Part::Bytes(1 << 30)), ..Overrides::default() });
        let of_devices = Overrides::from_variables(Pools::Device, variables()).unwrap();
        assert_eq!(of_devices, Overrides { marks: Some(MarkKind::Events), ..Overrides::default() });
        let refused =
            Overrides::from_variables(Pools::Host, [("PINYARD_HOST_POOL_MARKS".into(), "events".into())]);
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("there are PINYARD_HOST_POOL_LIMIT,") && !refused.contains("HOST_POOL_STALL"),
            "{refused}"
        );
    }

    #[test]
    fn what_is_refused_is_named_with_what_is_allowed() {
        assert_eq!(
            error("slab_bytes=12q"),
            "slab_bytes=\"12q\" is refused: bytes from 1 to 35184372088832, with K, M, G or T for powers of 1024"
        );
        assert!(error("slab_bytes=0").contains("from 1"), "{}", error("slab_bytes=0"));
        assert!(error("limit=0%").contains("1% to 100%"), "{}", error("limit=0%"));
        assert!(error("limit=101%").contains("1% to 100%"));
        assert!(error("marks=word").contains("best or events"), "{}", error("marks=word"));
        assert!(error("poison=maybe").contains("0 or 1"), "{}", error("poison=maybe"));
        assert!(error("poison").contains("0 or 1"));
        assert!(error("slabs=1").starts_with("there is no setting \"slabs\": there are limit, slab_bytes"));
        assert!(error("trace=15").contains("16"), "{}", error("trace=15"));
        assert!(error("slab_bytes=99999999999999999999999").contains("refused"));
        assert!(error("slab_bytes=99999999999T").contains("refused"));
        let variables =
            [("PINYARD_POOL_SLAB", "1"), ("HOME", "/")].map(|(name, value)| (name.into(), value.into()));
        let unknown = Overrides::from_variables(Pools::Device, variables).unwrap_err().to_string();
        assert!(
            unknown.contains("\"PINYARD_POOL_SLAB\":") && unknown.contains("PINYARD_POOL_SLAB_BYTES"),
            "{unknown}"
        );
    }

    #[test]
    fn units_and_parts() {
        let set =
            Overrides::from_pairs("limit=8GiB, slab_bytes=64m,patience_ms=5,marks=events,trace=0").unwrap();
        assert_eq!(set.limit, Some(Part::Bytes(8 << 30)));
        assert_eq!(set.slab_bytes, Some(64 << 20));
        assert_eq!(set.patience, Some(Duration::from_millis(5)));
        assert_eq!((set.marks, set.trace), (Some(MarkKind::Events), Some(0)));
        assert_eq!(Overrides::from_pairs("limit=50%").unwrap().limit, Some(Part::Percent(50)));
        assert_eq!(Overrides::from_pairs("").unwrap(), Overrides::default());
    }
}
