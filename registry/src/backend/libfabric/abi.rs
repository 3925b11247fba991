//! libfabric, written out: `rdma/fabric.h` and `rdma/fi_domain.h` of 1.9 to 2.6 at
//! interface version 1.9, whose structures only grew at their ends since. Most of its
//! functions are inline ones that call through the objects' tables.
#![allow(unsafe_code)]

use super::super::library::Library;
use super::super::{BackendError, OpenError};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;

/// `FI_VERSION(1, 9)`: registrations name their kind of memory since.
pub(super) const API_VERSION: u32 = 1 << 16 | 9;

/// `struct fid`.
#[repr(C)]
pub(super) struct Fid {
    class: usize,
    context: *mut c_void,
    ops: *const FidOps,
}

/// `struct fi_ops`, as far as it is called here.
#[repr(C)]
struct FidOps {
    size: usize,
    close: unsafe extern "C" fn(*mut Fid) -> c_int,
}

/// Closes any object.
///
/// # Safety
/// `fid` is an open object of libfabric's, which nothing uses any more.
pub(super) unsafe fn close(fid: *mut Fid) -> c_int {
    // SAFETY: an open object has its table.
    unsafe { ((*(*fid).ops).close)(fid) }
}

/// `struct fi_info`.
#[repr(C)]
pub(super) struct Info {
    pub(super) next: *mut Info,
    pub(super) caps: u64,
    pub(super) mode: u64,
    addr_format: u32,
    addrlen: [usize; 2],
    addr: [*mut c_void; 2],
    handle: *mut Fid,
    attr: [*mut c_void; 3],
    pub(super) domain_attr: *mut DomainAttr,
    pub(super) fabric_attr: *mut FabricAttr,
}

/// `struct fi_domain_attr`.
#[repr(C)]
pub(super) struct DomainAttr {
    domain: *mut Domain,
    pub(super) name: *mut c_char,
    /// threading, control_progress, data_progress, resource_mgmt, av_type
    enums: [c_int; 5],
    pub(super) mr_mode: c_int,
    pub(super) mr_key_size: usize,
    /// cq_data_size to cntr_cnt
    counts: [usize; 10],
    mr_iov_limit: usize,
    caps: u64,
    mode: u64,
    auth_key: *mut u8,
    auth_key_size: usize,
    max_err_data: usize,
    pub(super) mr_cnt: usize,
}

/// `struct fi_fabric_attr`.
#[repr(C)]
pub(super) struct FabricAttr {
    fabric: *mut Fabric,
    name: *mut c_char,
    pub(super) prov_name: *mut c_char,
}

/// `struct fid_fabric`.
#[repr(C)]
pub(super) struct Fabric {
    pub(super) fid: Fid,
    pub(super) ops: *const FabricOps,
}

/// `struct fi_ops_fabric`, as far as it is called here.
#[repr(C)]
pub(super) struct FabricOps {
    size: usize,
    pub(super) domain: unsafe extern "C" fn(*mut Fabric, *mut Info, *mut *mut Domain, *mut c_void) -> c_int,
}

/// `struct fid_domain`.
#[repr(C)]
pub(super) struct Domain {
    pub(super) fid: Fid,
    ops: *const c_void,
    pub(super) mr: *const MrOps,
}

/// `struct fi_ops_mr`.
#[repr(C)]
pub(super) struct MrOps {
    size: usize,
    reg: usize,
    regv: usize,
    pub(super) regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut MrFid) -> c_int,
}

/// `struct fid_mr`.
#[repr(C)]
pub(super) struct MrFid {
    pub(super) fid: Fid,
    pub(super) mem_desc: *mut c_void,
    pub(super) key: u64,
}

/// `struct fi_mr_attr`.
#[repr(C)]
pub(super) struct MrAttr {
    pub(super) mr_iov: *const libc::iovec,
    pub(super) iov_count: usize,
    pub(super) access: u64,
    pub(super) offset: u64,
    pub(super) requested_key: u64,
    pub(super) context: *mut c_void,
    pub(super) auth_key_size: usize,
    pub(super) auth_key: *mut u8,
    pub(super) iface: c_int,
    pub(super) device: u64,
    /// Fields of newer headers, which a library reads only at a newer interface.
    pub(super) newer: [u64; 8],
}

pub(super) const FI_MSG: u64 = 1 << 1;
pub(super) const FI_RMA: u64 = 1 << 2;
pub(super) const FI_READ: u64 = 1 << 8;
pub(super) const FI_WRITE: u64 = 1 << 9;
pub(super) const FI_RECV: u64 = 1 << 10;
pub(super) const FI_SEND: u64 = 1 << 11;
pub(super) const FI_REMOTE_READ: u64 = 1 << 12;
pub(super) const FI_REMOTE_WRITE: u64 = 1 << 13;
pub(super) const FI_HMEM: u64 = 1 << 47;
pub(super) const MR_LOCAL: c_int = 1 << 2;
pub(super) const MR_VIRT_ADDR: c_int = 1 << 4;
pub(super) const MR_ALLOCATED: c_int = 1 << 5;
pub(super) const MR_PROV_KEY: c_int = 1 << 6;
pub(super) const MR_HMEM: c_int = 1 << 10;
/// FI_HMEM_SYSTEM, FI_HMEM_CUDA.
pub(super) const HMEM_SYSTEM: c_int = 0;
pub(super) const HMEM_CUDA: c_int = 1;
/// `OFI_MR_NOCACHE`, which the providers with a cache of their own (verbs, efa) take
/// although no public header has it (`include/ofi_mr.h`): this registration is not
/// looked up there, nor kept.
pub(super) const MR_NOCACHE: u64 = 1 << 60;
/// Nothing fits the hints.
pub(super) const ENODATA: c_int = libc::ENODATA;
/// The key is taken: one of libfabric's own numbers, from 256 on.
pub(super) const ENOKEY: c_int = 266;

