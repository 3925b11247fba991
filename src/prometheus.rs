//! Counters in the text format that Prometheus reads (exposition format 0.0.4), for a
//! program that serves or writes them.
//!
//! ```
//! use pinyard::prometheus::Page;
//! use pinyard::registry::backend::Mlock;
//! use pinyard::{Pool, Registry};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let registry = Registry::builder().backend(Arc::new(Mlock::new())).budget(1 << 20).build()?;
//! let pool = Pool::host(&registry).build()?;
//! let mut page = Page::new();
//! page.registry("main", &registry.stats()).pool("halo", &pool.stats());
//! assert!(page.to_string().contains("\npinyard_registry_hits_total{name=\"main\"} 0\n"));
//! # Ok(())
//! # }
//! ```
//!
//! Taking the counters waits for no registration; making the text allocates. Not for
//! hooks or signal handlers.

use crate::allocator::PoolStats;
use crate::allocator::device::DeviceStats;
use crate::registry::{Stats, Times};
use crate::trace::counters::{Counters, Document};
use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// What of a process is shown: registries and pools, each by a name of the caller's.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// By the metric's name: its lines stand together, below one TYPE.
    metrics: BTreeMap<&'static str, Metric>,
}

#[derive(Clone, Debug)]
struct Metric {
    help: &'static str,
    kind: Kind,
    samples: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Only grows; its name ends with `_total`.
    Counter,
    Gauge,
    Histogram,
}

use Kind::{Counter, Gauge, Histogram};

impl Page {
    /// With nothing on it.
    pub fn new() -> Page {
        Page::default()
    }

    /// Adds a registry's. Of one name, one is added.
    pub fn registry(&mut self, name: &str, stats: &Stats) -> &mut Page {
        let name = labels(&[("name", name)]);
        for (metric, kind, help, value) in [
            ("pinyard_registry_hits_total", Counter, "Gets that a region served.", stats.hits),
            ("pinyard_registry_misses_total", Counter, "Gets that had to register.", stats.misses),
            ("pinyard_registry_registrations_total", Counter, "Registrations made.", stats.registrations),
            ("pinyard_registry_deregistrations_total", Counter, "Taken back.", stats.deregistrations),
            (
                "pinyard_registry_failed_deregistrations_total",
                Counter,
                "Registrations that the backend refused to take back.",
                stats.failed_deregistrations,
            ),
            (
                "pinyard_registry_invalidations_total",
                Counter,
                "Regions whose mapping changed.",
                stats.invalidations,
            ),
            ("pinyard_registry_merges_total", Counter, "Regions that a larger one replaced.", stats.merges),
            ("pinyard_registry_evictions_total", Counter, "Regions out for the limits.", stats.evictions),
            ("pinyard_registry_flushes_total", Counter, "Times that all regions went.", stats.flushes),
            ("pinyard_registry_overflows_total", Counter, "Events too large for a hook.", stats.overflows),
            (
                "pinyard_registry_retries_total",
                Counter,
                "Registrations made again, the mapping having changed meanwhile.",
                stats.retries,
            ),
            ("pinyard_registry_uncached_total", Counter, "Registrations not kept.", stats.uncached),
            ("pinyard_registry_regions", Gauge, "Regions that a get can find.", stats.regions),
            ("pinyard_registry_graveyard_regions", Gauge, "Regions on their way out.", stats.graveyard),
            ("pinyard_registry_pinned_bytes", Gauge, "Bytes pinned.", stats.pinned_bytes),
        ] {
            self.add(metric, kind, help, format!("{metric}{{{name}}} {value}"));
        }
        self.times("pinyard_registry_register_seconds", "Registering.", &name, &stats.registering);
        self.times("pinyard_registry_deregister_seconds", "Deregistering.", &name, &stats.deregistering);
        self
    }

    /// Adds a host or pinned pool's.
    pub fn pool(&mut self, name: &str, stats: &PoolStats) -> &mut Page {
        let name = labels(&[("name", name)]);
        for (metric, kind, help, value) in [
            ("pinyard_pool_slabs", Gauge, "Slabs.", stats.slabs),
            ("pinyard_pool_registrations_total", Counter, "Slabs registered.", stats.registrations),
            ("pinyard_pool_reserved_bytes", Gauge, "Bytes of slabs.", stats.reserved_bytes),
            ("pinyard_pool_peak_reserved_bytes", Gauge, "Most bytes of slabs.", stats.peak_reserved_bytes),
            ("pinyard_pool_live_bytes", Gauge, "Bytes of blocks in use.", stats.live_bytes),
            ("pinyard_pool_live_blocks", Gauge, "Blocks in use.", stats.live_blocks),
            ("pinyard_pool_deferred_blocks", Gauge, "Blocks behind a fence.", stats.deferred_blocks),
            ("pinyard_pool_free_bytes", Gauge, "Bytes in no block.", stats.free_bytes),
            ("pinyard_pool_cached_bytes", Gauge, "Bytes of free blocks.", stats.cached_bytes),
            ("pinyard_pool_allocations_total", Counter, "Blocks handed out.", stats.allocations),
            ("pinyard_pool_frees_total", Counter, "Blocks taken back.", stats.frees),
        ] {
            self.add(metric, kind, help, format!("{metric}{{{name}}} {value}"));
        }
        self
    }

