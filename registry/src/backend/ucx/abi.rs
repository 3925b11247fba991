//! UCP, written out: `ucp/api/ucp.h` of UCX 1.8 to 1.22. Structures carry a mask of
//! the fields that are set, so that newer libraries read no more than these.
#![allow(unsafe_code)]

use super::super::OpenError;
use super::super::library::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

/// What `ucp_init` is asked for: the interface of UCX 1.8.
pub(super) const API_MAJOR: c_uint = 1;
pub(super) const API_MINOR: c_uint = 8;

/// `ucp_context_h`, `ucp_mem_h`, `ucp_config_t *`.
pub(super) type Handle = *mut c_void;
/// `ucs_status_t`.
pub(super) type Status = c_int;

/// `ucp_params_t`.
#[repr(C)]
pub(super) struct Params {
    pub(super) field_mask: u64,
    pub(super) features: u64,
    request_size: usize,
    callbacks: [usize; 2],
    tag_sender_mask: u64,
    pub(super) mt_workers_shared: c_int,
    estimated: [usize; 2],
    name: *const c_char,
}

/// UCP_PARAM_FIELD_FEATURES, _MT_WORKERS_SHARED.
pub(super) const PARAM_FEATURES: u64 = 1;
pub(super) const PARAM_MT_WORKERS_SHARED: u64 = 1 << 5;
/// UCP_FEATURE_RMA.
pub(super) const FEATURE_RMA: u64 = 1 << 1;

/// `ucp_mem_map_params_t`.
#[repr(C)]
pub(super) struct MemMapParams {
    pub(super) field_mask: u64,
    pub(super) address: *mut c_void,
    pub(super) length: usize,
    flags: c_uint,
    pub(super) prot: c_uint,
    memory_type: c_int,
    /// `exported_memh_buffer` of newer headers.
    newer: usize,
}

/// UCP_MEM_MAP_PARAM_FIELD_ADDRESS, _LENGTH, _PROT.
pub(super) const MAP_ADDRESS: u64 = 1;
pub(super) const MAP_LENGTH: u64 = 1 << 1;
pub(super) const MAP_PROT: u64 = 1 << 3;
/// UCP_MEM_MAP_PROT_*.
pub(super) const PROT_LOCAL_READ: c_uint = 1;
pub(super) const PROT_LOCAL_WRITE: c_uint = 1 << 1;
pub(super) const PROT_REMOTE_READ: c_uint = 1 << 8;
pub(super) const PROT_REMOTE_WRITE: c_uint = 1 << 9;

/// `ucp_context_attr_t`, with room for what newer headers add.
#[repr(C)]
pub(super) struct ContextAttr {
    pub(super) field_mask: u64,
    request_size: usize,
    pub(super) thread_mode: c_int,
    newer: [u64; 32],
}

/// UCP_ATTR_FIELD_THREAD_MODE.
pub(super) const ATTR_THREAD_MODE: u64 = 1 << 1;
/// UCS_THREAD_MODE_MULTI.
pub(super) const THREAD_MODE_MULTI: c_int = 2;

/// UCS_OK and the errors that have an errno of their own.
pub(super) const OK: Status = 0;
const NO_RESOURCE: Status = -2;
const NO_MEMORY: Status = -4;
const INVALID_PARAM: Status = -5;
const INVALID_ADDR: Status = -7;
const NOT_IMPLEMENTED: Status = -8;
const NO_ELEM: Status = -12;
const NO_DEVICE: Status = -14;
const UNSUPPORTED: Status = -22;

/// The errno that says the same.
pub(super) fn errno_of(status: Status) -> i32 {
    match status {
        NO_RESOURCE => libc::EAGAIN,
        NO_MEMORY => libc::ENOMEM,
        INVALID_PARAM => libc::EINVAL,
        INVALID_ADDR => libc::EFAULT,
        NOT_IMPLEMENTED | UNSUPPORTED => libc::EOPNOTSUPP,
        NO_ELEM => libc::ENOENT,
        NO_DEVICE => libc::ENODEV,
        _ => libc::EIO,
    }
}

/// The library's functions.
#[derive(Clone, Copy)]
pub(super) struct Calls {
    pub(super) get_version: unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint),
    pub(super) config_read: unsafe extern "C" fn(*const c_char, *const c_char, *mut Handle) -> Status,
    pub(super) config_modify: unsafe extern "C" fn(Handle, *const c_char, *const c_char) -> Status,
    pub(super) config_release: unsafe extern "C" fn(Handle),
    pub(super) init_version:
        unsafe extern "C" fn(c_uint, c_uint, *const Params, Handle, *mut Handle) -> Status,
    pub(super) cleanup: unsafe extern "C" fn(Handle),
    pub(super) context_query: unsafe extern "C" fn(Handle, *mut ContextAttr) -> Status,
    pub(super) mem_map: unsafe extern "C" fn(Handle, *const MemMapParams, *mut Handle) -> Status,
    pub(super) mem_unmap: unsafe extern "C" fn(Handle, Handle) -> Status,
    pub(super) rkey_pack: unsafe extern "C" fn(Handle, Handle, *mut *mut c_void, *mut usize) -> Status,
    pub(super) rkey_buffer_release: unsafe extern "C" fn(*mut c_void),
    /// Of libucs, which libucp is linked with.
    pub(super) status_string: Option<unsafe extern "C" fn(Status) -> *const c_char>,
}

