//! UCX: `ucp_mem_map` on a context, whatever transports it has chosen.
//!
//! A key is the `ucp_mem_h` as the lkey, and the packed remote key, where it lies and
//! how long it is, as rkey and handle. The packed key is made once, with the
//! registration, and released with it.
//!
//! UCX has a registration cache of its own under this call, which keeps pages pinned
//! that ours has given back, and hands out stale ones where its hooks miss a change.
//! An own context is opened without it; a borrowed one should be
//! (`UCX_RCACHE_ENABLE=n`, `UCX_IB_REG_METHODS=direct`).
#![allow(unsafe_code)]

mod abi;

use self::abi::{Calls, ContextAttr, Handle, MemMapParams, Params, Status};
use super::library::Birth;
use super::{Backend, BackendError, Limits, MemoryKey, OpenError, Unlocked};
use crate::access::Access;
use crate::range::PageRange;
use parking_lot::Mutex;
use std::ffi::{CStr, CString, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};

/// How a [`Ucx`] is opened.
#[derive(Default)]
pub struct UcxOptions {
    library: Option<PathBuf>,
    settings: Vec<(String, String)>,
}

impl UcxOptions {
    /// The library's file. Default: `libucp.so.0`, as the loader finds it.
    pub fn library(mut self, path: impl AsRef<Path>) -> Self {
        self.library = Some(path.as_ref().to_path_buf());
        self
    }

    /// One of UCX's variables, without `UCX_`: `("TLS", "rc_v,self")`. It takes the
    /// place of the environment's.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Makes a context, which ends with the backend.
    pub fn open(self) -> Result<Ucx, OpenError> {
        let calls = Calls::load(self.library.as_deref())?;
        let mut config: Handle = null_mut();
        // SAFETY: no prefix, no file; gives a configuration to release.
        check(&calls, "ucp_config_read(NULL, NULL)", unsafe {
            (calls.config_read)(std::ptr::null(), std::ptr::null(), &raw mut config)
        })?;
        let context = configure(&calls, config, &self.settings).and_then(|()| init(&calls, config));
        // SAFETY: the configuration from above, once; the context has its own copy.
        unsafe { (calls.config_release)(config) };
        let context = context?;
        let threads = thread_mode(&calls, context);
        Ok(Ucx {
            calls,
            context,
            owned: true,
            // A library without thread support, or a failed query, which says nothing.
            serial: (threads != Ok(abi::THREAD_MODE_MULTI)).then(|| Mutex::new(())),
            birth: Birth::here(),
        })
    }

    /// Registers in a context (`ucp_context_h`) that the caller has made.
    ///
    /// Refused where the context was not made for several threads
    /// (`mt_workers_shared`): the registry deregisters from a thread of its own.
    ///
    /// # Safety
    /// `context` was made by the same libucp and is not cleaned up before the backend
    /// is dropped, which is when the last registry and lease on it are gone. It stays the
    /// caller's.
    pub unsafe fn borrow(self, context: NonNull<c_void>) -> Result<Ucx, OpenError> {
        let calls = Calls::load(self.library.as_deref())?;
        if thread_mode(&calls, context)? != abi::THREAD_MODE_MULTI {
            return Err(OpenError::Unsupported {
                who: "this UCX context".to_owned(),
                what: "several threads",
                remedy: "make it with mt_workers_shared set, in a UCX that was built with --enable-mt",
            });
        }
        Ok(Ucx { calls, context, owned: false, serial: None, birth: Birth::here() })
    }
}

/// Registers with a UCX context. In a forked child nothing is cleaned up: the context
/// is the parent's.
pub struct Ucx {
    calls: Calls,
    context: NonNull<c_void>,
    /// Whether the context ends with this.
    owned: bool,
    /// One call at a time, where the library was built for one thread.
    serial: Option<Mutex<()>>,
    birth: Birth,
}

// SAFETY: the context is for several threads, or `serial` keeps its calls apart; the
// fields are not changed after construction.
unsafe impl Send for Ucx {}
// SAFETY: as above.
unsafe impl Sync for Ucx {}

impl Ucx {
    /// A context of its own, with the transports that UCX chooses.
    pub fn open() -> Result<Ucx, OpenError> {
        Ucx::options().open()
    }

