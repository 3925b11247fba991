//! Device memory at a stand-in for libibverbs: what reaches `ibv_reg_dmabuf_mr`, and what is
//! given back.
#![allow(clippy::unwrap_used)]

use super::abi::{Calls, Context, Device, DeviceAttr, Mr, Pd, PortAttr};
use super::*;
use crate::backend::DmaBuf;
use parking_lot::Mutex;
use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

/// Where device memory begins for these tests.
const DEVICE: usize = 0x7_0000_0000;
const RANGE: PageRange = PageRange { start: DEVICE + 0x3000, end: DEVICE + 0x8000 };
const HOST: PageRange = PageRange { start: 0x10_0000, end: 0x10_2000 };

/// What the stand-in was asked: by dma-buf, the offset, the length, the address, whether the
/// descriptor was open, and the access; of host memory, the address, length and access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    DmaBuf { offset: u64, length: usize, iova: u64, is_open: bool, access: c_int },
    Host { address: usize, length: usize, access: c_int },
    Deregister { lkey: u32 },
}

/// One test at a time asks.
static ONE: Mutex<()> = Mutex::new(());
static ASKED: Mutex<Vec<Asked>> = Mutex::new(Vec::new());

fn region(lkey: u32) -> *mut Mr {
    // SAFETY: a structure of integers and pointers.
    let mut region: Mr = unsafe { std::mem::zeroed() };
    (region.lkey, region.rkey) = (lkey, lkey + 1);
    Box::into_raw(Box::new(region))
}

extern "C" fn reg_dmabuf_mr(
    _: *mut Pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut Mr {
    // SAFETY: asks for the descriptor's flags.
    let is_open = unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
    ASKED.lock().push(Asked::DmaBuf { offset, length, iova, is_open, access });
    region(0x100)
}

extern "C" fn takes_no_dma_buf(_: *mut Pd, _: u64, _: usize, _: u64, _: c_int, _: c_int) -> *mut Mr {
    // SAFETY: this thread's.
    unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
    std::ptr::null_mut()
}

extern "C" fn reg_mr(_: *mut Pd, address: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    ASKED.lock().push(Asked::Host { address: address as usize, length, access });
    region(0x200)
}

extern "C" fn dereg_mr(region: *mut Mr) -> c_int {
    // SAFETY: of `region`; given back once, or the test ends here.
    let region = unsafe { Box::from_raw(region) };
    ASKED.lock().push(Asked::Deregister { lkey: region.lkey });
    0
}

// What opening a device calls: nobody opens one here.
extern "C" fn get_device_list(_: *mut c_int) -> *mut *mut Device {
    std::ptr::null_mut()
}
extern "C" fn free_device_list(_: *mut *mut Device) {}
extern "C" fn open_device(_: *mut Device) -> *mut Context {
    std::ptr::null_mut()
}
extern "C" fn close_device(_: *mut Context) -> c_int {
    libc::EINVAL
}
extern "C" fn query_device(_: *mut Context, _: *mut DeviceAttr) -> c_int {
    libc::EINVAL
}
extern "C" fn query_port(_: *mut Context, _: u8, _: *mut PortAttr) -> c_int {
    libc::EINVAL
}
extern "C" fn alloc_pd(_: *mut Context) -> *mut Pd {
    std::ptr::null_mut()
}
extern "C" fn dealloc_pd(_: *mut Pd) -> c_int {
    libc::EINVAL
}

type RegDmaBuf = unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr;

/// A backend on the stand-in, and the end of a pipe that is closed once every exported
/// descriptor is.
fn backend(reg_dmabuf_mr: Option<RegDmaBuf>) -> (Verbs, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which are ours then.
    let [read, write] = unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        ends.map(|fd| OwnedFd::from_raw_fd(fd))
    };
    let calls = Calls {
        get_device_list,
        free_device_list,
        open_device,
        close_device,
        query_device,
        query_port,
        alloc_pd,
        dealloc_pd,
        reg_mr,
        dereg_mr,
        reg_mr_iova2: None,
        reg_dmabuf_mr,
    };
    let verbs = Verbs {
        calls,
        context: std::ptr::null_mut(),
        pd: NonNull::dangling(),
        owned: false,
        limits: Limits::NONE,
        paging: None,
        flags: 0,
        device_memory: Some(Box::new(Exports(Mutex::new(Some(write))))),
        name: "stand-in".to_owned(),
        birth: Birth::here(),
    };
    (verbs, read)
}

