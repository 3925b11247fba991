//! What every check uses: a communicator, a stream, buffers with margins.

use half::{bf16, f16};
use pinyard_allocator::device::PoolStream;
use pinyard_driver::Simulated;
use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Gpu, Number};
use std::cell::Cell;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Elements before and behind what is used, which nobody may write.
pub(crate) const MARGIN: usize = 3;

/// Where the simulated device of a rank is on PCI: in another order than the ranks.
pub(crate) fn pci(rank: usize) -> u64 {
    [2, 0, 3, 1][rank % 4] << 8
}

/// The ranks of one node as a chain from `root` visits them: in the order of their devices.
pub(crate) fn chain_from(root: usize, size: usize) -> Vec<usize> {
    let mut ranks: Vec<usize> = (0..size).collect();
    ranks.sort_by_key(|&rank| pci(rank));
    let first = ranks.iter().position(|&rank| rank == root).unwrap_or(0);
    ranks.rotate_left(first);
    ranks
}

pub(crate) struct Bench {
    pub(crate) ranks: DeviceCommunicator,
    pub(crate) gpu: Gpu,
    pub(crate) simulated: Option<Arc<Simulated>>,
    /// The stream of every buffer that needs none of its own.
    pub(crate) stream: PoolStream,
    /// Whether MPI has one-sided operations here.
    pub(crate) one_sided: bool,
    /// Bytes of a chunk.
    pub(crate) chunk: usize,
    checks: Cell<u64>,
}

/// An element that tells where it is from.
pub(crate) trait Element: Number + PartialEq + std::fmt::Debug {
    fn of(seed: usize) -> Self;
    /// What `sum`, `min` and `max` make of them.
    fn folded(reduction: pinyard_mpi::Reduction, elements: impl Iterator<Item = Self>) -> Self;
}

macro_rules! elements {
    ($($kind:ty)*) => {$(
        impl Element for $kind {
            fn of(seed: usize) -> $kind {
                // Small: sums of four are exact in every type.
                (seed.wrapping_mul(2_654_435_761) >> 7) as u8 as $kind / 8 as $kind
            }
            fn folded(reduction: pinyard_mpi::Reduction, elements: impl Iterator<Item = $kind>) -> $kind {
                let join = |a: $kind, b: $kind| match reduction {
                    pinyard_mpi::Reduction::Sum => a + b,
                    pinyard_mpi::Reduction::Min => if b < a { b } else { a },
                    pinyard_mpi::Reduction::Max => if b > a { b } else { a },
                };
                elements.reduce(join).unwrap_or_default()
            }
        }
    )*};
}

elements! { i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 }

macro_rules! halves {
    ($($kind:ty)*) => {$(
        impl Element for $kind {
            fn of(seed: usize) -> $kind {
                // As of the others, and exact in eight bits.
                <$kind>::from_f32(f32::of(seed).floor())
            }
            fn folded(reduction: pinyard_mpi::Reduction, elements: impl Iterator<Item = $kind>) -> $kind {
                <$kind>::from_f32(f32::folded(reduction, elements.map(<$kind>::to_f32)))
            }
        }
    )*};
}

halves! { f16 bf16 }

impl Bench {
    pub(crate) fn new(
        ranks: DeviceCommunicator,
        simulated: Option<Arc<Simulated>>,
        one_sided: bool,
    ) -> Result<Bench, String> {
        let gpu = ranks.gpu().clone();
        let chunk = ranks.plan().chunk_bytes;
        let stream = gpu.stream().map_err(text)?;
        Ok(Bench { stream, ranks, gpu, simulated, one_sided, chunk, checks: Cell::new(0) })
    }

    pub(crate) fn into_ranks(self) -> DeviceCommunicator {
        self.ranks
    }

    pub(crate) fn checks(&self) -> u64 {
        self.checks.get()
    }

    pub(crate) fn rank(&self) -> usize {
        self.ranks.rank() as usize
    }

