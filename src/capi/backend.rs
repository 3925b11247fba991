//! Who registers: a backend of pinyard's, or functions of the caller's own.
#![allow(unsafe_code, non_camel_case_types)]

use super::callbacks::calling;
use super::sized::{self, Sized_};
use super::status::{Failure, IntoFailure, failed, pny_status::*};
use core::ffi::{c_char, c_int, c_void};
use core::ptr::NonNull;
use pinyard_registry::backend::{
    Backend, BackendError, IoUring, Libfabric, Limits, Mlock, OpenError, Ucx, Unlocked, Verbs,
};
use pinyard_registry::{Access, Builder, MemoryKey, PageRange};

/// Who registers memory.
pub type pny_backend = u32;
/// Functions of the caller's own: `ops` and `user` of the configuration.
pub const PNY_BACKEND_OPS: pny_backend = 0;
/// mlock(2): the pages stay resident; keys are 0.
pub const PNY_BACKEND_MLOCK: pny_backend = 1;
/// Fixed buffers of an io_uring of its own, at most 1,024 at a time; the lkey is the
/// buffer's index.
pub const PNY_BACKEND_IO_URING: pny_backend = 2;
/// libibverbs: `object` is a `struct ibv_pd *` that stays the caller's, or null for the
/// device called `device`, or the first that works.
pub const PNY_BACKEND_VERBS: pny_backend = 3;
/// UCX: `object` is a `ucp_context_h` that stays the caller's, or null for one of its own.
pub const PNY_BACKEND_UCX: pny_backend = 4;
/// libfabric: `object` is a `struct fid_domain *` that stays the caller's, or null for a
/// domain of the provider called `device`, or the first that works.
pub const PNY_BACKEND_LIBFABRIC: pny_backend = 5;

/// What a registration allows. Local read is always allowed.
pub type pny_access = u32;
/// Local read only: send from here.
pub const PNY_LOCAL_READ: pny_access = 0;
/// The device may write into the pages for this process (receive).
pub const PNY_LOCAL_WRITE: pny_access = 1;
/// A peer may write through the rkey.
pub const PNY_REMOTE_WRITE: pny_access = 2;
/// A peer may read through the rkey.
pub const PNY_REMOTE_READ: pny_access = 4;
/// A peer may run atomics through the rkey.
pub const PNY_REMOTE_ATOMIC: pny_access = 8;
const _: () = assert!(
    PNY_LOCAL_READ == Access::LOCAL_READ.bits()
        && PNY_LOCAL_WRITE == Access::LOCAL_WRITE.bits()
        && PNY_REMOTE_WRITE == Access::REMOTE_WRITE.bits()
        && PNY_REMOTE_READ == Access::REMOTE_READ.bits()
        && PNY_REMOTE_ATOMIC == Access::REMOTE_ATOMIC.bits()
);

/// Flags of a registry's configuration.
pub type pny_flags = u32;
/// Lets a change of memory that several processes share go unseen: the program vouches
/// that no other process, and no system call past libc, truncates the file or drops
/// pages of it. Without this such registrations are not kept.
pub const PNY_TRUST_SHARED_MEMORY: pny_flags = 1;
/// Verbs: registers without pinning; the device follows every change of the mapping.
pub const PNY_ON_DEMAND: pny_flags = 2;
/// Verbs: lets the device write out of order.
pub const PNY_RELAXED_ORDERING: pny_flags = 4;
/// Installs no hooks: the program calls pny_notify_unmapped or pny_invalidate before
/// every change of a mapping that was registered.
pub const PNY_NOTIFY_ONLY: pny_flags = 8;
pub(super) const FLAGS: pny_flags =
    PNY_TRUST_SHARED_MEMORY | PNY_ON_DEMAND | PNY_RELAXED_ORDERING | PNY_NOTIFY_ONLY;

/// What a device needs to use a registration.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct pny_key {
    /// Local key: verbs' lkey, io_uring's buffer index, libfabric's descriptor, UCX's
    /// memory handle.
    pub lkey: u64,
    /// Remote key: what a peer must name. UCX's is longer than a word: this is then the
    /// address of what ucp_rkey_pack made, and `handle` its length in bytes.
    pub rkey: u64,
    /// The backend's own handle, such as a `struct ibv_mr *`.
    pub handle: u64,
}

/// As [`MemoryKey`]'s: without the rkey.
impl core::fmt::Debug for pny_key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("pny_key").field("lkey", &self.lkey).finish_non_exhaustive()
    }
}

impl From<MemoryKey> for pny_key {
    fn from(MemoryKey { lkey, rkey, handle }: MemoryKey) -> pny_key {
        pny_key { lkey, rkey, handle }
    }
}

impl From<pny_key> for MemoryKey {
    fn from(pny_key { lkey, rkey, handle }: pny_key) -> MemoryKey {
        MemoryKey { lkey, rkey, handle }
    }
}

