//! libfabric: `fi_mr_regattr` in a domain (fi_mr(3)).
//!
//! A key is the descriptor (`fi_mr_desc`), the remote key (`fi_mr_key`), and the
//! `fid_mr` as the handle.
//!
//! The providers verbs and efa have a registration cache of their own under this call.
//! They are told to leave it out; no other provider has one.
#![allow(unsafe_code)]

mod abi;
mod open;

use self::abi::{Calls, Domain, Fabric, Info, MrAttr, MrFid};
use self::open::Opened;
use super::library::Birth;
use super::{Backend, BackendError, DeviceMemory, Limits, MemoryKey, OpenError, Unlocked};
use crate::access::Access;
use crate::range::PageRange;
use pinyard_worker::log;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Keys that are tried before a registration is given up: others choose theirs in the
/// same domain.
const KEYS_TRIED: u32 = 64;

/// How a [`Libfabric`] is opened.
#[derive(Default)]
pub struct LibfabricOptions {
    library: Option<PathBuf>,
    provider: Option<String>,
    first_key: u64,
    device_memory: Option<Box<dyn DeviceMemory>>,
}

impl LibfabricOptions {
    /// The library's file. Default: `libfabric.so.1`, as the loader finds it.
    pub fn library(mut self, path: impl AsRef<Path>) -> Self {
        self.library = Some(path.as_ref().to_path_buf());
        self
    }

    /// The provider's name, layers included: `verbs;ofi_rxm`, `tcp;ofi_rxm`, `shm`.
    /// Default: what libfabric puts first.
    pub fn provider(mut self, name: impl Into<String>) -> Self {
        self.provider = Some(name.into());
        self
    }

    /// Where this backend's keys begin, in domains whose users choose them (no
    /// `FI_MR_PROV_KEY`): a program that registers memory of its own in the same domain
    /// keeps below. Default: 0.
    pub fn first_key(mut self, key: u64) -> Self {
        self.first_key = key;
        self
    }

    /// Who tells device memory, which is then registered as CUDA's (`FI_HMEM_CUDA`).
    /// The provider must have `FI_HMEM`.
    pub fn device_memory(mut self, memory: impl DeviceMemory + 'static) -> Self {
        self.device_memory = Some(Box::new(memory));
        self
    }

    /// Opens a fabric and a domain; both end with the backend.
    pub fn open(self) -> Result<Libfabric, OpenError> {
        let calls = Calls::load(self.library.as_deref())?;
        let Opened { fabric, domain, info, provider, device, key_bytes, regions } =
            open::open(&calls, self.provider.as_deref(), self.device_memory.is_some())?;
        Ok(Libfabric {
            calls,
            domain,
            own: Some((fabric, info)),
            flags: flags_of(&provider),
            pins: pins(&provider),
            limits: Limits { max_regions: if regions == 0 { usize::MAX } else { regions }, ..Limits::NONE },
            key_mask: if key_bytes < 8 { (1 << (8 * key_bytes.max(1))) - 1 } else { u64::MAX },
            next_key: AtomicU64::new(self.first_key),
            device_memory: self.device_memory,
            name: format!("{provider}, {device}"),
            birth: Birth::here(),
        })
    }

    /// Registers in a domain (`struct fid_domain *`) that the caller has opened, of the
    /// provider that [`provider`](LibfabricOptions::provider) names.
    ///
    /// # Safety
    /// `domain` is open, was opened for threads (`FI_THREAD_SAFE`) at interface 1.9 or
    /// newer and without `FI_MR_ENDPOINT`, and is not closed before the backend is
    /// dropped, which is when the last registry and lease on it are gone. It stays the
    /// caller's. The provider's name is its own, or none.
    pub unsafe fn borrow(self, domain: NonNull<c_void>) -> Result<Libfabric, OpenError> {
        let calls = Calls::load(self.library.as_deref())?;
        let provider = self.provider.unwrap_or_default();
        Ok(Libfabric {
            calls,
            domain: domain.cast(),
            own: None,
            flags: flags_of(&provider),
            pins: pins(&provider),
            limits: Limits::NONE,
            key_mask: u64::MAX,
            next_key: AtomicU64::new(self.first_key),
            device_memory: self.device_memory,
            name: format!(
                "a borrowed domain of {}",
                if provider.is_empty() { "libfabric" } else { &provider }
            ),
            birth: Birth::here(),
        })
    }
}

/// Registers with a libfabric domain. In a forked child nothing is closed: the domain
/// is the parent's.
pub struct Libfabric {
    calls: Calls,
    domain: NonNull<Domain>,
    /// The fabric, and the entry that both were opened with, where all end with this.
    own: Option<(NonNull<Fabric>, NonNull<Info>)>,
    flags: u64,
    pins: bool,
    limits: Limits,
    /// The keys that the domain takes.
    key_mask: u64,
    next_key: AtomicU64,
    device_memory: Option<Box<dyn DeviceMemory>>,
    name: String,
    birth: Birth,
}

// SAFETY: the domain is for threads (the default of fi_getinfo, or the caller's
// promise), and the other fields are not changed after construction.
unsafe impl Send for Libfabric {}
// SAFETY: as above.
unsafe impl Sync for Libfabric {}

impl Libfabric {
    /// The first provider.
    pub fn open() -> Result<Libfabric, OpenError> {
        Libfabric::options().open()
    }

    /// Options, nothing chosen.
    pub fn options() -> LibfabricOptions {
        LibfabricOptions::default()
    }

