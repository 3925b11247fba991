//! A device to test on: the real one with `PINYARD_TEST_DRIVER=cuda`, else the
//! simulated one. Every scenario runs on both, over every source.
#![allow(unsafe_code, dead_code, clippy::unwrap_used, clippy::expect_used)]

use pinyard_allocator::device::{DeviceBuilder, DevicePool, MarkKind, PoolStream};
use pinyard_allocator::{CustomSource, ManagedSource, PinnedSource, Segment, SourceError};
use pinyard_driver::{Call, Cuda, DevicePtr, Driver, DriverToken, Simulated, Stream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub(crate) const MIB: usize = 1 << 20;

pub(crate) fn token() -> DriverToken {
    DriverToken::at_entry()
}

/// The device, kept for the process, so that its context stays. The driver loads the
/// code of fills when they are first asked for, and waits for the device then: here.
fn cuda() -> Arc<dyn Driver> {
    static CUDA: OnceLock<Arc<Cuda>> = OnceLock::new();
    let open = || {
        let cuda = Cuda::open(0).expect("PINYARD_TEST_DRIVER is cuda");
        let (stream, block) = (cuda.stream_create(&token()).unwrap(), cuda.mem_alloc(MIB, &token()).unwrap());
        for bytes in [1, 512, 4096, MIB - 1, MIB] {
            // SAFETY: our own block, which stands until the stream has passed.
            unsafe { cuda.fill(block, 1, bytes, stream, &token()) }.unwrap();
        }
        cuda.synchronize(&token()).unwrap();
        // SAFETY: nothing uses them.
        unsafe {
            cuda.mem_free(block, &token()).unwrap();
            cuda.stream_destroy(stream, &token()).unwrap();
        }
        Arc::new(cuda)
    };
    CUDA.get_or_init(open).clone()
}

/// A driver, and the simulated one if it is that.
#[derive(Clone)]
pub(crate) struct Bed {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) simulated: Option<Arc<Simulated>>,
}

impl Bed {
    /// With `bytes` of memory, if the device is simulated.
    pub(crate) fn new(bytes: usize) -> Bed {
        if std::env::var("PINYARD_TEST_DRIVER").as_deref() == Ok("cuda") {
            return Bed { driver: cuda(), simulated: None };
        }
        let simulated = Simulated::new(bytes).running();
        Bed { driver: simulated.clone(), simulated: Some(simulated) }
    }

    pub(crate) fn stream(&self) -> Stream {
        self.driver.stream_create(&token()).unwrap()
    }

    pub(crate) fn sync(&self, stream: &PoolStream) {
        self.driver.stream_synchronize(stream.stream(), &token()).unwrap();
    }

    pub(crate) fn fill(&self, at: DevicePtr, byte: u8, bytes: usize, stream: &PoolStream) {
        // SAFETY: the test's own block, which stands until the stream has passed.
        unsafe { self.driver.fill(at, byte, bytes, stream.stream(), &token()) }.unwrap();
    }

    /// Bytes of device memory, after `stream`'s work.
    pub(crate) fn read(&self, at: DevicePtr, bytes: usize, stream: &PoolStream) -> Vec<u8> {
        let host = self.driver.host_alloc(bytes, &token()).unwrap();
        // SAFETY: both stand until the stream has passed.
        unsafe {
            self.driver.copy_to_host(host, at, bytes, stream.stream(), &token()).unwrap();
            self.sync(stream);
            let read = std::slice::from_raw_parts(host, bytes).to_vec();
            self.driver.host_free(host, &token()).unwrap();
            read
        }
    }

    pub(crate) fn assert_filled(&self, at: DevicePtr, byte: u8, bytes: usize, stream: &PoolStream) {
        let read = self.read(at, bytes, stream);
        let wrong = read.iter().position(|&other| other != byte);
        assert_eq!(
            wrong,
            None,
            "byte {:?} of {bytes} at {at:?} is {:?}, not {byte}",
            wrong,
            wrong.map(|at| read[at])
        );
    }