    /// Adds a device pool's.
    pub fn device_pool(&mut self, name: &str, stats: &DeviceStats) -> &mut Page {
        let of_name = labels(&[("name", name)]);
        for (metric, kind, help, value) in [
            ("pinyard_device_pool_slabs", Gauge, "Slabs.", stats.slabs),
            ("pinyard_device_pool_reserved_bytes", Gauge, "Bytes of slabs.", stats.reserved_bytes),
            (
                "pinyard_device_pool_peak_reserved_bytes",
                Gauge,
                "Most bytes of slabs.",
                stats.peak_reserved_bytes,
            ),
            ("pinyard_device_pool_live_bytes", Gauge, "Bytes of blocks in use.", stats.live_bytes),
            ("pinyard_device_pool_wanted_bytes", Gauge, "The same as asked for.", stats.wanted_bytes),
            (
                "pinyard_device_pool_peak_live_bytes",
                Gauge,
                "Most bytes in use, at most.",
                stats.peak_live_bytes,
            ),
            ("pinyard_device_pool_live_blocks", Gauge, "Blocks in use.", stats.live_blocks),
            ("pinyard_device_pool_free_bytes", Gauge, "Free bytes.", stats.free_bytes),
            ("pinyard_device_pool_waiting_bytes", Gauge, "Free bytes behind streams.", stats.waiting_bytes),
            (
                "pinyard_device_pool_waiting_blocks",
                Gauge,
                "Blocks that wait for other users.",
                stats.waiting_blocks,
            ),
            ("pinyard_device_pool_allocations_total", Counter, "Blocks handed out.", stats.allocations),
            ("pinyard_device_pool_frees_total", Counter, "Blocks taken back.", stats.frees),
            ("pinyard_device_pool_growths_total", Counter, "Slabs made.", stats.growths),
            ("pinyard_device_pool_releases_total", Counter, "Slabs given back.", stats.releases),
            ("pinyard_device_pool_steals_total", Counter, "Streams' memory taken.", stats.steals),
            ("pinyard_device_pool_holds_total", Counter, "Streams made to wait.", stats.holds),
            ("pinyard_device_pool_squeezes_total", Counter, "Allocations short at first.", stats.squeezes),
        ] {
            self.add(metric, kind, help, format!("{metric}{{{of_name}}} {value}"));
        }
        let metric = "pinyard_device_pool_hits_total";
        for (level, value) in [
            ("cache", stats.hits.cache),
            ("pool", stats.hits.pool),
            ("settled", stats.hits.settled),
            ("others", stats.hits.others),
            ("growth", stats.hits.growth),
            ("squeeze", stats.hits.squeeze),
            ("failures", stats.hits.failures),
        ] {
            let labels = labels(&[("name", name), ("level", level)]);
            let help = "Where allocations found their memory.";
            self.add(metric, Counter, help, format!("{metric}{{{labels}}} {value}"));
        }
        self
    }

    /// Adds what a process has left for others to look at (`PINYARD_TRACE`): sums over its
    /// registries and pools, by node, rank and process number.
    pub fn process(&mut self, document: &Document) -> &mut Page {
        let Document { process, counters, .. } = document;
        let rank = process.rank.map(|rank| rank.to_string()).unwrap_or_default();
        let labels = labels(&[("node", &process.host), ("rank", &rank), ("pid", &process.pid.to_string())]);
        // All of them, so that a new one is not forgotten here.
        let Counters {
            hits,
            misses,
            registrations,
            deregistrations,
            invalidations,
            evictions,
            pinned_bytes,
            pool_bytes,
            live_bytes,
            allocations,
            frees,
        } = *counters;
        for (metric, kind, help, value) in [
            ("pinyard_process_hits_total", Counter, "Gets that a region served.", hits),
            ("pinyard_process_misses_total", Counter, "Gets that had to register.", misses),
            ("pinyard_process_registrations_total", Counter, "Registrations made.", registrations),
            ("pinyard_process_deregistrations_total", Counter, "Taken back.", deregistrations),
            ("pinyard_process_invalidations_total", Counter, "Regions whose mapping changed.", invalidations),
            ("pinyard_process_evictions_total", Counter, "Regions out for the limits.", evictions),
            ("pinyard_process_pinned_bytes", Gauge, "Bytes pinned.", pinned_bytes),
            ("pinyard_process_pool_bytes", Gauge, "Bytes of pools' slabs.", pool_bytes),
            ("pinyard_process_live_bytes", Gauge, "Bytes of blocks in use.", live_bytes),
            ("pinyard_process_allocations_total", Counter, "Blocks handed out.", allocations),
            ("pinyard_process_frees_total", Counter, "Blocks taken back.", frees),
        ] {
            self.add(metric, kind, help, format!("{metric}{{{labels}}} {value}"));
        }
        self
    }

