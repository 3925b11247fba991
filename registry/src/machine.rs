//! What `/proc` and the control groups' files say of this process's limits
//! (cgroups(7), cgroup_namespaces(7), proc_pid_mountinfo(5), the kernel's
//! admin-guide/cgroup-v2 and admin-guide/cgroup-v1/memory).
//!
//! `/proc/self/cgroup` names the process's group, `/proc/self/mountinfo` says where the
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
    let (groups, mounts) = (read(Path::new("/proc/self/cgroup"))?, read(Path::new("/proc/self/mountinfo"))?);
    let limit_of = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, own) = (fields.next()?, fields.next()?, Path::new(fields.next()?));
        let version = match controllers {
            "" => Version::Two,
            names if names.split(',').any(|name| name == "memory") => Version::One,
            _ => return None,
        };
        let mounted = mounts.lines().filter_map(|line| version.mount(line));
        mounted.filter_map(|mount| mount.lowest(own, version.files(), read)).min()
    };
    groups.lines().filter_map(limit_of).min()
}

/// Whether RLIMIT_MEMLOCK does not bind this process: CAP_IPC_LOCK, in the initial user
/// namespace. In any other the kernel's `capable` says no.
pub fn may_lock_anything(read: Read<'_>) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = read(Path::new("/proc/self/status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    // All of 32 bits mapped onto themselves: the initial one.
    let initial = read(Path::new("/proc/self/uid_map"))
        .is_none_or(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    bits >> CAP_IPC_LOCK & 1 == 1 && initial
}

#[derive(Clone, Copy)]
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
    fn files(self) -> &'static [&'static str] {
        match self {
            Version::One => &["memory.limit_in_bytes"],
            Version::Two => &["memory.max", "memory.high"],
        }
    }

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
    /// The lowest limit of the group `own` and of those above it, down to the mount's top.
    fn lowest(&self, own: &Path, files: &[&str], read: Read<'_>) -> Option<u64> {
        let is_above = |path: &Path| path.components().any(|part| part == Component::ParentDir);
        let inside = match own.strip_prefix(&self.top) {
            Ok(inside) if !is_above(inside) => inside,
            // Mounted before the process's namespace was made, at a group above it: which
            // of the folders is its own cannot be told, but the top holds for it.
            _ if is_above(&self.top) && !is_above(own) => Path::new(""),
            _ => return None,
        };
        let limit = |file: PathBuf| read(&file)?.trim().parse().ok().filter(|limit| *limit < NO_LIMIT);
        let files_of = |group: &Path| {
            let folder = self.at.join(group);
            files.iter().map(move |file| folder.join(file))
        };
        inside.ancestors().flat_map(files_of).filter_map(limit).min()
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