    /// Nothing was done wrong, and all was given back once the pool's thread has ended.
    pub(crate) fn assert_clean(&self) {
        // A real driver's cuMemFree waits for the device and lets nobody else in meanwhile:
        // the next scenario must not begin before this one's pool has given all back.
        wait_for("the end of the pools' threads", || workers() == 0);
        let Some(simulated) = &self.simulated else { return };
        let streams_only =
            |left: &str| left.is_empty() || (left.ends_with(" streams") && !left.contains(','));
        wait_for("everything given back", || streams_only(&simulated.outstanding()));
        assert_eq!(simulated.offences(), Vec::<String>::new());
        assert_eq!(simulated.used_bytes(), 0);
    }
}

/// Threads of pools.
fn workers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "pinyard-device").count()
}

/// Holds a stream up until it is opened. One that is not opened in time opens itself
/// and fails the test: something waited for the stream that must not.
pub(crate) struct Gate {
    bed: Bed,
    word: usize,
    late: Arc<AtomicBool>,
    opened: Arc<AtomicBool>,
    watchdog: Option<JoinHandle<()>>,
}

impl Gate {
    pub(crate) fn close(bed: &Bed, stream: &PoolStream) -> Gate {
        let word = bed.driver.host_alloc(4096, &token()).unwrap();
        // SAFETY: pinned, and stands until the gate is dropped, after it was opened.
        unsafe {
            word.cast::<u64>().write(0);
            let device = bed.driver.host_device_ptr(word, &token()).unwrap();
            bed.driver.stream_wait_value(stream.stream(), device, 1, &token()).unwrap();
        }
        let (late, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let word = word as usize;
        let watchdog = {
            let (late, opened) = (late.clone(), opened.clone());
            thread::spawn(move || {
                let began = Instant::now();
                while !opened.load(SeqCst) {
                    if began.elapsed() > Duration::from_secs(30) {
                        late.store(true, SeqCst);
                        open(word);
                        return;
                    }
                    thread::sleep(Duration::from_millis(2));
                }
            })
        };
        Gate { bed: bed.clone(), word, late, opened, watchdog: Some(watchdog) }
    }

    /// Opens it.
    pub(crate) fn open(mut self) {
        self.finish();
        assert!(!self.late.load(SeqCst), "something waited for a stream that was held up");
    }

    /// Opens it after a while, on another thread.
    pub(crate) fn open_after(self, pause: Duration) -> JoinHandle<()> {
        thread::spawn(move || {
            thread::sleep(pause);
            self.open();
        })
    }

    fn finish(&mut self) {
        if let Some(watchdog) = self.watchdog.take() {
            open(self.word);
            self.opened.store(true, SeqCst);
            watchdog.join().unwrap();
            self.bed.driver.synchronize(&token()).unwrap();
            // SAFETY: the stream has passed.
            unsafe { self.bed.driver.host_free(self.word as *mut u8, &token()) }.unwrap();
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.finish();
    }
}

fn open(word: usize) {
    // SAFETY: the gate's word, which stands.
    unsafe { AtomicU64::from_ptr(word as *mut u64) }.store(1, SeqCst);
}

/// A source and a way of marking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Device,
    DeviceEvents,
    Virtual,
    VirtualEvents,
    Pinned,
    Managed,
    Custom,
}

pub(crate) const ALL: [Over; 7] = [
    Over::Device,
    Over::DeviceEvents,
    Over::Virtual,
    Over::VirtualEvents,
    Over::Pinned,
    Over::Managed,
    Over::Custom,
];

/// Device memory by two closures, as a program brings them.
fn custom(driver: Arc<dyn Driver>) -> CustomSource {
    const GRANULARITY: usize = 2 << 20;
    let grower = driver.clone();
    let grow = move |bytes: usize| {
        assert!(bytes.is_multiple_of(GRANULARITY), "a slab of {bytes} bytes");
        let at = grower.mem_alloc(bytes, &token())?;
        assert!(at.0.is_multiple_of(GRANULARITY as u64));
        Ok(Segment { start: at.0 as usize, bytes })
    };
    let shrink = move |segment: Segment| {
        // SAFETY: of `grow`; the pool gives it back once, when nobody uses it.
        unsafe { driver.mem_free(DevicePtr(segment.start as u64), &token()) }.map_err(SourceError::from)
    };
    // SAFETY: cuMemAlloc's memory is nobody else's; alignment and length are as said.
    unsafe { CustomSource::new("custom", GRANULARITY, grow, shrink) }
}

impl Over {
    pub(crate) fn builder(self, bed: &Bed) -> DeviceBuilder {
        self.try_builder(bed.driver.clone()).unwrap()
    }

