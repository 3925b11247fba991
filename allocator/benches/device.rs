//! Device allocators beside each other in one process: the same traces, interleaved,
//! in rotating order. `cargo bench -p pinyard-allocator --bench device -- [shim.so]`
//!
//! Contenders: the pool over `cuMemAlloc` and over virtual memory, `cuMemAllocAsync`,
//! and PyTorch's allocator where `ci/gpu/torch_shim.cpp` was built. Without a device
//! the pools alone, on the simulated one. Only allocations and frees are timed, by the
//! processor's counter, less what reading it costs. Writes JSON lines.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

use pinyard_allocator::Pool;
use pinyard_allocator::device::{DeviceBuf, DevicePool, PoolStream};
use pinyard_driver::{Cuda, DevicePtr, Driver, DriverToken, Simulated, Stream};
use pinyard_registry::{Events, MemoryKey, Registry, backend::Custom};
use std::ffi::c_void;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// The most that a trace uses.
const STREAMS: usize = 64;

fn token() -> DriverToken {
    DriverToken::at_entry()
}

#[inline(always)]
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the counter.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Nanoseconds of a tick, and ticks that reading the counter costs.
fn calibrate() -> (f64, u64) {
    let (began, first) = (Instant::now(), ticks());
    thread::sleep(Duration::from_millis(50));
    let per_tick = began.elapsed().as_nanos() as f64 / (ticks() - first) as f64;
    let mut costs: Vec<u64> = (0..1001)
        .map(|_| {
            let before = ticks();
            ticks() - before
        })
        .collect();
    costs.sort_unstable();
    (per_tick, costs[500])
}

#[derive(Clone, Copy)]
enum Op {
    Alloc { id: u32, bytes: usize, stream: u16 },
    Free { id: u32 },
    Work { stream: u16 },
}

struct Trace {
    name: String,
    ops: Vec<Op>,
    ids: usize,
    /// Bytes of all slabs at most, if the workload has such a limit.
    cap: Option<usize>,
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
    fn log(&mut self, least: usize, most: usize) -> usize {
        let part = self.next() as f64 / u64::MAX as f64;
        ((least as f64) * (most as f64 / least as f64).powf(part)) as usize
    }
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next() as f64 / u64::MAX as f64).sum::<f64>() - 6.0
    }
}

/// Random replacement among `live` blocks.
fn replace(
    name: &str,
    count: usize,
    live: usize,
    streams: usize,
    mut size: impl FnMut(&mut Random) -> usize,
) -> Trace {
    let mut random = Random(1);
    let mut ops = Vec::new();
    let mut slots: Vec<Option<u32>> = vec![None; live];
    let mut id = 0;
    for step in 0..count {
        let slot = if step < live { step } else { random.below(live) };
        if let Some(id) = slots[slot] {
            ops.push(Op::Free { id });
        }
        let stream = random.below(streams) as u16;
        ops.push(Op::Alloc { id, bytes: size(&mut random), stream });
        if streams > 1 && step % 4 == 0 {
            ops.push(Op::Work { stream });
        }
        slots[slot] = Some(id);
        id += 1;
    }
    ops.extend(slots.into_iter().flatten().map(|id| Op::Free { id }));
    Trace { name: name.to_owned(), ops, ids: id as usize, cap: None }
}

fn traces() -> Vec<Trace> {
    let mut all = Vec::new();
    for (label, bytes) in [("512 B", 512), ("64 KiB", 64 * KIB), ("1 MiB", MIB), ("16 MiB", 16 * MIB)] {
        let ops =
            (0..50_000).flat_map(|_| [Op::Alloc { id: 0, bytes, stream: 0 }, Op::Free { id: 0 }]).collect();
        all.push(Trace { name: format!("W1 same {label}"), ops, ids: 1, cap: None });
    }
    all.push(replace("W2 1 to 256 MiB, 32 live", 20_000, 32, 1, |random| (1 + random.below(256)) * MIB));
    all.push(replace("W3 256 B to 64 MiB, 512 live", 100_000, 512, 1, |random| random.log(256, 64 * MIB)));
    all.push(batches());
    all.push(transformer());
    for streams in [4, 16, STREAMS] {
        let name = format!("W5 {streams} streams, 4 KiB to 8 MiB, 256 live");
        all.push(replace(&name, 50_000, 256, streams, |random| random.log(4 * KIB, 8 * MIB)));
    }
    all.push(pressure());
    for holes in [4096, 16_384, 65_536] {
        all.push(holed(holes));
    }
    all
}

