//! A rank from its start to its report.

use crate::cache::{self, Cache, Counts, Failure};
use crate::options::{Kind, Options};
use crate::pooled::PoolCache;
use crate::progress::Progress;
use crate::registered::RegistryCache;
use crate::watchdog::{self, Watched};
use crate::{purging, rounds};
use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::traits::{Communicator, CommunicatorCollectives};
use pinyard_cli::demo::{Outcome, RankReport};
use pinyard_registry::Events;
use std::process::ExitCode;
use std::sync::atomic::Ordering::*;

/// What a program says about itself.
pub struct Program {
    /// Its global allocator.
    pub allocator: &'static str,
    /// Makes allocator and hooks harmless for whoever reports a hang.
    pub quieten: fn(),
    /// The cache's counters; see [`Watched::counts`].
    pub counts: fn() -> Counts,
    /// The hooks' report at the end, a line per function.
    pub hooks: fn() -> Vec<String>,
}

/// Runs the rounds over the cache that `build` makes, and reports.
pub fn run<C: Cache>(
    program: Program,
    options: &Options,
    build: impl FnOnce() -> Result<C, Failure>,
) -> ExitCode {
    if options.no_purge {
        purging::disarm();
    }
    // Funneled: other threads run, and none of them calls MPI.
    let Some((universe, _)) = mpi::initialize_with_threading(Threading::Funneled) else {
        eprintln!("MPI_Init_thread: MPI is initialised already");
        return ExitCode::FAILURE;
    };
    let world = universe.world();
    let mut report = RankReport {
        rank: world.rank(),
        ranks: world.size(),
        allocator: program.allocator.to_owned(),
        cache: options.cache.name().to_owned(),
        mpi: library_version(),
        outcome: Outcome::Completed,
        rounds: 0,
        cut_short: false,
        stale: 0,
        counts: Counts::default(),
        registrations_after_warm_up: None,
        hit: None,
        hooks: Vec::new(),
    };
    let prepared = prepare(options, &report, build);
    // All go on or none: a rank alone would wait in its first broadcast for ever.
    let mut all_ready = 0u8;
    world.all_reduce_into(&u8::from(prepared.is_ok()), &mut all_ready, SystemOperation::min());
    let failed = match (prepared, all_ready) {
        (Ok((cache, progress)), 1) => {
            let watched = Watched {
                progress,
                patience: options.patience(),
                report: report.clone(),
                folder: options.report.clone(),
                quieten: program.quieten,
                counts: program.counts,
            };
            let ran = watchdog::start(watched).and_then(|()| rounds::run(&cache, &world, options, progress));
            watchdog::stop();
            report.rounds = progress.rounds.load(Relaxed);
            report.stale = progress.stale.load(Relaxed);
            report.counts = cache.counts();
            report.hooks = (program.hooks)();
            ran.map(|ran| {
                report.cut_short = ran.cut_short;
                report.hit = ran.hit;
                report.registrations_after_warm_up =
                    ran.registrations_at_warm_up.map(|before| report.counts.registrations - before);
            })
            .err()
        }
        (Ok(_), _) => Some(Failure::refusal("another rank could not start", "")),
        (Err(failure), _) => Some(Failure { refused: true, ..failure }),
    };
    let mid_way = failed.as_ref().is_some_and(|failure| !failure.refused);
    if let Some(Failure { why, remedy, refused }) = failed {
        eprintln!("rank {}: {why}", report.rank);
        report.outcome = if refused { Outcome::Refused { why, remedy } } else { Outcome::Failed { why } };
    }
    if let Err(failure) = watchdog::write(&options.report, &report) {
        eprintln!("rank {}: {failure}", report.rank);
        world.abort(1);
    }
    if mid_way {
        // The others wait for this rank's part of a collective that never comes.
        world.abort(1);
    }
    ExitCode::SUCCESS
}

/// Runs the rounds over one of pinyard's own caches, as `options` say.
pub fn over_pinyard(allocator: &'static str, quieten: fn(), options: &Options) -> ExitCode {
    let program = Program { allocator, quieten, counts: rounds::last_seen, hooks };
    match options.cache {
        Kind::NoHooks => run(program, options, || RegistryCache::new(Events::NotifyOnly)),
        Kind::Pinyard => {
            before_mpi();
            run(program, options, || RegistryCache::new(Events::Hooks))
        }
        Kind::Pool => {
            before_mpi();
            run(program, options, PoolCache::new)
        }
        Kind::Naive => {
            eprintln!("--cache naive: the naive cache has a program of its own, rounds-naive");
            ExitCode::from(2)
        }
    }
}

/// Hooks go in before MPI_Init and its threads; what MPI then patches over is noticed.
fn before_mpi() {
    pinyard_hooks::install();
}

fn hooks() -> Vec<String> {
    let report = pinyard_hooks::report();
    report.iter().flat_map(|report| report.functions.iter().map(ToString::to_string)).collect()
}

fn prepare<C: Cache>(
    options: &Options,
    report: &RankReport,
    build: impl FnOnce() -> Result<C, Failure>,
) -> Result<(C, &'static Progress), Failure> {
    if let Some(expected) = options.ranks.filter(|&expected| expected != report.ranks) {
        return Err(Failure::refusal(
            format!("a rank built for {} sees {} of {expected} ranks", report.mpi, report.ranks),
            "build the programs with the mpicc of the MPI whose mpirun starts them (MPICC=...), \
             or name that one with --mpirun",
        ));
    }
    cache::probe()?;
    let progress = Progress::create(&options.report.join(format!("rank-{}.progress", report.rank)))?;
    Ok((build()?, progress))
}

/// What the library calls itself, without further details: `Open MPI v4.1.4`.
fn library_version() -> String {
    mpi::environment::library_version()
        .ok()
        .and_then(|text| {
            let name = text.split([',', '\n', '\0']).next()?;
            Some(name.split_whitespace().filter(|word| *word != "Version:").collect::<Vec<_>>().join(" "))
        })
        .unwrap_or_default()
}
