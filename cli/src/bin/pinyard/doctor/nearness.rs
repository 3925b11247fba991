//! How near a GPU and a NIC are, and which NIC each GPU's rank should use. Pure.

use super::facts::{Facts, Gpu, Nic, Place, Port};
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

/// The active ports of the node's fabric. A port of the other link layer or of half the rate is
/// for storage or management, and may lead to no other rank.
struct Fabric {
    infiniband: bool,
    /// Of its fastest port, in Gbit/s; 0 where no port says.
    fastest: f64,
}

impl Fabric {
    /// InfiniBand where a port of it is active, as no node has that beside a faster fabric.
    fn of(nics: &[Nic]) -> Fabric {
        let active = || nics.iter().flat_map(|nic| &nic.ports).filter(|port| port.is_active());
        let infiniband = active().any(Port::is_infiniband);
        let rates = active().filter(|port| port.is_infiniband() == infiniband).map(Port::gigabits);
        Fabric { infiniband, fastest: rates.fold(0.0, f64::max) }
    }

    fn has(&self, port: &Port) -> bool {
        let fast = self.fastest == 0.0 || port.gigabits() > self.fastest / 2.0;
        port.is_active() && port.is_infiniband() == self.infiniband && fast
    }

    /// The fastest port of a NIC; of ports that are as fast, the one with the lowest number.
    fn port<'a>(&self, nic: &'a Nic) -> Option<&'a Port> {
        let own = nic.ports.iter().filter(|port| self.has(port));
        own.min_by(|one, other| other.gigabits().total_cmp(&one.gigabits()))
    }
}

/// The nearest NIC of the node's fabric for each GPU, in the GPUs' order. GPUs that are
/// as near to several share them out evenly. Empty where no port is active.
pub(crate) fn pairs(facts: &Facts) -> Vec<Pair<'_>> {
    let fabric = Fabric::of(&facts.nics);
    let mut used = vec![0u32; facts.nics.len()];
    let mut pairs = Vec::new();
    for gpu in &facts.gpus.devices {
        let usable = facts.nics.iter().enumerate().zip(&used).filter_map(|((at, nic), used)| {
            let port = fabric.port(nic)?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::doctor::made_up::{self, place};

    /// A port's number, link layer and rate.
    fn port(number: u32, link: &str, rate: &str) -> Port {
        Port { number, state: "ACTIVE".to_owned(), rate: rate.to_owned(), link: link.to_owned() }
    }

    fn nic(name: &str, pci: &str, node: u32, ports: Vec<Port>) -> Nic {
        Nic { name: name.to_owned(), place: place(pci, node), ports, ..Nic::default() }
    }

    fn chosen(facts: &Facts) -> Vec<String> {
        pairs(facts).iter().map(|pair| format!("{}:{}", pair.nic.name, pair.port)).collect()
    }

    #[test]
    fn a_near_port_that_is_not_of_the_fabric_is_passed_over() {
        let facts = made_up::mixed_node();
        let near = |name: &str| {
            let nic = facts.nics.iter().find(|nic| nic.name == name).unwrap();
            between(&facts.gpus.devices[0].place, &nic.place, &facts.gpus.distances)
        };
        assert_eq!((near("mlx5_storage"), near("mlx5_0")), (Nearness::Switch, Nearness::Nodes(21)));
        assert_eq!(chosen(&facts), ["mlx5_0:1", "mlx5_1:1"]);
        // The fabric down, what is left is used.
        let mut facts = facts;
        facts.nics.iter_mut().filter(|nic| nic.name != "mlx5_storage").for_each(|nic| {
            nic.ports[0].state = "DOWN".to_owned();
        });
        assert_eq!(chosen(&facts), ["mlx5_storage:1", "mlx5_storage:1"]);
    }

    #[test]
    fn of_ethernet_alone_the_fastest_ports_are_the_fabric_and_the_nearest_of_them_is_taken() {
        let mut facts = made_up::gpu_node();
        let fabric = |name, pci, node, rate| nic(name, pci, node, vec![port(1, "Ethernet", rate)]);
        facts.nics = vec![
            fabric("management", "0000:3d:00.0", 0, "25 Gb/sec (1X EDR)"),
            fabric("half", "0000:3c:00.0", 0, "200 Gb/sec (4X HDR)"),
            fabric("far", "0000:bd:00.0", 1, "400 Gb/sec (4X NDR)"),
            fabric("little_slower", "0000:3b:00.0", 0, "300 Gb/sec"),
        ];
        assert_eq!(chosen(&facts), ["little_slower:1", "far:1"]);
        facts.nics.pop();
        assert_eq!(chosen(&facts), ["far:1", "far:1"]);
    }

    #[test]
    fn of_a_nic_s_ports_the_one_of_the_fabric_is_named() {
        let mut facts = made_up::gpu_node();
        let both = vec![
            port(1, "Ethernet", "400 Gb/sec (4X NDR)"),
            port(2, "InfiniBand", "100 Gb/sec (4X EDR)"),
            port(3, "InfiniBand", "200 Gb/sec (4X HDR)"),
            port(4, "InfiniBand", "200 Gb/sec (4X HDR)"),
        ];
        facts.nics = vec![nic("vpi", "0000:3d:00.0", 0, both)];
        assert_eq!(chosen(&facts), ["vpi:3", "vpi:3"]);
    }

    #[test]
    fn ports_that_say_no_rate_are_taken_where_none_does() {
        let mut facts = made_up::gpu_node();
        let of = |rate| vec![port(1, "", rate)];
        facts.nics = vec![nic("near", "0000:3d:00.0", 0, of("")), nic("far", "0000:bd:00.0", 1, of("?"))];
        assert_eq!(chosen(&facts), ["near:1", "far:1"]);
        facts.nics[1].ports = of("0.5 Gb/sec");
        assert_eq!(chosen(&facts), ["far:1", "far:1"]);
    }
}
