//! A run: ranks, lanes of events, slabs, and what is derived from them.

use crate::text::short;
use crate::trace::histogram::Histogram;
use crate::trace::series::Series;
use pinyard_trace::{Event, Kind, Process};
use std::collections::{BTreeMap, HashMap};

/// Lanes of a run at most: what a reader can scroll through. Further streams share one per
/// rank.
const LANES: usize = 1024;
/// Further ones go to the last.
const NAMES: usize = 250;

/// Traces that were read, on one clock.
#[derive(Debug, Default)]
pub struct Run {
    pub(crate) ranks: Vec<Rank>,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) slabs: Vec<Slab>,
    /// Names of events: backends, operations with their paths.
    pub(crate) names: Vec<String>,
    pub(crate) histograms: BTreeMap<String, Histogram>,
    /// From the first event of the run to the end of the last, in nanoseconds.
    pub(crate) span: u64,
    pub(crate) warnings: Vec<String>,
    by_lane: HashMap<(usize, Group), usize>,
    by_name: HashMap<String, usize>,
}

/// What shares a line of the timeline, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Group {
    Mpi(u64),
    Registry(u64),
    Slabs(u64),
    Stream(u64, u64),
    Others,
}

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) rank: usize,
    pub(crate) label: String,
    group: Group,
    pub(crate) rows: Vec<Row>,
}

/// An event of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Since the run began.
    pub(crate) time: u64,
    /// Of an allocation, how long the block lived.
    pub(crate) took: u64,
    pub(crate) bytes: u64,
    pub(crate) offset: u64,
    /// From 1; 0 for none.
    pub(crate) slab: u32,
    pub(crate) kind: Kind,
    pub(crate) name: u8,
}

#[derive(Debug)]
pub(crate) struct Slab {
    pub(crate) rank: usize,
    pub(crate) label: String,
    pub(crate) bytes: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) blocks: u64,
}

/// A process.
#[derive(Debug, Default)]
pub(crate) struct Rank {
    /// `rank 3`, or the file's name.
    pub(crate) label: String,
    pub(crate) process: Option<Process>,
    pub(crate) counts: [u64; Kind::ALL.len()],
    pub(crate) events: u64,
    pub(crate) lost: u64,
    pub(crate) mpi_bytes: u64,
    pub(crate) registered: Option<Histogram>,
    pub(crate) mpi: Option<Histogram>,
    pub(crate) pinned: Series,
    pub(crate) live: Series,
    pub(crate) peak_pinned: u64,
    pub(crate) peak_live: u64,
}

impl Rank {
    pub(crate) fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }
}

/// What is known about a rank while its file is read.
#[derive(Default)]
pub(crate) struct Open {
    rank: usize,
    /// Later than the run's beginning by so much.
    offset: u64,
    /// Blocks in use: lane, row, bytes. A pool's own trace counts blocks; a process's has
    /// their addresses.
    live: HashMap<u64, (usize, usize, u64)>,
    /// Blocks that wait for a fence, since.
    fenced: HashMap<u64, u64>,
    /// By address.
    slabs: BTreeMap<u64, usize>,
    registered: HashMap<(u64, u64, u64), u64>,
}