    /// Of a driver that may fail.
    pub(crate) fn try_builder(self, driver: Arc<dyn Driver>) -> Result<DeviceBuilder, SourceError> {
        Ok(match self {
            Over::Device => DevicePool::builder(driver),
            Over::DeviceEvents => DevicePool::builder(driver).marks(MarkKind::Events),
            Over::Virtual => DevicePool::virtual_memory(driver, true)?,
            Over::VirtualEvents => DevicePool::virtual_memory(driver, false)?.marks(MarkKind::Events),
            Over::Pinned => DevicePool::from_source(driver.clone(), PinnedSource::new(driver).threads(2)),
            Over::Managed => {
                let source = ManagedSource::new(driver.clone(), 1 << 30)?;
                DevicePool::from_source(driver, source)
            }
            Over::Custom => DevicePool::from_source(driver.clone(), custom(driver)),
        })
    }
}

/// Runs a scenario over every source, each on a device of its own, and checks that
/// nothing is left.
pub(crate) fn over_all(scenario: impl Fn(&Bed, Over)) {
    for over in ALL {
        println!("over {over:?}");
        let bed = Bed::new(1 << 30);
        scenario(&bed, over);
        bed.assert_clean();
    }
}

/// Calls that give something back, which stays when they fail; and `StreamDestroy` and `Unmap`.
const GIVES_BACK: [Call; 6] = [
    Call::MemFree,
    Call::PhysicalRelease,
    Call::AddressFree,
    Call::HostFree,
    Call::HostUnregister,
    Call::EventDestroy,
];

/// What the one call that was to fail ([`Simulated::fail_at`]) should have given back stays, beside
/// as many streams of the program's, and nothing else: soon.
pub(crate) fn assert_one_is_left(gpu: &Simulated, streams: usize, slab_bytes: usize, what: &str) {
    let began = Instant::now();
    loop {
        let (failed, left, bytes) = (gpu.failed_at(), gpu.outstanding(), gpu.used_bytes());
        let parts: Vec<_> = left.split(", ").filter_map(|part| part.split_once(' ')).collect();
        let of_streams = parts.iter().find(|(_, kind)| *kind == "streams");
        let streams_left = of_streams.map_or(0, |(count, _)| count.parse().unwrap());
        let others: Vec<_> = parts.iter().filter(|(_, kind)| *kind != "streams").collect();
        let kept_streams = usize::from(failed == Some(Call::StreamDestroy));
        let kept = match failed {
            // What is mapped has memory, and keeps its addresses.
            Some(Call::Unmap) => 3,
            Some(call) => usize::from(GIVES_BACK.contains(&call)),
            None => 0,
        };
        if streams_left == streams + kept_streams
            && others.len() == kept
            && others.iter().all(|(count, _)| *count == "1")
            && bytes <= kept.min(1) * slab_bytes
        {
            break;
        }
        let late = began.elapsed() > Duration::from_secs(60);
        assert!(!late, "after {what}, {failed:?}, failed, {left} and {bytes} bytes stay");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(gpu.offences(), Vec::<String>::new(), "after {what} failed");
}

/// Waits until `done`, for what another thread does soon.
pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} did not happen");
        thread::sleep(Duration::from_millis(1));
    }
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Log-uniform.
    pub(crate) fn size(&mut self, least: usize, most: usize) -> usize {
        let part = self.next() as f64 / u64::MAX as f64;
        ((least as f64) * (most as f64 / least as f64).powf(part)) as usize
    }
}
