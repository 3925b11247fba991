//! Pools: slabs registered once, blocks by address, streams of a simulated device.

use super::lives::in_child;
use super::*;
use crate::capi::pools::Memory;
use pinyard_driver::DriverToken;
use std::sync::{atomic::AtomicU64, mpsc};

const MIB: usize = 1 << 20;

fn pool_config(memory: pny_memory, registry: pny_registry) -> pny_pool_config {
    pny_pool_config {
        size: size_of::<pny_pool_config>(),
        memory,
        driver: if memory == PNY_MEMORY_HOST { PNY_DRIVER_CUDA } else { PNY_DRIVER_SIMULATED },
        device: 0,
        access: 0,
        registry,
        slab_bytes: 2 * MIB,
        limit: 16 * MIB,
        patience_ns: 20_000_000,
        simulated_bytes: 0,
    }
}

#[track_caller]
fn pool(config: &pny_pool_config) -> pny_pool {
    let mut pool = null_mut();
    // SAFETY: a configuration of its size, and a place for the handle.
    done(unsafe { pny_pool_create(config, &raw mut pool) });
    assert!(!pool.is_null());
    pool
}

#[track_caller]
fn end(pool: pny_pool) {
    // SAFETY: the test's only thread.
    done(unsafe { pny_pool_destroy(pool) });
}

fn alloc(pool: pny_pool, bytes: usize, align: usize, stream: pny_stream) -> (pny_status, *mut c_void) {
    let mut block = std::ptr::dangling_mut();
    // SAFETY: a place of the test's own.
    let status = unsafe { pny_pool_alloc_aligned(pool, bytes, align, stream, &raw mut block) };
    assert_eq!(status == PNY_OK, !block.is_null());
    (status, block)
}

#[track_caller]
fn block(pool: pny_pool, bytes: usize, stream: pny_stream) -> *mut c_void {
    let mut block = null_mut();
    // SAFETY: a place of the test's own.
    done(unsafe { pny_pool_alloc(pool, bytes, stream, &raw mut block) });
    block
}

fn free(pool: pny_pool, block: *mut c_void) -> pny_status {
    // SAFETY: nobody uses the memory.
    unsafe { pny_pool_free(pool, block) }
}

#[track_caller]
fn trimmed(pool: pny_pool) -> usize {
    let mut bytes = usize::MAX;
    // SAFETY: a place of the test's own.
    done(unsafe { pny_pool_trim(pool, &raw mut bytes) });
    bytes
}

#[track_caller]
fn pool_counts(pool: pny_pool) -> pny_pool_counts {
    let mut counts = core::mem::MaybeUninit::<pny_pool_counts>::zeroed();
    let counts = counts.as_mut_ptr();
    // SAFETY: integers of its size.
    unsafe {
        (*counts).size = size_of::<pny_pool_counts>();
        done(pny_pool_stats(pool, counts));
        *counts
    }
}

fn find(pool: pny_pool, at: *const c_void) -> (pny_status, pny_block_place) {
    let mut place = core::mem::MaybeUninit::<pny_block_place>::zeroed();
    let place = place.as_mut_ptr();
    // SAFETY: integers of its size.
    unsafe {
        (*place).size = size_of::<pny_block_place>();
        (pny_pool_find(pool, at, place), *place)
    }
}

#[track_caller]
fn stream(pool: pny_pool) -> pny_stream {
    let mut made = null_mut();
    // SAFETY: a place of the test's own; a simulated stream is made.
    done(unsafe { pny_stream_create(pool, null_mut(), &raw mut made) });
    made
}

#[track_caller]
fn retire(stream: pny_stream) {
    // SAFETY: the test's only thread.
    done(unsafe { pny_stream_destroy(stream) });
}

/// A stream whose work does not go on until it is dropped.
struct Busy(*mut u8);

