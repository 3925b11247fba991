//! What a subscriber of tracing hears of a registry, at which level, and that hooks tell
//! nothing.
#![cfg(not(loom))]
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use common::*;
use pinyard_registry::backend::{Custom, Faulty};
use pinyard_registry::{Access, Events, MemoryKey, Registry};
use std::fmt::Write;
use std::sync::Mutex;
use std::thread::{self, ThreadId};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A line that was told.
#[derive(Clone, Debug)]
struct Line {
    level: Level,
    of_hooks: bool,
    text: String,
    thread: ThreadId,
}

static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());

struct Everything;

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{field} {value:?}; ").unwrap();
    }
}

fn keep(metadata: &Metadata<'_>, text: Text) {
    let of_hooks = metadata.target().starts_with("pinyard_hooks");
    let line = Line { level: *metadata.level(), of_hooks, text: text.0, thread: thread::current().id() };
    LINES.lock().unwrap().push(line);
}

impl Subscriber for Everything {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = Text(format!("span {}; ", span.metadata().name()));
        span.record(&mut text);
        keep(span.metadata(), text);
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        keep(event.metadata(), text);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Whether a line of that level has all of these words.
fn told(level: Level, words: &[&str]) -> bool {
    let has = |line: &Line| line.level == level && words.iter().all(|word| line.text.contains(word));
    LINES.lock().unwrap().iter().any(has)
}

fn wait_for(level: Level, words: &[&str]) {
    eventually(|| told(level, words));
}

/// One test, as the subscriber is the process's: the reaper tells from a thread of its own.
#[test]
fn each_thing_is_told_at_its_level_and_nothing_by_hooks() {
    tracing::subscriber::set_global_default(Everything).unwrap();
    let device = Device::new();
    let registry = builder_over(device.backend()).max_regions(4).build().unwrap();
    assert!(told(Level::DEBUG, &["span registry; ", "backend "]));
    assert!(told(Level::INFO, &["a registry was made", "regions 4", "budget "]));

    let pages = Pages::new(2);
    drop(read(&registry, &pages));

    // More than fit: the oldest make way, which the reaper tells.
    let many: Vec<Pages> = (0..8).map(|_| Pages::apart(1)).collect();
    many.iter().for_each(|pages| drop(read(&registry, pages)));
    assert!(registry.stats().evictions > 0, "{:?}", registry.stats());
    wait_for(Level::DEBUG, &["made way", "regions "]);

    // A change of more pages than a hook walks; addresses suffice for it.
    let far = registry_of_addresses(&device);
    let at = |page: usize| ((1_usize << 40) + 2 * page * PAGE) as *const u8;
    (0..10_000).for_each(|page| drop(read(&far, (at(page), PAGE))));
    pinyard_hooks::notify_unmapped(at(0), at(10_000).addr() - at(0).addr());
    wait_for(Level::DEBUG, &["too wide", "events 1"]);
    far.flush().unwrap();
    wait_for(Level::WARN, &["every registration was taken out", "flushes 1"]);

    // A refusal, with its cause.
    let refusing = Custom::new("refusing", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let refusing =
        Faulty::over(refusing).registering(|_| Some(pinyard_registry::backend::Fault::Fail(libc::EIO)));
    let refused: Registry = registry_over(refusing);
    let error = refused.get(&pages, Access::LOCAL_READ).unwrap_err().to_string();
    assert!(told(Level::WARN, &["no registration", &error]), "{error}");

    // Hooks run on this thread from here on, and nothing of it is told from it.
    let lease = read(&registry, &pages);
    let me = thread::current().id();
    let by_me = || LINES.lock().unwrap().iter().filter(|line| line.thread == me).count();
    let before = by_me();
    for _ in 0..1000 {
        pages.map_over();
        pages.advise(libc::MADV_DONTNEED);
    }
    assert_eq!(by_me(), before, "told from inside a hook");
    drop(lease);
    if events() == Events::Hooks {
        wait_for(Level::TRACE, &["mappings of regions have changed"]);
    }
    let lines = LINES.lock().unwrap();
    assert!(lines.iter().all(|line| !line.of_hooks), "{lines:?}");
    assert!(lines.iter().all(|line| line.level != Level::ERROR), "{lines:?}");
}
