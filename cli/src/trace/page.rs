//! The page: columns of binary numbers and the script that draws them.
//!
//! An event is 22 bytes in eight columns, each base64 in a script element of its own: a
//! million events are 30 MB of text that no parser of JSON sees. The script decodes them
//! into typed arrays and draws, of each lane, what is visible: events one by one where
//! they are few, and else from groups of 64, so that a picture costs about as much
//! whatever the number of events.

use crate::text::{bytes, counted, escaped, grouped, time};
use crate::trace::run::{Lane, Row, Run};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pinyard_trace::Kind;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Nothing is fetched, and no address is left to fetch from.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// Points of all charts together.
const POINTS: usize = 60_000;
/// Slabs that can be looked at, those with the most blocks.
const SLABS: usize = 200;

/// What the script gets besides the columns.
#[derive(Serialize)]
struct Meta<'a> {
    span: u64,
    kinds: Vec<&'static str>,
    names: &'a [String],
    ranks: Vec<RankMeta<'a>>,
    lanes: Vec<LaneMeta<'a>>,
    slabs: Vec<SlabMeta<'a>>,
}

#[derive(Serialize)]
struct RankMeta<'a> {
    label: &'a str,
    pinned: Vec<(u64, u64)>,
    live: Vec<(u64, u64)>,
}

#[derive(Serialize)]
struct LaneMeta<'a> {
    rank: usize,
    label: &'a str,
    events: usize,
}

#[derive(Serialize)]
struct SlabMeta<'a> {
    /// From 1, as events name it.
    number: usize,
    rank: usize,
    label: &'a str,
    bytes: u64,
    from: u64,
    to: u64,
    blocks: u64,
}

