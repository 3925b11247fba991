//! Devices, and whose memory an address is.
#![allow(unsafe_code)]

use super::status::{Failure, failed, pny_status::*};
use core::ffi::{c_int, c_void};
use libloading::os::unix::{Library, RTLD_LAZY};
use pinyard_allocator::DriverToken;
use pinyard_driver::{Chosen, Cuda, DevicePtr, Driver, Simulated, Stream};
use pinyard_mpi::Gpu;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Devices of a process at most.
const DEVICES: usize = 64;
/// Bytes of a simulated device: for what the communicators have of their own.
const SIMULATED: usize = 256 << 20;

/// A device that communicators were made for, kept to the end of the process.
pub(super) struct Opened {
    pub(super) gpu: Gpu,
    kind: Kind,
    forks: u32,
}

enum Kind {
    Cuda(Arc<Cuda>),
    Simulated(Arc<Simulated>),
}

static OPENED: [OnceLock<Opened>; DEVICES] = [const { OnceLock::new() }; DEVICES];

/// Device `ordinal`, opened once.
pub(super) fn open(ordinal: c_int) -> Result<&'static Opened, Failure> {
    static OPENING: Mutex<()> = Mutex::new(());
    let place = usize::try_from(ordinal).ok().and_then(|ordinal| OPENED.get(ordinal));
    let place = place.ok_or_else(|| {
        Failure::invalid(format!("device {ordinal} is refused: devices are 0 to {}", DEVICES - 1))
    })?;
    let own = |opened: &'static Opened| match opened.forks == pinyard_hooks::fork_generation() {
        true => Ok(opened),
        false => {
            Err(Failure::new(PNY_ERR_FORKED, "the device is the parent process's: a child does not use it"))
        }
    };
    if let Some(opened) = place.get() {
        return own(opened);
    }
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(opened) = place.get() {
        return own(opened);
    }
    let new = Opened::new(ordinal)?;
    own(place.get_or_init(|| new))
}

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Host,
    /// A device's; of a simulated one also the slab, whose bytes the host has.
    Device {
        slab: Option<(usize, usize)>,
    },
}

impl Opened {
    fn new(ordinal: c_int) -> Result<Opened, Failure> {
        pinyard_hooks::notice_forks();
        let absent = |error: pinyard_driver::Absent| Failure::new(PNY_ERR_ABSENT, error.to_string());
        let chosen = Chosen::from_environment();
        let kind = match chosen.map_err(|error| Failure::new(PNY_ERR_REFUSED, error.to_string()))? {
            Chosen::Cuda => Kind::Cuda(Arc::new(Cuda::open(ordinal).map_err(absent)?)),
            // Every rank has a device of its own, whatever its number.
            Chosen::Simulated => Kind::Simulated(Arc::new(Simulated::shareable(SIMULATED))),
        };
        let driver: Arc<dyn Driver> = match &kind {
            Kind::Cuda(driver) => driver.clone(),
            Kind::Simulated(driver) => driver.clone(),
        };
        let gpu = Gpu::new(driver).map_err(failed)?;
        Ok(Opened { gpu, kind, forks: pinyard_hooks::fork_generation() })
    }

    /// Whose memory lies at `at`, which has `bytes`.
    pub(super) fn owner(&self, at: *const c_void, bytes: usize) -> Result<Owner, Failure> {
        match &self.kind {
            Kind::Cuda(driver) => {
                let token = DriverToken::at_entry();
                let found = driver.device_at(DevicePtr(at.addr() as u64), &token).map_err(failed)?;
                let own = self.gpu.device().ordinal;
                match found {
                    None => Ok(Owner::Host),
                    Some(device) if device == own => Ok(Owner::Device { slab: None }),
                    Some(device) => Err(Failure::invalid(format!(
                        "{at:p} is memory of device {device}, and the communicator is device {own}'s"
                    ))),
                }
            }
            Kind::Simulated(_) => {
                let Some(place) = find(at) else { return Ok(Owner::Host) };
                let end = place.block_base + place.block_length;
                if at.addr() as u64 + bytes as u64 > end {
                    let cause = format!("{bytes} bytes at {at:p} end behind the block's end, {end:#x}");
                    return Err(Failure::invalid(cause));
                }
                Ok(Owner::Device { slab: Some((place.slab_base as usize, place.slab_length as usize)) })
            }
        }
    }

