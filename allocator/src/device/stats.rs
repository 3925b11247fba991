//! Counters of a device pool.

/// A device pool's counters at one moment. Exact while no other thread is inside the
/// pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Slabs now.
    pub slabs: u64,
    /// Bytes of all slabs.
    pub reserved_bytes: u64,
    /// Most bytes of slabs that there ever were.
    pub peak_reserved_bytes: u64,
    /// Bytes of blocks in use, rounded up as handed out; dropped ones that wait for
    /// other users included.
    pub live_bytes: u64,
    /// Such blocks.
    pub live_blocks: u64,
    /// Blocks handed out since the start.
    pub allocations: u64,
    /// Blocks taken back since the start.
    pub frees: u64,
    /// Free bytes, for anybody or for one stream.
    pub free_bytes: u64,
    /// Free bytes that wait for the streams that freed them.
    pub waiting_bytes: u64,
    /// Dropped blocks that wait for other users.
    pub waiting_blocks: u64,
    /// Slabs made since the start.
    pub growths: u64,
    /// Slabs given back.
    pub releases: u64,
    /// Times that a stream's free memory was taken for others.
    pub steals: u64,
    /// Times that a stream was made to wait for another's memory, or all that are behind
    /// for each other's.
    pub holds: u64,
    /// Times that an allocation found no memory at first.
    pub squeezes: u64,
}