/// W3b: twelve tensors whose size follows the batch, N(64, 8).
fn batches() -> Trace {
    let mut random = Random(2);
    let (mut ops, mut id) = (Vec::new(), 0);
    for _ in 0..2000 {
        let batch = (64.0 + 8.0 * random.normal()).max(1.0) as usize;
        let first = id;
        for tensor in 1..=12 {
            ops.push(Op::Alloc { id, bytes: tensor * batch * 4 * KIB, stream: 0 });
            id += 1;
        }
        ops.extend((first..id).map(|id| Op::Free { id }));
    }
    Trace { name: "W3b batch N(64,8), 12 tensors".to_owned(), ops, ids: id as usize, cap: None }
}

/// W4: forward and backward of 24 layers, and an optimiser.
fn transformer() -> Trace {
    let unit = 128 * MIB;
    let mut random = Random(3);
    let (mut ops, mut id) = (Vec::new(), 0u32);
    for _ in 0..20 {
        let mut alloc = |ops: &mut Vec<Op>, bytes| {
            ops.push(Op::Alloc { id, bytes, stream: 0 });
            id += 1;
            (id - 1, bytes)
        };
        let mut saved = Vec::new();
        for _ in 0..24 {
            for bytes in [unit, 3 * unit, 2 * MIB, unit, unit, 4 * unit, 4 * unit] {
                saved.push(alloc(&mut ops, bytes));
            }
            for _ in 0..2 {
                let (temporary, _) = alloc(&mut ops, unit);
                ops.push(Op::Free { id: temporary });
            }
        }
        let logits = 8 * 2048 * 50_304 * 2;
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
    Trace { name: "W4 transformer, 24 layers".to_owned(), ops, ids: id as usize, cap: None }
}

/// W6: up to 92 % of 8 GiB in use.
fn pressure() -> Trace {
    let (cap, mut random) = (8 * GIB, Random(4));
    let (mut ops, mut live, mut sum, mut id) = (Vec::new(), Vec::new(), 0, 0);
    while ops.len() < 20_000 {
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
    Trace { name: "W6 92 % of 8 GiB".to_owned(), ops, ids: id as usize, cap: Some(cap) }
}

/// W7: isolated holes of 1 KiB, then blocks of 1 and 2 KiB.
fn holed(holes: u32) -> Trace {
    let mut ops: Vec<Op> = (0..2 * holes).map(|id| Op::Alloc { id, bytes: KIB, stream: 0 }).collect();
    ops.extend((0..holes).map(|hole| Op::Free { id: 2 * hole }));
    let id = 2 * holes;
    for at in 0..50_000 {
        let bytes = if at % 2 == 0 { KIB } else { 2 * KIB };
        ops.extend([Op::Alloc { id, bytes, stream: 0 }, Op::Free { id }]);
    }
    ops.extend((0..holes).map(|hole| Op::Free { id: 2 * hole + 1 }));
    Trace { name: format!("W7 {holes} holes"), ops, ids: id as usize + 1, cap: None }
}

trait Contender {
    fn name(&self) -> &'static str;
    fn begin(&mut self, _cap: Option<usize>) {}
    fn alloc(&mut self, bytes: usize, stream: u16) -> Option<u64>;
    fn free(&mut self, block: u64, stream: u16);
    /// Most bytes reserved since `begin`.
    fn peak_reserved(&mut self) -> Option<u64>;
    fn end(&mut self) {}
}

struct Ours {
    name: &'static str,
    driver: Arc<dyn Driver>,
    raw: Vec<Stream>,
    virtual_memory: bool,
    pool: Option<(DevicePool, Vec<PoolStream>)>,
    blocks: Vec<Option<DeviceBuf>>,
    spare: Vec<u64>,
}

impl Contender for Ours {
    fn name(&self) -> &'static str {
        self.name
    }
    fn begin(&mut self, cap: Option<usize>) {
        let builder = if self.virtual_memory {
            DevicePool::virtual_memory(self.driver.clone(), false).unwrap()
        } else {
            DevicePool::builder(self.driver.clone())
        };
        let pool = builder.limit(cap.unwrap_or(usize::MAX)).build().unwrap();
        self.pool = Some((pool, Vec::new()));
    }
    #[inline]
    fn alloc(&mut self, bytes: usize, stream: u16) -> Option<u64> {
        let (pool, streams) = self.pool.as_mut()?;
        while streams.len() <= stream as usize {
            streams.push(pool.stream(self.raw[streams.len()]).ok()?);
        }
        let block = streams[stream as usize].alloc(bytes).ok()?;
        let at = self.spare.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() as u64 - 1
        });
        self.blocks[at as usize] = Some(block);
        Some(at)
    }
    #[inline]
    fn free(&mut self, block: u64, _: u16) {
        self.blocks[block as usize] = None;
        self.spare.push(block);
    }
    fn peak_reserved(&mut self) -> Option<u64> {
        self.pool.as_ref().map(|(pool, _)| pool.stats().peak_reserved_bytes)
    }
    fn end(&mut self) {
        if let Some((pool, _)) = self.pool.take() {
            println!("# {} {:?}", self.name, pool.stats());
            pool.trim(Duration::from_secs(5));
        }
    }
}

