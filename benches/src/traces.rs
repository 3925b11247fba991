//! What is replayed: sequences of allocations, frees and work of a device.

use pinyard_cli::bench::Axis;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// The most streams that a trace uses.
pub const STREAMS: usize = 64;

/// A step of a trace. Blocks have numbers.
#[derive(Clone, Copy)]
pub enum Op {
    /// A block for a stream.
    Alloc {
        /// Its number.
        id: u32,
        /// Its length.
        bytes: usize,
        /// Its stream.
        stream: u16,
    },
    /// The block goes.
    Free {
        /// Its number.
        id: u32,
    },
    /// Another stream uses the block, until it is freed.
    Use {
        /// Its number.
        id: u32,
        /// The other stream.
        stream: u16,
    },
    /// Kernels that occupy the stream alone, as many as it takes to stay busy.
    Busy {
        /// The stream.
        stream: u16,
    },
    /// A kernel that occupies the whole device.
    Work {
        /// The stream.
        stream: u16,
    },
    /// The block's stream copies it to the device.
    Copy {
        /// Its number.
        id: u32,
    },
}

/// A sequence of operations.
pub struct Trace {
    /// What it is.
    pub name: String,
    /// Where it lies among those of its kind.
    pub at: Option<(Axis, usize)>,
    /// What is done.
    pub ops: Vec<Op>,
    /// Numbers of blocks: all are below this.
    pub ids: usize,
    /// Bytes of all slabs at most, if the workload has such a limit.
    pub cap: Option<usize>,
}

impl Trace {
    /// The streams that it uses: all numbers below this.
    pub fn streams(&self) -> usize {
        let stream = |op: &Op| match *op {
            Op::Alloc { stream, .. } | Op::Use { stream, .. } => usize::from(stream) + 1,
            Op::Free { .. } | Op::Busy { .. } | Op::Work { .. } | Op::Copy { .. } => 0,
        };
        self.ops.iter().map(stream).max().unwrap_or(0)
    }

    /// The most bytes that live at once.
    pub fn peak_live(&self) -> usize {
        let (mut sizes, mut sum, mut peak) = (vec![0; self.ids], 0, 0);
        for &op in &self.ops {
            match op {
                Op::Alloc { id, bytes, .. } => {
                    sizes[id as usize] = bytes;
                    sum += bytes;
                    peak = peak.max(sum);
                }
                Op::Free { id } => sum -= sizes[id as usize],
                Op::Use { .. } | Op::Busy { .. } | Op::Work { .. } | Op::Copy { .. } => {}
            }
        }
        peak
    }
}

/// `full`, or `few` for a short trace.
fn pick<T>(short: bool, full: T, few: T) -> T {
    if short { few } else { full }
}

/// Of `values`, for short traces those that are at most `most`.
fn up_to(short: bool, most: usize, values: &[usize]) -> impl Iterator<Item = usize> {
    values.iter().copied().filter(move |&value| !short || value <= most)
}

/// SplitMix64.
pub struct Random(u64);

impl Random {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
    /// Below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
    /// Between both, as likely in each doubling.
    pub fn log(&mut self, least: usize, most: usize) -> usize {
        let part = self.next() as f64 / u64::MAX as f64;
        ((least as f64) * (most as f64 / least as f64).powf(part)) as usize
    }
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next() as f64 / u64::MAX as f64).sum::<f64>() - 6.0
    }
}

/// Who uses the blocks of [`replace`].
#[derive(Clone, Copy)]
enum Users {
    /// One stream without work.
    One,
    /// So many streams, each of which has work for the next while. A fifth of the blocks is
    /// used by one more.
    Busy(usize),
    /// So many streams, which get more work than the device can do.
    Behind(usize),
    /// One stream, which copies a block to the device before it is freed.
    Copies,
}

