//! What a subscriber of tracing hears of a registry, at which level, and that hooks tell
//! nothing.
#![cfg(not(loom))]
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use common::*;
use pinyard_registry::backend::{Custom, Faulty};
use pinyard_registry::{Access, Events, MemoryKey, Registry};
use std::sync::Mutex;
use std::thread;
use tracing::Level;
use tracing_subscriber::fmt::format::FmtSpan;

/// Every line that was told, with the thread that told it.
static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct ToLines;

impl std::io::Write for ToLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LINES.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn lines() -> Vec<String> {
    let text = String::from_utf8(LINES.lock().unwrap().clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Whether a line of that level has all of these words.
fn told(level: Level, words: &[&str]) -> bool {
    let level = format!(" {level} ");
    lines().iter().any(|line| line.contains(&level) && words.iter().all(|word| line.contains(word)))
}

fn wait_for(level: Level, words: &[&str]) {
    eventually(|| told(level, words));
}

/// One test, as the subscriber is the process's: the reaper tells from a thread of its own.
#[test]
fn each_thing_is_told_at_its_level_and_nothing_by_hooks() {
    let all = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_span_events(FmtSpan::NEW);
    all.with_thread_names(true).with_ansi(false).with_writer(|| ToLines).init();
    let device = Device::new();
    let registry = builder_over(device.backend()).max_regions(4).build().unwrap();
    assert!(told(Level::DEBUG, &["registry{backend=", ": new"]));
    assert!(told(Level::INFO, &["a registry was made", "regions=4", "budget="]));

    let pages = Pages::new(2);
    drop(read(&registry, &pages));

    // More than fit: the oldest make way, which the reaper tells.
    let many: Vec<Pages> = (0..8).map(|_| Pages::apart(1)).collect();
    many.iter().for_each(|pages| drop(read(&registry, pages)));
    assert!(registry.stats().evictions > 0, "{:?}", registry.stats());
    wait_for(Level::DEBUG, &["made way", "regions="]);

    // A change of more pages than a hook walks; addresses suffice for it.
    let far = registry_of_addresses(&device);
    let at = |page: usize| ((1_usize << 40) + 2 * page * PAGE) as *const u8;
    (0..10_000).for_each(|page| drop(read(&far, (at(page), PAGE))));
    pinyard_hooks::notify_unmapped(at(0), at(10_000).addr() - at(0).addr());
    wait_for(Level::DEBUG, &["too wide", "events=1"]);
    // Of a flush of nothing a reaper that sleeps hears when it is woken.
    drop(read(&far, (at(0), PAGE)));
    far.flush().unwrap();
    wait_for(Level::WARN, &["every registration was taken out", "flushes=1"]);

    // A refusal, with its cause.
    let refusing = Custom::new("refusing", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let refusing =
        Faulty::over(refusing).registering(|_| Some(pinyard_registry::backend::Fault::Fail(libc::EIO)));
    let refused: Registry = registry_over(refusing);
    let error = refused.get(&pages, Access::LOCAL_READ).unwrap_err().to_string();
    assert!(told(Level::WARN, &["no registration", &error]), "{error}");

    // Hooks run on this thread from here on, and nothing of it is told from it.
    let lease = read(&registry, &pages);
    let me = format!(" {} ", thread::current().name().unwrap());
    let by_me = || lines().iter().filter(|line| line.contains(&me)).count();
    assert!(by_me() > 0, "{me} tells nothing at all: {:?}", lines());
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
    assert!(
        lines().iter().all(|line| !line.contains("pinyard_hooks") && !line.contains(" ERROR ")),
        "{:?}",
        lines()
    );
}