impl Run {
    /// Events that were read.
    pub fn events(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.events).sum()
    }

    /// What could not be read, or should be known; a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    pub(crate) fn open(&mut self, label: String, process: Option<Process>, offset: u64) -> Open {
        self.ranks.push(Rank { label, process, ..Rank::default() });
        Open { rank: self.ranks.len() - 1, offset, ..Open::default() }
    }

    fn name(&mut self, event: &Event) -> u8 {
        let text = match event.path.is_empty() {
            true => short(&event.name),
            false => short(&format!("{}, {}", event.name, event.path)),
        };
        let next = self.by_name.len().min(NAMES);
        let at = *self.by_name.entry(text.clone()).or_insert(next);
        if at == self.names.len() {
            self.names.push(if at == NAMES { "others".to_owned() } else { text });
        }
        at as u8
    }

    fn lane(&mut self, rank: usize, mut group: Group, event: &Event) -> usize {
        if let Some(&lane) = self.by_lane.get(&(rank, group)) {
            return lane;
        }
        if self.lanes.len() >= LANES {
            group = Group::Others;
        }
        let next = self.lanes.len();
        let lane = *self.by_lane.entry((rank, group)).or_insert(next);
        if lane == next {
            let name = match short(&event.name) {
                name if name.is_empty() => "pool".to_owned(),
                name => name,
            };
            let number = if event.of == 0 { String::new() } else { format!(" {}", event.of) };
            let label = match group {
                Group::Mpi(_) => format!("MPI{number}"),
                Group::Registry(_) => format!("registry {name}{number}"),
                Group::Slabs(_) => format!("{name}{number}, slabs"),
                Group::Stream(_, 0) => format!("{name}{number}"),
                Group::Stream(_, stream) => format!("{name}{number}, stream {stream}"),
                Group::Others => "further streams".to_owned(),
            };
            self.lanes.push(Lane { rank, label, group, rows: Vec::new() });
        }
        lane
    }

    pub(crate) fn add(&mut self, open: &mut Open, event: &Event) {
        let rank = open.rank;
        let time = open.offset.saturating_add(event.time_ns);
        let end = time.saturating_add(event.duration_ns);
        self.span = self.span.max(end);
        let of = &mut self.ranks[rank];
        match event.event {
            Kind::Lost => {
                of.lost = of.lost.saturating_add(event.bytes);
                return;
            }
            Kind::End => return,
            kind => of.counts[kind as usize] += 1,
        }
        of.events += 1;
        let group = match event.event {
            Kind::Mpi => Group::Mpi(event.of),
            Kind::Register | Kind::Deregister | Kind::Invalidate | Kind::Evict => Group::Registry(event.of),
            Kind::Grow | Kind::Trim => Group::Slabs(event.of),
            _ => Group::Stream(event.of, event.stream),
        };
        let lane = self.lane(rank, group, event);
        let mut row = Row {
            time,
            took: event.duration_ns,
            bytes: event.bytes,
            offset: 0,
            slab: 0,
            kind: event.event,
            name: self.name(event),
        };
        if let Some((&start, &slab)) = open.slabs.range(..=event.address).next_back()
            && event.address - start < self.slabs[slab].bytes
            && matches!(group, Group::Stream(..) | Group::Slabs(_))
        {
            row.slab = slab as u32 + 1;
            row.offset = event.address - start;
        }
        match event.event {
            Kind::Alloc => {
                row.took = 0;
                row.bytes = event.block_bytes.max(event.bytes);
                let at = (lane, self.lanes[lane].rows.len(), row.bytes);
                open.live.insert(event.block, at);
                self.ranks[rank].live.add(time, row.bytes as i64);
                if let Some(slab) = self.slabs.get_mut((row.slab as usize).wrapping_sub(1)) {
                    slab.blocks += 1;
                }
            }
            Kind::Free => self.free(open, event, &mut row),
            Kind::Fence => _ = open.fenced.insert(event.block, time),
            Kind::Grow => self.grow(open, event, time, &mut row),
            Kind::Trim => {
                if let Some(slab) = open.slabs.remove(&event.address) {
                    self.slabs[slab].to = time;
                }
            }
            Kind::Register => {
                let of = &mut self.ranks[rank];
                of.pinned.add(end, event.bytes as i64);
                *open.registered.entry((event.of, event.address, event.bytes)).or_default() += 1;
                self.took(&format!("register, {}", short(&event.name)), event.duration_ns);
                let of = &mut self.ranks[rank];
                of.registered.get_or_insert_with(|| Histogram::new(String::new())).add(event.duration_ns);
            }
            Kind::Deregister => {
                let key = (event.of, event.address, event.bytes);
                // What was registered before the trace began was not counted.
                if let Some(count) = open.registered.get_mut(&key).filter(|count| **count > 0) {
                    *count -= 1;
                    self.ranks[rank].pinned.add(end, -(event.bytes as i64));
                }
                self.took(&format!("deregister, {}", short(&event.name)), event.duration_ns);
            }
            Kind::Mpi => {
                self.took(&format!("MPI {}, {}", short(&event.name), short(&event.path)), event.duration_ns);
                let of = &mut self.ranks[rank];
                of.mpi_bytes = of.mpi_bytes.saturating_add(event.bytes);
                of.mpi.get_or_insert_with(|| Histogram::new(String::new())).add(event.duration_ns);
            }
            _ => {}
        }
        self.lanes[lane].rows.push(row);
    }

    fn free(&mut self, open: &mut Open, event: &Event, row: &mut Row) {
        row.bytes = event.block_bytes.max(event.bytes);
        if let Some((lane, at, bytes)) = open.live.remove(&event.block) {
            row.bytes = bytes;
            let alloc = &mut self.lanes[lane].rows[at];
            // 0 is for blocks that outlive the trace.
            alloc.took = row.time.saturating_sub(alloc.time).max(1);
            let took = alloc.took;
            self.ranks[open.rank].live.add(row.time, -(bytes as i64));
            self.took("life of a block", took);
        }
        if let Some(since) = open.fenced.remove(&event.block) {
            self.took("fence: from drop to reuse", row.time.saturating_sub(since));
        }
    }

    fn grow(&mut self, open: &mut Open, event: &Event, time: u64, row: &mut Row) {
        let name = short(&event.name);
        let number = if event.of == 0 { String::new() } else { format!(" {}", event.of) };
        let label = format!("{name}{number} at {:#x}", event.address);
        let rank = open.rank;
        self.slabs.push(Slab { rank, label, bytes: event.bytes, from: time, to: u64::MAX, blocks: 0 });
        open.slabs.insert(event.address, self.slabs.len() - 1);
        row.slab = self.slabs.len() as u32;
    }

    fn took(&mut self, name: &str, ns: u64) {
        // A hostile trace may have as many names as lines.
        let name =
            if self.histograms.len() < 40 || self.histograms.contains_key(name) { name } else { "others" };
        self.histograms.entry(name.to_owned()).or_insert_with(|| Histogram::new(name.to_owned())).add(ns);
    }

    /// After the last file: lanes in the order of ranks, rows in that of time.
    pub(crate) fn close(&mut self) {
        let mut order: Vec<usize> = (0..self.ranks.len()).collect();
        let number = |rank: &Rank| rank.process.as_ref().and_then(|process| process.rank);
        order.sort_by_key(|&at| {
            let rank = &self.ranks[at];
            (number(rank).is_none(), number(rank), rank.label.clone())
        });
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(new, &old)| place[old] = new);
        let mut ranks: Vec<Option<Rank>> = std::mem::take(&mut self.ranks).into_iter().map(Some).collect();
        self.ranks = order.iter().filter_map(|&old| ranks[old].take()).collect();
        self.lanes.iter_mut().for_each(|lane| lane.rank = place[lane.rank]);
        self.slabs.iter_mut().for_each(|slab| slab.rank = place[slab.rank]);
        self.lanes.sort_by_key(|lane| (lane.rank, lane.group));
        for lane in &mut self.lanes {
            lane.rows.sort_by_key(|row| row.time);
        }
        let span = self.span;
        for rank in &mut self.ranks {
            rank.peak_pinned = rank.pinned.points(span, 16).0;
            rank.peak_live = rank.live.points(span, 16).0;
        }
        self.by_lane.clear();
    }
}
