//! Device memory opened by another process, on the simulated device.
#![allow(unsafe_code, clippy::unwrap_used)]

use pinyard_driver::{Driver, DriverToken, Simulated, Stream};
use std::process::Command;

const BYTES: usize = 3 << 20;
/// Set for the process that opens: the handle in hexadecimal digits.
const HANDLE: &str = "PINYARD_TEST_IPC_HANDLE";

fn fill(gpu: &Simulated, at: pinyard_driver::DevicePtr, byte: u8, bytes: usize) {
    let token = DriverToken::at_entry();
    // SAFETY: memory of the test's own.
    unsafe { gpu.fill(at, byte, bytes, Stream::DEFAULT, &token) }.unwrap();
    gpu.stream_synchronize(Stream::DEFAULT, &token).unwrap();
}

fn read(gpu: &Simulated, at: pinyard_driver::DevicePtr, bytes: usize) -> Vec<u8> {
    let (mut host, token) = (vec![0; bytes], DriverToken::at_entry());
    // SAFETY: waited for below.
    unsafe { gpu.copy_to_host(host.as_mut_ptr(), at, bytes, Stream::DEFAULT, &token) }.unwrap();
    gpu.stream_synchronize(Stream::DEFAULT, &token).unwrap();
    host
}

/// What the other process does: takes a copy of the memory, and writes to it.
#[test]
#[ignore = "started by another"]
fn in_the_other_process() {
    let digits = std::env::var(HANDLE).unwrap();
    let mut handle = [0; 64];
    for (at, byte) in handle.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap();
    }
    let (gpu, token) = (Simulated::shareable(64 << 20), DriverToken::at_entry());
    // SAFETY: the test that started this process keeps the allocation.
    let theirs = unsafe { gpu.ipc_open(handle, &token) }.unwrap();
    let ours = gpu.mem_alloc(BYTES, &token).unwrap();
    // SAFETY: both stand until the copy has passed.
    unsafe { gpu.copy_on_device(ours, theirs, BYTES, Stream::DEFAULT, &token) }.unwrap();
    assert!(read(&gpu, ours, BYTES).iter().all(|&byte| byte == 7));
    fill(&gpu, theirs, 9, BYTES / 2);
    assert_eq!(gpu.outstanding(), "1 allocations, 1 opened handles");
    // SAFETY: opened above, used no more.
    unsafe { gpu.ipc_close(theirs, &token) }.unwrap();
    // SAFETY: closed already, which is refused.
    assert!(unsafe { gpu.ipc_close(theirs, &token) }.is_err());
    // SAFETY: used no more.
    unsafe { gpu.mem_free(ours, &token) }.unwrap();
    assert_eq!((gpu.outstanding(), gpu.offences().len()), (String::new(), 1));
}

#[test]
fn an_allocation_is_read_and_written_by_another_process() {
    let (gpu, token) = (Simulated::shareable(64 << 20), DriverToken::at_entry());
    // Not the first one: its place in the file is not 0.
    let first = gpu.mem_alloc(BYTES, &token).unwrap();
    let shared = gpu.mem_alloc(BYTES, &token).unwrap();
    fill(&gpu, first, 1, BYTES);
    fill(&gpu, shared, 7, BYTES);
    let handle = gpu.ipc_handle(shared, &token).unwrap();
    let digits: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
    let other = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "in_the_other_process", "--nocapture"])
        .env(HANDLE, digits)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&other.stdout);
    assert!(other.status.success() && said.contains("1 passed"), "{other:?}");
    let bytes = read(&gpu, shared, BYTES);
    assert!(
        bytes[..BYTES / 2].iter().all(|&byte| byte == 9) && bytes[BYTES / 2..].iter().all(|&byte| byte == 7)
    );
    assert!(read(&gpu, first, BYTES).iter().all(|&byte| byte == 1));
    // What is freed reads as zeros when it is allocated anew.
    for at in [first, shared] {
        // SAFETY: used no more.
        unsafe { gpu.mem_free(at, &token) }.unwrap();
    }
    let again: Vec<_> = (0..8).map(|_| gpu.mem_alloc(8 << 20, &token).unwrap()).collect();
    assert!(again.iter().all(|&at| read(&gpu, at, 8 << 20).iter().all(|&byte| byte == 0)));
}

#[test]
fn a_handle_is_refused_where_it_was_made_and_where_nobody_made_it() {
    let (gpu, token) = (Simulated::shareable(16 << 20), DriverToken::at_entry());
    let block = gpu.mem_alloc(4096, &token).unwrap();
    let handle = gpu.ipc_handle(block, &token).unwrap();
    // SAFETY: refused.
    let own = unsafe { gpu.ipc_open(handle, &token) }.unwrap_err();
    assert_eq!(own.code, 201);
    assert!(own.text.contains("its own address serves"), "{own}");
    // SAFETY: refused.
    let nobodys = unsafe { gpu.ipc_open([3; 64], &token) }.unwrap_err();
    assert!(nobodys.text.contains("no handle of shareable memory"), "{nobodys}");
    let mut gone = handle;
    gone[8..16].copy_from_slice(&(u64::from(u32::MAX)).to_le_bytes());
    // SAFETY: refused.
    let gone = unsafe { gpu.ipc_open(gone, &token) }.unwrap_err();
    assert!(gone.text.contains("/proc/4294967295/fd/"), "{gone}");
    let alone = Simulated::new(1 << 20);
    let block = alone.mem_alloc(4096, &token).unwrap();
    let handle = alone.ipc_handle(block, &token).unwrap();
    // SAFETY: refused.
    assert!(unsafe { gpu.ipc_open(handle, &token) }.is_err());
}

#[test]
fn a_copy_on_the_device_waits_for_its_stream_and_stays_within_allocations() {
    let (gpu, token) = (Simulated::new(16 << 20), DriverToken::at_entry());
    let (one, two) = (gpu.mem_alloc(BYTES, &token).unwrap(), gpu.mem_alloc(BYTES, &token).unwrap());
    fill(&gpu, one, 5, BYTES);
    let stream = gpu.stream_create(&token).unwrap();
    gpu.kernel(stream, 1_000_000, &token);
    // SAFETY: both stand until the copy has passed.
    unsafe { gpu.copy_on_device(two, one, BYTES, stream, &token) }.unwrap();
    assert!(!gpu.stream_query(stream, &token).unwrap());
    gpu.stream_synchronize(stream, &token).unwrap();
    assert!(read(&gpu, two, BYTES).iter().all(|&byte| byte == 5));
    // SAFETY: refused.
    assert!(unsafe { gpu.copy_on_device(two, one, BYTES + 1, stream, &token) }.is_err());
}
