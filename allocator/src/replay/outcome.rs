//! What came of a replay.

use crate::device::Hits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a pool made of a trace. Sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Outcome {
    /// The configuration's.
    pub name: String,
    /// Events of the trace.
    pub events: u64,
    /// Of these, allocations.
    pub allocations: u64,
    /// Allocations that failed; their blocks' other events are left out.
    pub failures: u64,
    /// Times that an allocation was tried again while streams worked.
    pub waits: u64,
    /// Streams.
    pub streams: u64,
    /// In use at the end, before all is freed: 0 if the trace frees all.
    #[serde(skip)]
    pub live_bytes: u64,
    /// The most that was in use, as asked for.
    pub peak_live_bytes: u64,
    /// The most that slabs had.
    pub peak_reserved_bytes: u64,
    /// Calls of the driver by function, those that make streams known included.
    pub driver_calls: BTreeMap<String, u64>,
    /// Time on the device's clock, from the first event to the last.
    pub simulated_ns: u64,
    /// Of this, time that calls of the driver took.
    pub driver_ns: u64,
    /// Where allocations found their memory.
    pub hits: Hits,
}

impl Outcome {
    /// Peak reserved by peak live: 1 is perfect; 0 without an allocation.
    pub fn ratio(&self) -> f64 {
        if self.peak_live_bytes == 0 {
            0.0
        } else {
            self.peak_reserved_bytes as f64 / self.peak_live_bytes as f64
        }
    }

    /// All calls of the driver.
    pub fn all_calls(&self) -> u64 {
        self.driver_calls.values().sum()
    }
}
