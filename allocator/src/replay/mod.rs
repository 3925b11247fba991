//! A trace run again, through a pool of any configuration on a simulated device: what
//! it would reserve, which calls of the driver it would make, and what would fail.
//!
//! The clock moves as the trace's did, and by what calls of the driver cost. Streams
//! have no work of their own in a trace; a length can be given to each allocation's.
//! Uses by other streams are settled by the pool's own thread, in real time, so runs of
//! a trace with many of them may differ by a few slabs; others are always alike.

mod outcome;

pub use self::outcome::Outcome;
use crate::config::{ConfigError, Overrides};
use crate::device::{DeviceBuf, DeviceError, DevicePool, PoolStream};
use crate::error::BuildError;
use crate::source::{DriverToken, SourceError};
use crate::trace::{Event, Kind, ReadError};
use pinyard_driver::{Driver, DriverError, Simulated};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Streams of a trace at most: a pool keeps what it knows of each.
const STREAMS: usize = 1024;
/// How long an allocation that fails is tried again, in simulated time, while streams
/// have work to do.
const RETRIES: u32 = 64;

/// Which pool.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Configuration {
    /// What it is called in reports.
    pub name: String,
    /// Over `cuMemCreate` and its kin instead of `cuMemAlloc`.
    pub virtual_memory: bool,
    /// Bytes of the device.
    pub device_bytes: usize,
    /// Work that each allocation puts on its stream, in nanoseconds.
    pub kernel_ns: u64,
    /// The pool's settings.
    pub settings: Overrides,
}

impl Configuration {
    /// What [`from_pairs`](Configuration::from_pairs) takes besides the settings.
    pub const KEYS: &str = "source=device|virtual, device=BYTES, kernel_ns=N";

    /// From `key=value,…`: the settings of [`TABLE`](crate::config::TABLE), and [`KEYS`](Configuration::KEYS).
    pub fn from_pairs(text: &str) -> Result<Configuration, ConfigError> {
        let mut configuration = Configuration {
            name: if text.is_empty() { "default".to_owned() } else { text.to_owned() },
            virtual_memory: false,
            device_bytes: 80 << 30,
            kernel_ns: 0,
            settings: Overrides::default(),
        };
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            configuration.set(key.trim(), value.trim())?;
        }
        Ok(configuration)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfigError> {
        let refused = |allowed: &str| ConfigError::Value {
            name: key.to_owned(),
            value: value.to_owned(),
            allowed: allowed.to_owned(),
        };
        match key {
            "source" => {
                self.virtual_memory = match value {
                    "device" => false,
                    "virtual" => true,
                    _ => return Err(refused("device or virtual")),
                }
            }
            "device" => {
                // As the limit is written, and at most what addresses can be had for.
                let mut settings = Overrides::default();
                settings.set("slab_bytes", value).map_err(|_| refused("bytes from 4M to 4T"))?;
                self.device_bytes = settings
                    .slab_bytes
                    .filter(|bytes| (4 << 20..=4 << 40).contains(bytes))
                    .ok_or_else(|| refused("bytes from 4M to 4T"))?;
            }
            "kernel_ns" => {
                let most = 1_000_000_000;
                let number = value.parse().ok().filter(|&ns| ns <= most);
                self.kernel_ns = number.ok_or_else(|| refused("nanoseconds, 0 to 1000000000"))?;
            }
            "patience_ms" => {
                return Err(refused(
                    "a replay's clock stands while an allocation waits, so it does not wait",
                ));
            }
            "keep_idle_ms" => {
                return Err(refused("age is told by the wall clock, which a replay does not follow"));
            }
            "trace" | "stacks" | "trace_file" | "poison" | "leaks" => {
                return Err(refused("a replay keeps no trace and poisons nothing"));
            }
            _ => {
                return self.settings.set(key, value).map_err(|error| match error {
                    ConfigError::Unknown { name, known } => {
                        ConfigError::Unknown { name, known: format!("{known}, {}", Configuration::KEYS) }
                    }
                    other => other,
                });
            }
        }
        Ok(())
    }
}

/// Why a replay ended early.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The trace is refused.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// More streams than a replay makes.
    #[error("line {line}: more than {STREAMS} streams")]
    Streams {
        /// The line, from 1.
        line: u64,
    },
    /// The pool was not made.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Nor its source.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The simulated device refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The pool refused what is not an allocation.
    #[error(transparent)]
    Pool(#[from] DeviceError),
}