    /// Waits for the work of `stream` so far.
    ///
    /// # Safety
    /// `stream` is null or a stream of the device's primary context.
    pub(super) unsafe fn wait(&self, stream: *mut c_void) -> Result<(), Failure> {
        match &self.kind {
            Kind::Cuda(driver) => {
                // SAFETY: the caller's contract.
                let stream = unsafe { Stream::from_raw(stream.addr()) };
                driver.stream_synchronize(stream, &DriverToken::at_entry()).map_err(failed)
            }
            Kind::Simulated(_) if stream.is_null() => Ok(()),
            Kind::Simulated(_) => {
                Err(Failure::invalid("a simulated device's streams have no handle: pass null"))
            }
        }
    }

    /// Lets the device reach slabs of simulated memory that libpinyard.so made: they are of
    /// that library's device, and host memory to this one's.
    pub(super) fn lend(&self, mut slabs: Vec<(usize, usize)>) -> Result<Loan<'_>, Failure> {
        slabs.sort_unstable();
        slabs.dedup();
        let mut loan = Loan { driver: self.gpu.driver(), slabs: Vec::new() };
        for (at, bytes) in slabs {
            let token = DriverToken::at_entry();
            // SAFETY: a slab of a block in use (`pny_device_find`), which its user does not
            // free during the call; taken back by the loan.
            unsafe { loan.driver.host_register(std::ptr::with_exposed_provenance_mut(at), bytes, &token) }
                .map_err(failed)?;
            loan.slabs.push(at);
        }
        Ok(loan)
    }
}

/// Refuses `bytes` at `at` that this process cannot read: memory that was freed, as of a device
/// that knows it no more. MPI would end the program there.
pub(super) fn readable(at: *const c_void, bytes: usize) -> Result<(), Failure> {
    let mut ends = [0u8; 2];
    let local = libc::iovec { iov_base: ends.as_mut_ptr().cast(), iov_len: ends.len() };
    let far = [at, at.wrapping_byte_add(bytes.saturating_sub(1))]
        .map(|end| libc::iovec { iov_base: end.cast_mut(), iov_len: 1 });
    // SAFETY: the kernel writes two bytes of ours, and says so where it cannot read the others.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, far.as_ptr(), 2, 0) };
    // Less than both: the second is missing. A sandbox may refuse the call: then nobody knows.
    let missing = match read {
        2 => false,
        -1 => std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT),
        _ => true,
    };
    if missing {
        return Err(Failure::invalid(format!(
            "{bytes} bytes at {at:p} are no device's, and this process cannot read them: were they freed?"
        )));
    }
    Ok(())
}

/// Slabs that the device reaches for the time of a call.
pub(super) struct Loan<'o> {
    driver: &'o Arc<dyn Driver>,
    slabs: Vec<usize>,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        for &at in &self.slabs {
            // SAFETY: registered by `lend`; operations have waited for their copies. What is
            // refused belongs to a device that has ended.
            let _ = unsafe {
                self.driver
                    .host_unregister(std::ptr::with_exposed_provenance_mut(at), &DriverToken::at_entry())
            };
        }
    }
}

/// `pny_block_place` of pinyard.h.
#[repr(C)]
#[derive(Default)]
struct Place {
    size: usize,
    key: [u64; 3],
    slab_base: u64,
    slab_length: u64,
    block_base: u64,
    block_length: u64,
    offset: u64,
}

type Find = unsafe extern "C" fn(*const c_void, *mut Place) -> c_int;

/// The block of a simulated device that `at` lies in: of the libpinyard.so that the program
/// uses, if it uses one. A device of its own has this library only for its chunks.
fn find(at: *const c_void) -> Option<Place> {
    const LOADED: c_int = 4; // RTLD_NOLOAD of Linux
    // SAFETY: what is loaded already is found, by its soname; nothing is run.
    let library = unsafe { Library::open(Some("libpinyard.so.0"), RTLD_LAZY | LOADED) };
    let library = library.unwrap_or_else(|_| Library::this());
    // SAFETY: pinyard.h declares it so.
    let function = unsafe { library.get::<Find>(b"pny_device_find\0") }.ok()?;
    let mut place = Place { size: size_of::<Place>(), ..Place::default() };
    // SAFETY: a structure of its size; that no pool is destroyed meanwhile is the header's
    // rule for whoever gives memory to a call.
    (unsafe { function(at, &mut place) } == 0).then_some(place)
}
