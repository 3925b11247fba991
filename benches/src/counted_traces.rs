//! Traces of device pools for callgrind: what a pool's user pays for 1,000 allocations and
//! frees of a workload, on a simulated device. Traces of
//! several streams stay out: their counts follow the pool's thread.
#![allow(unsafe_code)] // symbols that callgrind can name

use pinyard_allocator::device::{DeviceBuf, DevicePool, PoolStream};
use pinyard_benches::traces::{self, Op, Trace};
use pinyard_benches::turns::{fail, or_fail};
use pinyard_driver::{Driver, DriverToken, Simulated};
use std::hint::black_box;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Operations that are counted.
const COUNTED: usize = 1000;
/// Bytes of the device. Valgrind has no addresses for many more, so what needs more has
/// blocks that are as many times shorter.
const DEVICE: usize = 2 << 30;
const SHORTER: usize = 8;

/// A pool that replays a trace.
pub(crate) struct Replay {
    stream: PoolStream,
    blocks: Vec<Option<DeviceBuf>>,
}

/// The trace, with shorter blocks if the device is too small for it.
fn scaled(mut trace: Trace) -> Trace {
    if trace.peak_live() > DEVICE / 2 {
        trace.cap = trace.cap.map(|cap| cap / SHORTER);
        for op in &mut trace.ops {
            if let Op::Alloc { bytes, .. } = op {
                *bytes = bytes.div_ceil(SHORTER);
            }
        }
    }
    trace
}

impl Replay {
    fn new(gpu: &Arc<Simulated>, trace: &Trace) -> Replay {
        let builder = DevicePool::builder(gpu.clone()).limit(trace.cap.unwrap_or(usize::MAX));
        let pool = or_fail(builder.build());
        let stream = or_fail(pool.stream(or_fail(gpu.stream_create(&DriverToken::at_entry()))));
        Replay { stream, blocks: (0..trace.ids).map(|_| None).collect() }
    }

    /// An allocation that fails is one of the workload's.
    #[inline(always)]
    fn step(&mut self, op: Op) {
        match op {
            Op::Alloc { id, bytes, .. } => self.blocks[id as usize] = self.stream.alloc(bytes).ok(),
            Op::Free { id } => self.blocks[id as usize] = None,
            // Traces of one stream without work.
            Op::Use { .. } | Op::Busy { .. } | Op::Work { .. } | Op::Copy { .. } => {}
        }
    }
}

macro_rules! counted {
    ($($name:ident $number:literal)*) => {
        /// The functions that callgrind counts.
        pub(crate) const PATHS: &[&str] = &[$(stringify!($name)),*];
        const STEPS: &[extern "C" fn(&mut Replay, &Op)] = &[$($name),*];

        $(
            /// A step of one trace. The number keeps the functions apart: the linker would
            /// make one of those that are the same.
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $name(replay: &mut Replay, op: &Op) {
                black_box($number);
                replay.step(*op);
            }
        )*
    };
}

counted! {
    count_trace_w1_small 1
    count_trace_w1_64_large 2
    count_trace_w2 3
    count_trace_w3 4
    count_trace_w4b 5
    count_trace_w6 6
    count_trace_w7 7
    count_trace_w7_many_holes 8
}

/// The trace of each path.
fn all() -> [Trace; 8] {
    let (mut same, mut steady) = (traces::same_sizes(true), traces::steady(true));
    let (mut holes, mut pressed) = (traces::holes(true), traces::workloads(true));
    let mut many_holes = traces::holes(false);
    let take = |of: &mut Vec<Trace>, name: &str, at: usize| {
        let found = of
            .iter()
            .position(|trace| trace.name.starts_with(name) && trace.at.is_none_or(|(_, value)| value == at));
        match found {
            Some(found) => of.swap_remove(found),
            None => fail(&format!("counted: no trace {name:?} at {at}")),
        }
    };
    [
        take(&mut same, "one block", 4096),
        take(&mut same, "64 blocks, first", 1 << 20),
        take(&mut steady, "1 to 256 MiB", 0),
        take(&mut steady, "256 B to 64 MiB", 0),
        traces::transformer("transformer, 24 layers, a batch of 1", &[1], 1),
        take(&mut pressed, "92 %", 0),
        take(&mut holes, "1 and 2 KiB", 4096),
        take(&mut many_holes, "1 and 2 KiB", 65_536),
    ]
}

/// Replays each once, and then a thousand operations of it that count.
pub(crate) fn run() {
    let gpu = Arc::new(Simulated::new(DEVICE));
    for (trace, counted) in all().into_iter().map(scaled).zip(STEPS) {
        // The pool before goes with its thread.
        let mut waits = 0;
        while gpu.used_bytes() > 0 && waits < 5000 {
            thread::sleep(Duration::from_millis(1));
            waits += 1;
        }
        let mut replay = Replay::new(&gpu, &trace);
        trace.ops.iter().for_each(|&op| replay.step(op));
        let is_counted = |op: &&Op| matches!(op, Op::Alloc { .. } | Op::Free { .. });
        let operations = trace.ops.iter().filter(is_counted).count();
        if operations < COUNTED {
            fail(&format!("counted: {:?} has {operations} operations", trace.name));
        }
        // Behind what W7 prepares, and where W6 is full.
        let mut before = (operations * 65 / 100).min(operations - COUNTED);
        let mut left = COUNTED;
        for &op in &trace.ops {
            match op {
                Op::Alloc { .. } | Op::Free { .. } if before > 0 => {
                    before -= 1;
                    replay.step(op);
                }
                Op::Alloc { .. } | Op::Free { .. } if left > 0 => {
                    left -= 1;
                    counted(&mut replay, &op);
                }
                op => replay.step(op),
            }
        }
    }
}
