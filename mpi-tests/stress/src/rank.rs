//! A rank from its start to its record.

use crate::device::{self, Chosen};
use crate::options::Cli;
use crate::plan::{Hash, Plan};
use crate::rma::Windows;
use crate::sampler::Sampler;
use crate::shared::Shared;
use crate::steps::{Ended, INCOMING, Steps};
use crate::words::Words;
use crate::{launcher, machine, memory, rma, watchdog};
use mpi::Threading;
use mpi::collective::{Root, SystemOperation};
use mpi::datatype::PartitionMut;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};
use pinyard_allocator::Pool;
use pinyard_cli::place;
use pinyard_cli::stress::record::{Outcome, Rank, Run};
use pinyard_cli::stress::{Fault, Operation, Options, Phase, document, folder, verdict, write_reports};
use pinyard_registry::{Events, Registry};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Release;
use std::time::Instant;

/// Bytes of a slab: small enough for several ranks of a user with RLIMIT_MEMLOCK of 8 MiB.
const SLAB: usize = 2 << 20;

/// Runs the rank.
pub(crate) fn run(cli: &Cli) -> ExitCode {
    match start(cli) {
        Ok(status) => ExitCode::from(status),
        Err(why) => {
            eprintln!("pinyard-stress cannot run: {why}");
            ExitCode::from(verdict::REFUSED)
        }
    }
}

fn start(cli: &Cli) -> Result<u8, String> {
    if cli.options.fault == Some(Fault::Memlock) {
        machine::raise_memlock()?;
        machine::give_up_ipc_lock()?;
    }
    if !cli.options.without_hooks {
        pinyard_hooks::install(); // before MPI's threads; what MPI then patches over is noticed
    }
    let initialised = watchdog::over_init()?;
    // Funneled: other threads run, and none of them calls MPI.
    let (universe, _) = mpi::initialize_with_threading(Threading::Funneled)
        .ok_or_else(|| "MPI_Init_thread: MPI is initialised already".to_owned())?;
    initialised();
    let world = universe.world();
    // Not under srun where the command has started this rank, itself in a step of Slurm.
    let variable = |name: &str| std::env::var(name).ok();
    if let Some(why) = launcher::disagrees(world.size(), &library_version(), !cli.launched, variable) {
        return Err(why);
    }
    let temporary = cli.folder.is_none();
    let (shared, plan) = match share(cli, &world) {
        Ok(shared) => shared,
        Err(why) => {
            // The others would wait for this rank for ever.
            eprintln!("rank {}: {why}", world.rank());
            world.abort(verdict::REFUSED.into());
        }
    };
    let status = conclude(cli, &world, shared, take_part(cli, &world, shared, plan));
    shared.words.enter(Phase::Finalize);
    drop(universe);
    if temporary {
        let _ = std::fs::remove_dir_all(&shared.folder); // a temporary folder that stays harms nobody
    }
    Ok(status)
}

/// The rank's files and its record, and the watchdog over it.
fn share(cli: &Cli, world: &SimpleCommunicator) -> Result<(&'static Shared, Plan), String> {
    let own = || std::env::temp_dir().join(format!("pinyard-stress-{}", std::process::id()));
    let folder: PathBuf = cli.folder.clone().unwrap_or_else(own);
    // One of our own is nobody else's, and was not there: others may write where it lies.
    let made = match cli.folder {
        Some(_) => place::new_folder(&folder),
        None => DirBuilder::new().mode(0o700).create(&folder),
    };
    made.map_err(|error| format!("mkdir {}: {error}", folder.display()))?;
    let (rank, ranks) = (world.rank() as u32, world.size() as u32);
    folder::forget(&folder, rank).map_err(|error| format!("clear {}: {error}", folder.display()))?;
    if rank == 0 {
        folder::write_options(&folder, &cli.options, ranks)
            .map_err(|error| format!("write to {}: {error}", folder.display()))?;
    }
    let Mix { operations, windows, left_out } = mix(&cli.options, world)?;
    let options = Options { operations, ..cli.options.clone() };
    let words = Words::create(&folder, rank)?;
    words.set(pinyard_cli::stress::progress::Word::Pid, u64::from(std::process::id()));
    words.enter(Phase::Prepare);
    let plan = Plan::new(&options, ranks, windows);
    let record = Rank {
        rank,
        ranks,
        pid: u64::from(std::process::id()),
        machine: machine::here(),
        mpi: library_version(),
        allocator: "purging".to_owned(),
        plan: plan.hash(),
        left_out,
        ..Rank::default()
    };
    let shared = Box::leak(Box::new(Shared::new(record, options, folder, words)));
    watchdog::start(shared, ranks)?;
    Ok((shared, plan))
}

