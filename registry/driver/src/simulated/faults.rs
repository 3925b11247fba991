//! Which calls are counted, what they cost, and which fail on request.

use crate::call::{CALLS, Call};

/// What calls and work cost, in nanoseconds of the virtual clock. The default is
/// what an H200 took (driver 580.159.04).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Costs {
    /// `cuMemAlloc` and `cuMemCreate`.
    pub alloc: u64,
    /// `cuMemFree` and `cuMemRelease`, without the waiting.
    pub free: u64,
    /// `cuMemHostRegister`, per 2 MiB.
    pub register_2_mib: u64,
    /// `cuEventRecord`.
    pub record: u64,
    /// `cuEventQuery`.
    pub query: u64,
    /// `cuStreamWriteValue64`.
    pub write_value: u64,
    /// `cuStreamWaitEvent` and `cuStreamWaitValue64`.
    pub wait: u64,
    /// Any other call.
    pub other: u64,
    /// Copies and fills, nanoseconds per 64 KiB of work on the stream.
    pub copy_64_kib: u64,
    /// `cuMemFree` waits for all work on the device.
    pub free_waits: bool,
    /// `cuMemAlloc` does so too.
    pub alloc_waits: bool,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            alloc: 28_000,
            free: 25_000,
            register_2_mib: 50_000,
            record: 153,
            query: 160,
            write_value: 756,
            wait: 130,
            other: 50,
            copy_64_kib: 1_200,
            free_waits: true,
            alloc_waits: false,
        }
    }
}

impl Costs {
    pub(super) fn of(&self, call: Call) -> u64 {
        match call {
            Call::MemAlloc | Call::MemAllocManaged | Call::PhysicalCreate | Call::HostAlloc => self.alloc,
            Call::MemFree | Call::PhysicalRelease | Call::HostFree => self.free,
            Call::HostRegister | Call::HostUnregister => self.register_2_mib,
            Call::EventRecord => self.record,
            Call::EventQuery | Call::StreamQuery => self.query,
            Call::StreamWriteValue => self.write_value,
            Call::StreamWaitEvent | Call::StreamWaitValue => self.wait,
            _ => self.other,
        }
    }
}

/// Counts of calls, and failures that were asked for.
pub(super) struct Faults {
    pub(super) counts: [u64; CALLS],
    pub(super) all: u64,
    /// The call with this number of `all` fails with this code.
    pub(super) at: Option<(u64, i32)>,
    /// Which that was.
    pub(super) failed_at: Option<Call>,
    /// Every call fails with this code.
    pub(super) always: Option<i32>,
    /// The next calls of a kind that fail: how many, with which code.
    pub(super) next: Vec<(Call, u64, i32)>,
}

impl Faults {
    pub(super) fn new() -> Faults {
        Faults { counts: [0; CALLS], all: 0, at: None, failed_at: None, always: None, next: Vec::new() }
    }

    /// Counts a call; the code to fail with, if it shall fail.
    pub(super) fn count(&mut self, call: Call) -> Option<i32> {
        let number = self.all;
        self.all += 1;
        self.counts[call as usize] += 1;
        if self.always.is_some() {
            return self.always;
        }
        if let Some((at, code)) = self.at
            && at == number
        {
            self.failed_at = Some(call);
            return Some(code);
        }
        let found = self.next.iter_mut().find(|(kind, left, _)| *kind == call && *left > 0)?;
        found.1 -= 1;
        Some(found.2)
    }
}
