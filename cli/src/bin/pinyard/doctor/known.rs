//! Faults of libfabric and UCX by version, as `docs/src/incidents.md` has them. Pure.

use super::facts::{Facts, Version};
use super::settings;

/// Whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Libfabric,
    Ucx,
}

/// A fault.
pub(crate) struct Fault {
    /// The upstream issue that tells of it.
    pub(crate) incident: &'static str,
    pub(crate) of: Of,
    /// The first version that has it, and the first that has not, if there is one.
    pub(crate) versions: (Version, Option<Version>),
    /// What happens.
    pub(crate) what: &'static str,
    /// What ends it where `libpinyard_preload.so` is not installed, or does not end it.
    pub(crate) remedy: &'static str,
    /// Whether that library ends it.
    pub(crate) preload: bool,
    /// Whether it can be ended. What cannot is worth knowing, and fails nothing.
    pub(crate) can_be_fixed: bool,
    /// Where it can happen.
    pub(crate) bites: fn(&Facts) -> bool,
    /// Whether what is set here ends it.
    pub(crate) cured: fn(&Facts) -> bool,
}

impl Fault {
    pub(crate) fn is_in(&self, version: Version) -> bool {
        let (first, fixed) = self.versions;
        version >= first && fixed.is_none_or(|fixed| version < fixed)
    }
}

/// libfabric registers anew for each transfer: slower, and never stale.
const NO_CACHE: &str = "FI_MR_CACHE_MAX_COUNT=0";

/// Whether there is a NIC whose provider (verbs, efa) has libfabric's cache over it.
fn has_nic(facts: &Facts) -> bool {
    !facts.nics.is_empty()
}

pub(crate) const FAULTS: &[Fault] = &[
    Fault {
        incident: "Open MPI #13149, libfabric #10879, #9594",
        of: Of::Libfabric,
        versions: (Version(1, 13, 0), Some(Version(2, 6, 0))),
        what: "a rank hangs in malloc when the allocator gives pages back (mimalloc, jemalloc)",
        remedy: NO_CACHE,
        preload: true,
        can_be_fixed: true,
        bites: has_nic,
        cured: |facts| {
            settings::under_libfabric(facts)
                || settings::no_cache(facts)
                || settings::told_by_the_kernel(facts)
        },
    },
    Fault {
        incident: "libfabric PR #9829",
        of: Of::Libfabric,
        versions: (Version(1, 13, 0), Some(Version(1, 21, 0))),
        what: "MPI_Finalize crashes where both mtl/ofi and btl/ofi of Open MPI are in use",
        remedy: "OMPI_MCA_btl=^ofi",
        preload: true,
        can_be_fixed: true,
        bites: |facts| has_nic(facts) && settings::has_open_mpi(facts),
        cured: |facts| settings::under_libfabric(facts) || settings::is(facts, "OMPI_MCA_btl", &["^ofi"]),
    },
    Fault {
        incident: "libfabric #9003",
        of: Of::Libfabric,
        versions: (Version(1, 13, 0), None),
        what: "hang: a thread in the CUDA driver unmaps while another looks a device buffer up",
        remedy: "FI_MR_CUDA_CACHE_MONITOR_ENABLED=0",
        preload: true,
        can_be_fixed: true,
        bites: |facts| has_nic(facts) && !facts.gpus.devices.is_empty(),
        cured: |facts| {
            settings::under_libfabric(facts)
                || settings::no_cache(facts)
                || settings::is(facts, settings::CUDA_MONITOR, &["0"])
        },
    },
    Fault {
        incident: "memhooks and raw system calls",
        of: Of::Libfabric,
        versions: (Version(1, 13, 0), None),
        what: "stale registrations in programs that unmap past libc (Go, rustix, syscall())",
        remedy: NO_CACHE,
        preload: true,
        can_be_fixed: false,
        bites: has_nic,
        cured: |facts| settings::under_libfabric(facts) || settings::no_cache(facts),
    },
    Fault {
        incident: "a change during the registration",
        of: Of::Libfabric,
        versions: (Version(1, 0, 0), None),
        what: "stale if another thread unmaps the buffer while it is being registered",
        remedy: NO_CACHE,
        preload: false,
        can_be_fixed: false,
        bites: has_nic,
        cured: settings::no_cache,
    },
    Fault {
        incident: "vLLM #24264, UCX #5131",
        of: Of::Ucx,
        versions: (Version(1, 17, 0), Some(Version(1, 21, 0))),
        what: "memory grows in programs that map much and communicate seldom",
        remedy: "UCX_RCACHE_ENABLE=n",
        preload: true,
        can_be_fixed: true,
        bites: has_nic,
        cured: |facts| {
            settings::under_ucx(facts)
                || settings::is(facts, "UCX_RCACHE_ENABLE", &["n", "no", "0"])
                || settings::is(facts, "UCX_MEM_MMAP_HOOK_MODE", &["none"])
        },
    },
    Fault {
        incident: "hits wait for a registration",
        of: Of::Ucx,
        versions: (Version(1, 0, 0), None),
        what: "lookups stand still while another thread registers",
        remedy: "register large buffers before communication begins, or take them from a pinyard pool",
        preload: false,
        can_be_fixed: false,
        bites: has_nic,
        cured: |_| false,
    },
];

/// Whether this libfabric hangs with its own patches and with those that it imports.
pub(crate) fn hangs_by_patches(libfabric: Version) -> bool {
    FAULTS.first().is_some_and(|fault| fault.of == Of::Libfabric && fault.is_in(libfabric))
}

/// The faults of a version.
pub(crate) fn of(which: Of, version: Version) -> impl Iterator<Item = &'static Fault> {
    FAULTS.iter().filter(move |fault| fault.of == which && fault.is_in(version))
}