struct Async {
    cuda: Arc<Cuda>,
    raw: Vec<Stream>,
}

impl Contender for Async {
    fn name(&self) -> &'static str {
        "cuMemAllocAsync"
    }
    fn alloc(&mut self, bytes: usize, stream: u16) -> Option<u64> {
        self.cuda.alloc_async(bytes, self.raw[stream as usize], &token()).ok().map(|at| at.0)
    }
    fn free(&mut self, block: u64, stream: u16) {
        // SAFETY: allocated by `alloc`, used by nobody.
        unsafe { self.cuda.free_async(DevicePtr(block), self.raw[stream as usize], &token()) }.unwrap();
    }
    fn peak_reserved(&mut self) -> Option<u64> {
        None
    }
    fn end(&mut self) {
        self.cuda.synchronize(&token()).unwrap();
        self.cuda.keep_async(0, &token()).unwrap();
        self.cuda.synchronize(&token()).unwrap();
        self.cuda.keep_async(u64::MAX, &token()).unwrap();
    }
}

/// PyTorch's allocator, through `ci/gpu/torch_shim.cpp`.
struct Torch {
    name: &'static str,
    raw: Vec<Stream>,
    alloc: unsafe extern "C" fn(usize, *mut c_void) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    begin: unsafe extern "C" fn(f64),
    peak: unsafe extern "C" fn() -> u64,
    total: usize,
}

impl Torch {
    fn load(path: &str, raw: Vec<Stream>, total: usize) -> Torch {
        // SAFETY: the shim has these functions with these types.
        unsafe {
            let library = Box::leak(Box::new(libloading::Library::new(path).expect("the shim")));
            let expandable = std::env::var("PYTORCH_ALLOC_CONF")
                .is_ok_and(|text| text.contains("expandable_segments:True"));
            Torch {
                name: if expandable { "PyTorch, expandable segments" } else { "PyTorch" },
                raw,
                alloc: *library.get(b"shim_alloc").unwrap(),
                free: *library.get(b"shim_free").unwrap(),
                begin: *library.get(b"shim_begin").unwrap(),
                peak: *library.get(b"shim_peak_reserved").unwrap(),
                total,
            }
        }
    }
}

impl Contender for Torch {
    fn name(&self) -> &'static str {
        self.name
    }
    fn begin(&mut self, cap: Option<usize>) {
        // SAFETY: the shim's function.
        unsafe { (self.begin)(cap.map_or(1.0, |cap| cap as f64 / self.total as f64)) }
    }
    #[inline]
    fn alloc(&mut self, bytes: usize, stream: u16) -> Option<u64> {
        // SAFETY: the shim's function; the stream stands.
        let at = unsafe { (self.alloc)(bytes, self.raw[stream as usize].raw() as *mut c_void) };
        (!at.is_null()).then_some(at as u64)
    }
    #[inline]
    fn free(&mut self, block: u64, _: u16) {
        // SAFETY: from `alloc`.
        unsafe { (self.free)(block as *mut c_void) }
    }
    fn peak_reserved(&mut self) -> Option<u64> {
        // SAFETY: the shim's function.
        Some(unsafe { (self.peak)() })
    }
    fn end(&mut self) {
        self.begin(None);
    }
}

/// Ticks of each operation.
fn replay(contender: &mut dyn Contender, trace: &Trace, work: &dyn Fn(u16), times: &mut Vec<u32>) -> usize {
    let mut blocks: Vec<Option<(u64, u16)>> = vec![None; trace.ids];
    let mut failed = 0;
    times.clear();
    for &op in &trace.ops {
        match op {
            Op::Alloc { id, bytes, stream } => {
                let before = ticks();
                let block = contender.alloc(bytes, stream);
                times.push((ticks() - before) as u32);
                failed += usize::from(block.is_none());
                blocks[id as usize] = block.map(|block| (block, stream));
            }
            Op::Free { id } => {
                if let Some((block, stream)) = blocks[id as usize].take() {
                    let before = ticks();
                    contender.free(block, stream);
                    times.push((ticks() - before) as u32);
                }
            }
            Op::Work { stream } => work(stream),
        }
    }
    failed
}

