//! Questions to libraries, each in a process of its own: a library's constructors may
//! hang, crash, patch libc, or fill the screen.
//!
//! ```text
//! Question::of -> exec `pinyard doctor --probe KIND PATH` -> answer -> a line of JSON -> Question::answer
//! ```
#![allow(unsafe_code)]

use crate::doctor::facts::{CudaAware, Gpu, Version};
use crate::terminal::print;
use libloading::{Library, Symbol};
use pinyard_driver::{Absent, Cuda, Driver};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::io::{BufRead, BufReader};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// Whom to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Mpi,
    Libfabric,
    Ucx,
    Cuda,
}

/// What an MPI library says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MpiAnswer {
    pub(crate) name: String,
    pub(crate) cuda: CudaAware,
}

/// A line that begins with this is the answer; libraries print others.
const MARK: &str = "pinyard-answer ";
/// For a library that loads from a busy file system.
const LIBRARY_LIMIT: Duration = Duration::from_secs(20);
/// For a driver that makes a context on each of eight devices.
const CUDA_LIMIT: Duration = Duration::from_secs(60);

/// A question that was asked.
pub(crate) struct Question {
    asked: Result<Asked, String>,
    limit: Duration,
}

struct Asked {
    child: Child,
    since: Instant,
    /// What it prints, line by line, read as it comes: a pipe holds 64 KiB.
    lines: Receiver<String>,
}

impl Question {
    pub(super) fn of(kind: Kind, path: &str) -> Question {
        let word = clap::ValueEnum::to_possible_value(&kind).map(|value| value.get_name().to_owned());
        // The second name is the same file, even where it was replaced since.
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
        let mut command = Command::new(program);
        command.args(["doctor", "--probe"]).arg(word.unwrap_or_default()).arg(path);
        // Devices in the order of /proc, all of them, whatever the job was given.
        command.env("CUDA_DEVICE_ORDER", "PCI_BUS_ID").env_remove("CUDA_VISIBLE_DEVICES");
        Question::start(command, if kind == Kind::Cuda { CUDA_LIMIT } else { LIBRARY_LIMIT })
    }

    /// Asks a command, whose output is the answer.
    pub(crate) fn to(command: Command) -> Question {
        Question::start(command, LIBRARY_LIMIT)
    }

    fn start(mut command: Command, limit: Duration) -> Question {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let asked = child.map_err(|error| format!("a process for the question: {error}")).map(|mut child| {
            let (sender, lines) = mpsc::channel();
            if let Some(output) = child.stdout.take() {
                // Ends with the pipe, or with who would hear of it.
                std::thread::spawn(move || {
                    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                        if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                            break;
                        }
                    }
                });
            }
            Asked { child, since: Instant::now(), lines }
        });
        Question { asked, limit }
    }

    pub(super) fn cuda() -> Question {
        Question::of(Kind::Cuda, "")
    }

    /// Waits for the end: how it ended, and the lines that it printed.
    pub(crate) fn lines(self) -> Result<(ExitStatus, Vec<String>), String> {
        let Asked { mut child, since, lines } = self.asked?;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if since.elapsed() < self.limit => std::thread::sleep(Duration::from_millis(5)),
                Ok(None) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("no answer within {} s", self.limit.as_secs()));
                }
                Err(error) => return Err(format!("waitpid: {error}")),
            }
        };
        // The pipe ends with the process, but where that has left another behind.
        let mut printed = Vec::new();
        while let Ok(line) = lines.recv_timeout(Duration::from_secs(1)) {
            printed.push(line);
        }
        Ok((status, printed))
    }

    /// Waits for the answer. An error says why there is none.
    pub(super) fn answer<T: DeserializeOwned>(self) -> Result<T, String> {
        let (status, lines) = self.lines()?;
        let line = lines.iter().find_map(|line| line.strip_prefix(MARK));
        let line = line.ok_or_else(|| format!("it ended the process that asked it: {status}"))?;
        serde_json::from_str::<Result<T, String>>(line).map_err(|error| format!("its answer: {error}"))?
    }
}

/// Asks, and prints the answer: what the process of a question does.
pub(crate) fn run(kind: Kind, path: &str) {
    let line = match kind {
        Kind::Mpi => serde_json::to_string(&mpi(path)),
        Kind::Libfabric => serde_json::to_string(&libfabric(path)),
        Kind::Ucx => serde_json::to_string(&ucx(path)),
        Kind::Cuda => serde_json::to_string(&cuda()),
    };
    if let Ok(line) = line {
        print(format_args!("{MARK}{line}"));
    }
}

/// Never closed: what its destructors do comes after the answer.
fn open(path: &str) -> Result<ManuallyDrop<Library>, String> {
    // SAFETY: what the library's constructors do, they do to this process alone, which
    // ends after the answer.
    unsafe { Library::new(path) }.map(ManuallyDrop::new).map_err(|error| why(&error))
}

