//! What looks into a device pool from outside: traces, leaks, misuse; and settings.

use super::builder::DeviceBuilder;
use super::leaks::Leaks;
use super::misuse::Misuse;
use super::pool::DevicePool;
use super::watch::{TraceOptions, Watch};
use crate::config::{Overrides, Part};
use crate::trace::Trace;
use pinyard_driver::Driver;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl DevicePool {
    pub(super) fn watch(&self) -> &Watch {
        &self.core().watch
    }

    /// Starts, or starts anew, to record what happens. The ring of events is allocated by
    /// the first start, whose options hold. While it records, an allocation or a free
    /// takes some hundred nanoseconds more, and a short lock.
    pub fn start_trace(&self, options: TraceOptions) {
        self.watch().start(options);
    }

    /// Stops recording. What was recorded stays.
    pub fn stop_trace(&self) {
        self.watch().stop();
    }

    /// Changes the limit. Slabs beyond a lower one stay until they are given back (see
    /// [`trim`](DevicePool::trim)); until then nothing is added.
    pub fn set_limit(&self, bytes: usize) {
        self.core().settings.limit.store(bytes, Relaxed);
    }

    /// What stands in the ring, with names for the frames of stacks. Waits for nobody.
    pub fn trace(&self) -> Trace {
        self.watch().trace()
    }

    /// Who holds what. Costs what [`snapshot`](DevicePool::snapshot) does.
    pub fn leaks(&self) -> Leaks {
        self.core().leaks()
    }

    /// Has `alarm` called for each misuse of a block ([`RawPool`](super::RawPool),
    /// [`DeviceBuilder::poison`]), by the thread that notices and without a lock. Without
    /// one the log is told, as an error.
    pub fn on_misuse(&self, alarm: impl Fn(&Misuse) + Send + Sync + 'static) {
        self.watch().on_misuse(Arc::new(alarm));
    }

    /// Misuses so far.
    pub fn misuses(&self) -> u64 {
        self.watch().misuses()
    }
}

impl DeviceBuilder {
    /// Records from the start: see [`DevicePool::start_trace`].
    pub fn trace(mut self, options: TraceOptions) -> DeviceBuilder {
        self.trace = Some(options);
        self
    }

    /// Finds writes to freed memory: it is filled with a pattern, which is looked for when
    /// the memory is used again or given back. Allocations wait for their stream. For
    /// finding faults; see [`DevicePool::on_misuse`].
    pub fn poison(mut self, poison: bool) -> DeviceBuilder {
        self.poison = poison;
        self
    }

    /// Has `report` called when the last handle goes while blocks are in use, by the
    /// thread that drops it. With a trace that keeps stacks it says where they were
    /// allocated.
    pub fn on_leak(mut self, report: impl Fn(&Leaks) + Send + Sync + 'static) -> DeviceBuilder {
        self.heir = Some(Box::new(report));
        self
    }

    /// Has the environment ignored, for a program that must not be told from outside.
    pub fn ignore_environment(mut self) -> DeviceBuilder {
        self.environment = false;
        self
    }

    /// Changes what is given; the rest stays.
    pub fn configure(mut self, settings: &Overrides) -> DeviceBuilder {
        let total = self.driver.device().total_bytes;
        match settings.limit {
            Some(Part::Bytes(bytes)) => self.settings.limit = bytes.into(),
            Some(Part::Percent(part)) => self.settings.limit = (total / 100 * usize::from(part)).into(),
            None => {}
        }
        self.settings.slab_bytes = settings.slab_bytes.unwrap_or(self.settings.slab_bytes);
        self.settings.patience = settings.patience.unwrap_or(self.settings.patience);
        self.settings.stall = settings.stall.unwrap_or(self.settings.stall);
        if let Some(age) = settings.keep_idle {
            self.settings.keep_idle = Some(age).filter(|age| !age.is_zero());
        }
        self.settings.watermarks = settings.watermarks(self.settings.watermarks);
        self.marks = settings.marks.unwrap_or(self.marks);
        self.poison = settings.poison.unwrap_or(self.poison);
        self.trace_file = settings.trace_file.clone().or(self.trace_file);
        // A file or stacks alone are a trace as well.
        let asked = settings.trace_file.is_some() || settings.stacks == Some(true);
        let (before, trace) = (self.trace, settings.trace);
        self.trace = match trace {
            Some(0) => None,
            Some(events) => Some(TraceOptions { events, ..before.unwrap_or_default() }),
            None if asked => Some(before.unwrap_or_default()),
            None => before,
        };
        if let (Some(options), Some(stacks)) = (&mut self.trace, settings.stacks) {
            options.stacks = stacks;
        }
        self.tells_leaks = settings.leaks.unwrap_or(self.tells_leaks);
        self
    }
}