/// Random replacement among `live` blocks.
fn replace(
    name: &str,
    count: usize,
    live: usize,
    users: Users,
    mut size: impl FnMut(&mut Random) -> usize,
) -> Trace {
    let streams = match users {
        Users::One | Users::Copies => 1,
        Users::Busy(streams) | Users::Behind(streams) => streams,
    };
    let mut random = Random(1);
    let mut ops = Vec::new();
    let mut slots: Vec<Option<u32>> = vec![None; live];
    let mut id = 0;
    for step in 0..count {
        let slot = if step < live { step } else { random.below(live) };
        let stream = |random: &mut Random| random.below(streams) as u16;
        if let Some(id) = slots[slot] {
            if matches!(users, Users::Busy(2..)) && random.below(5) == 0 {
                ops.push(Op::Use { id, stream: stream(&mut random) });
            }
            if matches!(users, Users::Copies) {
                ops.extend([Op::Copy { id }, Op::Use { id, stream: 0 }]);
            }
            ops.push(Op::Free { id });
        }
        let stream = stream(&mut random);
        ops.push(Op::Alloc { id, bytes: size(&mut random), stream });
        match users {
            Users::Busy(_) => ops.push(Op::Busy { stream }),
            Users::Behind(_) if step % 4 == 0 => ops.push(Op::Work { stream }),
            Users::One | Users::Behind(_) | Users::Copies => {}
        }
        slots[slot] = Some(id);
        id += 1;
    }
    ops.extend(slots.into_iter().flatten().map(|id| Op::Free { id }));
    Trace { name: name.to_owned(), ops, ids: id as usize, at: None, cap: None }
}

/// One size over and over: a block at a time, or 64 of them that are freed in either order.
pub fn same_sizes(short: bool) -> Vec<Trace> {
    const ROW: u32 = 64;
    let of = |name: &str, bytes, live: u32, frees: fn(u32) -> u32| {
        let allocs = move || (0..live).map(move |id| Op::Alloc { id, bytes, stream: 0 });
        let frees = move || (0..live).map(move |at| Op::Free { id: frees(at) });
        let rounds = pick(short, 100_000, 2000) / live as usize;
        let ops = (0..rounds).flat_map(|_| allocs().chain(frees())).collect();
        let at = Some((Axis::Bytes, bytes));
        Trace { name: name.to_owned(), at, ops, ids: live as usize, cap: None }
    };
    let single = |bytes| of("one block", bytes, 1, |at| at);
    let first = |bytes| of("64 blocks, first in first out", bytes, ROW, |at| at);
    let last = |bytes| of("64 blocks, last in first out", bytes, ROW, |at| ROW - 1 - at);
    let singles = [512, 4 * KIB, 64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB].map(single);
    let rows = [4 * KIB, MIB, 64 * MIB];
    singles.into_iter().chain(rows.map(first)).chain(rows.map(last)).collect()
}

/// Random use, training, and a device that is nearly full.
pub fn workloads(short: bool) -> Vec<Trace> {
    let pressure = pressure(pick(short, 20_000, 1000));
    steady(short).into_iter().chain([pressure]).collect()
}

/// Those that need nothing of the driver once they have been replayed.
pub fn steady(short: bool) -> Vec<Trace> {
    let part = pick(short, 1, 20);
    vec![
        replace("1 to 256 MiB, 32 live", 20_000 / part, 32, Users::One, |random| {
            (1 + random.below(256)) * MIB
        }),
        replace("256 B to 64 MiB, 512 live", 100_000 / part, 512, Users::One, |random| {
            random.log(256, 64 * MIB)
        }),
        batches(2000 / part),
        steps(50 / part),
    ]
    .into_iter()
    .chain(training(pick(short, 20, 1)))
    .collect()
}

/// Steps of training, whose batches are of one size, or vary: one round of them at least.
pub fn training(steps: usize) -> Vec<Trace> {
    vec![
        transformer("transformer, 24 layers", &[8], steps),
        transformer("transformer, batches of 8, 7, 8 and 6", &[8, 7, 8, 6], steps),
    ]
}

/// Random use by several streams, which are busy or far behind.
pub fn streams(short: bool) -> Vec<Trace> {
    let of = |name: &str, users, streams| {
        let count = pick(short, 50_000, 2000);
        let trace = replace(name, count, 256, users, |random| random.log(4 * KIB, 8 * MIB));
        Trace { at: Some((Axis::Streams, streams)), ..trace }
    };
    let busy = |streams| of("4 KiB to 8 MiB, 256 live, busy streams", Users::Busy(streams), streams);
    let behind = |streams| of("the same, streams far behind", Users::Behind(streams), streams);
    [1, 4, 16, STREAMS].map(busy).into_iter().chain([4, 16, STREAMS].map(behind)).collect()
}