impl Calls {
    /// From `path`, or from `libucp.so.0`.
    pub(super) fn load(path: Option<&Path>) -> Result<Calls, OpenError> {
        let library = Library::open(path, "libucp.so.0", "libucx0")?;
        let needs = "UCX 1.8 or newer has it";
        // SAFETY: the signatures are ucp.h's.
        let calls = unsafe {
            Calls {
                get_version: library.function("ucp_get_version", needs)?,
                config_read: library.function("ucp_config_read", needs)?,
                config_modify: library.function("ucp_config_modify", needs)?,
                config_release: library.function("ucp_config_release", needs)?,
                init_version: library.function("ucp_init_version", needs)?,
                cleanup: library.function("ucp_cleanup", needs)?,
                context_query: library.function("ucp_context_query", needs)?,
                mem_map: library.function("ucp_mem_map", needs)?,
                mem_unmap: library.function("ucp_mem_unmap", needs)?,
                rkey_pack: library.function("ucp_rkey_pack", needs)?,
                rkey_buffer_release: library.function("ucp_rkey_buffer_release", needs)?,
                status_string: library.optional("ucs_status_string"),
            }
        };
        library.keep();
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: fills the three numbers.
        unsafe { (calls.get_version)(&raw mut major, &raw mut minor, &raw mut release) };
        if major != API_MAJOR || minor < API_MINOR {
            return Err(OpenError::Version {
                library: "UCX",
                found: format!("{major}.{minor}.{release}"),
                needed: "1.8 or newer, below 2",
            });
        }
        Ok(calls)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::layouts::of_c;
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_those_of_the_header() {
        of_c(
            "ucp/api/ucp.h",
            &[
                ("offsetof(ucp_params_t, features)", offset_of!(Params, features)),
                ("offsetof(ucp_params_t, mt_workers_shared)", offset_of!(Params, mt_workers_shared)),
                ("offsetof(ucp_params_t, name)", offset_of!(Params, name)),
                ("UCP_PARAM_FIELD_FEATURES", PARAM_FEATURES as usize),
                ("UCP_PARAM_FIELD_MT_WORKERS_SHARED", PARAM_MT_WORKERS_SHARED as usize),
                ("UCP_FEATURE_RMA", FEATURE_RMA as usize),
                ("offsetof(ucp_mem_map_params_t, address)", offset_of!(MemMapParams, address)),
                ("offsetof(ucp_mem_map_params_t, length)", offset_of!(MemMapParams, length)),
                ("offsetof(ucp_mem_map_params_t, prot)", offset_of!(MemMapParams, prot)),
                ("offsetof(ucp_mem_map_params_t, memory_type)", offset_of!(MemMapParams, memory_type)),
                (
                    "UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_PROT",
                    (MAP_ADDRESS | MAP_LENGTH | MAP_PROT) as usize,
                ),
                ("UCP_MEM_MAP_PROT_LOCAL_READ", PROT_LOCAL_READ as usize),
                ("UCP_MEM_MAP_PROT_LOCAL_WRITE", PROT_LOCAL_WRITE as usize),
                ("UCP_MEM_MAP_PROT_REMOTE_READ", PROT_REMOTE_READ as usize),
                ("UCP_MEM_MAP_PROT_REMOTE_WRITE", PROT_REMOTE_WRITE as usize),
                ("offsetof(ucp_context_attr_t, thread_mode)", offset_of!(ContextAttr, thread_mode)),
                ("UCP_ATTR_FIELD_THREAD_MODE", ATTR_THREAD_MODE as usize),
                ("UCS_THREAD_MODE_MULTI", THREAD_MODE_MULTI as usize),
                ("-UCS_ERR_NO_ELEM", -NO_ELEM as usize),
                ("-UCS_ERR_UNSUPPORTED", -UNSUPPORTED as usize),
                ("-UCS_ERR_INVALID_ADDR", -INVALID_ADDR as usize),
                ("-UCS_ERR_NO_DEVICE", -NO_DEVICE as usize),
                ("sizeof(ucp_context_attr_t) <= 280", 1),
            ],
        );
        assert_eq!(size_of::<ContextAttr>(), 280);
    }
}