impl Drop for Busy {
    fn drop(&mut self) {
        // SAFETY: the word of `occupy`, which the device only reads.
        unsafe { &*self.0.cast::<AtomicU64>() }.store(1, SeqCst);
    }
}

fn occupy(pool: pny_pool, on: pny_stream) -> Busy {
    let kept = POOLS.get(pool.addr() as u64).unwrap();
    let Memory::Device { driver, .. } = &kept.memory else { panic!("no device pool") };
    let (native, token) = (STREAMS.get(on.addr() as u64).unwrap().stream.stream(), DriverToken::at_entry());
    let word = driver.host_alloc(8, &token).unwrap();
    // SAFETY: the word just made, which stays as long as the device.
    unsafe {
        word.write_bytes(0, 8);
        driver.stream_wait_value(native, driver.host_device_ptr(word, &token).unwrap(), 1, &token).unwrap();
    }
    Busy(word)
}

#[test]
fn a_slab_is_registered_once_and_a_key_comes_by_arithmetic() {
    for memory in [PNY_MEMORY_HOST, PNY_MEMORY_PINNED] {
        let (device, ops) = (Device::default(), ops());
        let registry = create(&config(&ops, &device));
        let pool = pool(&pool_config(memory, registry));
        // SAFETY: the test's only thread.
        let early = unsafe { pny_registry_destroy(registry) };
        refused(early, PNY_ERR_BUSY, &["1 pool registered with it", "pny_pool_destroy"]);

        // SAFETY: nobody destroys the pool.
        done(unsafe { pny_pool_warmup(pool, 100_000, 8, null_mut()) });
        assert_eq!((device.registered.load(SeqCst), pool_counts(pool).live_blocks), (1, 0));
        let blocks: Vec<_> = (0..8).map(|_| block(pool, 100_000, null_mut())).collect();
        assert_eq!(device.registered.load(SeqCst), 1, "warm");
        for &at in &blocks {
            // SAFETY: a block of so many bytes.
            unsafe { at.cast::<u8>().write_bytes(7, 100_000) };
            let (status, place) = find(pool, at.wrapping_byte_add(99_999));
            done(status);
            assert_eq!((place.key.lkey, place.key.rkey, place.key.handle), (100, 7, place.slab_base));
            assert_eq!((place.block_base, place.block_length), (at.addr() as u64, 100_000));
            assert_eq!(place.slab_base + place.offset, at.addr() as u64 + 99_999);
            assert!(place.offset < place.slab_length && place.slab_length == 2 * MIB as u64);
        }
        let now = pool_counts(pool);
        assert_eq!((now.slabs, now.slabs_made, now.live_blocks, now.waiting_blocks), (1, 1, 8, 0));
        assert!(now.live_bytes >= 800_000 && now.reserved_bytes == 2 * MIB as u64);
        // SAFETY: the test's only thread.
        let early = unsafe { pny_pool_destroy(pool) };
        refused(early, PNY_ERR_BUSY, &["8 blocks in use", "pny_pool_free"]);
        for at in blocks {
            done(free(pool, at));
        }
        assert_eq!((trimmed(pool), device.deregistered.load(SeqCst)), (2 * MIB, 1));
        assert_eq!(pool_counts(pool).slabs, 0);
        done(free(pool, block(pool, 5 * MIB, null_mut())));
        end(pool);
        assert_eq!((device.registered.load(SeqCst), device.deregistered.load(SeqCst)), (2, 2));
        destroy(registry);
        assert_eq!((device.released.load(SeqCst), device.left.load(SeqCst)), (1, 0));
    }
}

