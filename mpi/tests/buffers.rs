//! Buffers by themselves: settling waits for every stream, memory is reused after it.
#![allow(unsafe_code, clippy::unwrap_used)]

use mpi::datatype::{Collection, Pointer, PointerMut};
use pinyard_allocator::AtomicFence;
use pinyard_driver::{Driver, DriverToken, Simulated};
use pinyard_mpi::{BufferError, CudaAware, DeviceBuf, Gpu, PinnedBuf};
use pinyard_registry::backend::{BackendError, Custom, MemoryKey};
use pinyard_registry::{Access, Events, Registry};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn gpu() -> (Arc<Simulated>, Gpu) {
    let simulated = Arc::new(Simulated::new(256 << 20));
    let gpu = Gpu::new(simulated.clone()).unwrap();
    (simulated, gpu)
}

fn token() -> DriverToken {
    DriverToken::at_entry()
}

#[test]
fn settling_waits_for_the_streams_that_use_it_and_for_no_other() {
    let (simulated, gpu) = gpu();
    let (home, user, stranger) = (gpu.stream().unwrap(), gpu.stream().unwrap(), gpu.stream().unwrap());
    let mut buffer: DeviceBuf<u8> = gpu.alloc(1000, &home).unwrap();
    for stream in [&home, &user] {
        simulated.kernel(stream.stream(), 1_000_000, &token());
    }
    simulated.kernel(stranger.stream(), 1_000_000_000, &token());
    buffer.used_by(&user);
    buffer.used_by(&user);
    buffer.settle().unwrap();
    let idle = |stream| simulated.stream_query(stream, &token()).unwrap();
    assert!(idle(home.stream()) && idle(user.stream()) && !idle(stranger.stream()));
    // Settled for writing, the use is over.
    simulated.kernel(user.stream(), 1_000_000, &token());
    buffer.settle_mut().unwrap();
    assert!(idle(user.stream()));
    simulated.kernel(user.stream(), 1_000_000, &token());
    buffer.settle_mut().unwrap();
    assert!(!idle(user.stream()));
}

#[test]
fn what_a_kernel_writes_late_is_what_is_read() {
    let (simulated, gpu) = gpu();
    let stream = gpu.stream().unwrap();
    let mut buffer: DeviceBuf<u8> = gpu.alloc(1 << 16, &stream).unwrap();
    buffer.write(&vec![1; 1 << 16]).unwrap();
    simulated.kernel(stream.stream(), 5_000_000, &token());
    // SAFETY: the buffer's own memory.
    unsafe { simulated.fill(buffer.ptr(), 2, 1 << 16, stream.stream(), &token()) }.unwrap();
    assert!(buffer.to_vec().unwrap().iter().all(|&byte| byte == 2));
    let mut pinned = gpu.alloc_pinned::<u8>(1 << 16).unwrap();
    // SAFETY: as above.
    unsafe { simulated.fill(buffer.ptr(), 3, 1 << 16, stream.stream(), &token()) }.unwrap();
    pinned.copy_from(&buffer).unwrap();
    assert!(pinned.settle().unwrap().iter().all(|&byte| byte == 3));
    pinned.settle_mut().unwrap().fill(4);
    pinned.copy_to(&mut buffer).unwrap();
    pinned.settle_mut().unwrap().fill(5);
    assert!(buffer.to_vec().unwrap().iter().all(|&byte| byte == 4));
    assert_eq!(simulated.offences(), Vec::<String>::new());
}

#[test]
fn pinned_memory_that_a_copy_still_reads_is_not_given_out_again() {
    let (simulated, gpu) = gpu();
    let stream = gpu.stream().unwrap();
    let mut buffer: DeviceBuf<u8> = gpu.alloc(1 << 16, &stream).unwrap();
    for round in 0..20u8 {
        let mut pinned = gpu.alloc_pinned::<u8>(1 << 16).unwrap();
        pinned.settle_mut().unwrap().fill(round);
        simulated.kernel(stream.stream(), 1_000_000, &token());
        pinned.copy_to(&mut buffer).unwrap();
        drop(pinned);
        // Would be given the same memory, were it free.
        let mut other = gpu.alloc_pinned::<u8>(1 << 16).unwrap();
        other.settle_mut().unwrap().fill(0xee);
        assert!(buffer.to_vec().unwrap().iter().all(|&byte| byte == round));
    }
}

