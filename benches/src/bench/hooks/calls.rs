//! What mmap, madvise and munmap of a page take: without hooks, with pinyard's, with UCX's,
//! and with libfabric's, with regions registered elsewhere.
#![allow(clippy::disallowed_methods)] // what is measured are libc's own entries

use crate::cache::{NO_LIMIT, Present};
use crate::peer::libfabric::{self, Monitor};
use crate::peer::{Libfabric, Memory, Ours, Peer, Ucx, ucx};
use crate::{Settings, tell};
use pinyard_benches::turns::{STRIDE, fail, or_fail};
use pinyard_benches::worker::{Worker, answer};
use pinyard_cli::bench::{Axis, Row, Summary};
use std::sync::Barrier;
use std::time::Instant;

const PAGE: usize = 4096;
const REGION: usize = 16 << 10;
const OPERATIONS: [&str; 3] = ["mmap", "madvise", "munmap"];
/// A process that installs nothing.
const NONE: &str = "no hooks";

/// Nanoseconds per call of each operation.
#[allow(unsafe_code)]
fn turn(calls: usize) -> [f64; 3] {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mut pages = Vec::with_capacity(calls);
    let timed = |work: &mut dyn FnMut()| {
        let began = Instant::now();
        work();
        began.elapsed().as_nanos() as f64 / calls as f64
    };
    // SAFETY: pages of this function's own, made, emptied and given back.
    unsafe {
        [
            timed(&mut || {
                for _ in 0..calls {
                    pages.push(libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, flags, -1, 0));
                }
            }),
            timed(&mut || {
                for &page in &pages {
                    libc::madvise(page, PAGE, libc::MADV_DONTNEED);
                }
            }),
            timed(&mut || {
                for &page in &pages {
                    libc::munmap(page, PAGE);
                }
            }),
        ]
    }
}

/// A cache that holds `regions` regions.
fn filled<P: Peer>(memory: &Memory, regions: usize) -> P {
    let cache: P = or_fail(P::new(regions.max(1)));
    // Twice: one that is not told of changes keeps nothing.
    for region in (0..regions).chain(0..regions) {
        cache.hit(memory.at(region * STRIDE), REGION);
    }
    if cache.made() != regions as u64 {
        fail(&format!("{} registered {} times for {regions} regions", P::NAME, cache.made()));
    }
    cache
}

/// A child: installs what `name` says, and takes turns.
pub(crate) fn child(settings: &Settings, name: &str, regions: usize) {
    let memory = or_fail(Memory::map(regions.max(1) * STRIDE));
    // Kept while turns are timed.
    let _ours = (name == Ours::NAME).then(|| filled::<Ours>(&memory, regions));
    let _ucx = (name == Ucx::NAME).then(|| or_fail(ucx::load().map(|_| filled::<Ucx>(&memory, regions))));
    let _libfabric = (name == Libfabric::NAME).then(|| {
        or_fail(libfabric::load(NO_LIMIT, Monitor::Memhooks));
        filled::<Libfabric>(&memory, regions)
    });
    if name == Ours::NAME && !pinyard_hooks::verify() {
        fail("pinyard's hooks are not complete");
    }
    let threads = settings.threads.unwrap_or(1);
    let calls = settings.pick(1000, 100);
    answer::<3>(|| {
        let together = Barrier::new(threads);
        let each = std::thread::scope(|scope| {
            let work = || {
                together.wait();
                turn(calls)
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
        });
        std::array::from_fn(|at| each.iter().map(|one| one[at]).sum::<f64>() / each.len() as f64)
    });
}

/// Each call by one thread and by two, with up to 100,000 regions registered elsewhere.
pub(crate) fn run(settings: &Settings) {
    let mut names: Vec<&str> = Present::find().names().collect();
    names.insert(1, NONE);
    let (threads, regions) = ([1, 2], settings.up_to(10_000, &[0, 10_000, 100_000]));
    tell::steps(threads.len() * regions.len());
    for threads in threads {
        for &regions in &regions {
            tell::step(format!("{threads} threads, {regions} regions"));
            rows(settings, &names, threads, regions).into_iter().for_each(tell::row);
        }
    }
}

fn rows(settings: &Settings, names: &[&str], threads: usize, regions: usize) -> [Row; 3] {
    let start = |name: &&str| {
        let (threads, regions) = (threads.to_string(), regions.to_string());
        let mut arguments =
            vec!["hooks.calls", "--child", name, "--threads", &threads, "--regions", &regions];
        arguments.extend(settings.quick.then_some("--quick"));
        Worker::<3>::start(&arguments, |_| {})
    };
    let mut workers: Vec<_> = names.iter().map(start).collect();
    workers.iter_mut().for_each(Worker::warm_up);
    for _ in 0..settings.pick(200, 10) {
        workers.iter_mut().for_each(Worker::turn);
    }
    let mut rows = OPERATIONS
        .map(|operation| Row::new("hooks.calls", operation).threads(threads).at(Axis::Regions, regions));
    for (worker, name) in workers.into_iter().zip(names) {
        rows.iter_mut().zip(worker.end()).for_each(|(row, turns)| row.enter(name, Summary::of(turns)));
    }
    rows
}