    /// Options, nothing set.
    pub fn options() -> UcxOptions {
        UcxOptions::default()
    }

    /// The context (`ucp_context_h`), for workers that use the keys. It is valid for as
    /// long as the backend lives, and for one thread at a time where
    /// [`borrow`](UcxOptions::borrow) would refuse it.
    pub fn context(&self) -> NonNull<c_void> {
        self.context
    }

    /// The remote key, packed: what a peer gives to `ucp_ep_rkey_unpack`.
    ///
    /// # Safety
    /// `key` is this backend's, and the lease that it was read from is held for as
    /// long as the bytes are used.
    pub unsafe fn packed_rkey(&self, key: MemoryKey) -> &[u8] {
        // SAFETY: the buffer of `ucp_rkey_pack`, which stands until the deregistration.
        unsafe { std::slice::from_raw_parts(key.rkey as *const u8, key.handle as usize) }
    }

    fn failed(&self, call: String, status: Status, errno: i32) -> BackendError {
        // UCX reports an input/output error for most of what the kernel refuses; its
        // errno is then still the kernel's.
        let kernel = matches!(errno, libc::EFAULT | libc::ENOMEM | libc::EINVAL | libc::EACCES | libc::EPERM);
        let errno = if kernel { errno } else { abi::errno_of(status) };
        BackendError::new(call, errno).with_hint(format_args!("UCX says {}", words(&self.calls, status)))
    }
}

impl Backend for Ucx {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn limits(&self) -> Limits {
        Limits::NONE
    }

    /// Transports over shared memory and tcp pin nothing, but which are chosen UCX
    /// does not tell.
    fn locks_memory(&self) -> bool {
        true
    }

    fn register(&self, range: PageRange, access: Access, _: &Unlocked) -> Result<MemoryKey, BackendError> {
        let _one_at_a_time = self.serial.as_ref().map(Mutex::lock);
        // SAFETY: integers and pointers, for all of which zero is a value.
        let mut params: MemMapParams = unsafe { std::mem::zeroed() };
        params.field_mask = abi::MAP_ADDRESS | abi::MAP_LENGTH | abi::MAP_PROT;
        (params.address, params.length) = (range.start as *mut c_void, range.len());
        params.prot = protection(access);
        let mut memory: Handle = null_mut();
        clear_errno();
        // SAFETY: an open context; mapping what is there does not touch the contents, and
        // the kernel checks the addresses.
        let status =
            unsafe { (self.calls.mem_map)(self.context.as_ptr(), &raw const params, &raw mut memory) };
        if status != abi::OK {
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            return Err(self.failed(format!("ucp_mem_map({range})"), status, errno));
        }
        let (mut packed, mut length) = (null_mut(), 0);
        // SAFETY: a region that was just mapped; gives a buffer to release.
        let status = unsafe {
            (self.calls.rkey_pack)(self.context.as_ptr(), memory, &raw mut packed, &raw mut length)
        };
        if status != abi::OK {
            // SAFETY: the region from above, once.
            unsafe { (self.calls.mem_unmap)(self.context.as_ptr(), memory) };
            return Err(self.failed(format!("ucp_rkey_pack({range})"), status, 0));
        }
        Ok(MemoryKey { lkey: memory as u64, rkey: packed as u64, handle: length as u64 })
    }

    fn deregister(&self, key: MemoryKey, range: PageRange, _: &Unlocked) -> Result<(), BackendError> {
        let _one_at_a_time = self.serial.as_ref().map(Mutex::lock);
        // SAFETY: the registry gives each key back once; both came from `register`.
        let status = unsafe {
            (self.calls.rkey_buffer_release)(key.rkey as *mut c_void);
            (self.calls.mem_unmap)(self.context.as_ptr(), key.lkey as Handle)
        };
        if status == abi::OK {
            return Ok(());
        }
        Err(self.failed(format!("ucp_mem_unmap({range})"), status, 0))
    }
}

impl Drop for Ucx {
    fn drop(&mut self) {
        if self.owned && self.birth.is_here() {
            // SAFETY: made by `open`, once; the registries on it are gone.
            unsafe { (self.calls.cleanup)(self.context.as_ptr()) };
        }
    }
}