#[test]
fn blocks_that_are_none_are_refused() {
    let (device, ops) = (Device::default(), ops());
    let registry = create(&config(&ops, &device));
    let (one, other) =
        (pool(&pool_config(PNY_MEMORY_HOST, registry)), pool(&pool_config(PNY_MEMORY_HOST, registry)));
    let at = block(one, 1000, null_mut());
    refused(free(one, null_mut()), PNY_ERR_INVALID, &["pny_pool_free: block is a null pointer"]);
    refused(
        free(one, at.wrapping_byte_add(8)),
        PNY_ERR_INVALID,
        &["lies in the block at", "not at its beginning"],
    );
    refused(free(one, (&raw const device).cast_mut().cast()), PNY_ERR_STALE, &["no block of this pool"]);
    refused(free(other, at), PNY_ERR_STALE, &["no block of this pool"]);
    refused(free(null_mut(), at), PNY_ERR_INVALID, &["the pny_pool is null; pny_pool_create makes one"]);
    refused(free(registry.cast(), at), PNY_ERR_STALE, &["is no pny_pool"]);
    done(free(one, at));
    refused(free(one, at), PNY_ERR_STALE, &["freed before"]);
    refused(find(one, at).0, PNY_ERR_NOT_FOUND, &["lies in no block"]);
    refused(find(one, null()).0, PNY_ERR_NOT_FOUND, &["0x0 lies in no block"]);
    // SAFETY: null pointers, and numbers that are no handles.
    unsafe {
        let alone = &mut null_mut();
        refused(
            pny_pool_alloc(one, 8, null_mut(), null_mut()),
            PNY_ERR_INVALID,
            &["block is a null pointer"],
        );
        refused(pny_pool_alloc(one, 0, null_mut(), alone), PNY_ERR_INVALID, &["empty allocation"]);
        refused(pny_pool_alloc(one, usize::MAX, null_mut(), alone), PNY_ERR_INVALID, &["exceed"]);
        refused(
            pny_pool_alloc(one, 17 * MIB, null_mut(), alone),
            PNY_ERR_LIMIT,
            &["pool limit of 16777216 bytes"],
        );
        refused(pny_pool_alloc(one, 8, 0x1234 as pny_stream, alone), PNY_ERR_INVALID, &["not a device's"]);
        for align in [0, 3, 4 * MIB, usize::MAX] {
            refused(alloc(one, 8, align, null_mut()).0, PNY_ERR_INVALID, &["alignment"]);
        }
        refused(pny_pool_warmup(one, 1 << 40, 1 << 40, null_mut()), PNY_ERR_INVALID, &["address space"]);
        refused(pny_pool_warmup(one, MIB, 100, null_mut()), PNY_ERR_LIMIT, &["pool limit"]);
        refused(
            pny_pool_warmup(one, 1, 1 << 60, null_mut()),
            PNY_ERR_RESOURCES,
            &["blocks are not to be had"],
        );
        refused(
            pny_pool_alloc_batch(one, null(), 1, null_mut(), alone),
            PNY_ERR_INVALID,
            &["sizes is a null"],
        );
        refused(
            pny_pool_alloc_batch(one, &8, 1, null_mut(), null_mut()),
            PNY_ERR_INVALID,
            &["blocks is a null"],
        );
        refused(pny_pool_alloc_batch(one, &8, usize::MAX, null_mut(), alone), PNY_ERR_INVALID, &["count is"]);
        done(pny_pool_alloc_batch(one, null(), 0, null_mut(), null_mut()));
        let mut two = [at; 2];
        let status = pny_pool_alloc_batch(one, [8, 17 * MIB].as_ptr(), 2, null_mut(), two.as_mut_ptr());
        refused(status, PNY_ERR_LIMIT, &["pool limit"]);
        assert_eq!((two, pool_counts(one).live_blocks), ([null_mut(); 2], 0), "all or none");
        refused(pny_pool_stats(one, null_mut()), PNY_ERR_INVALID, &["counts is a null pointer"]);
        refused(pny_pool_find(one, at, null_mut()), PNY_ERR_INVALID, &["place is a null pointer"]);
        refused(
            pny_pool_defer_until(one, at, None, null_mut()),
            PNY_ERR_INVALID,
            &["passed is a null pointer"],
        );
        refused(pny_pool_free_after(one, at, null_mut()), PNY_ERR_INVALID, &["the pny_stream is null"]);
        refused(pny_pool_record_use(one, at, null_mut()), PNY_ERR_INVALID, &["it has no streams"]);
        refused(pny_stream_create(one, null_mut(), null_mut()), PNY_ERR_INVALID, &["made is a null"]);
        let mut made = null_mut();
        refused(pny_stream_create(one, null_mut(), &raw mut made), PNY_ERR_INVALID, &["it has no streams"]);
        refused(pny_stream_destroy(null_mut()), PNY_ERR_INVALID, &["the pny_stream is null"]);
        done(pny_pool_trim(one, null_mut()));
    }
    end(one);
    end(other);
    destroy(registry);
}