#[test]
fn what_is_given_up_is_not_given_out_again_before_its_fence_has_passed() {
    let (simulated, gpu) = gpu();
    let (stream, sent) = (gpu.stream().unwrap(), AtomicFence::new());
    let buffer: DeviceBuf<u8> = gpu.alloc(1 << 16, &stream).unwrap();
    let mut pinned = gpu.alloc_pinned::<u8>(1 << 16).unwrap();
    pinned.copy_from(&buffer).unwrap();
    let place = |pinned: &mut PinnedBuf<u8>| pinned.settle_mut().unwrap().as_ptr().addr();
    let (at, host) = (buffer.ptr(), place(&mut pinned));
    pinned.copy_from(&buffer).unwrap();
    buffer.defer_until(sent.at(1));
    pinned.defer_until(sent.at(1));
    let mut held = Vec::new();
    let mut again = || {
        let mut others = (gpu.alloc::<u8>(1 << 16, &stream).unwrap(), gpu.alloc_pinned(1 << 16).unwrap());
        let are = [others.0.ptr() == at, place(&mut others.1) == host];
        held.push(others);
        are
    };
    for _ in 0..20 {
        // The copy has passed, and nothing else.
        simulated.advance(1_000_000);
        assert_eq!(again(), [false; 2]);
    }
    sent.signal(1);
    let (began, mut both) = (Instant::now(), [false; 2]);
    while both != [true; 2] {
        assert!(began.elapsed() < Duration::from_secs(10), "given out again: {both:?}");
        simulated.advance(1_000_000);
        let now = again();
        both = [both[0] || now[0], both[1] || now[1]];
    }
    // Nothing to give up.
    gpu.alloc::<u8>(0, &stream).unwrap().defer_until(sent.at(2));
    gpu.alloc_pinned::<u8>(0).unwrap().defer_until(sent.at(2));
    assert_eq!(simulated.offences(), Vec::<String>::new());
}

#[test]
fn many_copies_of_one_stream_are_waited_for_once() {
    let (_, gpu) = gpu();
    let streams = [(); 2].map(|()| gpu.stream().unwrap());
    let mut buffers = streams.each_ref().map(|stream| gpu.alloc::<u8>(4096, stream).unwrap());
    let mut pinned = gpu.alloc_pinned::<u8>(4096).unwrap();
    pinned.settle_mut().unwrap().fill(7);
    for _ in 0..1000 {
        for buffer in &mut buffers {
            pinned.copy_to(buffer).unwrap();
        }
    }
    assert_eq!(format!("{pinned:?}"), "PinnedBuf { elements: 4096, streams: 2 }");
    for buffer in &buffers {
        assert_eq!(buffer.to_vec().unwrap(), [7; 4096]);
    }
    // The last copy of each is waited for before the host writes.
    pinned.settle_mut().unwrap().fill(8);
    assert_eq!(format!("{pinned:?}"), "PinnedBuf { elements: 4096, streams: 0 }");
}

#[test]
fn ranges_lie_where_slices_would() {
    let (_, gpu) = gpu();
    let stream = gpu.stream().unwrap();
    let mut buffer: DeviceBuf<u32> = gpu.alloc(100, &stream).unwrap();
    let start = buffer.ptr().0 as usize;
    // SAFETY: nothing is given to MPI.
    let aware = unsafe { CudaAware::assume() };
    let settled = buffer.settle().unwrap();
    let range = settled.slice(10..20).slice(1..=3);
    // SAFETY: as above.
    let direct = unsafe { range.direct(&aware) };
    assert_eq!((direct.pointer() as usize, direct.count()), (start + 44, 3));
    let mut settled = buffer.settle_mut().unwrap();
    let (mut first, mut second) = settled.split_at_mut(30);
    assert_eq!((first.len(), second.len()), (30, 70));
    // SAFETY: as above.
    let pointers = unsafe {
        [first.direct_mut(&aware).pointer_mut(), second.slice_mut(..).direct_mut(&aware).pointer_mut()]
    };
    assert_eq!(pointers.map(|pointer| pointer as usize), [start, start + 120]);
    assert!(second.slice_mut(70..).is_empty());
}

#[test]
#[should_panic(expected = "range 90..101 of a buffer of 100 elements")]
fn a_range_beyond_the_end_panics_as_a_slices_does() {
    let (_, gpu) = gpu();
    let buffer: DeviceBuf<u32> = gpu.alloc(100, &gpu.stream().unwrap()).unwrap();
    let _ = buffer.settle().unwrap().slice(90..101);
}

