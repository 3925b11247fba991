//! How near a GPU and a NIC are, and which NIC each GPU's rank should use. Pure.

use super::facts::{Facts, Gpu, Nic, Place};
use std::fmt;

/// Nearer is less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Nearness {
    /// Below one bridge that is not the root port of both: a PCIe switch.
    Switch,
    /// Below one host bridge.
    HostBridge,
    /// On one NUMA node.
    Node,
    /// The distance between their nodes; 10 is that of a node to itself.
    Nodes(u32),
    /// The machine does not say.
    Unknown,
}

impl fmt::Display for Nearness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nearness::Switch => f.write_str("same PCIe switch"),
            Nearness::HostBridge => f.write_str("same host bridge"),
            Nearness::Node => f.write_str("same NUMA node"),
            Nearness::Nodes(distance) => write!(f, "other NUMA node, distance {distance}"),
            Nearness::Unknown => f.write_str("distance not known"),
        }
    }
}

fn between(one: &Place, other: &Place, distances: &[Vec<u32>]) -> Nearness {
    let common = one.above.iter().zip(&other.above).take_while(|(one, other)| one == other).count();
    match common {
        // The host bridge, a root port, and at least the upstream port of a switch.
        3.. => return Nearness::Switch,
        1 | 2 => return Nearness::HostBridge,
        _ => {}
    }
    match (one.node, other.node) {
        (Some(one), Some(other)) if one == other => Nearness::Node,
        _ => distance(one, other, distances).map_or(Nearness::Unknown, Nearness::Nodes),
    }
}

/// Between their NUMA nodes, as the firmware counts: 10 is that of a node to itself.
pub(crate) fn distance(one: &Place, other: &Place, distances: &[Vec<u32>]) -> Option<u32> {
    distances.get(one.node? as usize)?.get(other.node? as usize).copied()
}

/// A GPU and the NIC for its rank.
pub(crate) struct Pair<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) nic: &'a Nic,
    /// The number of a port of it that is active.
    pub(crate) port: u32,
    pub(crate) nearness: Nearness,
}

/// The nearest NIC with an active port for each GPU, in the GPUs' order. GPUs that are
/// as near to several share them out evenly. Empty where no port is active.
pub(crate) fn pairs(facts: &Facts) -> Vec<Pair<'_>> {
    let mut used = vec![0u32; facts.nics.len()];
    let mut pairs = Vec::new();
    for gpu in &facts.gpus.devices {
        let usable = facts.nics.iter().enumerate().zip(&used).filter_map(|((at, nic), used)| {
            let port = nic.ports.iter().find(|port| port.state == "ACTIVE")?;
            let nearness = between(&gpu.place, &nic.place, &facts.gpus.distances);
            Some(((nearness, *used, at), Pair { gpu, nic, port: port.number, nearness }))
        });
        if let Some(((_, _, at), pair)) = usable.min_by_key(|(key, _)| *key) {
            used[at] += 1;
            pairs.push(pair);
        }
    }
    pairs
}