/// The mix as this MPI has it for this world, the same on all ranks: its operations,
/// whether windows may begin anywhere, and what is not as it was asked for.
struct Mix {
    operations: Vec<Operation>,
    windows: Windows,
    left_out: Option<String>,
}

fn mix(options: &Options, world: &SimpleCommunicator) -> Result<Mix, String> {
    let one_sided = |operation: &Operation| matches!(operation, Operation::Put | Operation::Get);
    let asked = options.operations.clone();
    if !asked.iter().any(one_sided) {
        return Ok(Mix { operations: asked, windows: Windows::Anywhere, left_out: None });
    }
    let probed = rma::probe(world);
    let own = match probed {
        Ok(Windows::Anywhere) => 2u8,
        Ok(Windows::Aligned) => 1,
        Err(_) => 0,
    };
    let mut all = 0u8;
    world.all_reduce_into(&own, &mut all, SystemOperation::min());
    match all {
        2 => Ok(Mix { operations: asked, windows: Windows::Anywhere, left_out: None }),
        1 => {
            let what = format!(
                "this MPI moves wrong bytes where a window does not begin at a multiple of {} bytes: those of this run do, and get {} bytes at once",
                rma::ALIGNED,
                Windows::Aligned.longest_get()
            );
            Ok(Mix { operations: asked, windows: Windows::Aligned, left_out: Some(what) })
        }
        _ => {
            let why = probed.err().unwrap_or_else(|| "another rank has no windows".to_owned());
            let size = world.size();
            let what = format!(
                "MPI_Put and MPI_Get are left out, this MPI has no windows for a world of {size}: {why}"
            );
            let operations: Vec<Operation> = asked.into_iter().filter(|one| !one_sided(one)).collect();
            if operations.is_empty() {
                return Err(what);
            }
            Ok(Mix { operations, windows: Windows::Anywhere, left_out: Some(what) })
        }
    }
}

/// What the steps need, of this rank alone.
fn prepare(shared: &'static Shared) -> Result<(Registry, Pool, device::Device), String> {
    let options = &shared.options;
    let Chosen { backend, device, why } = device::choose(options)?;
    let events = if options.without_hooks { Events::NotifyOnly } else { Events::Hooks };
    let mut builder = Registry::builder().backend(backend).events(events);
    if let Some(budget) = options.budget {
        builder = builder.budget(budget as usize);
    }
    let registry = builder.build().map_err(|error| error.to_string())?;
    let pool =
        Pool::host(&registry).slab_bytes(SLAB).access(INCOMING).build().map_err(|error| error.to_string())?;
    let told = match options.without_hooks {
        true => "nobody (--without-hooks)".to_owned(),
        false => registry.serving().to_string().lines().map(str::trim).collect::<Vec<_>>().join("; "),
    };
    shared.with(|state| {
        state.rank.backend = registry.backend_name().to_owned();
        state.rank.backend_choice = format!("{}: {why}", registry.backend_name());
        state.rank.events = told;
    });
    shared.registry.get_or_init(|| registry.clone());
    Ok((registry, pool, device))
}