fn peak_live(trace: &Trace) -> usize {
    let (mut sizes, mut sum, mut peak) = (vec![0; trace.ids], 0, 0);
    for &op in &trace.ops {
        match op {
            Op::Alloc { id, bytes, .. } => {
                sizes[id as usize] = bytes;
                sum += bytes;
                peak = peak.max(sum);
            }
            Op::Free { id } => sum -= sizes[id as usize],
            Op::Work { .. } => {}
        }
    }
    peak
}

fn main() {
    let shim = std::env::args().skip(1).find(|argument| argument.ends_with(".so"));
    let cuda = Cuda::open(0).map(Arc::new);
    let simulated = cuda.as_ref().err().map(|absent| {
        eprintln!("no device ({absent}): the pools alone, on the simulated one");
        Simulated::new(140 * GIB).running()
    });
    let driver: Arc<dyn Driver> = match (&cuda, &simulated) {
        (Ok(cuda), _) => cuda.clone(),
        (_, Some(simulated)) => simulated.clone(),
        (Err(absent), None) => panic!("{absent}"),
    };
    let (per_tick, overhead) = calibrate();
    let raw: Vec<Stream> = (0..STREAMS).map(|_| driver.stream_create(&token()).unwrap()).collect();
    let ours = |name, virtual_memory| Ours {
        name,
        driver: driver.clone(),
        raw: raw.clone(),
        virtual_memory,
        pool: None,
        blocks: Vec::new(),
        spare: Vec::new(),
    };
    let mut contenders: Vec<Box<dyn Contender>> =
        vec![Box::new(ours("pinyard", false)), Box::new(ours("pinyard, virtual memory", true))];
    if let Ok(cuda) = &cuda {
        cuda.keep_async(u64::MAX, &token()).unwrap();
        contenders.push(Box::new(Async { cuda: cuda.clone(), raw: raw.clone() }));
    }
    if let Some(shim) = &shim {
        contenders.push(Box::new(Torch::load(shim, raw.clone(), driver.device().total_bytes)));
    }
    let busy_bytes = 128 * MIB;
    let busy = driver.mem_alloc(busy_bytes, &token()).unwrap();
    let work = |stream: u16| {
        if let Some(simulated) = &simulated {
            return simulated.kernel(raw[stream as usize], 40_000, &token());
        }
        // SAFETY: a block of the benchmark's own.
        unsafe { driver.fill(busy, 1, busy_bytes, raw[stream as usize], &token()) }.unwrap();
    };
    // `W5 W6`: only these rows.
    let rows: Vec<String> = std::env::args().skip(1).filter(|argument| argument.starts_with('W')).collect();
    let mut times = Vec::new();
    for trace in traces() {
        if !rows.is_empty() && !rows.iter().any(|row| trace.name.starts_with(row.as_str())) {
            continue;
        }
        let live = peak_live(&trace);
        let mut results: Vec<(Vec<f64>, Vec<f64>, usize)> =
            contenders.iter().map(|_| Default::default()).collect();
        let mut ratios = vec![None; contenders.len()];
        // What needs a third of the device each runs one contender after the other, the
        // rest interleaved. The first round is the warm-up.
        let alone = live > 20 * GIB;
        let count = contenders.len();
        let turns: Vec<(usize, usize)> = if alone {
            (0..count).flat_map(|at| (0..4).map(move |round| (round, at))).collect()
        } else {
            (0..4).flat_map(|round| (0..count).map(move |turn| (round, (turn + round) % count))).collect()
        };
        for (turn, &(round, at)) in turns.iter().enumerate() {
            let contender = &mut *contenders[at];
            if round == 0 {
                contender.begin(trace.cap);
            }
            let failed = replay(contender, &trace, &work, &mut times);
            driver.synchronize(&token()).unwrap();
            if round == 0 {
                continue;
            }
            let nanoseconds = |ticks: f64| (ticks - overhead as f64).max(0.0) * per_tick;
            let mean = times.iter().map(|&t| f64::from(t)).sum::<f64>() / times.len() as f64;
            times.sort_unstable();
            let p99 = f64::from(times[times.len() * 99 / 100]);
            results[at].0.push(nanoseconds(mean));
            results[at].1.push(nanoseconds(p99));
            results[at].2 = failed;
            if !turns[turn + 1..].iter().any(|&(_, later)| later == at) {
                ratios[at] = contender.peak_reserved().map(|bytes| bytes as f64 / live as f64);
                contender.end();
            }
        }
        for ((contender, ratio), (mean, p99, failed)) in contenders.iter().zip(ratios).zip(results) {
            let median = |mut values: Vec<f64>| {
                values.sort_unstable_by(f64::total_cmp);
                values[values.len() / 2]
            };
            println!(
                "{{\"row\":\"{}\",\"of\":\"{}\",\"ns\":{:.1},\"p99\":{:.1},\"reserved_over_live\":{},\"failed\":{failed}}}",
                trace.name,
                contender.name(),
                median(mean),
                median(p99),
                ratio.map_or("null".to_owned(), |ratio| format!("{ratio:.3}")),
            );
        }
    }
    if rows.is_empty() {
        threads(&driver, &shim);
    }
    if cuda.is_ok() && rows.is_empty() {
        pinned(&driver);
    }
    // SAFETY: nothing uses it.
    unsafe { driver.mem_free(busy, &token()) }.unwrap();
}

