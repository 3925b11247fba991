//! The run as Chrome's trace event format ("Trace Event Format", Google, 2016), which
//! <https://ui.perfetto.dev> and about:tracing open: a process per rank, a thread per lane.

use crate::trace::run::Run;
use pinyard_trace::Kind;
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Args<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slab: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lived_us: Option<f64>,
}

const NOTHING: Args<'static> =
    Args { name: None, sort_index: None, bytes: None, slab: None, offset: None, lived_us: None };

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'a str>,
    ph: &'a str,
    /// Microseconds.
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: usize,
    tid: usize,
    /// Of an instant: a mark in its thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'a str>,
    args: Args<'a>,
}

impl Run {
    /// Writes the run as Chrome trace JSON.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_perfetto(&mut self, to: &mut impl Write) -> io::Result<()> {
        let span = self.span;
        to.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
        let mut first = true;
        let mut entry = |entry: &Entry<'_>| -> io::Result<()> {
            if !std::mem::take(&mut first) {
                to.write_all(b",\n")?;
            }
            serde_json::to_writer(&mut *to, entry).map_err(io::Error::from)
        };
        let mut meta = |what: &'static str, pid, tid, args| {
            entry(&Entry { name: what, cat: None, ph: "M", ts: 0.0, dur: None, pid, tid, s: None, args })
        };
        for (pid, rank) in self.ranks.iter().enumerate() {
            meta("process_name", pid, 0, Args { name: Some(&rank.label), ..NOTHING })?;
            meta("process_sort_index", pid, 0, Args { sort_index: Some(pid), ..NOTHING })?;
        }
        for (tid, lane) in self.lanes.iter().enumerate() {
            meta("thread_name", lane.rank, tid + 1, Args { name: Some(&lane.label), ..NOTHING })?;
            meta("thread_sort_index", lane.rank, tid + 1, Args { sort_index: Some(tid), ..NOTHING })?;
        }
        let us = |ns: u64| ns as f64 / 1e3;
        for (tid, lane) in self.lanes.iter().enumerate() {
            for row in &lane.rows {
                let takes = matches!(row.kind, Kind::Register | Kind::Deregister | Kind::Mpi);
                let slab = self.slabs.get((row.slab as usize).wrapping_sub(1));
                let lived = (row.kind == Kind::Alloc && row.took > 0).then(|| us(row.took));
                let name = match row.kind {
                    Kind::Mpi => self.names.get(row.name as usize).map_or("mpi", String::as_str),
                    kind => kind.name(),
                };
                entry(&Entry {
                    name,
                    cat: Some(row.kind.name()),
                    ph: if takes { "X" } else { "i" },
                    ts: us(row.time),
                    dur: takes.then(|| us(row.took)),
                    pid: lane.rank,
                    tid: tid + 1,
                    s: (!takes).then_some("t"),
                    args: Args {
                        bytes: (row.bytes > 0).then_some(row.bytes),
                        slab: slab.map(|slab| slab.label.as_str()),
                        offset: slab.map(|_| row.offset),
                        lived_us: lived,
                        ..NOTHING
                    },
                })?;
            }
        }
        for (pid, rank) in self.ranks.iter_mut().enumerate() {
            for (name, series) in [("pinned bytes", &mut rank.pinned), ("pool bytes in use", &mut rank.live)]
            {
                if series.is_empty() {
                    continue;
                }
                for (time, bytes) in series.points(span, 20_000).1 {
                    let args = Args { bytes: Some(bytes), ..NOTHING };
                    let (ts, ph) = (us(time), "C");
                    entry(&Entry { name, cat: None, ph, ts, dur: None, pid, tid: 0, s: None, args })?;
                }
            }
        }
        to.write_all(b"\n]}\n")?;
        to.flush()
    }
}