/// Exports its descriptor, once.
struct Exports(Mutex<Option<OwnedFd>>);

impl DeviceMemory for Exports {
    fn device_of(&self, range: PageRange) -> Result<Option<i32>, BackendError> {
        Ok((range.start >= DEVICE).then_some(0))
    }

    fn export(&self, range: PageRange) -> Result<DmaBuf, BackendError> {
        Ok(DmaBuf { fd: self.0.lock().take().unwrap(), offset: (range.start - DEVICE) as u64 })
    }
}

/// Whether no writing end of the pipe is left.
fn is_closed(read: &OwnedFd) -> bool {
    let mut asked = libc::pollfd { fd: read.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut asked, 1, 0) };
    asked.revents & libc::POLLHUP != 0
}

fn asked() -> Vec<Asked> {
    std::mem::take(&mut ASKED.lock())
}

#[test]
fn device_memory_is_registered_by_its_dma_buf_and_host_memory_by_its_address() {
    let _one = ONE.lock();
    let (verbs, read) = backend(Some(reg_dmabuf_mr));
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let bits = access.bits() as c_int;
    let unlocked = Unlocked::at_entry();
    let key = verbs.register(RANGE, access, &unlocked).unwrap();
    assert_eq!((key.lkey, key.rkey), (0x100, 0x101));
    // The offset within the buffer, and the device's address as that of remote accesses.
    let by_buffer = Asked::DmaBuf {
        offset: 0x3000,
        length: 0x5000,
        iova: RANGE.start as u64,
        is_open: true,
        access: bits,
    };
    assert_eq!(asked(), [by_buffer]);
    assert!(is_closed(&read), "the registration keeps the buffer, not its descriptor");
    let host = verbs.register(HOST, access, &unlocked).unwrap();
    assert_eq!(asked(), [Asked::Host { address: HOST.start, length: 0x2000, access: bits }]);
    verbs.deregister(key, RANGE, &unlocked).unwrap();
    verbs.deregister(host, HOST, &unlocked).unwrap();
    assert_eq!(asked(), [Asked::Deregister { lkey: 0x100 }, Asked::Deregister { lkey: 0x200 }]);
}

#[test]
fn a_driver_that_takes_no_dma_buf_is_named_and_leaves_no_descriptor() {
    let _one = ONE.lock();
    let (verbs, read) = backend(Some(takes_no_dma_buf));
    let error = verbs.register(RANGE, Access::LOCAL_WRITE, &Unlocked::at_entry()).unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    let told = error.to_string();
    assert!(told.contains("ibv_reg_dmabuf_mr(stand-in") && told.contains("takes no dma-buf"), "{told}");
    assert!(is_closed(&read));
}

/// Nothing is exported for it.
#[test]
fn a_library_without_dma_bufs_is_named() {
    let _one = ONE.lock();
    let (verbs, read) = backend(None);
    let error = verbs.register(RANGE, Access::LOCAL_WRITE, &Unlocked::at_entry()).unwrap_err();
    assert!(error.to_string().contains("rdma-core 34"), "{error}");
    assert!(!is_closed(&read));
}

/// Through a registry: a second lease is of the same region, and the region goes once.
#[test]
fn a_registry_registers_device_memory_once() {
    let _one = ONE.lock();
    let (verbs, _read) = backend(Some(reg_dmabuf_mr));
    let registry =
        crate::Registry::builder().backend(verbs).events(crate::Events::NotifyOnly).build().unwrap();
    let range = (RANGE.start as *const u8, RANGE.len());
    let first = registry.get(range, Access::LOCAL_WRITE).unwrap();
    let second = registry.get(range, Access::LOCAL_WRITE).unwrap();
    assert_eq!(first.key(), second.key());
    drop((first, second));
    drop(registry);
    let asked = asked();
    let count = |of: fn(&Asked) -> bool| asked.iter().filter(|asked| of(asked)).count();
    assert_eq!(count(|asked| matches!(asked, Asked::DmaBuf { .. })), 1, "{asked:?}");
    assert_eq!(count(|asked| matches!(asked, Asked::Deregister { .. })), 1, "{asked:?}");
}
