//! Finds out whether an MPI takes device pointers, by giving it some.
//!
//! ```text
//! pinyard-mpi-probe [--launch "mpirun -n 2"]     tries it with two ranks, keeps the answer
//! pinyard-mpi-probe show                         the answers that are kept
//! pinyard-mpi-probe --plan --launch COMMAND      the plan of a communicator of its ranks
//! ```
//!
//! The ranks are processes of their own, whose crash means no. This one starts them before any
//! MPI is initialised in it, waits a minute at most, and keeps the answer where
//! [`pinyard_mpi::Awareness`] finds it. Ends with 0 if MPI takes device pointers, 1 if not, 2
//! where that could not be tried. A plan is not kept; it ends as COMMAND does.
#![allow(unsafe_code)] // gives MPI addresses that it may not take

#[path = "pinyard-mpi-probe/calls.rs"]
mod calls;

use self::calls::Raw;
use mpi::datatype::{AsDatatype, Buffer, BufferMut, Collection, Equivalence, Pointer, PointerMut};
use mpi::traits::*;
use pinyard_driver::{Cuda, DevicePtr, Driver, DriverToken, Simulated, Stream};
use pinyard_mpi::probed::{Library, Takes, Tried, file, read, record};
use pinyard_mpi::{DeviceCommunicator, Gpu};
use std::ffi::c_void;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// What lines of the ranks for the launcher begin with.
const MARK: &str = "pinyard-mpi-probe:";
/// Short, beyond eager limits, and in several pieces.
const SIZES: [usize; 3] = [64, 64 << 10, 4 << 20];
const PATIENCE: Duration = Duration::from_secs(60);

const HELP: &str = "\
Finds out whether an MPI takes device pointers, by giving it some, and keeps the answer

Usage: pinyard-mpi-probe [--plan] [--launch COMMAND]
       pinyard-mpi-probe show

  --launch COMMAND  what starts two ranks [default: mpirun -n 2]
  --plan            try nothing: how a communicator of COMMAND's ranks would carry operations out
  show              the answers that are kept

Examples:
  pinyard-mpi-probe --launch \"srun --mpi=pmix -n 2\"
  pinyard-mpi-probe --plan --launch \"mpirun -n 4\"
  pinyard-mpi-probe show
Exit status: 0 it takes them, 1 it does not, 2 that could not be tried; of --plan that of COMMAND
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => launch("mpirun -n 2", &[]),
        ["--launch", command] => launch(command, &[]),
        // For tests: memory that the host may touch, or may not.
        ["--simulated", kind @ ("host" | "device"), "--launch", command] => {
            launch(command, &["--simulated", kind])
        }
        ["show"] => show(),
        ["--plan", "--launch", command] => launch_plan(command, &[]),
        ["--plan", "--simulated", "--launch", command] => launch_plan(command, &["--simulated"]),
        ["plan"] => plan(false),
        ["plan", "--simulated"] => plan(true),
        ["rank"] => rank(&Memory::Cuda),
        ["rank", "--simulated", "host"] => rank(&Memory::Host),
        ["rank", "--simulated", "device"] => rank(&Memory::Device),
        ["--help" | "-h" | "help"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("pinyard-mpi-probe: not its arguments: {}\n{HELP}", words.join(" "));
            ExitCode::from(2)
        }
    }
}

fn show() -> ExitCode {
    for tried in file().map(|file| read(&file)).unwrap_or_default() {
        let Tried { library, takes, told } = &tried;
        let Library { path, version, settings } = library;
        let (word, path_taken) = (
            verdict(*takes),
            match takes {
                Takes::Nothing => "ipc on a node, staged between nodes",
                Takes::Messages | Takes::Everything => "ipc on a node, direct between nodes",
            },
        );
        let with = if settings.is_empty() { String::new() } else { format!(" with {settings}") };
        println!("{version} ({path:?}){with}: {word}: path {path_taken}; tried: {told}");
    }
    ExitCode::SUCCESS
}

fn verdict(takes: Takes) -> &'static str {
    match takes {
        Takes::Nothing => "does not take device pointers",
        Takes::Messages => "takes device pointers, but not in windows",
        Takes::Everything => "takes device pointers",
    }
}