    pub(crate) fn size(&self) -> usize {
        self.ranks.size() as usize
    }

    /// Counts a check; `Err` says what it was about.
    pub(crate) fn check(&self, holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
        self.checks.set(self.checks.get() + 1);
        if holds { Ok(()) } else { Err(what()) }
    }

    /// A device buffer of `elements` between margins.
    pub(crate) fn buffer<T: Element>(&self, elements: &[T]) -> Result<DeviceBuf<T>, String> {
        let mut with_margins = vec![T::of(77); elements.len() + 2 * MARGIN];
        with_margins[MARGIN..MARGIN + elements.len()].copy_from_slice(elements);
        let buffer = self.gpu.alloc(with_margins.len(), &self.stream);
        let mut buffer: DeviceBuf<T> = buffer.map_err(|error| error.to_string())?;
        buffer.write(&with_margins).map_err(|error| error.to_string())?;
        Ok(buffer)
    }

    /// Whether the buffer holds `expected` between untouched margins.
    pub(crate) fn holds<T: Element>(
        &self,
        buffer: &DeviceBuf<T>,
        expected: &[T],
        what: impl FnOnce() -> String,
    ) -> Result<(), String> {
        let all = buffer.to_vec().map_err(|error| error.to_string())?;
        let (inner, end) = (MARGIN..all.len() - MARGIN, all.len());
        let margins = all[..MARGIN].iter().chain(&all[inner.end..end]).all(|&element| element == T::of(77));
        let wrong = all[inner.clone()].iter().zip(expected).position(|(a, b)| a != b);
        self.check(margins && wrong.is_none() && inner.len() == expected.len(), || {
            let what = what();
            match wrong {
                Some(at) => format!(
                    "{what}: element {at} of {} is {:?}, not {:?}",
                    expected.len(),
                    all[MARGIN + at],
                    expected[at]
                ),
                None => format!("{what}: what lies beside the buffer was written"),
            }
        })
    }
}

/// No call of the device's was wrong, and nothing of another rank's is open any more.
pub(crate) fn nothing_wrong(simulated: &Simulated) -> Result<(), String> {
    let (offences, outstanding) = (simulated.offences(), simulated.outstanding());
    if !offences.is_empty() {
        return Err(format!("offences: {offences:?}"));
    }
    if outstanding.contains("opened handles") {
        return Err(format!("after the communicator's end: {outstanding}"));
    }
    Ok(())
}

/// Soon after everything is dropped: pools end on threads of their own.
pub(crate) fn nothing_left(simulated: &Simulated) -> Result<(), String> {
    let until = Instant::now() + Duration::from_secs(10);
    // A program's streams are its own.
    while !simulated.outstanding().split(", ").all(|left| left.is_empty() || left.ends_with(" streams")) {
        if Instant::now() > until {
            return Err(format!("left behind: {}", simulated.outstanding()));
        }
        thread::sleep(Duration::from_millis(5));
    }
    nothing_wrong(simulated)
}

/// How long a check that moves a few kilobytes may take on a machine that does other things.
const LIMIT: Duration = Duration::from_secs(60);

/// Makes a check of which a fault is that it does not end: its name is printed then, and the
/// process ends, with which all ranks do.
pub(crate) fn watched(
    ranks: &DeviceCommunicator,
    name: String,
    check: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let (done, ended) = mpsc::channel::<()>();
    let (rank, told) = (ranks.rank(), name.clone());
    let watch = thread::spawn(move || {
        if ended.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            // In one piece, as several ranks may speak at once.
            let said = format!("rank {rank}: hangs: {told}\n");
            eprint!("{said}");
            std::process::abort();
        }
    });
    let result = check().map_err(|error| format!("{name}: {error}"));
    drop(done);
    watch.join().map_err(|_| "the watch of a check has panicked".to_owned())?;
    result
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