/// The library's functions.
#[derive(Clone, Copy)]
pub(super) struct Calls {
    pub(super) version: unsafe extern "C" fn() -> u32,
    pub(super) getinfo:
        unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int,
    pub(super) freeinfo: unsafe extern "C" fn(*mut Info),
    /// With null: an empty one (`fi_allocinfo`).
    pub(super) dupinfo: unsafe extern "C" fn(*const Info) -> *mut Info,
    pub(super) fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut Fabric, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Calls {
    /// From `path`, or from `libfabric.so.1`.
    pub(super) fn load(path: Option<&Path>) -> Result<Calls, OpenError> {
        let library = Library::open(path, "libfabric.so.1", "libfabric1")?;
        let needs = "libfabric 1.9 or newer has it";
        // SAFETY: the signatures are fabric.h's; dlsym gives the newest version of each.
        let calls = unsafe {
            Calls {
                version: library.function("fi_version", needs)?,
                getinfo: library.function("fi_getinfo", needs)?,
                freeinfo: library.function("fi_freeinfo", needs)?,
                dupinfo: library.function("fi_dupinfo", needs)?,
                fabric: library.function("fi_fabric", needs)?,
                strerror: library.function("fi_strerror", needs)?,
            }
        };
        library.keep();
        // SAFETY: no preconditions.
        let version = unsafe { (calls.version)() };
        if version < API_VERSION {
            let (major, minor) = (version >> 16, version & 0xffff);
            return Err(OpenError::Version {
                library: "libfabric",
                found: format!("{major}.{minor}"),
                needed: "1.9 or newer",
            });
        }
        Ok(calls)
    }
}

impl Calls {
    /// A call that answered with an error, which is negative.
    pub(super) fn failed(&self, call: String, answer: c_int) -> BackendError {
        let errno = answer.saturating_neg();
        let error = BackendError::new(call, errno);
        if errno < 256 {
            return error;
        }
        // SAFETY: gives a static text for every number.
        let text = unsafe { CStr::from_ptr((self.strerror)(errno)) };
        error.with_hint(format_args!("libfabric says {:?}", text.to_string_lossy()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::layouts::of_c;
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_those_of_the_header() {
        let headers = "rdma/fi_domain.h";
        of_c(
            headers,
            &[
                ("sizeof(struct fid)", size_of::<Fid>()),
                ("offsetof(struct fi_ops, close)", offset_of!(FidOps, close)),
                ("offsetof(struct fi_info, caps)", offset_of!(Info, caps)),
                ("offsetof(struct fi_info, domain_attr)", offset_of!(Info, domain_attr)),
                ("offsetof(struct fi_info, fabric_attr)", offset_of!(Info, fabric_attr)),
                ("offsetof(struct fi_domain_attr, name)", offset_of!(DomainAttr, name)),
                ("offsetof(struct fi_domain_attr, mr_mode)", offset_of!(DomainAttr, mr_mode)),
                ("offsetof(struct fi_domain_attr, mr_key_size)", offset_of!(DomainAttr, mr_key_size)),
                ("offsetof(struct fi_domain_attr, mr_iov_limit)", offset_of!(DomainAttr, mr_iov_limit)),
                ("offsetof(struct fi_domain_attr, mr_cnt)", offset_of!(DomainAttr, mr_cnt)),
                ("offsetof(struct fi_fabric_attr, prov_name)", offset_of!(FabricAttr, prov_name)),
                ("offsetof(struct fid_fabric, ops)", offset_of!(Fabric, ops)),
                ("offsetof(struct fi_ops_fabric, domain)", offset_of!(FabricOps, domain)),
                ("offsetof(struct fid_domain, mr)", offset_of!(Domain, mr)),
                ("offsetof(struct fi_ops_mr, regattr)", offset_of!(MrOps, regattr)),
                ("offsetof(struct fid_mr, mem_desc)", offset_of!(MrFid, mem_desc)),
                ("offsetof(struct fid_mr, key)", offset_of!(MrFid, key)),
                ("offsetof(struct fi_mr_attr, requested_key)", offset_of!(MrAttr, requested_key)),
                ("offsetof(struct fi_mr_attr, iface)", offset_of!(MrAttr, iface)),
                ("offsetof(struct fi_mr_attr, device)", offset_of!(MrAttr, device)),
                ("FI_MSG | FI_RMA", (FI_MSG | FI_RMA) as usize),
                ("FI_READ | FI_WRITE", (FI_READ | FI_WRITE) as usize),
                ("FI_RECV", FI_RECV as usize),
                ("FI_SEND", FI_SEND as usize),
                ("FI_REMOTE_READ", FI_REMOTE_READ as usize),
                ("FI_REMOTE_WRITE", FI_REMOTE_WRITE as usize),
                ("FI_HMEM", FI_HMEM as usize),
                ("FI_MR_LOCAL | FI_MR_VIRT_ADDR", (MR_LOCAL | MR_VIRT_ADDR) as usize),
                ("FI_MR_ALLOCATED | FI_MR_PROV_KEY", (MR_ALLOCATED | MR_PROV_KEY) as usize),
                ("FI_MR_HMEM", MR_HMEM as usize),
                ("FI_HMEM_CUDA", HMEM_CUDA as usize),
            ],
        );
        of_c("rdma/fi_errno.h", &[("FI_ENODATA", ENODATA as usize), ("FI_ENOKEY", ENOKEY as usize)]);
    }
}