#[test]
fn pools_that_contradict_themselves() {
    let (device, ops) = (Device::default(), ops());
    let registry = create(&config(&ops, &device));
    let (host, gpu) = (pool_config(PNY_MEMORY_HOST, registry), pool_config(PNY_MEMORY_DEVICE, null_mut()));
    let invalid = |base: pny_pool_config, change: fn(&mut pny_pool_config), words: &str| {
        let (mut config, mut pool) = (base, null_mut());
        change(&mut config);
        // SAFETY: of its size, where the size can be.
        refused(unsafe { pny_pool_create(&config, &raw mut pool) }, PNY_ERR_INVALID, &[words]);
        assert!(pool.is_null());
    };
    invalid(host, |config| config.size = 0, "pny_pool_config: size is 0, and must be 64 to 4096");
    invalid(host, |config| config.memory = 3, "memory is 3, which is no PNY_MEMORY_ constant");
    invalid(host, |config| config.driver = PNY_DRIVER_SIMULATED, "not for PNY_MEMORY_HOST");
    invalid(host, |config| config.registry = null_mut(), "registry is null");
    invalid(host, |config| config.access = 16, "access 0x10");
    invalid(host, |config| config.limit = 1, "limit of 1 bytes");
    invalid(host, |config| config.slab_bytes = usize::MAX, "slabs of 18446744073709551615 bytes");
    invalid(host, |config| config.simulated_bytes = 1, "is for PNY_DRIVER_SIMULATED");
    invalid(gpu, |config| config.driver = 2, "driver is 2, which is no PNY_DRIVER_ constant");
    invalid(gpu, |config| config.simulated_bytes = usize::MAX, "simulated_bytes is above");
    invalid(gpu, |config| (config.driver, config.device) = (0, u32::MAX), "device is above");
    let mut pool = null_mut();
    // SAFETY: as above.
    unsafe {
        refused(pny_pool_create(null(), &raw mut pool), PNY_ERR_INVALID, &["config is a null pointer"]);
        refused(pny_pool_create(&host, null_mut()), PNY_ERR_INVALID, &["pool is a null pointer"]);
        let stale = pny_pool_config { registry: 0x4321 as pny_registry, ..host };
        refused(
            pny_pool_create(&stale, &raw mut pool),
            PNY_ERR_STALE,
            &["registry: 0x4321 is no pny_registry"],
        );
        let second = pny_pool_config { device: 1, ..gpu };
        refused(pny_pool_create(&second, &raw mut pool), PNY_ERR_ABSENT, &["one device"]);
        if pinyard_driver::Cuda::open(0).is_err() {
            let cuda = pny_pool_config { driver: PNY_DRIVER_CUDA, ..gpu };
            refused(pny_pool_create(&cuda, &raw mut pool), PNY_ERR_ABSENT, &["CUDA"]);
        }
    }
    assert!(pool.is_null());
    assert_eq!(
        (size_of::<pny_pool_config>(), size_of::<pny_pool_counts>(), size_of::<pny_block_place>()),
        (64, 88, 72)
    );
    destroy(registry);
}

