//! What the machine lets a process pin, read when the first registry is made.

use crate::budget::Budget;
use crate::of_process::OfProcess;
use pinyard_hooks::PAGE_SIZE;
use std::path::Path;

/// The budget of registries that were given none: one for the process, or, for
/// backends that lock pages where RLIMIT_MEMLOCK binds, one for all of those.
pub(crate) fn default_budget(locks_memory: bool) -> Budget {
    static OF_MEMORY: OfProcess<Budget> = OfProcess::new(|| Budget::new(half_of_memory()));
    static OF_MEMLOCK: OfProcess<Budget> =
        OfProcess::new(|| Budget::of_memlock(memlock_limit().map_or(usize::MAX, |limit| limit as usize)));
    let of_memory = OF_MEMORY.get();
    let binds = |limit: &u64| *limit < of_memory.bytes() as u64 && !may_lock_anything();
    match locks_memory && memlock_limit().as_ref().is_some_and(binds) {
        true => OF_MEMLOCK.get().clone(),
        false => of_memory.clone(),
    }
}

/// Half of what the machine, or the cgroup that the process is in, has.
fn half_of_memory() -> usize {
    let cgroup = cgroup_limit(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"));
    memory().min(cgroup.unwrap_or(usize::MAX)) / 2
}

/// The lowest memory limit of the cgroup and those above it (cgroup v2, or the
/// memory controller of v1); `None` where there is none.
fn cgroup_limit(own: &Path, root: &Path) -> Option<usize> {
    let lines = std::fs::read_to_string(own).ok()?;
    let limit_at = |controller: &str, path: &str, file: &str| {
        let base = root.join(controller);
        let inside = Path::new(path.trim_start_matches('/'));
        let read =
            |folder: &Path| std::fs::read_to_string(base.join(folder).join(file)).ok()?.trim().parse().ok();
        inside.ancestors().filter_map(read).min()
    };
    let limit = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        match controllers {
            "" => limit_at("", path, "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                limit_at("memory", path, "memory.limit_in_bytes")
            }
            _ => None,
        }
    };
    lines.lines().filter_map(limit).min()
}

/// The soft RLIMIT_MEMLOCK in bytes; `None` where there is no limit.
#[allow(unsafe_code)]
pub(crate) fn memlock_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit fills the struct it is given.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    (answer == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The machine's memory in bytes.
#[allow(unsafe_code)]
fn memory() -> usize {
    // SAFETY: sysconf has no preconditions.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    usize::try_from(pages).unwrap_or(0).max(2) * PAGE_SIZE
}

/// Whether RLIMIT_MEMLOCK does not bind this process (CAP_IPC_LOCK).
pub(crate) fn may_lock_anything() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    bits >> CAP_IPC_LOCK & 1 == 1
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_lowest_limit_of_the_cgroups_above_counts() {
        let folder = std::env::temp_dir().join(format!("pinyard-cgroup-{}", std::process::id()));
        let (own, root) = (folder.join("self"), folder.join("fs"));
        fs::create_dir_all(root.join("job/step")).unwrap();
        fs::create_dir_all(root.join("memory/task")).unwrap();
        fs::write(&own, "0::/job/step\n").unwrap();
        assert_eq!(cgroup_limit(&own, &root), None);
        fs::write(root.join("job/memory.max"), "1073741824\n").unwrap();
        fs::write(root.join("job/step/memory.max"), "max\n").unwrap();
        assert_eq!(cgroup_limit(&own, &root), Some(1 << 30));
        fs::write(root.join("job/step/memory.max"), "4096\n").unwrap();
        assert_eq!(cgroup_limit(&own, &root), Some(4096));
        fs::write(&own, "3:cpu:/x\n7:memory:/task\n").unwrap();
        fs::write(root.join("memory/task/memory.limit_in_bytes"), "8192").unwrap();
        assert_eq!(cgroup_limit(&own, &root), Some(8192));
        assert_eq!(cgroup_limit(&folder.join("none"), &root), None);
        fs::remove_dir_all(&folder).unwrap();
    }
}