/// The rank's part of the run, and how that ended.
fn take_part(cli: &Cli, world: &SimpleCommunicator, shared: &'static Shared, plan: Plan) -> Outcome {
    let prepared = prepare(shared);
    // All go on or none: the others would wait in the first step for ever.
    let mut all_ready = 0u8;
    world.all_reduce_into(&u8::from(prepared.is_ok()), &mut all_ready, SystemOperation::min());
    let (registry, pool, device) = match prepared {
        Err(why) => return Outcome::Refused { why },
        Ok(_) if all_ready == 0 => {
            return Outcome::Refused { why: "another rank could not start".to_owned() };
        }
        Ok(prepared) => prepared,
    };
    world.barrier();
    shared.began.get_or_init(Instant::now);
    let shows = world.rank() == 0 && !cli.launched;
    let sampler = match Sampler::start(shared, shows) {
        Ok(sampler) => sampler,
        Err(why) => give_up(world, shared, why),
    };
    let mut steps = Steps {
        shared,
        world,
        plan,
        registry: &registry,
        pool: &pool,
        device,
        slots: memory::slots(),
        hash: Hash::default(),
        failed: None,
    };
    let ended = match steps.run() {
        Ok(ended) => ended,
        Err(why) => give_up(world, shared, why),
    };
    shared.over.store(true, Release);
    sampler.stop();
    shared.with(|state| state.rank.executed = steps.hash.text());
    match ended {
        Ended::Completed => Outcome::Completed,
        Ended::Stopped(why) => {
            Outcome::Stopped { why: why.unwrap_or_else(|| "another rank could not go on".to_owned()) }
        }
    }
}

/// The rank cannot take part any more: the record, and the end of all.
fn give_up(world: &SimpleCommunicator, shared: &Shared, why: String) -> ! {
    eprintln!("rank {}: {why}", shared.rank);
    if let Err(error) = shared.write(Outcome::Stopped { why }) {
        eprintln!("rank {}: {error}", shared.rank);
    }
    world.abort(verdict::BAD_END.into())
}

/// Brings the records to rank 0, which judges and reports unless the launcher does.
fn conclude(cli: &Cli, world: &SimpleCommunicator, shared: &'static Shared, outcome: Outcome) -> u8 {
    shared.words.enter(Phase::Gather);
    shared.over.store(true, Release);
    let Some(record) = shared.record(outcome) else { return verdict::BAD_END };
    shared.words.save();
    // Into the rank's own folder as well: rank 0's may be another machine's.
    if let Err(error) = folder::write_record(&shared.folder, &record) {
        eprintln!("rank {}: write to {}: {error}", shared.rank, shared.folder.display());
    }
    let Some(ranks) = gather(world, &record) else { return 0 };
    for rank in &ranks {
        if let Err(error) = folder::write_record(&shared.folder, rank) {
            eprintln!("rank 0: write to {}: {error}", shared.folder.display());
        }
    }
    if cli.launched {
        return 0;
    }
    let run = Run { options: cli.options.clone(), launcher: None, ranks };
    let verdict = verdict::of(&run);
    println!("{}\n{verdict}", document::summary(&run));
    if let Err(error) = write_reports(&cli.outputs, &run, &verdict) {
        eprintln!("pinyard-stress: {error}");
        return verdict.exit.max(verdict::REFUSED);
    }
    verdict.exit
}

/// All records, on rank 0.
fn gather(world: &SimpleCommunicator, record: &Rank) -> Option<Vec<Rank>> {
    let own = serde_json::to_vec(record).unwrap_or_default();
    let (root, len) = (world.process_at_rank(0), own.len() as i32);
    if world.rank() != 0 {
        root.gather_into(&len);
        root.gather_varcount_into(&own[..]);
        return None;
    }
    let mut lens = vec![0i32; world.size() as usize];
    root.gather_into_root(&len, &mut lens[..]);
    let starts: Vec<i32> = lens.iter().scan(0, |sum, len| Some(std::mem::replace(sum, *sum + len))).collect();
    let mut all = vec![0u8; lens.iter().map(|&len| len as usize).sum()];
    let mut parts = PartitionMut::new(&mut all[..], &lens[..], &starts[..]);
    root.gather_varcount_into_root(&own[..], &mut parts);
    let part = |(rank, (&start, &len)): (usize, (&i32, &i32))| {
        let text = &all[start as usize..(start + len) as usize];
        let lost = Rank { rank: rank as u32, ..Rank::default() };
        serde_json::from_slice(text).unwrap_or(lost)
    };
    Some(starts.iter().zip(&lens).enumerate().map(part).collect())
}

/// What the library calls itself, without further details: `Open MPI v4.1.4`.
fn library_version() -> String {
    let text = mpi::environment::library_version().unwrap_or_default();
    let name = text.split([',', '\n', '\0']).next().unwrap_or_default();
    name.split_whitespace().filter(|word| *word != "Version:").collect::<Vec<_>>().join(" ")
}
