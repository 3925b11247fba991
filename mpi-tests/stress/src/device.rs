//! What a device sees through a registration: the bytes that travel through the pages
//! that it has pinned, whatever is mapped at their addresses now.
#![allow(unsafe_code)]

#[cfg(feature = "verbs")]
use crate::loopback::Loopback;
use crate::payload::Pattern;
use pinyard_cli::stress::options::{self, Options};
use pinyard_registry::Registry;
use pinyard_registry::backend::{Backend, IoUring, MemoryKey, Mlock};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, FromRawFd};
use std::sync::Arc;

/// Registrations at a time: a rank's buffers need few, those being retired included.
const SLOTS: u32 = 4096;

/// A backend that was found to work.
pub(crate) struct Chosen {
    /// For the registry.
    pub(crate) backend: Arc<dyn Backend>,
    /// For the checks.
    pub(crate) device: Device,
    /// Why this one.
    pub(crate) why: String,
}

/// Opens the backend that `options` name, or the best that works here.
pub(crate) fn choose(options: &Options) -> Result<Chosen, String> {
    let asked = || "asked for".to_owned();
    match options.backend {
        options::Backend::Verbs => verbs(options, asked()),
        options::Backend::IoUring => io_uring(asked()).map_err(|error| error.to_string()),
        options::Backend::Mlock => Ok(mlock(asked())),
        options::Backend::Auto => verbs(options, "a device works".to_owned()).or_else(|error| {
            let why = format!("verbs: {error}");
            Ok(io_uring(why.clone()).unwrap_or_else(|error| mlock(format!("{why}; io_uring: {error}"))))
        }),
    }
}

#[cfg(feature = "verbs")]
fn verbs(options: &Options, why: String) -> Result<Chosen, String> {
    use pinyard_registry::backend::Verbs;
    let mut how = Verbs::options();
    if let Some(device) = &options.device {
        how = how.device(device);
    }
    let verbs = Arc::new(how.open().map_err(|error| error.to_string())?);
    let why = format!("{why}: {}", verbs.device_name());
    let device = Device::Verbs { pair: Loopback::open(verbs.clone())?, source: Vec::new() };
    Ok(Chosen { backend: verbs, device, why })
}

#[cfg(not(feature = "verbs"))]
fn verbs(_: &Options, _: String) -> Result<Chosen, String> {
    Err("built without the feature verbs".to_owned())
}

fn io_uring(why: String) -> Result<Chosen, Box<dyn std::error::Error>> {
    let ring = Arc::new(IoUring::new(SLOTS)?);
    // A limit on pinned memory shows with the first registration.
    let probe =
        Registry::builder().backend(ring.clone()).events(pinyard_registry::Events::NotifyOnly).build()?;
    let page = vec![0u8; 4096];
    drop(probe.get(&page, pinyard_registry::Access::LOCAL_WRITE)?);
    drop(probe);
    let device = Device::IoUring { ring: ring.clone(), wire: Wire::new()? };
    Ok(Chosen { backend: ring, device, why })
}

fn mlock(why: String) -> Chosen {
    Chosen { backend: Arc::new(Mlock::new()), device: Device::None, why }
}

/// Who can look through a registration.
pub(crate) enum Device {
    /// The kernel, for io_uring's fixed buffers; the other end is a pipe.
    IoUring {
        /// The ring that has the registrations.
        ring: Arc<IoUring>,
        /// Where bytes go to and come from.
        wire: Wire,
    },
    /// An RDMA device, over a queue pair of the process with itself.
    #[cfg(feature = "verbs")]
    Verbs {
        /// The queue pair.
        pair: Loopback,
        /// What it writes.
        source: Vec<u8>,
    },
    /// Nobody.
    None,
}

impl Device {
    /// Whether there is one.
    pub(crate) fn is_there(&self) -> bool {
        !matches!(self, Device::None)
    }

