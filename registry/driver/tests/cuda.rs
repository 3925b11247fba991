//! The real driver, where there is one.
#![allow(unsafe_code, clippy::unwrap_used)]

use pinyard_driver::{Absent, Cuda, DevicePtr, Driver, DriverToken};

/// The device, or a clean skip with the reason.
fn device() -> Option<Cuda> {
    match Cuda::open(0) {
        Ok(cuda) => Some(cuda),
        Err(absent) => {
            println!("skipped: {absent}");
            None
        }
    }
}

#[test]
fn its_absence_has_a_reason() {
    match Cuda::open(0) {
        Err(Absent::Library { library, reason }) => {
            assert_eq!(library, "libcuda.so.1");
            assert!(reason.contains("libcuda"), "{reason}");
        }
        Err(other) => println!("skipped: {other}"),
        Ok(cuda) => {
            assert!(cuda.device().total_bytes > 0);
            let Err(Absent::Refused(error)) = Cuda::open(4096) else { panic!("device 4096 exists") };
            assert!(error.text.contains("CUDA_ERROR_INVALID_DEVICE"), "{error}");
        }
    }
}

#[test]
fn every_call_answers() {
    let Some(gpu) = device() else { return };
    let token = DriverToken::at_entry();
    println!("{:?}", gpu.device());
    assert!(Cuda::count().unwrap() > 0);
    let info = gpu.mem_info(&token).unwrap();
    assert!(info.free > 0 && info.free <= info.total);
    let stream = gpu.stream_create(&token).unwrap();
    assert!(gpu.stream_id(stream, &token).unwrap() > 0);
    let (block, bytes) = (gpu.mem_alloc(2 << 20, &token).unwrap(), 2usize << 20);
    let host = gpu.host_alloc(bytes, &token).unwrap();
    let event = gpu.event_create(&token).unwrap();
    // SAFETY: both stand until they are freed, after the stream has ended.
    unsafe {
        gpu.fill(block, 0x5a, bytes, stream, &token).unwrap();
        gpu.copy_to_host(host, block, bytes, stream, &token).unwrap();
        gpu.event_record(event, stream, &token).unwrap();
        gpu.event_synchronize(event, &token).unwrap();
        assert!(gpu.event_query(event, &token).unwrap());
        assert!(std::slice::from_raw_parts(host, bytes).iter().all(|&byte| byte == 0x5a));
        gpu.dma_buf(block, bytes, &token).unwrap();
        let handle = gpu.ipc_handle(block, &token).unwrap();
        assert_ne!(handle, [0; 64]);
        // Its own handle a process may not open.
        assert!(gpu.ipc_open(handle, &token).is_err());
        let half = bytes / 2;
        gpu.fill(block, 0x77, half, stream, &token).unwrap();
        gpu.copy_on_device(DevicePtr(block.0 + half as u64), block, half, stream, &token).unwrap();
        gpu.copy_to_host(host, block, bytes, stream, &token).unwrap();
        gpu.stream_synchronize(stream, &token).unwrap();
        assert!(std::slice::from_raw_parts(host, bytes).iter().all(|&byte| byte == 0x77));
        gpu.event_destroy(event, &token).unwrap();
        gpu.host_free(host, &token).unwrap();
        gpu.mem_free(block, &token).unwrap();
        gpu.stream_destroy(stream, &token).unwrap();
    }
    assert!(gpu.mem_alloc(1 << 50, &token).unwrap_err().is_out_of_memory());
}
