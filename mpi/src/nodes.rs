//! Which ranks share a node.

use crate::calls::{Answer, Comm};
use crate::words::{WORD, word};
use mpi::topology::Rank;
use pinyard_driver::Device;

/// The nodes of a communicator. Nodes are numbered by their first ranks.
pub(crate) struct Nodes {
    /// The ranks of this one.
    pub(crate) here: Comm,
    /// The first rank of each node, in the nodes' order: none of the other ranks' has it.
    pub(crate) leaders: Option<Comm>,
    /// By rank: its node, and its place there.
    places: Vec<(Rank, Rank)>,
    count: Rank,
    /// Ranks of the node that has fewest, and of the one that has most.
    least: Rank,
    most: Rank,
    /// The places on this node, those beside each other whose devices are.
    beside: Vec<Rank>,
}

/// Where a device is in its host: by the host's own node, then by PCI, whose numbers are near behind
/// one switch. Devices of which nothing is known are at 0.
pub(crate) fn spot(device: &Device) -> u64 {
    let node = device.host_node.map_or(0, |node| u64::from(node) + 1);
    node << 48 | device.pci.unwrap_or(0)
}

/// Ranks by where their devices are; those of one device as they are numbered.
fn beside(spots: &[u64]) -> Vec<Rank> {
    let mut order: Vec<Rank> = (0..spots.len() as Rank).collect();
    order.sort_by_key(|&rank| spots[rank as usize]);
    order
}

impl Nodes {
    /// Those that MPI says can share memory, or `per_node` ranks in a row. This rank's device is at
    /// `spot`. Collective.
    pub(crate) fn find(whole: &Comm, per_node: Option<i32>, spot: u64) -> Answer<Nodes> {
        let here = match per_node {
            None => whole.of_node()?,
            // Every rank has a colour, so a communicator.
            Some(count) => match whole.of_colour(Some(whole.rank() / count))? {
                Some(here) => here,
                None => whole.of_node()?,
            },
        };
        // The leader's rank stands for the node.
        let mut leader = (whole.rank() as u64).to_le_bytes();
        here.broadcast(&mut leader, 0)?;
        let leader = u64::from_le_bytes(leader);
        let leaders = whole.of_colour((here.rank() == 0).then_some(0))?;
        let mine = [leader.to_le_bytes(), (here.rank() as u64).to_le_bytes()].concat();
        let all = whole.gather_all(&mine)?;
        let told: Vec<(u64, Rank)> =
            all.chunks_exact(2 * WORD).map(|told| (word(told, 0), word(told, WORD) as Rank)).collect();
        let mut first: Vec<u64> = told.iter().map(|&(leader, _)| leader).collect();
        first.sort_unstable();
        first.dedup();
        let node = |leader: u64| first.partition_point(|&other| other < leader) as Rank;
        let places: Vec<(Rank, Rank)> = told.iter().map(|&(leader, place)| (node(leader), place)).collect();
        let mut ranks = vec![0; first.len()];
        for &(node, _) in &places {
            ranks[node as usize] += 1;
        }
        let least = ranks.iter().copied().min().unwrap_or(0);
        let most = ranks.iter().copied().max().unwrap_or(0);
        let spots = here.gather_all(&spot.to_le_bytes())?;
        let spots: Vec<u64> = (0..here.size() as usize).map(|place| word(&spots, place * WORD)).collect();
        Ok(Nodes { here, leaders, places, count: first.len() as Rank, least, most, beside: beside(&spots) })
    }

    /// The places on this node, in an order in which neighbours' devices are near each other.
    pub(crate) fn beside(&self) -> &[Rank] {
        &self.beside
    }

    pub(crate) fn count(&self) -> Rank {
        self.count
    }

    /// The node of a rank.
    pub(crate) fn of(&self, rank: Rank) -> Rank {
        self.places[rank as usize].0
    }

    /// Which of its node's ranks it is.
    pub(crate) fn place(&self, rank: Rank) -> Rank {
        self.places[rank as usize].1
    }

    /// The rank that has a place on a node.
    pub(crate) fn rank(&self, node: Rank, place: Rank) -> Rank {
        self.places.iter().position(|&at| at == (node, place)).unwrap_or(0) as Rank
    }

    /// Ranks of the node that has most.
    pub(crate) fn most(&self) -> Rank {
        self.most
    }

    /// Ranks of the node that has fewest.
    pub(crate) fn least(&self) -> Rank {
        self.least
    }

    /// Whether no two ranks share one.
    pub(crate) fn are_single(&self) -> bool {
        self.count as usize == self.places.len()
    }
}

/// The ranks that have one place on their nodes, where every node has a rank there.
pub(crate) struct Column {
    pub(crate) ranks: Comm,
    /// By node: its rank among them.
    numbers: Vec<Rank>,
}

impl Column {
    /// That of this rank. Collective over `whole`.
    pub(crate) fn find(whole: &Comm, nodes: &Nodes) -> Answer<Option<Column>> {
        let place = nodes.here.rank();
        let colour = (place < nodes.least()).then_some(place);
        let Some(ranks) = whole.of_colour(colour)? else { return Ok(None) };
        // They are numbered in the order of their ranks.
        let of_node: Vec<Rank> = (0..nodes.count).map(|node| nodes.rank(node, place)).collect();
        let before = |rank: Rank| of_node.iter().filter(|&&other| other < rank).count() as Rank;
        let numbers = of_node.iter().map(|&rank| before(rank)).collect();
        Ok(Some(Column { ranks, numbers }))
    }

    /// The rank of a node among them.
    pub(crate) fn rank_of_node(&self, node: Rank) -> Rank {
        self.numbers[node as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinyard_driver::{Driver, Simulated};

    fn at(host_node: Option<u32>, pci: Option<u64>) -> u64 {
        let device = Simulated::new(1 << 20).device().clone();
        spot(&Device { host_node, pci, ..device })
    }

    #[test]
    fn ranks_stand_beside_those_whose_devices_are_behind_the_same_switch() {
        // Two sockets with two switches each, and ranks that a scheduler dealt out by turns; two
        // ranks share a device.
        let [left, right] = [Some(0), Some(1)];
        let spots = [
            at(left, Some(0x1_0000)),
            at(right, Some(0x8100)),
            at(left, Some(0x4100)),
            at(right, Some(0xc100)),
            at(left, Some(0x0100)),
            at(right, Some(0x8200)),
            at(left, Some(0x4100)),
        ];
        assert_eq!(beside(&spots), [4, 2, 6, 0, 1, 5, 3]);
        // Of which nothing is known, or which are all on one: as they are numbered.
        assert_eq!(beside(&[at(None, None); 4]), [0, 1, 2, 3]);
        assert_eq!(beside(&[at(left, Some(0x4100)); 3]), [0, 1, 2]);
    }
}