/// Pinned memory that is copied to the device and freed before the copy has passed. Without a
/// GPU the blocks are smaller: it is this machine's memory that is touched.
pub fn copies(short: bool, large: bool) -> Vec<Trace> {
    let (name, most) = match large {
        true => ("4 KiB to 256 MiB, 64 live, copied and freed", 256 * MIB),
        false => ("4 KiB to 4 MiB, 64 live, copied and freed", 4 * MIB),
    };
    vec![replace(name, pick(short, 2000, 200), 64, Users::Copies, |random| random.log(4 * KIB, most))]
}

/// Blocks among free ones that are too small.
pub fn holes(short: bool) -> Vec<Trace> {
    up_to(short, 4096, &[4096, 16_384, 65_536]).map(|holes| holed(short, holes as u32)).collect()
}

/// Twelve tensors whose size follows the batch, N(64, 8).
fn batches(count: usize) -> Trace {
    let mut random = Random(2);
    let (mut ops, mut id) = (Vec::new(), 0);
    for _ in 0..count {
        let batch = (64.0 + 8.0 * random.normal()).max(1.0) as usize;
        let first = id;
        for tensor in 1..=12 {
            ops.push(Op::Alloc { id, bytes: tensor * batch * 4 * KIB, stream: 0 });
            id += 1;
        }
        ops.extend((first..id).map(|id| Op::Free { id }));
    }
    Trace { name: "12 tensors of a batch of N(64, 8)".to_owned(), ops, ids: id as usize, at: None, cap: None }
}

/// Sixty tensors, whose sizes stay the same from step to step, freed in reverse.
fn steps(count: usize) -> Trace {
    const TENSORS: u32 = 60;
    const SIZES: [usize; 10] = [4, 8, 16, 32, 64, 78, 128, 160, 313, 320];
    let mut random = Random(6);
    let sizes: Vec<usize> = (0..TENSORS).map(|_| SIZES[random.below(SIZES.len())] * MIB).collect();
    let allocs = (0..TENSORS).zip(sizes).map(|(id, bytes)| Op::Alloc { id, bytes, stream: 0 });
    let frees = (0..TENSORS).rev().map(|id| Op::Free { id });
    let step: Vec<Op> = allocs.chain(frees).collect();
    Trace {
        name: "60 tensors of 4 to 320 MiB a step".to_owned(),
        ops: step.repeat(count.max(1)),
        ids: TENSORS as usize,
        at: None,
        cap: None,
    }
}

/// Forward and backward of 24 layers, and an optimiser. Steps take the batches in turn.
pub fn transformer(name: &str, batches: &[usize], steps: usize) -> Trace {
    let mut random = Random(3);
    let (mut ops, mut id) = (Vec::new(), 0u32);
    for &batch in batches.iter().cycle().take(steps.max(batches.len())) {
        // Of 2048 tokens of 4096 numbers, of two bytes each.
        let unit = batch * 2048 * 4096 * 2;
        let mut alloc = |ops: &mut Vec<Op>, bytes| {
            ops.push(Op::Alloc { id, bytes, stream: 0 });
            id += 1;
            (id - 1, bytes)
        };
        let mut saved = Vec::new();
        for _ in 0..24 {
            for bytes in [unit, 3 * unit, unit / 64, unit, unit, 4 * unit, 4 * unit] {
                saved.push(alloc(&mut ops, bytes));
            }
            for _ in 0..2 {
                let (temporary, _) = alloc(&mut ops, unit);
                ops.push(Op::Free { id: temporary });
            }
        }
        let logits = batch * 2048 * 50_304 * 2;
        let (one, two) = (alloc(&mut ops, logits), alloc(&mut ops, 2 * logits));
        ops.extend([Op::Free { id: two.0 }, Op::Free { id: one.0 }]);
        let mut last = None;
        for &(tensor, bytes) in saved.iter().rev() {
            let (gradient, _) = alloc(&mut ops, bytes);
            ops.push(Op::Free { id: tensor });
            ops.extend(last.map(|id| Op::Free { id }));
            last = Some(gradient);
        }
        ops.extend(last.map(|id| Op::Free { id }));
        for _ in 0..200 {
            let (temporary, _) = alloc(&mut ops, random.log(4 * KIB, 64 * MIB));
            ops.push(Op::Free { id: temporary });
        }
    }
    Trace { name: name.to_owned(), ops, ids: id as usize, at: None, cap: None }
}

