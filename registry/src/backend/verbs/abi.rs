//! libibverbs, written out: `infiniband/verbs.h` of rdma-core 34 to 57, whose
//! layouts are ABI (`IBVERBS_1.1`). Nothing is linked.
#![allow(unsafe_code)]

use super::super::OpenError;
use super::super::library::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;

/// `struct ibv_device`, as far as it is read here.
#[repr(C)]
pub(super) struct Device {
    ops: [usize; 2],
    node_type: c_int,
    transport_type: c_int,
    pub(super) name: [c_char; 64],
    /// Of `/dev/infiniband`.
    pub(super) dev_name: [c_char; 64],
}

/// `struct ibv_context`.
#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    ops: [usize; 32],
    cmd_fd: c_int,
    async_fd: c_int,
    num_comp_vectors: c_int,
    mutex: libc::pthread_mutex_t,
    abi_compat: usize,
}

/// The end of `struct verbs_context`, which grows at its front: what is in front of
/// the context is found by its distance from the end.
#[repr(C)]
struct ContextTail {
    query_device_ex: Option<QueryDeviceEx>,
    between: [usize; 10],
    placeholder: u64,
    /// Of the whole structure, in the library that made it.
    sz: usize,
    context: Context,
}

type QueryDeviceEx = unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttrEx, usize) -> c_int;