    /// The provider and its domain's name.
    pub fn domain_name(&self) -> &str {
        &self.name
    }

    /// The domain (`struct fid_domain *`), for endpoints that use the keys. It is valid
    /// for as long as the backend lives.
    pub fn domain(&self) -> NonNull<c_void> {
        self.domain.cast()
    }

    /// The entry (`struct fi_info *`) that the domain was opened with, which `fi_endpoint`
    /// asks for; of a borrowed domain none. It is valid for as long as the backend lives,
    /// and must not be changed: `fi_dupinfo` it for that.
    pub fn info(&self) -> Option<NonNull<c_void>> {
        self.own.map(|(_, info)| info.cast())
    }
}

impl Backend for Libfabric {
    fn name(&self) -> &'static str {
        "libfabric"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn locks_memory(&self) -> bool {
        self.pins
    }

    fn register(&self, range: PageRange, access: Access, _: &Unlocked) -> Result<MemoryKey, BackendError> {
        let device = match &self.device_memory {
            Some(memory) => memory.device_of(range)?,
            None => None,
        };
        let bytes = libc::iovec { iov_base: range.start as *mut c_void, iov_len: range.len() };
        let mut attributes = MrAttr {
            mr_iov: &raw const bytes,
            iov_count: 1,
            access: access_bits(access),
            offset: 0,
            requested_key: 0,
            context: null_mut(),
            auth_key_size: 0,
            auth_key: null_mut(),
            iface: if device.is_some() { abi::HMEM_CUDA } else { abi::HMEM_SYSTEM },
            device: device.map_or(0, |ordinal| ordinal as u32 as u64),
            newer: [0; 8],
        };
        let domain = self.domain.as_ptr();
        let mut answer = 0;
        for _ in 0..KEYS_TRIED {
            attributes.requested_key = self.next_key.fetch_add(1, Relaxed) & self.key_mask;
            let mut region: *mut MrFid = null_mut();
            // SAFETY: an open domain has its table; registering does not touch the pages'
            // contents, and provider or kernel check the addresses.
            answer = unsafe {
                ((*(*domain).mr).regattr)(
                    &raw mut (*domain).fid,
                    &raw const attributes,
                    self.flags,
                    &raw mut region,
                )
            };
            if answer == 0 && !region.is_null() {
                // SAFETY: a region that was just made.
                let region = unsafe { &*region };
                return Ok(MemoryKey {
                    lkey: region.mem_desc as u64,
                    rkey: region.key,
                    handle: std::ptr::from_ref(region) as u64,
                });
            }
            if answer != -abi::ENOKEY {
                break;
            }
        }
        let kind = if device.is_some() { " of device memory" } else { "" };
        let call = format!("fi_mr_regattr({}, {range}{kind}, access {:#x})", self.name, attributes.access);
        let error = self.calls.failed(call, answer);
        Err(match device.is_some() && error.is_unsupported() {
            true => error.with_hint(
                "this libfabric was not built for CUDA, or did not find it (FI_HMEM_CUDA); stage through host memory",
            ),
            false => error,
        })
    }

    fn deregister(&self, key: MemoryKey, range: PageRange, _: &Unlocked) -> Result<(), BackendError> {
        // SAFETY: the registry gives each key back once; it came from `register`.
        match unsafe { abi::close(key.handle as *mut abi::Fid) } {
            0 => Ok(()),
            error => Err(self.calls.failed(format!("fi_close({}, region of {range})", self.name), error)),
        }
    }
}

impl Drop for Libfabric {
    fn drop(&mut self) {
        let Some((fabric, info)) = self.own else { return };
        if !self.birth.is_here() {
            return;
        }
        // SAFETY: opened by `open`, once; the registries on it are gone, and the domain
        // goes before its fabric.
        let (domain, fabric) =
            unsafe { (abi::close(self.domain.as_ptr().cast()), abi::close(fabric.as_ptr().cast())) };
        // SAFETY: a copy of this backend's own, once.
        unsafe { (self.calls.freeinfo)(info.as_ptr()) };
        if domain != 0 || fabric != 0 {
            // Endpoints of the program's own may still use it.
            log!(warn, name = self.name, domain, fabric, "the domain could not be closed");
        }
    }
}

/// What fi_mr(3) calls access: local operations by name. Sending, and writing to a peer,
/// only read the pages.
fn access_bits(access: Access) -> u64 {
    let mut bits = abi::FI_SEND | abi::FI_WRITE;
    if access.writes() {
        bits |= abi::FI_RECV | abi::FI_READ;
    }
    if access.intersects(Access::REMOTE_READ | Access::REMOTE_ATOMIC) {
        bits |= abi::FI_REMOTE_READ;
    }
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
        bits |= abi::FI_REMOTE_WRITE;
    }
    bits
}

/// Only to providers that know it: others may take the bit for something else.
fn flags_of(provider: &str) -> u64 {
    let has_cache = |layer: &str| matches!(layer, "verbs" | "efa");
    if provider.split(';').any(has_cache) { abi::MR_NOCACHE } else { 0 }
}

/// Those that hand bytes to the kernel's sockets or to shared memory do not.
fn pins(provider: &str) -> bool {
    !provider.split(';').all(|layer| {
        matches!(
            layer,
            "tcp" | "udp" | "net" | "sockets" | "shm" | "sm2" | "ofi_rxm" | "ofi_rxd" | "ofi_hook_noop"
        )
    })
}
