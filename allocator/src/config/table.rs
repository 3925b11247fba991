//! The table, from which everything else about settings comes, the book's page too.

use super::value::{Kind, MOST};
use super::{PREFIX, Pools};
use crate::device::TraceOptions;

/// A setting of a pool.
pub struct Setting {
    /// The variable of the environment, for device pools.
    pub name: &'static str,
    /// What it sets.
    pub meaning: &'static str,
    /// What holds where it is not given.
    pub default: &'static str,
    /// A value that it may have.
    pub example: &'static str,
    /// Of host pools, which do not have all.
    pub host: Option<OfHost>,
    pub(crate) kind: Kind,
}

/// A setting as host pools have it.
pub struct OfHost {
    /// The variable of the environment.
    pub name: &'static str,
    /// What it sets.
    pub meaning: &'static str,
    /// What holds where it is not given.
    pub default: &'static str,
}

impl Setting {
    /// Its name on a command line.
    pub fn key(&self) -> String {
        self.name.strip_prefix(PREFIX).unwrap_or(self.name).to_ascii_lowercase()
    }

    /// The variable for these pools, if they have the setting.
    pub fn name_for(&self, pools: Pools) -> Option<&'static str> {
        match pools {
            Pools::Device => Some(self.name),
            Pools::Host => self.host.as_ref().map(|host| host.name),
        }
    }

    /// Which values it may have.
    pub fn allowed(&self) -> String {
        self.kind.allowed()
    }
}

const fn events(of: &std::ops::RangeInclusive<usize>) -> Kind {
    Kind::CountOrNone(*of.start() as u64, *of.end() as u64)
}

/// All of them.
pub const TABLE: &[Setting] = &[
    Setting {
        name: "PINYARD_POOL_LIMIT",
        meaning: "slabs of a pool together",
        default: "what the device has",
        example: "80%",
        host: Some(OfHost {
            name: "PINYARD_HOST_POOL_LIMIT",
            meaning: "slabs of a pool together; a part is of what there is, of memory whose source says it",
            default: "none",
        }),
        kind: Kind::Part(1),
    },
    Setting {
        name: "PINYARD_POOL_SLAB_BYTES",
        meaning: "a slab at most, but for a longer block's",
        default: "256M",
        example: "32M",
        host: Some(OfHost {
            name: "PINYARD_HOST_POOL_SLAB_BYTES",
            meaning: "a slab, but for a longer block's",
            default: "64M",
        }),
        kind: Kind::Bytes(1, MOST / 2),
    },
    Setting {
        name: "PINYARD_POOL_PATIENCE_MS",
        meaning: "how long an allocation that would fail waits for streams",
        default: "10000",
        example: "500",
        host: Some(OfHost {
            name: "PINYARD_HOST_POOL_PATIENCE_MS",
            meaning: "how long an allocation that would fail waits for deferred blocks",
            default: "10000",
        }),
        kind: Kind::Milliseconds(86_400_000),
    },
    Setting {
        name: "PINYARD_POOL_STALL_MS",
        meaning: "how long a stream is behind before busy streams share without it; 0: they never share",
        default: "1000",
        example: "200",
        host: None,
        kind: Kind::Milliseconds(86_400_000),
    },
    Setting {
        name: "PINYARD_POOL_KEEP_IDLE_MS",
        meaning: "age at which slabs that lie idle are given back; 0: they are kept",
        default: "0",
        example: "30000",
        host: None,
        kind: Kind::Milliseconds(86_400_000),
    },
    Setting {
        name: "PINYARD_POOL_LOW_MARK",
        meaning: "memory left below which it is short; alone it is the high mark as well",
        default: "none",
        example: "5%",
        host: Some(OfHost {
            name: "PINYARD_HOST_POOL_LOW_MARK",
            meaning: "memory left below which it is short; alone it is the high mark as well",
            default: "none",
        }),
        kind: Kind::Part(1),
    },
    Setting {
        name: "PINYARD_POOL_HIGH_MARK",
        meaning: "memory left above which it is short no more; alone it is the low mark as well",
        default: "none",
        example: "10%",
        host: Some(OfHost {
            name: "PINYARD_HOST_POOL_HIGH_MARK",
            meaning: "memory left above which it is short no more; alone it is the low mark as well",
            default: "none",
        }),
        kind: Kind::Part(1),
    },
    Setting {
        name: "PINYARD_POOL_MARKS",
        meaning: "how streams tell how far they have come: words where the device can, or events",
        default: "best",
        example: "events",
        host: None,
        kind: Kind::Choice(&["best", "events"]),
    },
    Setting {
        name: "PINYARD_POOL_TRACE",
        meaning: "events that the trace keeps",
        default: "0",
        example: "65536",
        host: None,
        kind: events(&TraceOptions::EVENTS),
    },
    Setting {
        name: "PINYARD_POOL_STACKS",
        meaning: "the trace keeps stacks as well",
        default: "0",
        example: "1",
        host: None,
        kind: Kind::Flag,
    },
    Setting {
        name: "PINYARD_POOL_TRACE_FILE",
        meaning: "the trace is written there, with the process and a number appended, when the pool's last handle goes",
        default: "nowhere",
        example: "/tmp/pool",
        host: None,
        kind: Kind::Path,
    },
    Setting {
        name: "PINYARD_POOL_POISON",
        meaning: "writes to freed memory are looked for",
        default: "0",
        example: "1",
        host: Some(OfHost {
            name: "PINYARD_HOST_POOL_POISON",
            meaning: "writes to freed memory are looked for, and leaks have their places",
            default: "0",
        }),
        kind: Kind::Flag,
    },
    Setting {
        name: "PINYARD_POOL_LEAKS",
        meaning: "blocks that outlive their pool's last handle, or the process, are told on stderr",
        default: "0",
        example: "1",
        host: Some(OfHost {
            name: "PINYARD_HOST_POOL_LEAKS",
            meaning: "blocks that outlive their pool's last handle, or the process, are told on stderr",
            default: "0",
        }),
        kind: Kind::Flag,
    },
];

/// The table as the book has it.
pub fn markdown(pools: Pools) -> String {
    let mut text = "| variable | values | default | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for setting in TABLE {
        let (name, meaning, default) = match (pools, &setting.host) {
            (Pools::Device, _) => (setting.name, setting.meaning, setting.default),
            (Pools::Host, Some(host)) => (host.name, host.meaning, host.default),
            (Pools::Host, None) => continue,
        };
        text += &format!("| `{name}` | {} | {default} | {meaning} |\n", setting.allowed());
    }
    text
}