/// W9: threads with a stream each, one size.
fn threads(driver: &Arc<dyn Driver>, shim: &Option<String>) {
    const PAIRS: usize = 100_000;
    for count in [1, 2, 4, 8, 16] {
        let run = |name: &str, body: &(dyn Fn(Stream, &Barrier) + Sync)| {
            let mut totals: Vec<f64> = (0..3)
                .map(|_| {
                    let barrier = Barrier::new(count + 1);
                    thread::scope(|scope| {
                        for _ in 0..count {
                            let stream = driver.stream_create(&token()).unwrap();
                            let barrier = &barrier;
                            scope.spawn(move || body(stream, barrier));
                        }
                        barrier.wait();
                        let began = Instant::now();
                        barrier.wait();
                        began.elapsed().as_nanos() as f64 / (2 * PAIRS) as f64
                    })
                })
                .collect();
            totals.sort_unstable_by(f64::total_cmp);
            println!("{{\"row\":\"W9 4 KiB, {count} threads\",\"of\":\"{name}\",\"ns\":{:.1}}}", totals[1]);
        };
        let pool = DevicePool::builder(driver.clone()).build().unwrap();
        run("pinyard", &|stream, barrier| {
            let stream = pool.stream(stream).unwrap();
            drop(stream.alloc(4096).unwrap());
            barrier.wait();
            for _ in 0..PAIRS {
                drop(std::hint::black_box(stream.alloc(4096).unwrap()));
            }
            barrier.wait();
        });
        if let Some(shim) = shim {
            let torch = Torch::load(shim, Vec::new(), 1);
            let (alloc, free) = (torch.alloc, torch.free);
            run(torch.name, &|stream, barrier| {
                // SAFETY: the shim's functions; each block is freed once.
                let pair = || unsafe { free(std::hint::black_box(alloc(4096, stream.raw() as *mut c_void))) };
                pair();
                barrier.wait();
                (0..PAIRS).for_each(|_| pair());
                barrier.wait();
            });
        }
    }
}

/// W10, cold: 4 GiB of pinned memory in blocks of 64 MiB, twice, since a virtual
/// machine's own memory may be new the first time.
fn pinned(driver: &Arc<dyn Driver>) {
    for round in 0..3 {
        let began = Instant::now();
        let blocks: Vec<_> = (0..64).map(|_| driver.host_alloc(64 * MIB, &token()).unwrap()).collect();
        let theirs = began.elapsed();
        for block in blocks {
            // SAFETY: nobody uses it.
            unsafe { driver.host_free(block, &token()) }.unwrap();
        }
        let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
        let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
        let began = Instant::now();
        let pool = Pool::pinned(&registry, driver.clone()).slab_bytes(512 * MIB).build().unwrap();
        let blocks: Vec<_> = (0..64).map(|_| pool.alloc::<u8>(64 * MIB).unwrap()).collect();
        let ours = began.elapsed();
        drop((blocks, pool));
        for (name, time) in [("cuMemHostAlloc", theirs), ("pinyard, pinned", ours)] {
            println!(
                "{{\"row\":\"W10 cold 4 GiB pinned, round {round}\",\"of\":\"{name}\",\"ms\":{:.1}}}",
                time.as_secs_f64() * 1e3
            );
        }
    }
}