unsafe extern "C" fn asked(user: *mut c_void) -> c_int {
    // SAFETY: the `user` of the test.
    unsafe { &*user.cast::<AtomicI32>() }.load(SeqCst)
}

#[test]
fn a_deferred_block_waits_for_what_the_caller_says() {
    for memory in [PNY_MEMORY_HOST, PNY_MEMORY_DEVICE] {
        let (device, ops) = (Device::default(), ops());
        let registry = create(&config(&ops, &device));
        let pool = pool(&pool_config(memory, registry));
        let on = if memory == PNY_MEMORY_DEVICE { stream(pool) } else { null_mut() };
        let passed = AtomicI32::new(0);
        let at = block(pool, 3 * MIB, on);
        // SAFETY: the flag outlives the pool.
        done(unsafe { pny_pool_defer_until(pool, at, Some(asked), (&raw const passed).cast_mut().cast()) });
        refused(free(pool, at), PNY_ERR_STALE, &["freed before"]);
        let next = block(pool, 3 * MIB, on);
        assert_ne!(next, at, "it waits");
        done(free(pool, next));
        trimmed(pool);
        assert_eq!(pool_counts(pool).waiting_blocks, 1);
        if memory == PNY_MEMORY_HOST {
            // SAFETY: the test's only thread.
            refused(
                unsafe { pny_pool_destroy(pool) },
                PNY_ERR_BUSY,
                &["1 slabs are left", "1 blocks that wait"],
            );
        }
        passed.store(1, SeqCst);
        trimmed(pool);
        assert_eq!((pool_counts(pool).waiting_blocks, pool_counts(pool).slabs), (0, 0));
        if !on.is_null() {
            retire(on);
        }
        end(pool);
        destroy(registry);
    }
}

#[test]
fn device_memory_is_in_the_order_of_streams() {
    // Streams that may share would wait for each other on the device.
    // SAFETY: tests run one at a time (.cargo/config.toml), and this has no other thread yet.
    unsafe { std::env::set_var("PINYARD_POOL_STALL_MS", "0") };
    let pool = pool(&pool_config(PNY_MEMORY_DEVICE, null_mut()));
    // SAFETY: as above; the pool's thread reads no variable.
    unsafe { std::env::remove_var("PINYARD_POOL_STALL_MS") };
    let (first, second) = (stream(pool), stream(pool));
    assert_ne!(first, second);
    let at = block(pool, MIB, first);
    // SAFETY: simulated memory is the host's.
    unsafe { at.cast::<u8>().write_bytes(1, MIB) };
    assert_eq!(find(pool, at).1.key, pny_key::default());

    // Freed on a busy stream: that stream may have it at once, the other may not.
    let busy = occupy(pool, first);
    done(free(pool, at));
    let other = block(pool, MIB, second);
    assert_ne!(other, at);
    assert_eq!(block(pool, MIB, first), at);
    // Used by the busy stream as well, it does not serve its own when it is freed.
    // SAFETY: nobody destroys them.
    done(unsafe { pny_pool_record_use(pool, other, first) });
    done(free(pool, other));
    let fresh = block(pool, MIB, second);
    assert_ne!(fresh, other);
    // The pool's thread takes it in.
    let began = std::time::Instant::now();
    while pool_counts(pool).waiting_blocks == 0 {
        assert!(began.elapsed().as_secs() < 10, "{:?}", pool_counts(pool));
    }
    drop(busy);
    done(free(pool, at));
    done(free(pool, fresh));
    trimmed(pool);
    assert_eq!((pool_counts(pool).live_blocks, pool_counts(pool).slabs), (0, 0));

    for align in [1, 256, 4096, 65536, 2 * MIB] {
        let (status, at) = alloc(pool, 1000, align, first);
        done(status);
        assert!(at.addr().is_multiple_of(align), "{at:p} at {align}");
        let (status, place) = find(pool, at.wrapping_byte_add(999));
        done(status);
        assert_eq!((place.block_base, place.block_length), (at.addr() as u64, 1000));
        assert!(place.offset < place.slab_length);
        assert_eq!(find(pool, at.wrapping_byte_add(1000)).0, PNY_ERR_NOT_FOUND);
        done(free(pool, at));
    }
    refused(alloc(pool, 8, 4 * MIB, first).0, PNY_ERR_INVALID, &["a power of two up to 2097152"]);
    refused(alloc(pool, usize::MAX, 4096, first).0, PNY_ERR_INVALID, &["exceed the address space"]);
    refused(alloc(pool, 8, 1, null_mut()).0, PNY_ERR_INVALID, &["the pny_stream is null"]);
    refused(alloc(pool, 0, 1, first).0, PNY_ERR_INVALID, &["empty allocation"]);
    refused(alloc(pool, 64 * MIB, 1, first).0, PNY_ERR_LIMIT, &["pool limit"]);

    let (sizes, mut batch) = ([100, 70_000, 65_536], [null_mut(); 3]);
    // SAFETY: as many of each.
    done(unsafe { pny_pool_alloc_batch(pool, sizes.as_ptr(), 3, second, batch.as_mut_ptr()) });
    for at in batch {
        done(free(pool, at));
    }
    // SAFETY: the test's only thread.
    let early = unsafe { pny_pool_destroy(pool) };
    refused(early, PNY_ERR_BUSY, &["2 streams", "pny_stream_destroy"]);
    retire(first);
    // SAFETY: a handle that is none any more is only compared.
    refused(unsafe { pny_stream_destroy(first) }, PNY_ERR_STALE, &["is no pny_stream"]);
    refused(alloc(pool, 8, 1, first).0, PNY_ERR_STALE, &["is no pny_stream"]);
    retire(second);
    end(pool);
}