/// The ranks of a command, each with a device, make a communicator, and the first says how it
/// would carry operations out.
fn launch_plan(command: &str, more: &[&str]) -> ExitCode {
    let own = std::env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"));
    let status = own.and_then(|own| {
        let mut words = command.split_whitespace();
        let program = words.next().ok_or("--launch names no command")?;
        let ranks = Command::new(program).args(words).arg(own).arg("plan").args(more).status();
        ranks.map_err(|error| format!("{command}: {error}"))
    });
    match status {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2)),
        Err(text) => {
            eprintln!("pinyard-mpi-probe: {text}");
            ExitCode::from(2)
        }
    }
}

/// One of those ranks. Devices go round among the ranks of a node.
fn plan(simulated: bool) -> ExitCode {
    let Some(universe) = mpi::initialize() else {
        eprintln!("pinyard-mpi-probe: MPI is initialised already");
        return ExitCode::from(2);
    };
    let world = universe.world();
    let place = world.split_shared(world.rank()).rank();
    let gpu = match simulated {
        true => Gpu::simulated(64 << 20).map_err(|error| error.to_string()),
        false => Cuda::count()
            .map_err(|error| error.to_string())
            .and_then(|count| Gpu::open(place % count.max(1)).map_err(|error| error.to_string())),
    };
    let ranks = gpu
        .and_then(|gpu| DeviceCommunicator::builder(&gpu).build(&world).map_err(|error| error.to_string()));
    match ranks {
        Ok(ranks) if world.rank() == 0 => println!("{}", ranks.plan()),
        Ok(_) => {}
        Err(text) => {
            eprintln!("rank {}: {text}", world.rank());
            // The others may wait for this one.
            world.abort(2);
        }
    }
    ExitCode::SUCCESS
}

/// What the ranks have said, and how they ended.
struct Ended {
    lines: Vec<String>,
    how: Result<(), String>,
}

fn launch(command: &str, more: &[&str]) -> ExitCode {
    let failed = |text: String| {
        eprintln!("pinyard-mpi-probe: {text}");
        ExitCode::from(2)
    };
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => return failed(format!("/proc/self/exe: {error}")),
    };
    let mut words = command.split_whitespace();
    let Some(program) = words.next() else { return failed("--launch names no command".to_owned()) };
    let child = Command::new(program)
        .args(words)
        .arg(own)
        .arg("rank")
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let ended = match child {
        Ok(child) => wait(child),
        Err(error) => return failed(format!("{command}: {error}")),
    };
    let said = |word: &str| {
        ended
            .lines
            .iter()
            .rev()
            .find_map(|line| line.strip_prefix(word)?.strip_prefix('\t'))
            .map(str::to_owned)
    };
    if let Some(reason) = said("cannot") {
        return failed(format!("nothing was tried: {reason}"));
    }
    let Some(mut tried) = said("library").and_then(|line| Tried::of_line(&line)) else {
        let how = ended.how.err().unwrap_or_else(|| "without a word".to_owned());
        return failed(format!("{command} ended {how} before anything was tried"));
    };
    let trying = said("trying").unwrap_or_else(|| "nothing".to_owned());
    let failed_at = match &ended.how {
        Err(how) => format!("{trying} ended {how}"),
        Ok(()) => said("wrong").unwrap_or_else(|| format!("{trying} ended without a word")),
    };
    let moved = "messages and collectives of 64 bytes to 4 MiB";
    (tried.takes, tried.told) = match (said("moved"), said("took")) {
        (Some(_), Some(_)) if ended.how.is_ok() => (Takes::Everything, format!("{moved}, and windows")),
        (Some(_), _) => (Takes::Messages, format!("{moved}; {failed_at}")),
        (None, _) => (Takes::Nothing, failed_at),
    };
    let word = verdict(tried.takes);
    println!("{} ({}) {word}: {}", tried.library.version, tried.library.path, tried.told);
    let Some(file) = file() else { return failed("not kept: neither XDG_CACHE_HOME nor HOME".to_owned()) };
    if let Err(error) = record(&file, &tried) {
        return failed(format!("not kept: {}: {error}", file.display()));
    }
    println!("kept in {}", file.display());
    if tried.takes == Takes::Nothing { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn wait(mut child: Child) -> Ended {
    let (sender, receiver): (_, Receiver<String>) = channel();
    if let Some(stdout) = child.stdout.take() {
        // Ends with the last rank's stdout.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once(MARK) {
                    let _ = sender.send(line.to_owned());
                }
            }
        });
    }
    let began = Instant::now();
    let how = loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break Ok(()),
            Ok(Some(status)) => {
                break Err(match status.signal() {
                    Some(signal) => format!("by signal {signal}"),
                    None => format!("with status {}", status.code().unwrap_or(-1)),
                });
            }
            Ok(None) if began.elapsed() > PATIENCE => {
                // SAFETY: a child of ours that was not waited for. A launcher ends its ranks
                // when it is asked to.
                unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
                std::thread::sleep(Duration::from_secs(2));
                let _ = child.kill();
                let _ = child.wait();
                break Err(format!("not within {} s", PATIENCE.as_secs()));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => break Err(format!("out of sight: {error}")),
        }
    };
    // What was said before the end has been written by then.
    let mut lines = Vec::new();
    while let Ok(line) = receiver.recv_timeout(Duration::from_secs(1)) {
        lines.push(line);
    }
    Ended { lines, how }
}

