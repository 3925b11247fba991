//! Variables of the environment that change how registrations are cached, and what each
//! really does. Pure.

use super::facts::Facts;

/// Those whose effect is known.
const NAMES: &[&str] = &[
    "LD_PRELOAD",
    MONITOR,
    COUNT,
    "FI_MR_CACHE_MAX_SIZE",
    CUDA_MONITOR,
    "FI_PROVIDER",
    "FI_VERBS_DEVICE_NAME",
    "FI_VERBS_IFACE",
    "UCX_MEM_EVENTS",
    "UCX_MEM_MMAP_HOOK_MODE",
    "UCX_RCACHE_ENABLE",
    "UCX_RCACHE_MAX_REGIONS",
    "UCX_RCACHE_MAX_SIZE",
    "UCX_RCACHE_MAX_UNRELEASED",
    "UCX_RCACHE_PURGE_ON_FORK",
    "UCX_NET_DEVICES",
    "UCX_TLS",
    MEMORY,
    "OMPI_MCA_mpi_leave_pinned",
    "OMPI_MCA_pml",
    "OMPI_MCA_mtl",
    "OMPI_MCA_btl",
    "MPIR_CVAR_ENABLE_GPU",
    "IBV_FORK_SAFE",
    "RDMAV_FORK_SAFE",
];

/// Whether `name` is pinyard's, or meant to be.
pub(crate) fn is_pinyards(name: &str) -> bool {
    name.starts_with("PINYARD_")
}

/// Whether `name` is looked at: it is known or pinyard's, or libfabric's or UCX's name for something
/// about registrations.
pub(crate) fn is_looked_at(name: &str) -> bool {
    let theirs = name.starts_with("FI_") && name.contains("MR_") && name.contains("CACHE")
        || name.starts_with("UCX_")
            && ["RCACHE", "REG_METHODS", "MEMTYPE_CACHE"].iter().any(|part| name.contains(part))
        || name.starts_with("UCX_MEM_");
    NAMES.contains(&name) || is_pinyards(name) || theirs
}

pub(crate) const MONITOR: &str = "FI_MR_CACHE_MONITOR";
/// Open MPI's own patches, which libfabric imports.
pub(crate) const MEMORY: &str = "OMPI_MCA_memory";
pub(crate) const COUNT: &str = "FI_MR_CACHE_MAX_COUNT";
pub(crate) const CUDA_MONITOR: &str = "FI_MR_CUDA_CACHE_MONITOR_ENABLED";

/// Whether programs here are started with `libpinyard_preload.so`, and it is not off.
pub(crate) fn preloaded(facts: &Facts) -> bool {
    let off = |name: &str| is(facts, name, &["off", "0"]);
    facts.environment.get("LD_PRELOAD").is_some_and(|list| list.contains("libpinyard_preload"))
        && !off("PINYARD_PRELOAD")
}

/// Whether the preload library puts its monitor under libfabric's cache.
pub(crate) fn under_libfabric(facts: &Facts) -> bool {
    let chosen = facts.environment.contains_key(MONITOR);
    preloaded(facts) && !chosen && !is(facts, "PINYARD_LIBFABRIC", &["off", "0"])
}

/// Whether the preload library tells UCX of changes.
pub(crate) fn under_ucx(facts: &Facts) -> bool {
    preloaded(facts) && !is(facts, "PINYARD_UCX", &["0", "off"])
}

/// Whether libfabric is told to cache nothing.
pub(crate) fn no_cache(facts: &Facts) -> bool {
    is(facts, COUNT, &["0"])
}

pub(crate) fn is(facts: &Facts, name: &str, values: &[&str]) -> bool {
    facts.environment.get(name).is_some_and(|value| values.iter().any(|one| value.eq_ignore_ascii_case(one)))
}

pub(crate) fn has_open_mpi(facts: &Facts) -> bool {
    facts.mpi.iter().any(|mpi| mpi.name.as_deref().is_some_and(|name| name.starts_with("Open MPI")))
}

/// Whether Open MPI hands libfabric a monitor of its own, in place of the one that
/// [`MONITOR`] chooses.
pub(crate) fn imports(facts: &Facts) -> bool {
    let without = facts.environment.get(MEMORY).is_some_and(|value| value.contains("^patcher"));
    has_open_mpi(facts) && !without
}

/// Whether Open MPI is told to import no monitor, and libfabric has no other than its own patches.
pub(crate) fn patched_by_libfabric(facts: &Facts) -> bool {
    facts.environment.get(MEMORY).is_some_and(|value| value.contains("^patcher"))
        && !told_by_the_kernel(facts)
        && !under_libfabric(facts)
        && !no_cache(facts)
}

/// Whether libfabric hears of changes from the kernel: its own patches, and the hang with
/// them, are not there.
pub(crate) fn told_by_the_kernel(facts: &Facts) -> bool {
    is(facts, MONITOR, &["userfaultfd"]) && !imports(facts)
}