fn protection(access: Access) -> c_uint {
    let mut prot = abi::PROT_LOCAL_READ;
    if access.writes() {
        prot |= abi::PROT_LOCAL_WRITE;
    }
    if access.intersects(Access::REMOTE_READ | Access::REMOTE_ATOMIC) {
        prot |= abi::PROT_REMOTE_READ;
    }
    if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
        prot |= abi::PROT_REMOTE_WRITE;
    }
    prot
}

/// Ours first, so that the caller's can overrule them.
fn configure(calls: &Calls, config: Handle, settings: &[(String, String)]) -> Result<(), OpenError> {
    // UCX's own caches, each under the names that it has had: of contexts (1.13 and
    // newer), and of InfiniBand devices (to 1.14), where some versions take the name
    // without its prefix. Unknown names are refused, or kept and not used.
    let caches = [("RCACHE_ENABLE", "n"), ("IB_REG_METHODS", "direct"), ("REG_METHODS", "direct")];
    let mut off = false;
    for (name, value) in caches {
        off |= modify(calls, config, name, value)? == abi::OK;
    }
    if !off {
        return Err(OpenError::Unsupported {
            who: "this UCX".to_owned(),
            what: "contexts without a registration cache of their own",
            remedy: "set UCX_RCACHE_ENABLE=n and UCX_IB_REG_METHODS=direct, and borrow a context",
        });
    }
    for (name, value) in settings {
        let status = modify(calls, config, name, value)?;
        check(calls, &format!("ucp_config_modify({name}, {value})"), status)?;
    }
    Ok(())
}

fn modify(calls: &Calls, config: Handle, name: &str, value: &str) -> Result<Status, OpenError> {
    let text = |text: &str| {
        CString::new(text).map_err(|_| {
            BackendError::new(format!("ucp_config_modify({name:?}, {value:?})"), libc::EINVAL)
                .with_hint("a text with a NUL in it")
        })
    };
    let (name_c, value_c) = (text(name)?, text(value)?);
    // SAFETY: a configuration that was read and not released, and two texts.
    Ok(unsafe { (calls.config_modify)(config, name_c.as_ptr(), value_c.as_ptr()) })
}

fn init(calls: &Calls, config: Handle) -> Result<NonNull<c_void>, OpenError> {
    // SAFETY: integers and pointers, for all of which zero is a value.
    let mut params: Params = unsafe { std::mem::zeroed() };
    params.field_mask = abi::PARAM_FEATURES | abi::PARAM_MT_WORKERS_SHARED;
    params.features = abi::FEATURE_RMA;
    params.mt_workers_shared = 1;
    let mut context: Handle = null_mut();
    // SAFETY: parameters whose mask names what is set, and a configuration.
    let status = unsafe {
        (calls.init_version)(abi::API_MAJOR, abi::API_MINOR, &raw const params, config, &raw mut context)
    };
    check(calls, "ucp_init", status)?;
    NonNull::new(context).ok_or_else(|| BackendError::new("ucp_init", 0).into())
}

fn thread_mode(calls: &Calls, context: NonNull<c_void>) -> Result<i32, BackendError> {
    // SAFETY: integers.
    let mut attributes: ContextAttr = unsafe { std::mem::zeroed() };
    attributes.field_mask = abi::ATTR_THREAD_MODE;
    // SAFETY: an open context, and a mask that names a field of the structure.
    let status = unsafe { (calls.context_query)(context.as_ptr(), &raw mut attributes) };
    check(calls, "ucp_context_query(thread mode)", status)?;
    Ok(attributes.thread_mode)
}

fn check(calls: &Calls, call: &str, status: Status) -> Result<(), BackendError> {
    if status == abi::OK {
        return Ok(());
    }
    Err(BackendError::new(call, abi::errno_of(status))
        .with_hint(format_args!("UCX says {}; UCX_LOG_LEVEL=info tells more", words(calls, status))))
}

fn words(calls: &Calls, status: Status) -> String {
    // SAFETY: gives a static text for every number.
    let text = calls.status_string.map(|name| unsafe { name(status) }).filter(|text| !text.is_null());
    match text {
        // SAFETY: a static text.
        Some(text) => format!("{:?}", unsafe { CStr::from_ptr(text) }.to_string_lossy()),
        None => format!("status {status}"),
    }
}

fn clear_errno() {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = 0 };
}