/// Functions that register, of a transport that brings its own. Both may be called from
/// any thread, several at a time, with no lock of pinyard's held; they may block,
/// allocate, and change mappings, but not call pinyard for the range that they were
/// called for, nor destroy registries, pools or streams (PNY_ERR_BUSY), and they return: they do
/// not throw, and leave neither by longjmp nor by pthread_exit. Copied by pny_registry_create.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct pny_backend_ops {
    /// sizeof(pny_backend_ops).
    pub size: usize,
    /// A short name for messages; null: "ops".
    pub name: *const c_char,
    /// Pins `length` bytes at `address`, both multiples of 4096, for `access`, and fills
    /// `*key`. Returns 0, or an errno, and then nothing is pinned. ENOMEM, EAGAIN
    /// and ENOSPC make pinyard give back what is only cached, and try once more.
    pub register_memory: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            address: *mut c_void,
            length: usize,
            access: pny_access,
            key: *mut pny_key,
        ) -> c_int,
    >,
    /// Takes one registration back. The pages may be unmapped by now, or others may be
    /// mapped at the same addresses. Returns 0 or an errno.
    pub deregister_memory: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const pny_key,
            address: *mut c_void,
            length: usize,
        ) -> c_int,
    >,
    /// Called once by the destruction of a registry, when nothing is registered any more
    /// and no function of this structure is called any more; or null. Not called where
    /// pny_registry_create failed, nor in a forked child.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// Longest single registration in bytes; 0: no limit.
    pub max_region_bytes: usize,
    /// Registrations at a time; 0: no limit.
    pub max_regions: usize,
    /// Not 0: pages count against RLIMIT_MEMLOCK, which the default budget then heeds.
    pub locks_memory: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: integers, pointers and nullable functions.
unsafe impl Sized_ for pny_backend_ops {
    const NAME: &'static str = "pny_backend_ops";
    const FIRST: usize = 64;
}

/// What the end of a registry owes to the caller. Not in [`Ops`]: a registry that was
/// never handed out owes nothing, and another registry of the same budget may keep the
/// backend for a moment longer.
pub(super) struct Release {
    function: unsafe extern "C" fn(user: *mut c_void),
    user: *mut c_void,
}

// SAFETY: the function may be called from any thread, with `user` (the header's rule).
unsafe impl Send for Release {}
// SAFETY: likewise.
unsafe impl Sync for Release {}

impl Release {
    /// Tells the caller that its functions are not called any more.
    pub(super) fn call(self) {
        // SAFETY: the caller's function, called once: `self` is gone.
        unsafe { (self.function)(self.user) };
    }
}

/// The caller's functions as a backend.
struct Ops {
    ops: pny_backend_ops,
    user: *mut c_void,
    name: &'static str,
}

// SAFETY: the functions may be called from any thread, with `user` (the header's rule);
// nothing else of it is shared.
unsafe impl Send for Ops {}
// SAFETY: likewise.
unsafe impl Sync for Ops {}

impl Backend for Ops {
    fn name(&self) -> &'static str {
        self.name
    }

    fn limits(&self) -> Limits {
        let or_none = |limit| if limit == 0 { usize::MAX } else { limit };
        Limits {
            max_region_bytes: or_none(self.ops.max_region_bytes),
            max_regions: or_none(self.ops.max_regions),
        }
    }

    fn locks_memory(&self) -> bool {
        self.ops.locks_memory != 0
    }

    fn register(&self, range: PageRange, access: Access, _: &Unlocked) -> Result<MemoryKey, BackendError> {
        let mut key = pny_key::default();
        let call = || format!("{}'s register_memory({:#x}, {} bytes)", self.name, range.start, range.len());
        let Some(register) = self.ops.register_memory else { return Err(BackendError::new(call(), 0)) };
        let at = core::ptr::with_exposed_provenance_mut(range.start);
        // SAFETY: the caller's function, called as the header says.
        let errno = calling(|| unsafe { register(self.user, at, range.len(), access.bits(), &raw mut key) });
        if errno == 0 { Ok(key.into()) } else { Err(BackendError::new(call(), errno.saturating_abs())) }
    }

    fn deregister(&self, key: MemoryKey, range: PageRange, _: &Unlocked) -> Result<(), BackendError> {
        let call = || format!("{}'s deregister_memory({:#x}, {} bytes)", self.name, range.start, range.len());
        let Some(deregister) = self.ops.deregister_memory else { return Err(BackendError::new(call(), 0)) };
        let (key, at) = (pny_key::from(key), core::ptr::with_exposed_provenance_mut(range.start));
        // SAFETY: the caller's function, called as the header says, once per registration.
        let errno = calling(|| unsafe { deregister(self.user, &raw const key, at, range.len()) });
        if errno == 0 { Ok(()) } else { Err(BackendError::new(call(), errno.saturating_abs())) }
    }
}

/// A name that lives as long as the process; the same text is kept once, or once for each thread that gives it first
/// at the same moment. Without a lock: a forked child may make registries.
fn kept(name: String) -> &'static str {
    static NAMES: boxcar::Vec<&'static str> = boxcar::Vec::new();
    let known = NAMES.iter().find_map(|(_, known)| (*known == name).then_some(*known));
    known.unwrap_or_else(|| {
        let name: &'static str = name.leak();
        NAMES.push(name);
        name
    })
}