#[test]
fn a_stream_is_one_pool_s_and_has_one_handle() {
    let config = pool_config(PNY_MEMORY_DEVICE, null_mut());
    let (one, other) = (pool(&config), pool(&config));
    let (of_one, of_other) = (stream(one), stream(other));
    refused(alloc(one, 8, 1, of_other).0, PNY_ERR_INVALID, &["the stream is another pool's"]);
    let at = block(one, 8, of_one);
    let mut made = null_mut();
    // SAFETY: nobody destroys them; the number is refused before anybody uses it.
    unsafe {
        refused(pny_pool_record_use(one, at, of_other), PNY_ERR_INVALID, &["another pool's"]);
        refused(pny_stream_create(one, at, &raw mut made), PNY_ERR_INVALID, &["a simulated stream is made"]);
        // The source of a copy on another pool's stream.
        let busy = occupy(other, of_other);
        done(pny_pool_free_after(one, at, of_other));
        refused(pny_pool_free_after(one, at, of_other), PNY_ERR_STALE, &["freed before"]);
        assert_eq!((trimmed(one), pool_counts(one).waiting_blocks), (0, 1));
        drop(busy);
    }
    let began = std::time::Instant::now();
    while pool_counts(one).slabs > 0 {
        trimmed(one);
        assert!(began.elapsed().as_secs() < 10, "the stream has passed");
    }
    retire(of_one);
    retire(of_other);
    end(one);
    end(other);
}

#[test]
fn device_slabs_are_registered_where_there_is_a_registry() {
    let (device, ops) = (Device::default(), ops());
    let registry = create(&config(&ops, &device));
    let pool = pool(&pool_config(PNY_MEMORY_DEVICE, registry));
    let on = stream(pool);
    let at = block(pool, 1000, on);
    let (status, place) = find(pool, at);
    done(status);
    assert_eq!((place.key.lkey, place.key.handle, device.registered.load(SeqCst)), (100, place.slab_base, 1));
    let mut of_registry = held(registry, at, 1000);
    assert_eq!((of_registry.key, of_registry.base), (place.key, place.slab_base), "a hit");
    done(put(&mut of_registry));
    done(free(pool, at));
    retire(on);
    end(pool);
    assert_eq!(device.deregistered.load(SeqCst), 1);
    destroy(registry);
    assert_eq!((device.released.load(SeqCst), device.left.load(SeqCst)), (1, 0));
}