    /// The bytes at `bytes` as the device sees them through `key`.
    ///
    /// # Safety
    /// The registration of `key` is held until this returns.
    pub(crate) unsafe fn see(&mut self, key: MemoryKey, bytes: &[u8]) -> Result<&[u8], String> {
        match self {
            Device::None => Ok(&[]),
            // SAFETY: the caller's contract.
            #[cfg(feature = "verbs")]
            Device::Verbs { pair, .. } => unsafe { pair.see(key, bytes) },
            Device::IoUring { ring, wire } => {
                for at in (0..bytes.len()).step_by(wire.capacity) {
                    let part = &bytes[at..(at + wire.capacity).min(bytes.len())];
                    // SAFETY: the caller holds the registration, and `part` is borrowed.
                    let moved = unsafe { ring.write_fixed(wire.to.as_fd(), key, part.as_ptr(), part.len()) };
                    all(moved, part.len(), "from the registered pages")?;
                    wire.arrived(at, part.len())?;
                }
                Ok(&wire.copy[..bytes.len()])
            }
        }
    }

    /// The device writes `pattern` to where `bytes` is registered as `key`.
    ///
    /// # Safety
    /// As for [`see`](Device::see).
    pub(crate) unsafe fn write(
        &mut self,
        key: MemoryKey,
        bytes: &mut [u8],
        pattern: Pattern,
    ) -> Result<(), String> {
        match self {
            Device::None => Ok(()),
            #[cfg(feature = "verbs")]
            Device::Verbs { pair, source } => {
                source.resize(bytes.len(), 0);
                pattern.fill(source);
                // SAFETY: the caller's contract.
                unsafe { pair.write(key, bytes, source) }
            }
            Device::IoUring { ring, wire } => {
                pattern.fill(wire.room(bytes.len()));
                for at in (0..bytes.len()).step_by(wire.capacity) {
                    let end = (at + wire.capacity).min(bytes.len());
                    wire.send(at, end)?;
                    let part = &mut bytes[at..end];
                    // SAFETY: the caller holds the registration, and `part` is borrowed mutably.
                    let moved =
                        unsafe { ring.read_fixed(wire.from.as_fd(), key, part.as_mut_ptr(), part.len()) };
                    all(moved, part.len(), "into the registered pages")?;
                }
                Ok(())
            }
        }
    }
}

fn all(moved: io::Result<usize>, len: usize, way: &str) -> Result<(), String> {
    match moved {
        Ok(moved) if moved == len => Ok(()),
        Ok(moved) => Err(format!("io_uring moved {moved} of {len} bytes {way}")),
        Err(error) => Err(format!("io_uring, {len} bytes {way}: {error}")),
    }
}

/// The other end: a pipe, which moves bytes in the caller's own time (a file's are
/// handed to a thread of the kernel's), and a copy of what travelled.
pub(crate) struct Wire {
    from: File,
    to: File,
    /// Bytes that the pipe holds.
    capacity: usize,
    copy: Vec<u8>,
}

impl Wire {
    fn new() -> Result<Wire, String> {
        const WANTED: libc::c_int = 1 << 20;
        const LEAST: usize = 4096;
        let mut ends = [-1; 2];
        // SAFETY: fills two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
            return Err(format!("pipe2: {}", io::Error::last_os_error()));
        }
        // SAFETY: opened just now and owned by nobody else.
        let [from, to] = ends.map(|end| unsafe { File::from_raw_fd(end) });
        // SAFETY: an open pipe. A refusal leaves it as large as it is.
        let capacity = unsafe {
            libc::fcntl(ends[1], libc::F_SETPIPE_SZ, WANTED);
            libc::fcntl(ends[1], libc::F_GETPIPE_SZ)
        };
        Ok(Wire { from, to, capacity: usize::try_from(capacity).unwrap_or(0).max(LEAST), copy: Vec::new() })
    }

    fn room(&mut self, len: usize) -> &mut [u8] {
        if self.copy.len() < len {
            self.copy.resize(len, 0);
        }
        &mut self.copy[..len]
    }

    /// Takes `len` bytes, the message's from `at` on.
    fn arrived(&mut self, at: usize, len: usize) -> Result<(), String> {
        self.room(at + len);
        let read = self.from.read_exact(&mut self.copy[at..at + len]);
        read.map_err(|error| format!("read(pipe, {len} bytes): {error}"))
    }

    fn send(&mut self, at: usize, end: usize) -> Result<(), String> {
        let written = self.to.write_all(&self.copy[at..end]);
        written.map_err(|error| format!("write(pipe, {} bytes): {error}", end - at))
    }
}
