//! InfiniBand, RoCE and iWARP through libibverbs (ibv_reg_mr(3)).
//!
//! A key is `ibv_mr.lkey`, `ibv_mr.rkey`, and the `ibv_mr` itself as the handle.
//! Pages count against the process's RLIMIT_MEMLOCK without CAP_IPC_LOCK, unless
//! they are registered on demand.
#![allow(unsafe_code)]

mod abi;
#[cfg(all(test, not(loom)))]
mod dma_buf;
mod open;

use self::abi::{ACCESS_ON_DEMAND, ACCESS_RELAXED_ORDERING, Calls, Context, DeviceAttr, Mr, Pd};
use self::open::{Opened, last_errno, text};
use super::library::Birth;
use super::{Backend, BackendError, DeviceMemory, Limits, MemoryKey, OpenError, Unlocked};
use crate::access::Access;
use crate::range::PageRange;
use pinyard_worker::log;
use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// How a [`Verbs`] is opened.
#[derive(Default)]
pub struct VerbsOptions {
    library: Option<PathBuf>,
    device: Option<String>,
    port: Option<u8>,
    on_demand: bool,
    relaxed_ordering: bool,
    device_memory: Option<Box<dyn DeviceMemory>>,
}

impl VerbsOptions {
    /// The library's file. Default: `libibverbs.so.1`, as the loader finds it.
    pub fn library(mut self, path: impl AsRef<Path>) -> Self {
        self.library = Some(path.as_ref().to_path_buf());
        self
    }

    /// The device's name, such as `mlx5_0`. Default: the first one that the process
    /// may open and that has an active port.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// The port, from 1, that must be active. Default: any.
    pub fn port(mut self, port: u8) -> Self {
        self.port = Some(port);
        self
    }

    /// Registers without pinning: the device faults pages in and follows every change of
    /// the mapping. Refused where the device does not report it.
    pub fn on_demand(mut self, yes: bool) -> Self {
        self.on_demand = yes;
        self
    }

    /// Lets the device write out of order (`IBV_ACCESS_RELAXED_ORDERING`); kernels
    /// that do not know the flag drop it. The program orders what it reads by
    /// completions, not by polling the last byte.
    pub fn relaxed_ordering(mut self, yes: bool) -> Self {
        self.relaxed_ordering = yes;
        self
    }

    /// Who tells device memory, which is then registered as a dma-buf
    /// (ibv_reg_dmabuf_mr(3)). Without this, device pointers go to `ibv_reg_mr`, which
    /// takes them where the kernel has a peer memory driver.
    pub fn device_memory(mut self, memory: impl DeviceMemory + 'static) -> Self {
        self.device_memory = Some(Box::new(memory));
        self
    }

    /// Opens the device and makes a protection domain; both end with the backend.
    pub fn open(self) -> Result<Verbs, OpenError> {
        let calls = Calls::load(self.library.as_deref())?;
        let opened = open::open(&calls, self.device.as_deref(), self.port)?;
        // SAFETY: open, and the backend's own.
        unsafe { self.over(calls, opened, true) }
    }

    /// Registers in a protection domain (`struct ibv_pd *`) that the caller has made,
    /// with sideway, the ibverbs crate or C. The options that choose a device do not
    /// apply.
    ///
    /// # Safety
    /// `pd` was made by the same libibverbs, and neither it nor its context is freed
    /// or closed before the backend is dropped, which is when the last registry and
    /// lease on it are gone. They stay the caller's: the backend frees neither.
    pub unsafe fn borrow(self, pd: NonNull<c_void>) -> Result<Verbs, OpenError> {
        let calls = Calls::load(self.library.as_deref())?;
        let pd = pd.cast::<Pd>();
        // SAFETY: the caller's promise: a protection domain of an open context.
        let (context, attributes) = unsafe {
            let context = pd.as_ref().context;
            (context, open::attributes(&calls, context, &name_of(context))?)
        };
        // SAFETY: as above.
        unsafe { self.over(calls, Opened { context, pd, attributes }, false) }
    }