#[test]
fn a_forked_child_gives_up_the_handles_alone() {
    let (device, ops) = (Device::default(), ops());
    let registry = create(&config(&ops, &device));
    let (host, gpu) =
        (pool(&pool_config(PNY_MEMORY_HOST, registry)), pool(&pool_config(PNY_MEMORY_DEVICE, null_mut())));
    let on = stream(gpu);
    let (in_host, in_gpu) = (block(host, 1000, null_mut()), block(gpu, 1000, on));
    let status = in_child(|| {
        let all =
            [alloc(host, 8, 1, null_mut()).0, alloc(gpu, 8, 1, on).0, free(host, in_host), free(gpu, in_gpu)];
        // SAFETY: the child's only thread.
        let ends = unsafe {
            [
                pny_stream_destroy(on),
                pny_pool_destroy(host),
                pny_pool_destroy(gpu),
                pny_registry_destroy(registry),
            ]
        };
        i32::from(all != [PNY_ERR_FORKED; 4]) + 2 * i32::from(ends != [PNY_OK; 4])
    });
    assert_eq!(status, 0);
    assert_eq!(device.deregistered.load(SeqCst) + device.released.load(SeqCst), 0);
    done(free(host, in_host));
    done(free(gpu, in_gpu));
    retire(on);
    end(host);
    end(gpu);
    destroy(registry);
}

/// What a transport's functions may not do: the calls that led there still use the objects.
#[test]
fn nothing_is_destroyed_by_a_function_that_pinyard_calls() {
    static AT: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
    static REFUSED: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn destroys(
        user: *mut c_void,
        address: *mut c_void,
        _: usize,
        _: pny_access,
        key: *mut pny_key,
    ) -> c_int {
        let [registry, pool, stream] = AT.each_ref().map(|at| at.load(SeqCst));
        // SAFETY: handles, or null; the key is writable, `user` that of `config`.
        let statuses = unsafe {
            (*user.cast::<Device>()).registered.fetch_add(1, SeqCst);
            *key = pny_key { lkey: 100, rkey: 7, handle: address.addr() as u64 };
            [
                pny_registry_destroy(core::ptr::without_provenance_mut(registry)),
                pny_pool_destroy(core::ptr::without_provenance_mut(pool)),
                pny_stream_destroy(core::ptr::without_provenance_mut(stream)),
            ]
        };
        REFUSED.fetch_add(statuses.iter().filter(|&&status| status == PNY_ERR_BUSY).count() as u32, SeqCst);
        0
    }
    let device = Device::default();
    let ops = pny_backend_ops { register_memory: Some(destroys), ..ops() };
    let registry = create(&config(&ops, &device));
    let gpu = pool(&pool_config(PNY_MEMORY_DEVICE, registry));
    let on = stream(gpu);
    for (at, handle) in AT.iter().zip([registry.addr(), gpu.addr(), on.addr()]) {
        at.store(handle, SeqCst);
    }
    let pages = Pages::new(1);
    done(put(&mut held(registry, pages.0, PAGE)));
    assert_eq!(REFUSED.load(SeqCst), 3, "{}", last_error());
    done(free(gpu, block(gpu, 1000, on)));
    assert_eq!(REFUSED.load(SeqCst), 6, "{}", last_error());
    retire(on);
    end(gpu);
    destroy(registry);
}

