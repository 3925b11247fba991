//! The thread that outlives a hang: it names what the rank is in, and ends it. It also
//! kills the rank where that is asked for, and writes the record when a signal ends it.
//!
//! While the rank moves it takes no lock, allocates nothing and calls neither MPI nor the
//! registry, so that nothing that can hang holds it up.
#![allow(unsafe_code)]

use crate::shared::Shared;
use pinyard_cli::stress::progress::Word;
use pinyard_cli::stress::record::{Outcome, Stall};
use pinyard_cli::stress::{Fault, verdict};
use pinyard_mpi_tests::purging;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};
use std::thread;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(20);
/// Looks between two times that the progress words are saved.
const SAVE: u32 = 5;
/// From here on, a time without a step is recorded.
const STALL: Duration = Duration::from_secs(1);
/// What start, end and reports may take beyond the time of the run.
const OVERHEAD: Duration = Duration::from_secs(10);
/// A rank that hangs waits so long before it ends: mpirun ends the others at once, and
/// their own watchdogs, due at the same time, are to speak first.
const COMPANY: Duration = Duration::from_millis(1500);
/// MPI_Init_thread may take long on a large machine.
const INIT: Duration = Duration::from_secs(120);

static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn on_signal(signal: i32) {
    SIGNAL.store(signal, Release);
}

/// Ends the process if `MPI_Init_thread` does not return; call the result when it has.
pub(crate) fn over_init() -> Result<impl FnOnce(), String> {
    static RETURNED: AtomicBool = AtomicBool::new(false);
    spawn(|| {
        let began = Instant::now();
        while !RETURNED.load(Acquire) {
            thread::sleep(LOOK);
            if began.elapsed() > INIT {
                eprintln!(
                    "pinyard-stress: MPI_Init_thread has not returned for {} s; is the launcher of the same MPI?",
                    INIT.as_secs()
                );
                exit(verdict::BAD_END.into());
            }
        }
    })?;
    Ok(|| RETURNED.store(true, Release))
}

/// Watches the rank from now on.
pub(crate) fn start(shared: &'static Shared, ranks: u32) -> Result<(), String> {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: all-zero is a valid sigaction: default mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: `action` is initialised; the handler only stores to an atomic.
        if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
            return Err(format!("sigaction({signal}): {}", std::io::Error::last_os_error()));
        }
    }
    spawn(move || watch(shared, ranks))
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let spawned = thread::Builder::new().name("watchdog".into()).spawn(work);
    spawned.map(drop).map_err(|error| format!("pthread_create(watchdog): {error}"))
}

fn exit(status: i32) -> ! {
    // SAFETY: no preconditions; nothing of this process is to be run any more.
    unsafe { libc::_exit(status) }
}

fn watch(shared: &Shared, ranks: u32) {
    let (words, options) = (shared.words, &shared.options);
    let kill = options.fault == Some(Fault::KillRank) && options.victim(ranks) == shared.rank;
    let patience = Duration::from_secs(options.patience);
    let limit = Duration::from_secs(options.time) + patience + OVERHEAD;
    // SAFETY: no preconditions.
    let parent = unsafe { libc::getppid() };
    let (mut beat, mut moved) = (words.get(Word::Beat), Instant::now());
    let mut stood_in = None;
    for look in (0..SAVE).cycle() {
        thread::sleep(LOOK);
        if look == 0 {
            words.save();
        }
        let signal = SIGNAL.load(Acquire);
        if signal != 0 {
            end(shared, Outcome::Ended { signal, doing: words.doing() }, 128 + signal);
        }
        // SAFETY: no preconditions.
        if unsafe { libc::getppid() } != parent {
            exit(verdict::BAD_END.into()); // nobody is left who wants to know
        }
        let elapsed = shared.began.get().map_or(Duration::ZERO, Instant::elapsed);
        if kill && elapsed >= options.fault_time() && !shared.over.load(Acquire) {
            words.set(Word::Milliseconds, elapsed.as_millis() as u64);
            words.set(Word::Fault, elapsed.as_millis() as u64 + 1);
            words.save();
            // SAFETY: this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let (now, still) = (words.get(Word::Beat), moved.elapsed());
        if now != beat {
            if let Some(doing) = stood_in.take() {
                let at = elapsed.saturating_sub(still).as_secs_f64();
                let stall = Stall { at, seconds: still.as_secs_f64(), doing };
                shared.with(|state| state.rank.stalls.push(stall));
            }
            (beat, moved) = (now, Instant::now());
        } else if still >= STALL && stood_in.is_none() && !elapsed.is_zero() && !shared.over.load(Acquire) {
            stood_in = Some(words.doing());
        } else if still >= patience {
            let doing = words.doing();
            eprintln!("rank {}: nothing moved for {} s in {doing}", shared.rank, patience.as_secs());
            end(shared, Outcome::Hung { doing, seconds: still.as_secs_f64() }, verdict::BAD_END.into());
        }
        if elapsed > limit {
            let doing = format!("{} (past the time limit of {} s)", words.doing(), options.time);
            end(shared, Outcome::Hung { doing, seconds: elapsed.as_secs_f64() }, verdict::BAD_END.into());
        }
    }
}

/// Writes the record and ends the process.
fn end(shared: &Shared, outcome: Outcome, status: i32) -> ! {
    shared.words.save();
    purging::disarm(); // what follows allocates
    let hung = matches!(outcome, Outcome::Hung { .. });
    if let Err(error) = shared.write(outcome) {
        eprintln!("rank {}: {error}", shared.rank);
    }
    if hung {
        thread::sleep(COMPANY);
    }
    exit(status)
}