/// What pointers are of.
enum Memory {
    Cuda,
    /// As an MPI that takes device pointers sees them.
    Host,
    /// Addresses that the host may not touch, as a device's are.
    Device,
}

/// Device memory, and whether the host may touch it only between MPI's calls.
struct Room {
    driver: Arc<dyn Driver>,
    at: DevicePtr,
    bytes: usize,
    guarded: bool,
}

impl Room {
    fn new(memory: &Memory, place: i32, token: &DriverToken) -> Result<Room, String> {
        let bytes = 2 * SIZES[SIZES.len() - 1];
        let driver: Arc<dyn Driver> = match memory {
            Memory::Cuda => {
                let count = Cuda::count().map_err(|error| error.to_string())?;
                Arc::new(Cuda::open(place % count.max(1)).map_err(|error| error.to_string())?)
            }
            Memory::Host | Memory::Device => Arc::new(Simulated::new(64 << 20)),
        };
        let at = driver.mem_alloc(bytes, token).map_err(|error| error.to_string())?;
        Ok(Room { driver, at, bytes, guarded: matches!(memory, Memory::Device) })
    }

    fn guard(&self, access: i32) {
        if self.guarded {
            // SAFETY: our own pages; nobody of this process touches them between the calls.
            unsafe { libc::mprotect(self.at.0 as *mut c_void, self.bytes, access) };
        }
    }

    fn fill(&self, byte: u8, token: &DriverToken) -> Result<(), String> {
        // SAFETY: our own memory; waited for.
        unsafe { self.driver.fill(self.at, byte, self.bytes, Stream::DEFAULT, token) }
            .and_then(|()| self.driver.stream_synchronize(Stream::DEFAULT, token))
            .map_err(|error| error.to_string())
    }

    /// Whether all of `bytes` at `offset` are `byte`.
    fn holds(&self, offset: usize, bytes: usize, byte: u8, token: &DriverToken) -> Result<bool, String> {
        let mut all = vec![!byte; bytes];
        let from = DevicePtr(self.at.0 + offset as u64);
        // SAFETY: both have the bytes; waited for.
        unsafe { self.driver.copy_to_host(all.as_mut_ptr(), from, bytes, Stream::DEFAULT, token) }
            .and_then(|()| self.driver.stream_synchronize(Stream::DEFAULT, token))
            .map_err(|error| error.to_string())?;
        Ok(all.iter().all(|&is| is == byte))
    }

    fn part(&self, offset: usize, bytes: usize) -> Part {
        Part { at: self.at.0 as usize + offset, bytes }
    }
}

/// Bytes at an address, for rsmpi.
struct Part {
    at: usize,
    bytes: usize,
}

