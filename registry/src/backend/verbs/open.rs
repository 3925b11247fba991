//! Finding a device that works, and a protection domain on it.
#![allow(unsafe_code)]

use super::super::{BackendError, OpenError};
use super::abi::{Calls, Context, Device, DeviceAttr, PORT_ACTIVE, Pd, PortAttr};
use std::ffi::CStr;
use std::io;
use std::path::Path;
use std::ptr::NonNull;

/// An open device with a protection domain.
pub(super) struct Opened {
    pub(super) context: *mut Context,
    pub(super) pd: NonNull<Pd>,
    pub(super) attributes: DeviceAttr,
}

/// The device of that name, or the first one that has an active port and that the
/// process may open.
pub(super) fn open(calls: &Calls, name: Option<&str>, port: Option<u8>) -> Result<Opened, OpenError> {
    let mut count = 0;
    // SAFETY: fills the count and returns a list that ends with null, or null.
    let list = unsafe { (calls.get_device_list)(&raw mut count) };
    if list.is_null() {
        let errno = last_errno();
        return Err(none_there(Some(errno)));
    }
    // SAFETY: the list has `count` devices, and stands until it is freed below, after
    // the last use of `devices`.
    let devices = unsafe { std::slice::from_raw_parts(list, count.max(0) as usize) };
    let answer = choose(calls, devices, name, port);
    // SAFETY: the list from above, once; an open device keeps its own reference.
    unsafe { (calls.free_device_list)(list) };
    answer
}

fn choose(
    calls: &Calls,
    devices: &[*mut Device],
    name: Option<&str>,
    port: Option<u8>,
) -> Result<Opened, OpenError> {
    // SAFETY: devices of the list, whose names are ended by 0.
    let name_of = |device: &*mut Device| unsafe { text(&(**device).name) };
    if devices.is_empty() {
        return Err(none_there(None));
    }
    if let Some(name) = name {
        return match devices.iter().find(|device| name_of(device) == name) {
            Some(&device) => open_one(calls, device, port),
            None => Err(OpenError::NoSuchDevice {
                name: name.to_owned(),
                there: devices.iter().map(name_of).collect(),
            }),
        };
    }
    let mut refusals = Vec::new();
    for &device in devices {
        match open_one(calls, device, port) {
            Ok(opened) => return Ok(opened),
            Err(refusal) => refusals.push(refusal),
        }
    }
    match refusals.len() {
        1 => Err(refusals.remove(0)),
        _ => Err(OpenError::NoneUsable(refusals)),
    }
}

fn open_one(calls: &Calls, device: *mut Device, port: Option<u8>) -> Result<Opened, OpenError> {
    // SAFETY: a device of the list.
    let (name, file) = unsafe { (text(&(*device).name), text(&(*device).dev_name)) };
    // SAFETY: as above.
    let context = unsafe { (calls.open_device)(device) };
    if context.is_null() {
        return Err(refusal(name, format!("/dev/infiniband/{file}"), last_errno()));
    }
    let close = |error| {
        // SAFETY: opened above, and nothing was made on it.
        unsafe { (calls.close_device)(context) };
        error
    };
    // SAFETY: an open context.
    let attributes = unsafe { attributes(calls, context, &name) }.map_err(|error| close(error.into()))?;
    check_ports(calls, context, &name, attributes.phys_port_cnt, port).map_err(close)?;
    // SAFETY: an open context.
    let pd = unsafe { (calls.alloc_pd)(context) };
    let Some(pd) = NonNull::new(pd) else {
        let error = BackendError::new(format!("ibv_alloc_pd({name})"), last_errno());
        return Err(close(error.into()));
    };
    Ok(Opened { context, pd, attributes })
}

