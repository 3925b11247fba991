//! The path that a communicator takes, and why. `choose` in `communicator.rs` decides it when the
//! communicator is made.
//!
//! Within the path each operation decides for itself: few bytes may travel in the first message, and
//! memory that is in no slab goes through pinned chunks on `ipc` too. The rank that has the bytes tells
//! the others by the message's `Kind` (`message.rs`).

use crate::awareness::Awareness;
use mpi::topology::Rank;
use std::fmt;

/// A way for bytes between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Path {
    /// The device pointer goes to MPI, which takes it.
    Direct,
    /// All ranks are of one node: copies between devices through IPC handles of slabs.
    Ipc,
    /// A pipeline of pinned chunks: from the device, through MPI, to the device.
    Staged,
    /// Messages and long reductions by [`Ipc`](Path::Ipc) within nodes, the rest
    /// [`Staged`](Path::Staged): Bcast as well.
    IpcAndStaged,
}

impl Path {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Path::Direct => "direct",
            Path::Ipc => "ipc",
            Path::Staged => "staged",
            Path::IpcAndStaged => "ipc+staged",
        }
    }

    /// What `PINYARD_MPI_PATH` may be.
    pub(crate) fn of(name: &str) -> Option<Path> {
        [Path::Direct, Path::Ipc, Path::Staged, Path::IpcAndStaged]
            .into_iter()
            .find(|path| path.name() == name)
    }

    /// Whether ranks of one node copy from each other's devices.
    pub(crate) fn has_ipc(self) -> bool {
        matches!(self, Path::Ipc | Path::IpcAndStaged)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a communicator decided when it was made. The same at every rank, but for
/// `awareness.source`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The path of Bcast, messages, shares and parts. Reductions have kernels on
    /// [`Ipc`](Path::Ipc) and within the nodes of [`IpcAndStaged`](Path::IpcAndStaged); otherwise MPI
    /// reduces on pinned chunks, on [`Direct`](Path::Direct) as well.
    pub path: Path,
    /// Why.
    pub reason: String,
    /// Ranks of the communicator.
    pub ranks: Rank,
    /// Nodes that they are of.
    pub nodes: Rank,
    /// What this rank's MPI takes.
    pub awareness: Awareness,
    /// Bytes of a pinned chunk.
    pub chunk_bytes: usize,
    /// Chunks in flight at most.
    pub chunks: usize,
    /// Whether Bcast's chunks are one memory for the ranks of a node: within it MPI then
    /// carries none of them.
    pub chunks_are_shared: bool,
    /// Whether collectives that would not be compared between ranks are, before anything moves:
    /// see [`Builder::checks`](crate::Builder::checks).
    pub checks: bool,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { path, reason, ranks, nodes, awareness, chunk_bytes, chunks, chunks_are_shared, checks } =
            self;
        let checked = if *checks { "; every collective is compared" } else { "" };
        let whose = if *chunks_are_shared { "of each node" } else { "of each rank" };
        write!(
            f,
            "{path}: {reason}; {ranks} ranks on {nodes} nodes; {awareness}; {chunks} pinned chunks of {chunk_bytes} bytes {whose}{checked}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_found_by_its_name() {
        for path in [Path::Direct, Path::Ipc, Path::Staged, Path::IpcAndStaged] {
            assert_eq!(Path::of(&path.to_string()), Some(path));
        }
        assert_eq!(Path::of("auto"), None);
    }
}