    /// # Safety
    /// What is opened stays so for as long as the backend lives.
    unsafe fn over(self, calls: Calls, opened: Opened, owned: bool) -> Result<Verbs, OpenError> {
        let Opened { context, pd, attributes } = opened;
        // SAFETY: an open context.
        let name = unsafe { name_of(context) };
        let verbs = Verbs {
            calls,
            context,
            pd,
            owned,
            limits: limits(&attributes),
            // SAFETY: an open context.
            paging: unsafe { abi::on_demand_paging(context) }
                .map(|caps| OnDemandPaging { reliable_connection: caps.rc }),
            flags: if self.relaxed_ordering { ACCESS_RELAXED_ORDERING } else { 0 }
                | if self.on_demand { ACCESS_ON_DEMAND } else { 0 },
            device_memory: self.device_memory,
            name,
            birth: Birth::here(),
        };
        // From here on a refusal closes what was opened: the backend's drop does.
        if self.on_demand && verbs.paging.is_none() {
            return Err(OpenError::Unsupported {
                who: format!("RDMA device {}", verbs.name),
                what: "on-demand paging",
                remedy: "open it without, and its pages are pinned",
            });
        }
        if self.relaxed_ordering && verbs.calls.reg_mr_iova2.is_none() {
            return Err(OpenError::Unsupported {
                who: "libibverbs".to_owned(),
                what: "optional access flags (ibv_reg_mr_iova2)",
                remedy: "rdma-core 28 or newer does; or open it without relaxed ordering",
            });
        }
        Ok(verbs)
    }
}

/// What a device can do with registrations that are not pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDemandPaging {
    /// Operations of reliable connections: bits of `enum ibv_odp_transport_cap_bits`
    /// (1 send, 2 receive, 4 write, 8 read, 16 atomic).
    pub reliable_connection: u32,
}

/// Registers with an RDMA device.
///
/// Every function of libibverbs that is called here is thread-safe. In a forked child
/// nothing is closed: the device is the parent's.
pub struct Verbs {
    calls: Calls,
    context: *mut Context,
    pd: NonNull<Pd>,
    /// Whether the context and the protection domain end with this.
    owned: bool,
    limits: Limits,
    paging: Option<OnDemandPaging>,
    /// What is added to every registration of host memory.
    flags: u32,
    device_memory: Option<Box<dyn DeviceMemory>>,
    name: String,
    birth: Birth,
}

// SAFETY: the context and the protection domain are not bound to a thread, and
// libibverbs locks inside; the fields are not changed after construction.
unsafe impl Send for Verbs {}
// SAFETY: as above.
unsafe impl Sync for Verbs {}

impl Verbs {
    /// The first device that works.
    pub fn open() -> Result<Verbs, OpenError> {
        Verbs::options().open()
    }

    /// Options, nothing chosen.
    pub fn options() -> VerbsOptions {
        VerbsOptions::default()
    }

    /// The device's name.
    pub fn device_name(&self) -> &str {
        &self.name
    }

    /// The protection domain (`struct ibv_pd *`), for queue pairs that use the keys.
    /// It is valid for as long as the backend lives.
    pub fn pd(&self) -> NonNull<c_void> {
        self.pd.cast()
    }

    /// On-demand paging, if the device has it; used only where
    /// [`on_demand`](VerbsOptions::on_demand) was asked for.
    pub fn on_demand_paging(&self) -> Option<OnDemandPaging> {
        self.paging
    }

    fn register_host(&self, range: PageRange, access: Access) -> Result<*mut Mr, BackendError> {
        let (at, flags) = (range.start as *mut c_void, access.bits() | self.flags);
        // SAFETY: registering does not touch the pages' contents, and the kernel checks
        // the addresses. What moves bytes is posted by the key's users.
        let mr = unsafe {
            match self.calls.reg_mr_iova2 {
                Some(register) if flags & ACCESS_RELAXED_ORDERING != 0 => {
                    register(self.pd.as_ptr(), at, range.len(), range.start as u64, flags)
                }
                _ => (self.calls.reg_mr)(self.pd.as_ptr(), at, range.len(), flags as i32),
            }
        };
        if !mr.is_null() {
            return Ok(mr);
        }
        let errno = last_errno();
        Err(BackendError::new(format!("ibv_reg_mr({}, {range}, access {flags:#x})", self.name), errno))
    }

