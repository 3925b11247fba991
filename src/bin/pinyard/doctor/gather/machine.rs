//! The kernel, memory and NUMA nodes, from `/proc` and `/sys` (proc(5), numa(7),
//! the kernel's admin-guide/cgroup-v2 and admin-guide/mm/transhuge).

use super::Root;
use crate::doctor::facts::Kernel;
use std::path::Path;

pub(super) fn host(root: &Root) -> String {
    let name = root.text("/proc/sys/kernel/hostname").unwrap_or_default();
    name.split('.').next().unwrap_or_default().to_owned()
}

pub(super) fn kernel(root: &Root) -> Kernel {
    Kernel {
        release: root.text("/proc/sys/kernel/osrelease").unwrap_or_default(),
        machine: std::env::consts::ARCH.to_owned(),
        transparent_huge_pages: transparent_huge_pages(root),
        seccomp: field(root, "/proc/self/status", "Seccomp").is_some_and(|mode| mode != "0"),
        ..Kernel::default()
    }
}

/// The value of a line `name: value`.
fn field(root: &Root, path: &str, name: &str) -> Option<String> {
    let text = root.text(path)?;
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

/// The word in brackets.
fn transparent_huge_pages(root: &Root) -> Option<String> {
    let text = root.text("/sys/kernel/mm/transparent_hugepage/enabled")?;
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// In bytes.
pub(super) fn memory(root: &Root) -> u64 {
    let total = field(root, "/proc/meminfo", "MemTotal").unwrap_or_default();
    total.split(' ').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// CAP_IPC_LOCK in the initial user namespace: elsewhere the kernel's `capable` says no.
pub(super) fn may_lock_anything(root: &Root) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let effective = field(root, "/proc/self/status", "CapEff").unwrap_or_default();
    let bits = u64::from_str_radix(&effective, 16).unwrap_or(0);
    // All of 32 bits mapped onto themselves: the initial one.
    let initial =
        root.text("/proc/self/uid_map").is_none_or(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    bits >> CAP_IPC_LOCK & 1 == 1 && initial
}

/// The lowest memory limit of the cgroup and those above it, in version 2 or 1. What a
/// controller has no limit for is `max`, or near 2^63.
pub(super) fn cgroup_memory(root: &Root) -> Option<u64> {
    const NONE: u64 = 1 << 60;
    let lines = root.text("/proc/self/cgroup")?;
    let lowest = |base: &str, own: &str, file: &str| {
        let own = Path::new(own.trim_start_matches('/'));
        let limit = |folder: &Path| root.text(Path::new(base).join(folder).join(file))?.parse::<u64>().ok();
        own.ancestors().filter_map(limit).filter(|limit| *limit < NONE).min()
    };
    let limit = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, own) = (fields.next()?, fields.next()?, fields.next()?);
        match controllers {
            "" => lowest("/sys/fs/cgroup", own, "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                lowest("/sys/fs/cgroup/memory", own, "memory.limit_in_bytes")
            }
            _ => None,
        }
    };
    lines.lines().filter_map(limit).min()
}

/// The numbers of the NUMA nodes.
pub(super) fn nodes(root: &Root) -> Vec<u32> {
    let number = |name: &String| name.strip_prefix("node")?.parse().ok();
    let mut nodes: Vec<u32> = root.names("/sys/devices/system/node").iter().filter_map(number).collect();
    nodes.sort_unstable();
    nodes
}

/// From each node to each. Empty where the nodes' numbers have gaps, which the rows of
/// the kernel's table do not show.
pub(super) fn distances(root: &Root) -> Vec<Vec<u32>> {
    let nodes = nodes(root);
    if nodes.iter().zip(0..).any(|(node, place)| *node != place) {
        return Vec::new();
    }
    let row = |node: &u32| {
        let text = root.text(format!("/sys/devices/system/node/node{node}/distance")).unwrap_or_default();
        text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    };
    nodes.iter().map(row).collect()
}