/// Up to 92 % of 8 GiB in use.
fn pressure(count: usize) -> Trace {
    let (cap, mut random) = (8 * GIB, Random(4));
    let (mut ops, mut live, mut sum, mut id) = (Vec::new(), Vec::new(), 0, 0);
    while ops.len() < count {
        let bytes = random.log(MIB, 512 * MIB);
        while sum + bytes > cap * 92 / 100 {
            let (gone, length): (u32, usize) = live.swap_remove(random.below(live.len()));
            ops.push(Op::Free { id: gone });
            sum -= length;
        }
        ops.push(Op::Alloc { id, bytes, stream: 0 });
        live.push((id, bytes));
        sum += bytes;
        id += 1;
    }
    ops.extend(live.into_iter().map(|(id, _)| Op::Free { id }));
    Trace { name: "92 % of 8 GiB in use".to_owned(), ops, ids: id as usize, at: None, cap: Some(cap) }
}

/// Random use in RMM's manner, one trace for the largest size each.
pub fn random(short: bool) -> Vec<Trace> {
    up_to(short, 64, &[1, 64, 1024]).map(|most| rmm(short, most * MIB)).collect()
}

/// RMM's RANDOM_ALLOCATIONS_BENCH: of two steps for each allocation 73 in 100 allocate
/// while that keeps below 16,000 MiB, and the others free any that lives.
fn rmm(short: bool, most: usize) -> Trace {
    const USAGE: usize = 16_000 * MIB;
    let count = pick(short, 100_000, 2000);
    let mut random = Random(5);
    let (mut ops, mut live, mut sum, mut id) = (Vec::new(), Vec::new(), 0, 0);
    for _ in 0..2 * count {
        let bytes = 1 + random.below(most);
        let allocates = random.below(100) < 73 && (id as usize) < count && sum + bytes < USAGE;
        if live.is_empty() || allocates {
            if id as usize == count {
                break;
            }
            ops.push(Op::Alloc { id, bytes, stream: 0 });
            live.push((id, bytes));
            sum += bytes;
            id += 1;
        } else {
            let (gone, length): (u32, usize) = live.swap_remove(random.below(live.len()));
            ops.push(Op::Free { id: gone });
            sum -= length;
        }
    }
    ops.extend(live.into_iter().map(|(id, _)| Op::Free { id }));
    Trace {
        name: "RMM's random use".to_owned(),
        at: Some((Axis::Bytes, most)),
        ops,
        ids: id as usize,
        cap: None,
    }
}

/// Isolated holes of 1 KiB, then blocks of 1 and 2 KiB.
fn holed(short: bool, holes: u32) -> Trace {
    let mut ops: Vec<Op> = (0..2 * holes).map(|id| Op::Alloc { id, bytes: KIB, stream: 0 }).collect();
    ops.extend((0..holes).map(|hole| Op::Free { id: 2 * hole }));
    let id = 2 * holes;
    for at in 0..pick(short, 50_000, 2000) {
        let bytes = if at % 2 == 0 { KIB } else { 2 * KIB };
        ops.extend([Op::Alloc { id, bytes, stream: 0 }, Op::Free { id }]);
    }
    ops.extend((0..holes).map(|hole| Op::Free { id: 2 * hole + 1 }));
    Trace {
        name: "1 and 2 KiB among holes of 1 KiB".to_owned(),
        at: Some((Axis::Holes, holes as usize)),
        ops,
        ids: id as usize + 1,
        cap: None,
    }
}
