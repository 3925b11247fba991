//! The table, from which everything else about settings comes, the book's page too.

use super::PREFIX;
use super::value::{Kind, MOST};
use crate::device::TraceOptions;

/// A setting of a device pool.
pub struct Setting {
    /// The variable of the environment.
    pub name: &'static str,
    /// What it sets.
    pub meaning: &'static str,
    /// What holds where it is not given.
    pub default: &'static str,
    /// A value that it may have.
    pub example: &'static str,
    pub(crate) kind: Kind,
}

impl Setting {
    /// Its name on a command line.
    pub fn key(&self) -> String {
        self.name.strip_prefix(PREFIX).unwrap_or(self.name).to_ascii_lowercase()
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
        kind: Kind::Part(1),
    },
    Setting {
        name: "PINYARD_POOL_SLAB_BYTES",
        meaning: "a slab at most, but for a longer block's",
        default: "64M",
        example: "128M",
        kind: Kind::Bytes(1, MOST / 2),
    },
    Setting {
        name: "PINYARD_POOL_PATIENCE_MS",
        meaning: "how long an allocation that would fail waits for streams",
        default: "10000",
        example: "500",
        kind: Kind::Milliseconds(86_400_000),
    },
    Setting {
        name: "PINYARD_POOL_STALL_MS",
        meaning: "how long a stream is behind before busy streams share without it; 0: they never share",
        default: "1000",
        example: "200",
        kind: Kind::Milliseconds(86_400_000),
    },
    Setting {
        name: "PINYARD_POOL_KEEP_IDLE_MS",
        meaning: "age at which slabs that lie idle are given back; 0: they are kept",
        default: "0",
        example: "30000",
        kind: Kind::Milliseconds(86_400_000),
    },
    Setting {
        name: "PINYARD_POOL_LOW_MARK",
        meaning: "memory left below which it is short; alone it is the high mark as well",
        default: "none",
        example: "5%",
        kind: Kind::Part(1),
    },
    Setting {
        name: "PINYARD_POOL_HIGH_MARK",
        meaning: "memory left above which it is short no more; alone it is the low mark as well",
        default: "none",
        example: "10%",
        kind: Kind::Part(1),
    },
    Setting {
        name: "PINYARD_POOL_MARKS",
        meaning: "how streams tell how far they have come: words where the device can, or events",
        default: "best",
        example: "events",
        kind: Kind::Choice(&["best", "events"]),
    },
    Setting {
        name: "PINYARD_POOL_TRACE",
        meaning: "events that the trace keeps",
        default: "0",
        example: "65536",
        kind: events(&TraceOptions::EVENTS),
    },
    Setting {
        name: "PINYARD_POOL_STACKS",
        meaning: "the trace keeps stacks as well",
        default: "0",
        example: "1",
        kind: Kind::Flag,
    },
    Setting {
        name: "PINYARD_POOL_TRACE_FILE",
        meaning: "the trace is written there, with the process and a number appended, when the pool's last handle goes",
        default: "nowhere",
        example: "/tmp/pool",
        kind: Kind::Path,
    },
    Setting {
        name: "PINYARD_POOL_POISON",
        meaning: "writes to freed memory are looked for",
        default: "0",
        example: "1",
        kind: Kind::Flag,
    },
    Setting {
        name: "PINYARD_POOL_LEAKS",
        meaning: "blocks that outlive their pool's last handle are told on stderr",
        default: "0",
        example: "1",
        kind: Kind::Flag,
    },
];

/// The table as the book has it.
pub fn markdown() -> String {
    let mut text = "| variable | values | default | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for setting in TABLE {
        let Setting { name, meaning, default, .. } = setting;
        text += &format!("| `{name}` | {} | {default} | {meaning} |\n", setting.allowed());
    }
    text
}