/// The loader's own words, which libloading has as the error's source.
fn why(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// MPICH has its version in a constant, and ends the process in `MPI_Get_library_version`
/// before MPI_Init (4.0), which MPI allows (3.1, 8.1.1) and Open MPI and Intel MPI do.
fn mpi(path: &str) -> Result<MpiAnswer, String> {
    let library = open(path)?;
    // SAFETY: constants of MPICH's (src/include/mpir_misc.h).
    if let Some(version) = unsafe { text(&library, b"MPII_Version_string\0") } {
        // SAFETY: as above.
        let configured = unsafe { text(&library, b"MPII_Version_configure\0") }.unwrap_or_default();
        // Without the word it is built for a CUDA that it finds, and does not say so.
        let cuda = if configured.contains("--with-cuda") { CudaAware::Yes } else { CudaAware::Unknown };
        return Ok(MpiAnswer { name: format!("MPICH {version}"), cuda });
    }
    type GetVersion = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
    // SAFETY: of this type in every MPI.
    let get: Symbol<'_, GetVersion> =
        unsafe { library.get(b"MPI_Get_library_version\0") }.map_err(|error| why(&error))?;
    // MPI_MAX_LIBRARY_VERSION_STRING is 8192 at most in the MPIs that there are.
    let mut buffer = vec![0u8; 1 << 16];
    let mut length = 0;
    // SAFETY: the buffer is longer than any MPI's limit.
    let status = unsafe { get(buffer.as_mut_ptr().cast(), &raw mut length) };
    if status != 0 {
        return Err(format!("MPI_Get_library_version: {status}"));
    }
    let text: Vec<u8> = buffer.into_iter().take_while(|byte| *byte != 0).collect();
    Ok(MpiAnswer { name: String::from_utf8_lossy(&text).into_owned(), cuda: cuda_aware(&library) })
}

/// A constant string of a library's.
///
/// # Safety
/// The symbol is an array of characters with a zero at its end, if it is there.
unsafe fn text(library: &Library, symbol: &[u8]) -> Option<String> {
    // SAFETY: the caller's word.
    let at = unsafe { library.get::<*const c_char>(symbol) }.ok()?;
    // SAFETY: the symbol's address is the array's.
    Some(unsafe { CStr::from_ptr(at.try_as_raw_ptr()?.cast()) }.to_string_lossy().into_owned())
}

/// Open MPI says for what it was built in a variable. The function of the name may say no
/// before MPI_Init of what comes to be yes after it, so only its yes counts.
fn cuda_aware(library: &Library) -> CudaAware {
    // SAFETY: a bool of Open MPI's (opal/runtime/opal_params.c).
    if let Ok(built) = unsafe { library.get::<*const u8>(b"opal_built_with_cuda_support\0") } {
        // SAFETY: as above; it is initialised with the library.
        return if unsafe { **built } != 0 { CudaAware::Yes } else { CudaAware::No };
    }
    type Query = unsafe extern "C" fn() -> c_int;
    // SAFETY: of this type where it is there (mpi-ext.h).
    match unsafe { library.get::<Query>(b"MPIX_Query_cuda_support\0") } {
        // SAFETY: has no arguments, and reads a constant.
        Ok(query) if unsafe { query() } == 1 => CudaAware::Yes,
        _ => CudaAware::Unknown,
    }
}

/// `fi_version`: major and minor (fabric.h).
fn libfabric(path: &str) -> Result<Version, String> {
    let library = open(path)?;
    // SAFETY: of this type since 1.0.
    let version: Symbol<'_, unsafe extern "C" fn() -> u32> =
        unsafe { library.get(b"fi_version\0") }.map_err(|error| why(&error))?;
    // SAFETY: has no arguments.
    let word = unsafe { version() };
    Ok(Version(word >> 16, word & 0xffff, 0))
}

/// `ucp_get_version` (ucp.h).
fn ucx(path: &str) -> Result<Version, String> {
    type GetVersion = unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint);
    let library = open(path)?;
    // SAFETY: of this type since 1.0.
    let get: Symbol<'_, GetVersion> =
        unsafe { library.get(b"ucp_get_version\0") }.map_err(|error| why(&error))?;
    let mut version = Version::default();
    // SAFETY: stores three numbers.
    unsafe { get(&raw mut version.0, &raw mut version.1, &raw mut version.2) };
    Ok(version)
}

/// Every device, opened as a pool would.
fn cuda() -> Result<Vec<Gpu>, String> {
    const INVALID_DEVICE: i32 = 101;
    let mut devices = Vec::new();
    loop {
        match Cuda::open(devices.len() as i32) {
            Ok(cuda) => {
                let device = cuda.device();
                devices.push(Gpu {
                    name: device.name.clone(),
                    memory: Some(device.total_bytes as u64),
                    dma_buf: Some(device.dma_buf),
                    ..Gpu::default()
                });
            }
            Err(Absent::Refused(error)) if error.code == INVALID_DEVICE && !devices.is_empty() => {
                return Ok(devices);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