/// Why `ibv_open_device` failed. Its errno is that of the last of several files that it
/// tries (ENOENT for a file without permission): the device's own file tells.
fn refusal(device: String, path: String, errno: i32) -> OpenError {
    let opened = std::fs::File::options().read(true).write(true).open(&path);
    match opened.err().and_then(|error| error.raw_os_error()) {
        Some(errno @ (libc::EACCES | libc::EPERM)) => OpenError::Denied { device, path, errno },
        _ => BackendError::new(format!("ibv_open_device({device})"), errno)
            .with_hint("is the provider's driver for libibverbs installed (ibverbs-providers)?")
            .into(),
    }
}

/// # Safety
/// `context` is open.
pub(super) unsafe fn attributes(
    calls: &Calls,
    context: *mut Context,
    name: &str,
) -> Result<DeviceAttr, BackendError> {
    // SAFETY: a structure of integers.
    let mut attributes: DeviceAttr = unsafe { std::mem::zeroed() };
    // SAFETY: an open context, and a structure of the header's size.
    match unsafe { (calls.query_device)(context, &raw mut attributes) } {
        0 => Ok(attributes),
        errno => Err(BackendError::new(format!("ibv_query_device({name})"), errno)),
    }
}

/// That the port asked for, or any, is active.
fn check_ports(
    calls: &Calls,
    context: *mut Context,
    name: &str,
    ports: u8,
    only: Option<u8>,
) -> Result<(), OpenError> {
    if let Some(port) = only
        && !(1..=ports).contains(&port)
    {
        return Err(OpenError::NoSuchPort { device: name.to_owned(), port, ports });
    }
    let mut states = Vec::new();
    for port in only.map_or(1..=ports, |port| port..=port) {
        // SAFETY: a structure of integers.
        let mut attributes: PortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: an open context, and more room than any version fills.
        match unsafe { (calls.query_port)(context, port, &raw mut attributes) } {
            0 if attributes.state == PORT_ACTIVE => return Ok(()),
            0 => states.push(format!("port {port} is {}", state(attributes.state))),
            errno => states.push(BackendError::new(format!("ibv_query_port({port})"), errno).to_string()),
        }
    }
    Err(OpenError::PortDown { device: name.to_owned(), states: states.join(", ") })
}

/// `enum ibv_port_state`.
fn state(state: i32) -> &'static str {
    match state {
        1 => "DOWN",
        2 => "INIT: no subnet manager has configured it",
        3 => "ARMED",
        5 => "ACTIVE_DEFER",
        _ => "in no known state",
    }
}

/// Why libibverbs sees no device: what the kernel has tells.
fn none_there(errno: Option<i32>) -> OpenError {
    let entries = |folder: &str| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    };
    let kernel = entries("/sys/class/infiniband");
    let why = if !kernel.is_empty() {
        format!(
            "the kernel has {}, but libibverbs opens none; pass /dev/infiniband into the container, load ib_uverbs, and install the provider's driver (ibverbs-providers)",
            kernel.join(", ")
        )
    } else if Path::new("/sys/class/infiniband").exists() {
        "the kernel's RDMA core is loaded but has no device; load the NIC's driver, or `rdma link add rxe0 type rxe netdev eth0`".to_owned()
    } else {
        "the kernel's RDMA core is not loaded (no /sys/class/infiniband); load the NIC's driver".to_owned()
    };
    match errno {
        Some(errno) if errno != libc::ENOSYS && errno != 0 => {
            OpenError::NoDevice { why: format!("{}; {why}", BackendError::new("ibv_get_device_list", errno)) }
        }
        _ => OpenError::NoDevice { why },
    }
}

/// The errno of the last failed call of this thread.
pub(super) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A text in an array that 0 ends.
pub(super) fn text(chars: &[std::ffi::c_char]) -> String {
    // SAFETY: the same bytes, read as such.
    let bytes = unsafe { std::slice::from_raw_parts(chars.as_ptr().cast::<u8>(), chars.len()) };
    CStr::from_bytes_until_nul(bytes).map_or_else(|_| String::new(), |text| text.to_string_lossy().into())
}