    /// Durations as a histogram in seconds: buckets of powers of two, of which those
    /// that nothing fell into are left out.
    fn times(&mut self, metric: &'static str, help: &'static str, name: &str, times: &Times) {
        let mut below = 0;
        for (upper, count) in times.buckets() {
            below += count;
            let upper = upper.as_secs_f64();
            let line = format!("{metric}_bucket{{{name},le=\"{upper}\"}} {below}");
            self.add(metric, Histogram, help, line);
        }
        let (count, total) = (times.count(), times.total().as_secs_f64());
        self.add(metric, Histogram, help, format!("{metric}_bucket{{{name},le=\"+Inf\"}} {count}"));
        self.add(metric, Histogram, help, format!("{metric}_sum{{{name}}} {total}"));
        self.add(metric, Histogram, help, format!("{metric}_count{{{name}}} {count}"));
    }

    fn add(&mut self, metric: &'static str, kind: Kind, help: &'static str, line: String) {
        let new = || Metric { help, kind, samples: Vec::new() };
        self.metrics.entry(metric).or_insert_with(new).samples.push(line);
    }
}

/// `name="value"`, with what the format escapes in a value.
fn labels(pairs: &[(&str, &str)]) -> String {
    let one = |(name, value): &(&str, &str)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    pairs.iter().map(one).collect::<Vec<_>>().join(",")
}

impl Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, metric) in &self.metrics {
            let kind = match metric.kind {
                Counter => "counter",
                Gauge => "gauge",
                Histogram => "histogram",
            };
            writeln!(f, "# HELP {name} {}\n# TYPE {name} {kind}", metric.help)?;
            for line in &metric.samples {
                writeln!(f, "{line}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::registry::backend::Mlock;
    use crate::{Access, Registry};
    use std::sync::Arc;

    /// The value of a line that begins so.
    fn value(text: &str, sample: &str) -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(sample));
        line.unwrap_or_else(|| panic!("no {sample} in\n{text}")).trim().parse().unwrap()
    }

    #[test]
    fn what_a_registry_counts_is_on_the_page() {
        let registry = Registry::builder().backend(Arc::new(Mlock::new())).budget(1 << 20).build().unwrap();
        let buffer = vec![1u8; 4096];
        for _ in 0..3 {
            drop(registry.get(&buffer, Access::LOCAL_WRITE).unwrap());
        }
        let stats = registry.stats();
        let text = Page::new().registry("main", &stats).to_string();
        assert_eq!(value(&text, "pinyard_registry_misses_total{name=\"main\"}"), stats.misses as f64);
        assert_eq!(value(&text, "pinyard_registry_hits_total{name=\"main\"}"), 2.0);
        assert_eq!(value(&text, "pinyard_registry_pinned_bytes{name=\"main\"}"), stats.pinned_bytes as f64);
        assert_eq!(value(&text, "pinyard_registry_register_seconds_count{name=\"main\"}"), 1.0);
        assert_eq!(value(&text, "pinyard_registry_register_seconds_bucket{name=\"main\",le=\"+Inf\"}"), 1.0);
        assert!(value(&text, "pinyard_registry_register_seconds_sum{name=\"main\"}") > 0.0);
    }

    #[test]
    fn each_metric_is_told_of_once_before_all_its_lines() {
        let mut page = Page::new();
        page.registry("one", &Stats::default()).registry("two", &Stats::default());
        page.pool("host", &PoolStats::default()).device_pool("gpu", &DeviceStats::default());
        let text = page.to_string();
        let mut told = Vec::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["#", "TYPE", name, kind] => {
                    assert!(!told.contains(&name), "{name} twice");
                    assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
                    told.push(name);
                }
                ["#", "HELP", _, ..] => {}
                [sample, value] => {
                    assert!(sample.starts_with(told.last().unwrap()), "{sample} is not below its TYPE");
                    assert_eq!(value.parse(), Ok(0.0));
                }
                _ => panic!("{line:?}"),
            }
        }
        assert_eq!(value(&text, "pinyard_device_pool_hits_total{name=\"gpu\",level=\"settled\"}"), 0.0);
        assert!(told.len() > 40 && text.ends_with('\n'));
    }

    #[test]
    fn a_process_is_its_node_rank_and_number() {
        let mut document = Document::default();
        (document.process.host, document.process.pid, document.process.rank) = ("n1".to_owned(), 7, Some(3));
        document.counters.pinned_bytes = 4096;
        let mut page = Page::new();
        page.process(&document);
        document.process.rank = None;
        let text = page.process(&document).to_string();
        assert_eq!(value(&text, "pinyard_process_pinned_bytes{node=\"n1\",rank=\"3\",pid=\"7\"}"), 4096.0);
        assert_eq!(value(&text, "pinyard_process_hits_total{node=\"n1\",rank=\"\",pid=\"7\"}"), 0.0);
        assert_eq!(text.matches("# TYPE pinyard_process_hits_total counter").count(), 1, "{text}");
    }

    #[test]
    fn names_are_escaped() {
        assert_eq!(labels(&[("name", "a \"b\" \\ \n")]), r#"name="a \"b\" \\ \n""#);
    }
}
