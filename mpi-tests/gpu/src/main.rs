//! Every operation among the ranks of a real MPI, with contents checked: sizes around
//! what a message carries and what a chunk does, every root, and everything that must
//! be refused. The path is the environment's (PINYARD_MPI_PATH).
//!
//! On the simulated device unless `--cuda` is given; with `--no-peers` on simulated devices
//! that do not open each other's memory, with `--no-one-sided` where MPI has no one-sided
//! operations. `--soak ROUNDS` does random operations in place
//! of all, `--reset` what becomes of all ranks when one's simulated device is reset, and
//! `--fences LEVEL` nothing but blocks that MPI's requests use, at that thread level.

mod bench;
mod checks;
mod fences;
mod interposed;
mod lost;
mod soak;

use bench::Bench;
use mpi::topology::SimpleCommunicator;
use mpi::traits::Communicator;
use pinyard_driver::{Call, Device, Simulated};
use pinyard_mpi::{Awareness, AwarenessError, DeviceCommunicator, Gpu, Source};
use std::process::ExitCode;
use std::sync::Arc;

/// `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED` of cuda.h.
const PEER_ACCESS_UNSUPPORTED: i32 = 217;

fn main() -> ExitCode {
    if let Some(level) = following("--fences") {
        return match fences::all(&level) {
            Ok(messages) => {
                println!("gpu-ranks: {messages} messages, fences with MPI_THREAD_{}", level.to_uppercase());
                ExitCode::SUCCESS
            }
            Err(text) => {
                eprintln!("fences: {text}");
                if mpi::is_initialized() && !mpi::is_finalized() {
                    // The other rank may wait for this one.
                    SimpleCommunicator::world().abort(1);
                }
                ExitCode::FAILURE
            }
        };
    }
    let early = Awareness::detect();
    let Some(universe) = mpi::initialize() else {
        eprintln!("MPI_Init: MPI is initialised already");
        return ExitCode::FAILURE;
    };
    let world = universe.world();
    let rank = world.rank();
    if !may_be_told_early(&early) {
        eprintln!("rank {rank}: {early:?} before MPI_Init");
        world.abort(1);
    }
    let cuda = std::env::args().any(|argument| argument == "--cuda");
    let on_pci = |device: &mut Device| device.pci = Some(bench::pci(rank as usize));
    let simulated = (!cuda).then(|| Arc::new(Simulated::shareable(1 << 30).without(on_pci)));
    if std::env::args().any(|argument| argument == "--no-peers")
        && let Some(simulated) = &simulated
    {
        simulated.fail_next(Call::IpcOpen, u64::MAX, PEER_ACCESS_UNSUPPORTED);
    }
    if let Some(simulated) = &simulated
        && std::env::args().any(|argument| argument == "--reset")
    {
        let reset = || {
            simulated.reset();
            Ok(())
        };
        let told = Gpu::new(simulated.clone())
            .map_err(bench::text)
            .and_then(|gpu| lost::all(&world, gpu, reset).map_err(bench::text));
        if let Err(text) = told.and_then(|_| bench::nothing_left(simulated)) {
            eprintln!("rank {rank}: {text}");
            world.abort(1);
        }
        return ExitCode::SUCCESS;
    }
    let bench = match open(&simulated, &world) {
        Ok(bench) => bench,
        // All ranks have failed, so none waits for this one.
        Err(text) => {
            eprintln!("rank {rank}: {text}");
            return ExitCode::FAILURE;
        }
    };
    let done = match soak_rounds() {
        Some(rounds) => soak::all(&bench, rounds),
        None => checks::all(&bench),
    };
    if let Err(text) = done {
        eprintln!("rank {rank}: {text}");
        // Before the communicator's drop, which would wait for the others.
        world.abort(1);
    }
    let checks = bench.checks();
    // The communicator outlives MPI: it must say so, and its drop must do no harm.
    let ranks = bench.into_ranks();
    if rank == 0 {
        println!("gpu-ranks: {checks} checks, {}", ranks.plan());
    }
    drop(universe);
    let gpu = ranks.gpu().clone();
    let last = checks::after_finalize(&ranks, &gpu).and_then(|()| {
        drop((ranks, gpu));
        match &simulated {
            Some(simulated) => bench::nothing_wrong(simulated),
            None => Ok(()),
        }
    });
    if let Err(text) = last {
        eprintln!("rank {rank}: {text}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Whether that may be told before MPI_Init, where the library itself says nothing.
fn may_be_told_early(told: &Result<Awareness, AwarenessError>) -> bool {
    match told {
        Ok(known) => matches!(known.source, Source::Environment | Source::Probe { .. }),
        Err(_) => true,
    }
}

/// What `--soak` says.
fn soak_rounds() -> Option<usize> {
    following("--soak")?.parse().ok()
}

/// The argument behind this one.
fn following(word: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != word).nth(1)
}

fn open(simulated: &Option<Arc<Simulated>>, world: &impl Communicator) -> Result<Bench, String> {
    let gpu = match simulated {
        Some(simulated) => Gpu::new(simulated.clone()),
        None => {
            let place = world.split_shared(world.rank()).rank();
            let count = pinyard_driver::Cuda::count().map_err(|error| error.to_string())?;
            Gpu::open(place % count.max(1))
        }
    };
    let gpu = gpu.map_err(|error| error.to_string())?;
    let (ranks, told) = checks::heard(|| DeviceCommunicator::builder(&gpu).build(world));
    let ranks = ranks.map_err(|error| error.to_string())?;
    let (rank, plan) = (format!("rank={}", world.rank()), format!("plan={}", ranks.plan()));
    checks::says(&told, " INFO ", &["communicator for device buffers", &rank, &plan])?;
    let one_sided = std::env::args().all(|argument| argument != "--no-one-sided");
    Bench::new(ranks, simulated.clone(), one_sided)
}
