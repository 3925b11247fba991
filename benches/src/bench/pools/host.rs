//! The host pool beside malloc and the allocators that are installed: one block over and
//! over, and 64 that live at once. Each allocator has a process of its own, into which it
//! is preloaded, and the processes take turns. A figure is an allocation and its free.

use crate::{Settings, tell};
use pinyard_allocator::Pool;
use pinyard_benches::turns::{fail, or_fail};
use pinyard_benches::worker::{Worker, answer};
use pinyard_cli::bench::row::OURS;
use pinyard_cli::bench::{Absence, Axis, Row, Summary};
use pinyard_registry::{Events, MemoryKey, Registry, backend::Custom};
use std::ffi::CStr;
use std::hint::black_box;
use std::process::Command;
use std::sync::Barrier;
use std::time::Instant;

const SIZES: [usize; 5] = [512, 4096, 64 << 10, 252 << 10, 4 << 20];
const CASES: [&str; 2] = ["one block", "64 live"];
const LIVE: usize = 64;
/// Each case at each size.
const FIGURES: usize = SIZES.len() * CASES.len();
const MALLOC: &str = "malloc";

/// The others: their libraries, and Debian's packages of them.
const PRELOADED: [(&str, &str, &str); 3] = [
    ("jemalloc", "libjemalloc.so.2", "libjemalloc2"),
    ("mimalloc", "libmimalloc.so.2", "libmimalloc2.0"),
    ("tcmalloc", "libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
];

/// A child: takes turns with the pool, or with whatever malloc is here.
pub(crate) fn child(settings: &Settings, name: &str) {
    if name != OURS {
        return serve(settings, &|bytes| Vec::<u8>::with_capacity(black_box(bytes)));
    }
    let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let registry = or_fail(Registry::builder().backend(backend).events(Events::NotifyOnly).build());
    let pool = or_fail(Pool::host(&registry).build());
    serve(settings, &|bytes| or_fail(pool.alloc::<u8>(black_box(bytes))));
}

fn serve<T>(settings: &Settings, alloc: &(dyn Fn(usize) -> T + Sync)) {
    let (threads, pairs) = (settings.threads.unwrap_or(1), settings.pick(6400, 640));
    answer::<FIGURES>(|| {
        let mut figures = [0.0; FIGURES];
        for (at, figure) in figures.iter_mut().enumerate() {
            let (bytes, live) = (SIZES[at % SIZES.len()], at >= SIZES.len());
            let together = Barrier::new(threads);
            let work = || {
                together.wait();
                let began = Instant::now();
                if live {
                    (0..pairs / LIVE)
                        .for_each(|_| drop(black_box::<[T; LIVE]>(std::array::from_fn(|_| alloc(bytes)))));
                } else {
                    (0..pairs).for_each(|_| drop(black_box(alloc(bytes))));
                }
                began.elapsed().as_nanos() as f64 / pairs as f64
            };
            let each: Vec<f64> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
                threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
            });
            *figure = each.iter().sum::<f64>() / each.len() as f64;
        }
        figures
    });
}

/// Every allocator that is here, by one thread and by two.
pub(crate) fn run(settings: &Settings) {
    let mut names = vec![(OURS, ""), (MALLOC, "")];
    tell::peer(MALLOC, Ok(format!("(glibc {})", glibc())));
    for (name, library, package) in PRELOADED {
        let here = preloads(library);
        let absent = |why| Absence::new(why, format!("install {name} ({package})"));
        if tell::peer(name, here.map(|()| String::new()).map_err(absent)).is_some() {
            names.push((name, library));
        }
    }
    let (threads, turns) = ([1, 2], settings.pick(40, 3));
    tell::steps(threads.len());
    for threads in threads {
        tell::step(format!("{threads} threads"));
        measure(settings, &names, threads, turns).into_iter().for_each(tell::row);
    }
}

fn measure(settings: &Settings, names: &[(&'static str, &str)], threads: usize, turns: usize) -> Vec<Row> {
    let count = threads.to_string();
    let start = |&(name, library): &(&'static str, &str)| {
        let mut arguments = vec!["pools.host", "--child", name, "--threads", &count];
        arguments.extend(settings.quick.then_some("--quick"));
        Worker::<FIGURES>::start(&arguments, |command| {
            if !library.is_empty() {
                command.env("LD_PRELOAD", library);
            }
        })
    };
    let mut workers: Vec<_> = names.iter().map(start).collect();
    workers.iter_mut().for_each(Worker::warm_up);
    for _ in 0..turns {
        workers.iter_mut().for_each(Worker::turn);
    }
    let cases = CASES.iter().flat_map(|case| SIZES.map(|bytes| (case, bytes)));
    let mut rows: Vec<Row> = cases
        .map(|(case, bytes)| Row::new("pools.host", *case).threads(threads).at(Axis::Bytes, bytes))
        .collect();
    for (worker, (name, _)) in workers.into_iter().zip(names) {
        rows.iter_mut().zip(worker.end()).for_each(|(row, turns)| row.enter(name, Summary::of(turns)));
    }
    rows
}

/// Whether the loader takes `library`, or its words: it goes on without one that it does
/// not find, and what was measured would be malloc.
fn preloads(library: &str) -> Result<(), String> {
    let program = or_fail(std::env::current_exe());
    let tried = or_fail(Command::new(program).arg("--help").env("LD_PRELOAD", library).output());
    let words = String::from_utf8_lossy(&tried.stderr);
    match words.lines().find(|line| line.contains(library)) {
        Some(words) => Err(words.trim().to_owned()),
        None if tried.status.success() => Ok(()),
        None => fail(&format!("--help with LD_PRELOAD={library}: {}", tried.status)),
    }
}

#[allow(unsafe_code)]
fn glibc() -> String {
    // SAFETY: a text that stays.
    unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_string_lossy().into_owned()
}