#[test]
fn lengths_must_be_equal_and_sizes_must_exist() {
    let (_, gpu) = gpu();
    let stream = gpu.stream().unwrap();
    let mut buffer: DeviceBuf<u64> = gpu.alloc(10, &stream).unwrap();
    assert!(matches!(buffer.write(&[0; 9]), Err(BufferError::Length { elements: 10, other: 9 })));
    assert!(matches!(buffer.read(&mut [0; 11]), Err(BufferError::Length { elements: 10, other: 11 })));
    let mut pinned = gpu.alloc_pinned::<u64>(9).unwrap();
    assert!(matches!(pinned.copy_from(&buffer), Err(BufferError::Length { .. })));
    assert!(matches!(gpu.alloc::<u64>(usize::MAX, &stream), Err(BufferError::TooLong { .. })));
    assert!(matches!(gpu.alloc_pinned::<u64>(usize::MAX), Err(BufferError::Pinned(_))));
    let text = gpu.alloc::<u8>(1 << 40, &stream).unwrap_err().to_string();
    assert!(text.contains("1099511627776"), "{text}");
    let mut none: DeviceBuf<u64> = gpu.alloc(0, &stream).unwrap();
    none.write(&[]).unwrap();
    assert!(none.is_empty() && none.to_vec().unwrap().is_empty() && none.settle_mut().unwrap().is_empty());
    assert!(gpu.alloc_pinned::<u64>(0).unwrap().settle().unwrap().is_empty());
}

#[test]
fn a_buffer_that_another_stream_uses_is_not_reused_before_it() {
    let (simulated, gpu) = gpu();
    let (home, user) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let buffer: DeviceBuf<u8> = gpu.alloc(1 << 20, &home).unwrap();
    let at = buffer.ptr();
    simulated.kernel(user.stream(), 1_000_000_000_000, &token());
    buffer.used_by(&user);
    drop(buffer);
    let next: DeviceBuf<u8> = gpu.alloc(1 << 20, &home).unwrap();
    assert_ne!(next.ptr(), at);
}

/// A stand-in for a NIC's driver: what is registered now, by start.
#[derive(Default)]
struct Nic(Mutex<BTreeMap<usize, usize>>);

#[test]
fn a_slab_of_device_memory_is_registered_once_and_gone_before_its_memory() {
    let simulated = Arc::new(Simulated::new(256 << 20));
    let nic = Arc::new(Nic::default());
    let (registers, forgets) = (nic.clone(), nic.clone());
    let backend = Custom::new(
        "a stand-in",
        move |range, _| {
            registers.0.lock().unwrap().insert(range.start, range.len());
            Ok(MemoryKey { lkey: range.start as u64, rkey: 7, handle: 1 })
        },
        move |key, _| {
            forgets.0.lock().unwrap().remove(&(key.lkey as usize));
            Ok(())
        },
    );
    let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let gpu = Gpu::with_registries(simulated.clone(), &registry, &registry, access).unwrap();
    let stream = gpu.stream().unwrap();
    let buffers: Vec<DeviceBuf<u32>> = (0..20).map(|_| gpu.alloc(1000, &stream).unwrap()).collect();
    let (first, last) = (&buffers[0], &buffers[19]);
    assert_eq!((first.key(), first.key().rkey), (last.key(), 7));
    let slab = first.key().lkey as usize;
    let bytes = nic.0.lock().unwrap()[&slab];
    assert!((slab..slab + bytes).contains(&(last.ptr().0 as usize)));
    // Whoever asks the registry for a part of it finds that.
    let part = (std::ptr::without_provenance::<u8>(last.ptr().0 as usize + 8), 100);
    assert_eq!(registry.lookup(part, Access::REMOTE_WRITE), Some(first.key()));
    drop(buffers);
    gpu.pool().trim(Duration::from_secs(5));
    assert!(!nic.0.lock().unwrap().contains_key(&slab), "registered beyond its memory");
    assert_eq!(gpu.alloc::<u32>(0, &stream).unwrap().key(), MemoryKey::default());
    let refused =
        Custom::new("refuses", |_, _| Err(BackendError::new("ibv_reg_dmabuf_mr", 19)), |_, _| Ok(()));
    let registry = Registry::builder().backend(refused).events(Events::NotifyOnly).build().unwrap();
    let gpu = Gpu::with_registries(simulated, &registry, &registry, access).unwrap();
    let told = gpu.alloc::<u32>(10, &gpu.stream().unwrap()).unwrap_err().to_string();
    assert!(told.contains("ibv_reg_dmabuf_mr"), "{told}");
}
