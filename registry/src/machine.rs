//! What `/proc` and the control groups' files say of this process's limits
//! (cgroups(7), cgroup_namespaces(7), proc_pid_mountinfo(5), the kernel's
//! admin-guide/cgroup-v2 and admin-guide/cgroup-v1/memory).
//!
//! `/proc/thread-self/cgroup` names the process's group, `/proc/thread-self/mountinfo` says where the
//! tree of groups is mounted, and from which group on: inside a container both may
//! show a part of the tree only.

use std::path::{Component, Path, PathBuf};

/// A file's text, or `None` where it cannot be read.
pub type Read<'r> = &'r dyn Fn(&Path) -> Option<String>;

/// What a group without a limit says, where it does not say `max`: near 2^63.
const NO_LIMIT: u64 = 1 << 60;

/// The lowest memory limit, in bytes, of the process's control group and of those above
/// it that can be seen: `memory.max` and `memory.high` of version 2, and
/// `memory.limit_in_bytes` of version 1. `None` where there is none.
pub fn memory_limit(read: Read<'_>) -> Option<u64> {
    memory_groups(read).iter().filter_map(|group| group.limit(read)).min()
}

/// The process's control groups of memory, and those above them that can be seen.
pub fn memory_groups(read: Read<'_>) -> Vec<MemoryGroup> {
    let file = |path: &str| read(Path::new(path)).unwrap_or_default();
    let (groups, mounts) = (file("/proc/thread-self/cgroup"), file("/proc/thread-self/mountinfo"));
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(own)) = (fields.next(), fields.next()) else { continue };
        let version = match controllers {
            "" => Version::Two,
            names if names.split(',').any(|name| name == "memory") => Version::One,
            _ => continue,
        };
        let mounted = mounts.lines().filter_map(|line| version.mount(line));
        let folders = mounted.flat_map(|mount| mount.folders(Path::new(own)));
        found.extend(folders.map(|folder| MemoryGroup { folder, version }));
    }
    found
}

/// A control group that may limit memory.
#[derive(Clone, Debug)]
pub struct MemoryGroup {
    folder: PathBuf,
    version: Version,
}

impl MemoryGroup {
    /// Its limit in bytes, the lower of two. `None` where it has none.
    pub fn limit(&self, read: Read<'_>) -> Option<u64> {
        let limits: &[&str] = match self.version {
            Version::One => &["memory.limit_in_bytes"],
            Version::Two => &["memory.max", "memory.high"],
        };
        limits.iter().filter_map(|name| self.number(name, read)).filter(|limit| *limit < NO_LIMIT).min()
    }

    /// Bytes that count against it.
    pub fn used(&self, read: Read<'_>) -> Option<u64> {
        self.number(
            match self.version {
                Version::One => "memory.usage_in_bytes",
                Version::Two => "memory.current",
            },
            read,
        )
    }

    fn number(&self, file: &str, read: Read<'_>) -> Option<u64> {
        read(&self.folder.join(file))?.trim().parse().ok()
    }
}

/// The soft RLIMIT_MEMLOCK in bytes; `None` where there is no limit.
pub fn memlock_limit() -> Option<u64> {
    soft_limit(libc::RLIMIT_MEMLOCK)
}

/// A soft limit of getrlimit(2); `None` where there is none.
#[allow(unsafe_code)]
pub(crate) fn soft_limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    if cfg!(miri) {
        return None; // it has no limits
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit fills the struct it is given.
    let answer = unsafe { libc::getrlimit(resource, &raw mut limit) };
    (answer == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Whether RLIMIT_MEMLOCK does not bind this process: CAP_IPC_LOCK, in the initial user
/// namespace. In any other the kernel's `capable` says no.
pub fn may_lock_anything(read: Read<'_>) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = read(Path::new("/proc/thread-self/status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    // All of 32 bits mapped onto themselves: the initial one.
    let initial = read(Path::new("/proc/thread-self/uid_map"))
        .is_none_or(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    bits >> CAP_IPC_LOCK & 1 == 1 && initial
}

#[derive(Clone, Copy, Debug)]
enum Version {
    One,
    Two,
}

/// Where a tree of groups is mounted, and the group that stands at its top.
struct Mount {
    at: PathBuf,
    top: PathBuf,
}

impl Version {
    /// The mount that a line of mountinfo tells of, if it is one of this version's groups,
    /// with the memory controller.
    fn mount(self, line: &str) -> Option<Mount> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut kind = filesystem.split(' ');
        let (name, options) = (kind.next()?, kind.nth(1)?);
        let is_ours = match self {
            Version::One => name == "cgroup" && options.split(',').any(|option| option == "memory"),
            Version::Two => name == "cgroup2",
        };
        let mut fields = mount.split(' ').skip(3);
        let (top, at) = (fields.next()?, fields.next()?);
        is_ours.then(|| Mount { at: unescaped(at).into(), top: unescaped(top).into() })
    }
}

impl Mount {
    /// Of the group `own` and of those above it, down to the mount's top.
    fn folders(&self, own: &Path) -> Vec<PathBuf> {
        let is_above = |path: &Path| path.components().any(|part| part == Component::ParentDir);
        let inside = match own.strip_prefix(&self.top) {
            Ok(inside) if !is_above(inside) => inside,
            // Mounted before the process's namespace was made, at a group above it: which
            // of the folders is its own cannot be told, but the top holds for it.
            _ if is_above(&self.top) && !is_above(own) => Path::new(""),
            _ => return Vec::new(),
        };
        inside.ancestors().map(|group| self.at.join(group)).collect()
    }
}

/// A path as mountinfo writes it: space, tab, newline and backslash are `\ooo`.
fn unescaped(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => path.extend([char::from(code).to_string().as_str(), &part[3..]]),
            None => path.extend(["\\", part]),
        }
    }
    path
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