/// What `name`, being `value`, does here.
pub(crate) fn effect(facts: &Facts, name: &str, value: &str) -> String {
    let no = ["n", "no", "0", "off", "false"].iter().any(|word| value.eq_ignore_ascii_case(word));
    let text = match name {
        "LD_PRELOAD" if preloaded(facts) => "pinyard is under libfabric's and UCX's caches in every program",
        "LD_PRELOAD" => "loaded into every program, pinyard's library not among them",
        MONITOR if imports(facts) => {
            "overridden by what Open MPI imports into libfabric; and libpinyard_preload.so, seeing it, leaves \
             libfabric alone"
        }
        MONITOR => {
            "libfabric's own way of noticing changes; libpinyard_preload.so, seeing it, leaves libfabric alone"
        }
        COUNT if value == "0" => "libfabric caches no registration: no hang, nothing stale, and slower",
        COUNT => "registrations that libfabric keeps, per domain",
        "FI_MR_CACHE_MAX_SIZE" => "bytes that libfabric keeps registered, per domain",
        CUDA_MONITOR if no => "libfabric caches no registration of device memory",
        CUDA_MONITOR => "libfabric asks the CUDA driver at each hit, with its lock held",
        "FI_PROVIDER" => "the providers that libfabric offers; tcp, shm and sockets cache no registration",
        "UCX_MEM_EVENTS" if no => "UCX hears of no change, so its registration cache is not made",
        "UCX_MEM_MMAP_HOOK_MODE" if value == "none" => {
            "UCX patches nothing; without changes from elsewhere its registration cache is not made"
        }
        "UCX_MEM_MMAP_HOOK_MODE" if value == "reloc" => {
            "UCX redirects procedure linkage tables, which no later patch of libc undoes; calls inside libc are missed"
        }
        "UCX_MEM_MMAP_HOOK_MODE" | "UCX_MEM_EVENTS" => {
            "UCX writes over libc's functions; a later patcher undoes it"
        }
        "UCX_RCACHE_ENABLE" if no => "UCX registers anew for each transfer",
        "UCX_RCACHE_ENABLE" => "UCX caches registrations",
        "UCX_RCACHE_MAX_REGIONS" | "UCX_RCACHE_MAX_SIZE" => {
            "what UCX keeps registered, per context; unset, without limit"
        }
        "UCX_RCACHE_MAX_UNRELEASED" => {
            "bytes of changes beyond which a thread of UCX's empties the queue (1.20: a race with lookups, by reading)"
        }
        "UCX_RCACHE_PURGE_ON_FORK" if no => "a forked child keeps the parent's registrations in UCX's cache",
        "UCX_RCACHE_PURGE_ON_FORK" => "every fork has UCX register everything anew",
        "UCX_NET_DEVICES" => "the only devices that UCX uses",
        "UCX_TLS" => "the only transports that UCX uses",
        MEMORY if value.contains("^patcher") && told_by_the_kernel(facts) => {
            "Open MPI imports no monitor: libfabric hears of changes by userfaultfd, as it was told to"
        }
        MEMORY if value.contains("^patcher") && patched_by_libfabric(facts) => {
            "Open MPI imports no monitor; libfabric then patches libc itself, and before 2.6 hangs the same"
        }
        MEMORY if value.contains("^patcher") => "Open MPI imports no monitor",
        "OMPI_MCA_mpi_leave_pinned" => {
            "Open MPI's own cache, of btl openib, uct and ofi; not UCX's nor libfabric's"
        }
        MEMORY | "OMPI_MCA_pml" | "OMPI_MCA_mtl" | "OMPI_MCA_btl" => "Open MPI's choice of components",
        "MPIR_CVAR_ENABLE_GPU" if no => "MPICH takes no pointers to device memory",
        "MPIR_CVAR_ENABLE_GPU" => "MPICH takes pointers to device memory, if it was built for it",
        "IBV_FORK_SAFE" | "RDMAV_FORK_SAFE" => {
            "registered pages stay out of forked children; each registration is slower"
        }
        "PINYARD_HOOKS" => "how pinyard notices changes; unset, it chooses",
        "PINYARD_PRELOAD" if no => "libpinyard_preload.so does nothing",
        "PINYARD_LIBFABRIC" if no => "libpinyard_preload.so leaves libfabric alone",
        "PINYARD_UCX" if no => "libpinyard_preload.so leaves UCX alone",
        "PINYARD_PRELOAD" | "PINYARD_LIBFABRIC" | "PINYARD_UCX" => "libpinyard_preload.so works",
        "FI_VERBS_DEVICE_NAME" | "FI_VERBS_IFACE" => "the only devices that libfabric's verbs provider uses",
        _ if is_pinyards(name) => return of_pinyard(name),
        _ if name.starts_with("FI_") => "a setting of libfabric's cache; its effect here is not judged",
        _ => "a setting of UCX's caches; its effect here is not judged",
    };
    text.to_owned()
}

/// What a variable of pinyard's sets.
fn of_pinyard(name: &str) -> String {
    let groups = pinyard::environment::groups();
    let mut variables = groups.iter().flat_map(|group| &group.variables);
    variables
        .find(|variable| variable.name == name)
        .map_or("no variable of pinyard's", |one| one.meaning)
        .to_owned()
}