impl Run {
    /// One HTML page. `paths` is where the traces were.
    pub fn page(&mut self, paths: &str) -> String {
        let (title, paths) = (escaped(&self.title()), escaped(&crate::text::short(paths)));
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}, pinyard report</title>\n<style>\n{STYLE}</style>\n<main>\n\
             <h1>{title}</h1>\n<p class=\"soft\">pinyard report of {paths}</p>\n"
        );
        page += &self.warnings_html();
        page += &self.figures();
        page += include_str!("page.html");
        page += &self.histograms_html();
        page += &self.table();
        page += "</main>\n";
        self.columns(&mut page);
        let meta = serde_json::to_string(&self.meta()).unwrap_or_else(|_| "{}".to_owned());
        // No name ends the element, or begins a comment in it.
        let meta = meta.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
        let _ = writeln!(page, "<script type=\"application/json\" id=\"meta\">{meta}</script>");
        let _ = writeln!(page, "<script>\n{SCRIPT}</script>\n</html>");
        page
    }

    fn meta(&mut self) -> Meta<'_> {
        let each = (POINTS / self.ranks.len().max(1) / 2).clamp(40, 4000);
        let span = self.span;
        let ranks = self.ranks.iter_mut().map(|rank| RankMeta {
            pinned: if rank.pinned.is_empty() { Vec::new() } else { rank.pinned.points(span, each).1 },
            live: if rank.live.is_empty() { Vec::new() } else { rank.live.points(span, each).1 },
            label: &rank.label,
        });
        let lane = |lane: &'_ Lane| (lane.rank, lane.rows.len());
        let mut slabs: Vec<usize> = (0..self.slabs.len()).collect();
        slabs.sort_by_key(|&at| std::cmp::Reverse(self.slabs[at].blocks));
        slabs.truncate(SLABS);
        slabs.sort_by_key(|&at| (self.slabs[at].rank, at));
        Meta {
            span,
            kinds: Kind::ALL.iter().map(|kind| kind.name()).collect(),
            names: &self.names,
            ranks: ranks.collect(),
            lanes: self
                .lanes
                .iter()
                .map(|of| LaneMeta { rank: lane(of).0, label: &of.label, events: lane(of).1 })
                .collect(),
            slabs: slabs
                .into_iter()
                .map(|at| {
                    let slab = &self.slabs[at];
                    SlabMeta {
                        number: at + 1,
                        rank: slab.rank,
                        label: &slab.label,
                        bytes: slab.bytes,
                        from: slab.from,
                        to: slab.to.min(span),
                        blocks: slab.blocks,
                    }
                })
                .collect(),
        }
    }

    /// Lane by lane, each in the order of time. A length that a float has not exactly is
    /// of no whole number of pages.
    fn columns(&self, page: &mut String) {
        // A run of up to four seconds is exact; a longer one has 2^32 moments.
        let tick = (self.span >> 32) + 1;
        let rows = || self.lanes.iter().flat_map(|lane| &lane.rows);
        let float = |value: u64| (value as f32).to_le_bytes();
        let mut column = |name: &str, numbers: &mut dyn Iterator<Item = u8>| {
            let mut buffer = [0u8; 3 << 14];
            let _ = write!(page, "<script type=\"text/plain\" id=\"column-{name}\">");
            loop {
                let mut filled = 0;
                for (place, byte) in buffer.iter_mut().zip(&mut *numbers) {
                    *place = byte;
                    filled += 1;
                }
                // Multiples of three: pieces of one text.
                STANDARD.encode_string(&buffer[..filled], page);
                if filled < buffer.len() {
                    break;
                }
            }
            page.push_str("</script>\n");
        };
        column("time", &mut rows().flat_map(|row| ((row.time / tick) as u32).to_le_bytes()));
        column("took", &mut rows().flat_map(|row| float(row.took)));
        column("bytes", &mut rows().flat_map(|row| float(row.bytes)));
        column("offset", &mut rows().flat_map(|row| float(row.offset)));
        column("slab", &mut rows().flat_map(|row| u16::try_from(row.slab).unwrap_or(0).to_le_bytes()));
        column("kind", &mut rows().map(|row| row.kind as u8));
        column("name", &mut rows().map(|row: &Row| row.name));
    }

    /// The programs and when the first of their processes began, as far as the traces say.
    fn title(&self) -> String {
        let processes = || self.ranks.iter().filter_map(|rank| rank.process.as_ref());
        let programs: BTreeSet<&str> = processes().map(|process| process.program.as_str()).collect();
        let programs: Vec<String> =
            programs.into_iter().filter(|name| !name.is_empty()).map(crate::text::short).collect();
        let name = match &programs[..] {
            [] => "A run".to_owned(),
            [first, second, rest @ ..] if !rest.is_empty() => {
                format!("{first}, {second} and {} more", rest.len())
            }
            few => few.join(", "),
        };
        let began = processes().map(|process| process.wall_ns).filter(|&ns| ns != 0).min();
        let date = began.and_then(|ns| jiff::Timestamp::from_nanosecond(ns.into()).ok());
        date.map_or_else(|| name.clone(), |date| format!("{name}, {}", date.strftime("%Y-%m-%d %H:%M UTC")))
    }

    fn warnings_html(&self) -> String {
        const SHOWN: usize = 12;
        if self.warnings.is_empty() {
            return String::new();
        }
        let mut items: String =
            self.warnings.iter().take(SHOWN).map(|line| format!("<li>{}</li>", escaped(line))).collect();
        if self.warnings.len() > SHOWN {
            let _ = write!(items, "<li>and {} more</li>", self.warnings.len() - SHOWN);
        }
        format!(
            "<div class=\"card warning\" role=\"alert\"><b>Not everything is here</b><ul>{items}</ul></div>\n"
        )
    }

    fn figures(&self) -> String {
        let sum = |kind| self.ranks.iter().map(|rank| rank.count(kind)).sum::<u64>();
        let hosts: BTreeSet<_> =
            self.ranks.iter().filter_map(|rank| rank.process.as_ref()).map(|process| &process.host).collect();
        let pinned = self.ranks.iter().map(|rank| rank.peak_pinned).max().unwrap_or(0);
        let figure = |value: String, name: &str| format!("<div class=\"card\"><b>{value}</b>{name}</div>");
        format!(
            "<div class=\"figures\">{}</div>\n",
            [
                figure(
                    grouped(self.ranks.len() as u64),
                    &format!(
                        "{} on {}",
                        if self.ranks.len() == 1 { "process" } else { "processes" },
                        counted(hosts.len().max(1) as u64, "node")
                    )
                ),
                figure(time(self.span), "from first to last event"),
                figure(grouped(self.events()), "events"),
                figure(grouped(sum(Kind::Alloc)), "allocations"),
                figure(grouped(sum(Kind::Register)), "registrations"),
                figure(grouped(sum(Kind::Invalidate)), "invalidations"),
                figure(grouped(sum(Kind::Mpi)), "MPI operations of pinyard's on device buffers"),
                figure(bytes(pinned), "pinned at most by one"),
            ]
            .concat()
        )
    }

    fn histograms_html(&self) -> String {
        if self.histograms.is_empty() {
            return String::new();
        }
        let figures: String = self.histograms.values().map(|histogram| histogram.figure()).collect();
        format!(
            "<h2>How long it took</h2>\n<p class=\"soft\">Calls by duration; both axes are logarithmic.</p>\n<div class=\"plots\">{figures}</div>\n"
        )
    }

    fn table(&self) -> String {
        type Cell = fn(&crate::trace::run::Rank) -> Option<u64>;
        type Show = fn(u64) -> String;
        const COLUMNS: [(&str, Cell, Show); 13] = [
            ("events", |of| Some(of.events), grouped),
            ("alloca&shy;tions", |of| Some(of.count(Kind::Alloc)), grouped),
            ("registra&shy;tions", |of| Some(of.count(Kind::Register)), grouped),
            ("invalida&shy;tions", |of| Some(of.count(Kind::Invalidate)), grouped),
            ("evic&shy;tions", |of| Some(of.count(Kind::Evict)), grouped),
            ("fences", |of| Some(of.count(Kind::Fence)), grouped),
            ("pinned at most", |of| Some(of.peak_pinned), bytes),
            ("in use at most", |of| Some(of.peak_live), bytes),
            ("register, median", |of| Some(of.registered.as_ref()?.quantile(0.5)), time),
            ("register, 99 %", |of| Some(of.registered.as_ref()?.quantile(0.99)), time),
            ("MPI on device buffers", |of| Some(of.count(Kind::Mpi)), grouped),
            ("MPI bytes", |of| Some(of.mpi_bytes), bytes),
            ("MPI, 99 %", |of| Some(of.mpi.as_ref()?.quantile(0.99)), time),
        ];
        let mut html = "<h2>Ranks side by side</h2>\n<p class=\"soft\">Marked: at least twice what the middle rank has.</p>\n<div class=\"card wide\"><table><tr><th>process</th><th class=\"text\">node</th>".to_owned();
        for (name, ..) in COLUMNS {
            let _ = write!(html, "<th>{name}</th>");
        }
        html += "<th>lost</th></tr>";
        let middles = COLUMNS.map(|(_, cell, _)| {
            let mut values: Vec<u64> = self.ranks.iter().filter_map(cell).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(0)
        });
        for rank in &self.ranks {
            let (host, program) = rank.process.as_ref().map_or((String::new(), String::new()), |of| {
                (crate::text::short(&of.host), crate::text::short(&of.program))
            });
            let _ = write!(
                html,
                "<tr><td title=\"{}\">{}</td><td class=\"text\">{}</td>",
                escaped(&program),
                escaped(&rank.label),
                escaped(&host)
            );
            for ((_, cell, show), middle) in COLUMNS.iter().zip(middles) {
                let value = cell(rank);
                let marked =
                    self.ranks.len() > 2 && value.is_some_and(|value| middle > 0 && value / 2 >= middle);
                let class = if marked { " class=\"mark\"" } else { "" };
                let text = value.map_or_else(|| "–".to_owned(), show);
                let _ = write!(html, "<td{class}>{text}</td>");
            }
            let class = if rank.lost > 0 { " class=\"bad\"" } else { "" };
            let _ = write!(html, "<td{class}>{}</td></tr>", grouped(rank.lost));
        }
        html + "</table></div>\n"
    }
}