/// `struct ibv_pd`.
#[repr(C)]
pub(super) struct Pd {
    pub(super) context: *mut Context,
    handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DeviceAttr {
    fw_ver: [c_char; 64],
    guids: [u64; 2],
    pub(super) max_mr_size: u64,
    page_size_cap: u64,
    /// vendor_id to max_cqe.
    before_mr: [u32; 10],
    pub(super) max_mr: c_int,
    /// max_pd to max_srq_sge.
    behind_mr: [u32; 21],
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// `struct ibv_device_attr_ex`, up to `device_cap_flags_ex`: the call takes the size.
#[repr(C)]
pub(super) struct DeviceAttrEx {
    orig: DeviceAttr,
    comp_mask: u32,
    pub(super) odp: OdpCaps,
    completion_timestamp_mask: u64,
    hca_core_clock: u64,
    device_cap_flags_ex: u64,
}

/// `struct ibv_odp_caps`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct OdpCaps {
    pub(super) general: u64,
    pub(super) rc: u32,
    uc: u32,
    ud: u32,
}

/// `struct ibv_port_attr`, longer than what the exported `ibv_query_port` fills.
#[repr(C)]
pub(super) struct PortAttr {
    pub(super) state: c_int,
    rest: [u32; 15],
}

/// IBV_PORT_ACTIVE.
pub(super) const PORT_ACTIVE: c_int = 4;
/// IBV_ACCESS_ON_DEMAND.
pub(super) const ACCESS_ON_DEMAND: c_uint = 1 << 6;
/// IBV_ACCESS_RELAXED_ORDERING: optional, dropped by kernels that do not know it.
pub(super) const ACCESS_RELAXED_ORDERING: c_uint = 1 << 20;
/// IBV_ODP_SUPPORT.
pub(super) const ODP_SUPPORT: u64 = 1;
/// `__VERBS_ABI_IS_EXTENDED`.
const ABI_IS_EXTENDED: usize = usize::MAX;

/// The library's functions.
#[derive(Clone, Copy)]
pub(super) struct Calls {
    pub(super) get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut Device,
    pub(super) free_device_list: unsafe extern "C" fn(*mut *mut Device),
    pub(super) open_device: unsafe extern "C" fn(*mut Device) -> *mut Context,
    pub(super) close_device: unsafe extern "C" fn(*mut Context) -> c_int,
    pub(super) query_device: unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int,
    pub(super) query_port: unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int,
    pub(super) alloc_pd: unsafe extern "C" fn(*mut Context) -> *mut Pd,
    pub(super) dealloc_pd: unsafe extern "C" fn(*mut Pd) -> c_int,
    pub(super) reg_mr: unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr,
    pub(super) dereg_mr: unsafe extern "C" fn(*mut Mr) -> c_int,
    /// rdma-core 28 and newer: the one that takes optional flags.
    pub(super) reg_mr_iova2:
        Option<unsafe extern "C" fn(*mut Pd, *mut c_void, usize, u64, c_uint) -> *mut Mr>,
    /// rdma-core 34 and newer.
    pub(super) reg_dmabuf_mr: Option<unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr>,
}

impl Calls {
    /// From `path`, or from `libibverbs.so.1`.
    pub(super) fn load(path: Option<&Path>) -> Result<Calls, OpenError> {
        let library = Library::open(path, "libibverbs.so.1", "libibverbs1 ibverbs-providers")?;
        let needs = "every libibverbs since 1.1 has it: is this another library?";
        // SAFETY: the signatures are verbs.h's; dlsym gives the newest version of each.
        let calls = unsafe {
            Calls {
                get_device_list: library.function("ibv_get_device_list", needs)?,
                free_device_list: library.function("ibv_free_device_list", needs)?,
                open_device: library.function("ibv_open_device", needs)?,
                close_device: library.function("ibv_close_device", needs)?,
                query_device: library.function("ibv_query_device", needs)?,
                query_port: library.function("ibv_query_port", needs)?,
                alloc_pd: library.function("ibv_alloc_pd", needs)?,
                dealloc_pd: library.function("ibv_dealloc_pd", needs)?,
                reg_mr: library.function("ibv_reg_mr", needs)?,
                dereg_mr: library.function("ibv_dereg_mr", needs)?,
                reg_mr_iova2: library.optional("ibv_reg_mr_iova2"),
                reg_dmabuf_mr: library.optional("ibv_reg_dmabuf_mr"),
            }
        };
        library.keep();
        Ok(calls)
    }
}

/// What `ibv_query_device_ex` does, an inline function of the header: on-demand
/// paging as the device has it, nothing where it cannot be asked.
///
/// # Safety
/// `context` was opened by libibverbs and not closed.
pub(super) unsafe fn on_demand_paging(context: *mut Context) -> Option<OdpCaps> {
    // SAFETY: an open context.
    if unsafe { (*context).abi_compat } != ABI_IS_EXTENDED {
        return None;
    }
    let distance = std::mem::offset_of!(ContextTail, context);
    // SAFETY: an extended context lies in a verbs_context, whose last fields these are.
    let tail = unsafe { &*context.cast::<u8>().sub(distance).cast::<ContextTail>() };
    if tail.sz < size_of::<ContextTail>() {
        return None;
    }
    let query = tail.query_device_ex?;
    // SAFETY: a structure of integers.
    let mut attributes: DeviceAttrEx = unsafe { std::mem::zeroed() };
    // SAFETY: an open context, no input, and a structure of the size that is said.
    let answer = unsafe { query(context, std::ptr::null(), &raw mut attributes, size_of::<DeviceAttrEx>()) };
    (answer == 0 && attributes.odp.general & ODP_SUPPORT != 0).then_some(attributes.odp)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::super::layouts::of_c;
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_those_of_the_header() {
        let ours = [
            ("offsetof(struct ibv_device, name)", offset_of!(Device, name)),
            ("offsetof(struct ibv_device, dev_name)", offset_of!(Device, dev_name)),
            ("sizeof(struct ibv_context)", size_of::<Context>()),
            ("offsetof(struct ibv_context, abi_compat)", offset_of!(Context, abi_compat)),
            (
                "sizeof(struct verbs_context) - offsetof(struct verbs_context, query_device_ex)",
                size_of::<ContextTail>(),
            ),
            (
                "sizeof(struct verbs_context) - offsetof(struct verbs_context, sz)",
                size_of::<ContextTail>() - offset_of!(ContextTail, sz),
            ),
            (
                "sizeof(struct verbs_context) - offsetof(struct verbs_context, context)",
                size_of::<ContextTail>() - offset_of!(ContextTail, context),
            ),
            ("sizeof(struct ibv_pd)", size_of::<Pd>()),
            ("sizeof(struct ibv_mr)", size_of::<Mr>()),
            ("offsetof(struct ibv_mr, lkey)", offset_of!(Mr, lkey)),
            ("offsetof(struct ibv_mr, rkey)", offset_of!(Mr, rkey)),
            ("sizeof(struct ibv_device_attr)", size_of::<DeviceAttr>()),
            ("offsetof(struct ibv_device_attr, max_mr_size)", offset_of!(DeviceAttr, max_mr_size)),
            ("offsetof(struct ibv_device_attr, max_mr)", offset_of!(DeviceAttr, max_mr)),
            ("offsetof(struct ibv_device_attr, phys_port_cnt)", offset_of!(DeviceAttr, phys_port_cnt)),
            ("offsetof(struct ibv_device_attr_ex, odp_caps)", offset_of!(DeviceAttrEx, odp)),
            ("offsetof(struct ibv_device_attr_ex, tso_caps)", size_of::<DeviceAttrEx>()),
            ("offsetof(struct ibv_odp_caps, per_transport_caps.rc_odp_caps)", offset_of!(OdpCaps, rc)),
            ("offsetof(struct ibv_port_attr, state)", offset_of!(PortAttr, state)),
            ("IBV_PORT_ACTIVE", PORT_ACTIVE as usize),
            ("IBV_ACCESS_ON_DEMAND", ACCESS_ON_DEMAND as usize),
            ("IBV_ACCESS_RELAXED_ORDERING", ACCESS_RELAXED_ORDERING as usize),
            ("IBV_ACCESS_LOCAL_WRITE", crate::Access::LOCAL_WRITE.bits() as usize),
            ("IBV_ACCESS_REMOTE_WRITE", crate::Access::REMOTE_WRITE.bits() as usize),
            ("IBV_ACCESS_REMOTE_READ", crate::Access::REMOTE_READ.bits() as usize),
            ("IBV_ACCESS_REMOTE_ATOMIC", crate::Access::REMOTE_ATOMIC.bits() as usize),
            ("IBV_ODP_SUPPORT", ODP_SUPPORT as usize),
        ];
        of_c("infiniband/verbs.h", &ours);
        let theirs = [("sizeof(struct ibv_port_attr) <= 64", 1)];
        of_c("infiniband/verbs.h", &theirs);
        assert_eq!(size_of::<PortAttr>(), 64);
    }
}