struct Run {
    gpu: Arc<Simulated>,
    pool: DevicePool,
    streams: HashMap<u64, PoolStream>,
    live: HashMap<u64, DeviceBuf>,
    kernel_ns: u64,
    outcome: Outcome,
}

/// Runs the events through a pool.
pub fn run(
    configuration: &Configuration,
    events: impl IntoIterator<Item = Result<Event, ReadError>>,
) -> Result<Outcome, ReplayError> {
    let gpu = Arc::new(Simulated::new(configuration.device_bytes));
    let builder = if configuration.virtual_memory {
        DevicePool::virtual_memory(gpu.clone(), false)?
    } else {
        DevicePool::builder(gpu.clone())
    };
    // Its clock stands while an allocation waits: it waits in vain, and is tried again.
    // Nor is a stream left alone for what the wall clock says.
    let stall = configuration.settings.stall.filter(Duration::is_zero).unwrap_or(Duration::MAX);
    let builder = builder.ignore_environment().configure(&configuration.settings);
    let pool = builder.patience(Duration::ZERO).stall(stall).build()?;
    let mut run = Run {
        gpu,
        pool,
        streams: HashMap::new(),
        live: HashMap::new(),
        kernel_ns: configuration.kernel_ns,
        outcome: Outcome { name: configuration.name.clone(), ..Outcome::default() },
    };
    let began = run.gpu.now();
    let (mut time, mut passed) = (None, 0);
    for (line, event) in (2..).zip(events) {
        let event = event?;
        // A trace may start late; its clock is its own.
        let step = event.time_ns.saturating_sub(*time.get_or_insert(event.time_ns));
        time = time.max(Some(event.time_ns));
        passed += step;
        run.gpu.advance(step);
        run.step(&event, line)?;
    }
    run.live.clear();
    Ok(run.finish(began, passed))
}

impl Run {
    fn stream(&mut self, id: u64, line: u64) -> Result<PoolStream, ReplayError> {
        if let Some(stream) = self.streams.get(&id) {
            return Ok(stream.clone());
        }
        if self.streams.len() == STREAMS {
            return Err(ReplayError::Streams { line });
        }
        let stream = self.pool.stream(self.gpu.stream_create(&DriverToken::at_entry())?)?;
        self.streams.insert(id, stream.clone());
        Ok(stream)
    }

    fn step(&mut self, event: &Event, line: u64) -> Result<(), ReplayError> {
        self.outcome.events += 1;
        match event.event {
            Kind::Alloc => {
                let stream = self.stream(event.stream, line)?;
                self.outcome.allocations += 1;
                self.alloc(event, &stream);
            }
            Kind::Free => {
                if let Some(block) = self.live.remove(&event.block) {
                    self.outcome.live_bytes -= block.len() as u64;
                }
            }
            Kind::RecordUse => {
                let stream = self.stream(event.stream, line)?;
                if let Some(block) = self.live.get_mut(&event.block) {
                    block.record_use(&stream);
                }
            }
            // What another pool did about its own memory.
            _ => {}
        }
        Ok(())
    }

    fn alloc(&mut self, event: &Event, stream: &PoolStream) {
        let mut block = stream.alloc(event.bytes as usize);
        for _ in 0..RETRIES {
            if block.is_ok() || self.kernel_ns == 0 {
                break;
            }
            self.outcome.waits += 1;
            self.gpu.advance(self.kernel_ns);
            block = stream.alloc(event.bytes as usize);
        }
        match block {
            Ok(block) => {
                self.outcome.live_bytes += block.len() as u64;
                self.outcome.peak_live_bytes = self.outcome.peak_live_bytes.max(self.outcome.live_bytes);
                self.live.insert(event.block, block);
                if self.kernel_ns > 0 {
                    self.gpu.kernel(stream.stream(), self.kernel_ns, &DriverToken::at_entry());
                }
            }
            Err(_) => self.outcome.failures += 1,
        }
    }

    fn finish(self, began: u64, passed: u64) -> Outcome {
        let statistics = self.pool.statistics();
        let now = self.gpu.now();
        let mut outcome = self.outcome;
        outcome.streams = self.streams.len() as u64;
        outcome.peak_reserved_bytes = statistics.sums.peak_reserved_bytes;
        outcome.hits = statistics.sums.hits;
        // Made for the replay, not by the pool: a stream and its number.
        outcome.driver_calls = statistics.driver_calls;
        outcome.simulated_ns = now - began;
        outcome.driver_ns = (now - began).saturating_sub(passed);
        outcome
    }
}