#[test]
fn the_last_finalize_names_what_is_left() {
    let (device, ops) = (Device::default(), ops());
    done(pny_init());
    let registry = create(&config(&ops, &device));
    let gpu = pool(&pool_config(PNY_MEMORY_DEVICE, registry));
    let on = stream(gpu);
    refused(
        pny_finalize(),
        PNY_ERR_BUSY,
        &[&format!("not destroyed: pny_stream {on:p}, pny_pool {gpu:p}, pny_registry {registry:p}")],
    );
    // Nothing has changed.
    done(free(gpu, block(gpu, 1000, on)));
    retire(on);
    let many: Vec<_> = (0..9).map(|_| pool(&pool_config(PNY_MEMORY_HOST, registry))).collect();
    refused(pny_finalize(), PNY_ERR_BUSY, &["and 3 more"]);
    many.into_iter().for_each(end);
    end(gpu);
    destroy(registry);
    done(pny_finalize());
    refused(pny_finalize(), PNY_ERR_NOT_READY, &["no pny_init"]);
}

/// Blocks that some threads allocate and others free: each once.
#[test]
fn blocks_wander_between_threads() {
    const EACH: usize = 3000;
    let (device, ops) = (Device::default(), ops());
    let registry = create(&config(&ops, &device));
    let pool = pool(&pool_config(PNY_MEMORY_HOST, registry)).addr();
    let as_pool = |number: usize| core::ptr::without_provenance_mut(number);
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel::<usize>(64);
        for thread in 0..3 {
            let send = send.clone();
            scope.spawn(move || {
                for round in 0..EACH {
                    send.send(block(as_pool(pool), 64 + 1000 * ((round + thread) % 7), null_mut()).addr())
                        .unwrap();
                }
            });
        }
        drop(send);
        scope.spawn(move || {
            for at in receive {
                let at = core::ptr::without_provenance_mut(at);
                done(free(as_pool(pool), at));
            }
        });
    });
    let now = pool_counts(as_pool(pool));
    assert_eq!((now.live_blocks, now.allocations, now.frees), (0, 3 * EACH as u64, 3 * EACH as u64));
    end(as_pool(pool));
    destroy(registry);
}

#[test]
fn device_memory_is_found_without_its_pool() {
    let (one, other) = (
        pool(&pool_config(PNY_MEMORY_DEVICE, null_mut())),
        pool(&pool_config(PNY_MEMORY_DEVICE, null_mut())),
    );
    let found = |at: *const c_void| {
        let mut place = core::mem::MaybeUninit::<pny_block_place>::zeroed();
        let place = place.as_mut_ptr();
        // SAFETY: integers of its size; no pool is destroyed meanwhile.
        unsafe {
            (*place).size = size_of::<pny_block_place>();
            (pny_device_find(at, place), *place)
        }
    };
    for pool in [one, other] {
        let stream = stream(pool);
        let at = block(pool, 1000, stream);
        for inside in [0, 999] {
            let (status, place) = found(at.wrapping_byte_add(inside));
            assert_eq!((status, place.block_base, place.block_length), (PNY_OK, at.addr() as u64, 1000));
            assert_eq!(place.offset, at.addr() as u64 + inside as u64 - place.slab_base);
        }
        assert_eq!(found(at.wrapping_byte_add(1000)).0, PNY_ERR_NOT_FOUND);
        assert_eq!(free(pool, at), PNY_OK);
        assert_eq!(found(at).0, PNY_ERR_NOT_FOUND);
        retire(stream);
    }
    let host = 7u64;
    assert_eq!(found((&raw const host).cast()).0, PNY_ERR_NOT_FOUND);
    assert_eq!(found(null()).0, PNY_ERR_NOT_FOUND);
    assert!(last_error().contains("0x0 lies in no block of a device pool"), "{}", last_error());
    // SAFETY: null is refused.
    assert_eq!(unsafe { pny_device_find((&raw const host).cast(), null_mut()) }, PNY_ERR_INVALID);
    end(one);
    end(other);
}