    fn register_device(
        &self,
        memory: &dyn DeviceMemory,
        range: PageRange,
        access: Access,
    ) -> Result<*mut Mr, BackendError> {
        let call = || {
            format!("ibv_reg_dmabuf_mr({}, {range} of device memory, access {:#x})", self.name, access.bits())
        };
        let Some(register) = self.calls.reg_dmabuf_mr else {
            return Err(BackendError::new(call(), libc::ENOSYS)
                .with_hint("this libibverbs has no such function: rdma-core 34 or newer has"));
        };
        let buffer = memory.export(range)?;
        // SAFETY: an open descriptor, and a range inside the buffer that it holds, which
        // the kernel checks.
        let mr = unsafe {
            register(
                self.pd.as_ptr(),
                buffer.offset,
                range.len(),
                range.start as u64,
                buffer.fd.as_raw_fd(),
                access.bits() as i32,
            )
        };
        if !mr.is_null() {
            return Ok(mr);
        }
        let error = BackendError::new(call(), last_errno());
        Err(match error.is_unsupported() {
            true => error.with_hint(
                "the device's driver takes no dma-buf; stage through host memory, or use a peer memory driver without `device_memory`",
            ),
            false => error,
        })
    }
}

impl Backend for Verbs {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn locks_memory(&self) -> bool {
        self.flags & ACCESS_ON_DEMAND == 0
    }

    fn register(&self, range: PageRange, access: Access, _: &Unlocked) -> Result<MemoryKey, BackendError> {
        let mr = match &self.device_memory {
            Some(memory) if memory.device_of(range)?.is_some() => {
                self.register_device(&**memory, range, access)?
            }
            _ => self.register_host(range, access)?,
        };
        // SAFETY: a region that was just made.
        let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
        Ok(MemoryKey { lkey: lkey.into(), rkey: rkey.into(), handle: mr as u64 })
    }

    fn deregister(&self, key: MemoryKey, range: PageRange, _: &Unlocked) -> Result<(), BackendError> {
        // SAFETY: the registry gives each key back once; it came from `register`.
        match unsafe { (self.calls.dereg_mr)(key.handle as *mut Mr) } {
            0 => Ok(()),
            errno => Err(BackendError::new(
                format!("ibv_dereg_mr({}, lkey {:#x}, {range})", self.name, key.lkey),
                errno,
            )
            .with_hint("is a memory window still bound to it?")),
        }
    }
}

impl Drop for Verbs {
    fn drop(&mut self) {
        if !self.owned || !self.birth.is_here() {
            return;
        }
        // SAFETY: made by `open`, once; the registries on it are gone, since they own
        // the backend, and with them every region.
        let (freed, closed) =
            unsafe { ((self.calls.dealloc_pd)(self.pd.as_ptr()), (self.calls.close_device)(self.context)) };
        if freed != 0 || closed != 0 {
            // Queue pairs of the program's own may still use it.
            log!(warn, device = self.name, freed, closed, "the device could not be closed");
        }
    }
}

/// What the device says; 0 or less where it does not.
fn limits(attributes: &DeviceAttr) -> Limits {
    let or_none = |value: usize| if value == 0 { usize::MAX } else { value };
    Limits {
        max_region_bytes: or_none(usize::try_from(attributes.max_mr_size).unwrap_or(usize::MAX)),
        max_regions: or_none(usize::try_from(attributes.max_mr).unwrap_or(0)),
    }
}

/// # Safety
/// `context` is open.
unsafe fn name_of(context: *mut Context) -> String {
    // SAFETY: an open context's device stands as long as it does.
    unsafe { text(&(*(*context).device).name) }
}