// SAFETY: the bytes that were allocated.
unsafe impl Collection for Part {
    fn count(&self) -> mpi::Count {
        self.bytes as mpi::Count
    }
}
// SAFETY: bytes.
unsafe impl AsDatatype for Part {
    type Out = <u8 as Equivalence>::Out;
    fn as_datatype(&self) -> Self::Out {
        u8::equivalent_datatype()
    }
}
// SAFETY: memory that stands; whether MPI takes its address is what is tried.
unsafe impl Pointer for Part {
    fn pointer(&self) -> *const c_void {
        self.at as *const c_void
    }
}
// SAFETY: as above.
unsafe impl PointerMut for Part {
    fn pointer_mut(&mut self) -> *mut c_void {
        self.at as *mut c_void
    }
}
// SAFETY: as above.
unsafe impl Buffer for Part {}
// SAFETY: as above.
unsafe impl BufferMut for Part {}

fn rank(memory: &Memory) -> ExitCode {
    let Some(universe) = mpi::initialize() else { return ExitCode::from(2) };
    let world = universe.world();
    let (rank, size) = (world.rank(), world.size());
    let say = |word: &str, text: &str| {
        if rank == 0 {
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{MARK}{word}\t{text}");
            let _ = out.flush();
        }
    };
    let place = world.split_shared(rank).rank();
    let token = DriverToken::at_entry();
    let room = Room::new(memory, place, &token);
    // All go on, or none does.
    let mut without = 0;
    let mine = i32::from(room.is_err() || size < 2);
    world.all_reduce_into(&mine, &mut without, mpi::collective::SystemOperation::sum());
    let room = match room {
        Ok(room) if without == 0 => room,
        Ok(_) => {
            say("cannot", "two ranks, each with a device, are needed");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            say("cannot", &format!("rank {rank}: {reason}"));
            return ExitCode::SUCCESS;
        }
    };
    if let Some(library) = Library::loaded() {
        say("library", &Tried { library, takes: Takes::Nothing, told: String::new() }.to_line());
    }
    let moved = attempt(&world, &room, &say, &token).and_then(|()| {
        let ranks = Raw::of(&world, &room);
        SIZES.into_iter().try_for_each(|bytes| ranks.collectives(bytes, &say, &token))?;
        say("moved", "");
        SIZES.into_iter().try_for_each(|bytes| ranks.windows(bytes, &say, &token))
    });
    match moved {
        Ok(()) => say("took", ""),
        Err(text) => say("wrong", &text),
    }
    ExitCode::SUCCESS
}

fn attempt(
    world: &impl Communicator,
    room: &Room,
    say: &impl Fn(&str, &str),
    token: &DriverToken,
) -> Result<(), String> {
    let (rank, size) = (world.rank(), world.size());
    let (open, closed) = (libc::PROT_READ | libc::PROT_WRITE, libc::PROT_NONE);
    let mut right = true;
    for bytes in SIZES {
        say("trying", &format!("MPI_Bcast of {bytes} bytes"));
        room.fill(if rank == 0 { 0x5a } else { 0 }, token)?;
        room.guard(closed);
        world.process_at_rank(0).broadcast_into(&mut room.part(0, bytes));
        room.guard(open);
        right &= room.holds(0, bytes, 0x5a, token)?;
        say("trying", &format!("MPI_Sendrecv of {bytes} bytes"));
        room.fill(rank as u8 + 1, token)?;
        room.guard(closed);
        let (before, behind) = ((rank + size - 1) % size, (rank + 1) % size);
        let (sent, mut received) = (room.part(0, bytes), room.part(SIZES[SIZES.len() - 1], bytes));
        let (to, from) = (world.process_at_rank(behind), world.process_at_rank(before));
        mpi::point_to_point::send_receive_into(&sent, &to, &mut received, &from);
        room.guard(open);
        right &= room.holds(SIZES[SIZES.len() - 1], bytes, before as u8 + 1, token)?;
    }
    all_right(world, right, "MPI_Bcast or MPI_Sendrecv")
}

/// What came at any rank counts.
fn all_right(world: &impl CommunicatorCollectives, right: bool, what: &str) -> Result<(), String> {
    let (mine, mut wrong) = (i32::from(!right), 0);
    world.all_reduce_into(&mine, &mut wrong, mpi::collective::SystemOperation::sum());
    match wrong {
        0 => Ok(()),
        _ => Err(format!("the bytes that came by {what} are not those that were sent")),
    }
}