/// What the configuration says of the backend.
pub(super) struct Wanted {
    pub(super) backend: pny_backend,
    pub(super) device: Option<String>,
    pub(super) port: u32,
    pub(super) object: *mut c_void,
    pub(super) ops: *const pny_backend_ops,
    pub(super) user: *mut c_void,
    pub(super) flags: pny_flags,
}

impl IntoFailure for OpenError {
    fn into_failure(self) -> Failure {
        let status = match &self {
            OpenError::Call(_)
            | OpenError::Denied { .. }
            | OpenError::PortDown { .. }
            | OpenError::Relative { .. } => PNY_ERR_REFUSED,
            _ => PNY_ERR_ABSENT,
        };
        Failure::new(status, self.to_string())
    }
}

impl Wanted {
    /// Gives the builder its backend, and says what the registry's end owes.
    ///
    /// # Safety
    /// `ops` is null or readable for its size, its functions do what the header says, and
    /// `object` is what the backend's constant says.
    pub(super) unsafe fn give_to(self, builder: Builder) -> Result<(Builder, Option<Release>), Failure> {
        let object = NonNull::new(self.object);
        let invalid = |cause: &str| Failure::new(PNY_ERR_INVALID, format!("pny_registry_config: {cause}"));
        if self.backend != PNY_BACKEND_VERBS && (self.port != 0 || self.flags & VERBS_FLAGS != 0) {
            return Err(invalid("port, PNY_ON_DEMAND and PNY_RELAXED_ORDERING are for PNY_BACKEND_VERBS"));
        }
        if self.backend != PNY_BACKEND_OPS && !self.ops.is_null() {
            let cause = format!("ops is set, and backend is {}, not PNY_BACKEND_OPS", self.backend);
            return Err(invalid(&cause));
        }
        if self.device.is_some() && !matches!(self.backend, PNY_BACKEND_VERBS | PNY_BACKEND_LIBFABRIC) {
            return Err(invalid("device is for PNY_BACKEND_VERBS and PNY_BACKEND_LIBFABRIC"));
        }
        let mut release = None;
        let builder = match self.backend {
            PNY_BACKEND_OPS => {
                if self.ops.is_null() {
                    return Err(invalid("backend is PNY_BACKEND_OPS, and ops is null"));
                }
                // SAFETY: the caller's contract.
                let ops = unsafe { sized::read(self.ops) }?;
                if ops.reserved != 0 {
                    let cause = format!("pny_backend_ops: reserved is {}, and must be 0", ops.reserved);
                    return Err(Failure::new(PNY_ERR_INVALID, cause));
                }
                if ops.register_memory.is_none() || ops.deregister_memory.is_none() {
                    return Err(Failure::null("register_memory or deregister_memory of ops"));
                }
                // SAFETY: the caller's contract.
                let name = unsafe { sized::string("ops->name", ops.name) }?;
                let name = name.map_or("ops", kept);
                release = ops.release.map(|function| Release { function, user: self.user });
                builder.backend(Ops { ops, user: self.user, name })
            }
            PNY_BACKEND_MLOCK => builder.backend(Mlock::new()),
            PNY_BACKEND_IO_URING => {
                const SLOTS: u32 = 1024;
                let ring = IoUring::new(SLOTS);
                builder.backend(ring.map_err(|error| Failure::new(PNY_ERR_REFUSED, error.to_string()))?)
            }
            PNY_BACKEND_VERBS => {
                let mut options = Verbs::options()
                    .on_demand(self.flags & PNY_ON_DEMAND != 0)
                    .relaxed_ordering(self.flags & PNY_RELAXED_ORDERING != 0);
                if let Some(device) = self.device {
                    options = options.device(device);
                }
                if self.port != 0 {
                    let port = u8::try_from(self.port).map_err(|_| invalid("port is above 255"))?;
                    options = options.port(port);
                }
                builder.backend(match object {
                    // SAFETY: the caller's contract.
                    Some(pd) => unsafe { options.borrow(pd) }.map_err(failed)?,
                    None => options.open().map_err(failed)?,
                })
            }
            PNY_BACKEND_UCX => builder.backend(match object {
                // SAFETY: the caller's contract.
                Some(context) => unsafe { Ucx::options().borrow(context) }.map_err(failed)?,
                None => Ucx::open().map_err(failed)?,
            }),
            PNY_BACKEND_LIBFABRIC => {
                let mut options = Libfabric::options();
                if let Some(provider) = self.device {
                    options = options.provider(provider);
                }
                builder.backend(match object {
                    // SAFETY: the caller's contract.
                    Some(domain) => unsafe { options.borrow(domain) }.map_err(failed)?,
                    None => options.open().map_err(failed)?,
                })
            }
            other => return Err(invalid(&format!("backend is {other}, which is no PNY_BACKEND_ constant"))),
        };
        Ok((builder, release))
    }
}

const VERBS_FLAGS: pny_flags = PNY_ON_DEMAND | PNY_RELAXED_ORDERING;
