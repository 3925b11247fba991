//! The kernel, memory and NUMA nodes, from `/proc` and `/sys` (proc(5), numa(7),
//! the kernel's admin-guide/cgroup-v2 and admin-guide/mm/transhuge).

use super::Root;
use crate::doctor::facts::Kernel;

pub(super) fn host(root: &Root) -> String {
    let name = root.text("/proc/sys/kernel/hostname").unwrap_or_default();
    name.split('.').next().unwrap_or_default().to_owned()
}

pub(super) fn kernel(root: &Root) -> Kernel {
    Kernel {
        release: root.text("/proc/sys/kernel/osrelease").unwrap_or_default(),
        machine: std::env::consts::ARCH.to_owned(),
        transparent_huge_pages: transparent_huge_pages(root),
        seccomp: field(root, "/proc/thread-self/status", "Seccomp").is_some_and(|mode| mode != "0"),
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
