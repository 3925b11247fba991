//! Real pages, really pinned: io_uring moves bytes through a block's key, the hooks
//! watch, and the kernel is asked for huge pages.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

use pinyard_allocator::{HostSource, Pool, PoolBuf};
use pinyard_registry::backend::{IoUring, Mlock};
use pinyard_registry::{Access, Registry};
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// What arrives when the device sends `block` out of the pages that its key pins.
fn sent(ring: &IoUring, block: &PoolBuf<u8>) -> Vec<u8> {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut arrived = vec![0; block.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            while at < block.len() {
                // SAFETY: the block holds its slab's registration, and nobody writes it.
                let wrote = unsafe {
                    ring.write_fixed(writer.as_fd(), block.key(), block.as_ptr().add(at), block.len() - at)
                };
                at += wrote.unwrap();
            }
        });
        reader.read_exact(&mut arrived).unwrap();
    });
    arrived
}

#[test]
fn a_device_finds_every_blocks_bytes_under_its_key() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let registry = Registry::builder().backend(ring.clone()).build().unwrap();
    let pool = Pool::host(&registry).slab_bytes(2 * MIB).build().unwrap();
    let mut blocks: Vec<_> = [64, 100, 4096, 258_048, MIB, 3 * MIB]
        .iter()
        .map(|&bytes| pool.alloc::<u8>(bytes).unwrap())
        .collect();
    for round in 0..3u8 {
        for (n, block) in blocks.iter_mut().enumerate() {
            block.fill(round * 50 + n as u8);
        }
        for block in &blocks {
            assert_eq!(sent(&ring, block), **block);
        }
    }
    assert_eq!(registry.stats().registrations, pool.stats().slabs);
    drop(blocks);
    pool.trim();
    assert_eq!((registry.stats().regions, registry.stats().pinned_bytes), (0, 0));
}

/// What lies where a slab was is registered anew, though the hooks saw no unmapping.
#[test]
fn the_place_of_a_trimmed_slab_is_registered_anew() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let registry = Registry::builder().backend(ring.clone()).build().unwrap();
    let pool = Pool::host(&registry).slab_bytes(2 * MIB).build().unwrap();
    let slab = {
        let block = pool.alloc::<u8>(2 * MIB).unwrap();
        drop(registry.get(&block[..], Access::LOCAL_WRITE).unwrap());
        block.slab_base()
    };
    assert_eq!((pool.trim(), registry.stats().deregistrations), (2 * MIB, 1));
    // SAFETY: refuses to replace a mapping that somebody else has made there.
    let at = unsafe {
        pinyard_hooks::sys::mmap(
            slab,
            2 * MIB,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
        )
    };
    assert_eq!(at, Ok(slab));
    assert!(registry.lookup((slab as *const u8, MIB), Access::LOCAL_WRITE).is_none());
    drop(registry.get((slab as *const u8, MIB), Access::LOCAL_WRITE).unwrap());
    assert_eq!(registry.stats().registrations, 2);
    registry.invalidate((slab as *const u8, 2 * MIB)).unwrap();
    // SAFETY: the mapping made above.
    unsafe { pinyard_hooks::sys::munmap(slab, 2 * MIB) }.unwrap();
}

/// A pool adds regions to a registry with a budget; the refusal says which limit.
#[test]
fn the_registrys_budget_holds_for_pools() {
    let registry = Registry::builder().backend(Mlock::new()).budget(4 * MIB).build().unwrap();
    let pool = Pool::host(&registry).slab_bytes(2 * MIB).build().unwrap();
    let kept = [pool.alloc::<u8>(2 * MIB).unwrap(), pool.alloc::<u8>(2 * MIB).unwrap()];
    let error = pool.alloc::<u8>(MIB).unwrap_err();
    assert!(matches!(error, pinyard_allocator::AllocError::Registration { .. }), "{error}");
    assert!(error.to_string().contains("4194304"), "{error}");
    drop(kept);
    pool.alloc::<u8>(MIB).unwrap();
    assert_eq!(registry.stats().pinned_bytes, 4 * MIB as u64);
}

#[test]
fn slabs_lie_on_huge_pages() {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if !setting.contains("[madvise]") && !setting.contains("[always]") {
        eprintln!("skipped: transparent huge pages are off on this machine ({})", setting.trim());
        return;
    }
    let registry = Registry::builder().backend(Mlock::new()).build().unwrap();
    let pool = Pool::from_source(&registry, HostSource::new()).slab_bytes(16 * MIB).build().unwrap();
    let mut block = pool.alloc::<u8>(8 * MIB).unwrap();
    assert_eq!(block.slab_base() % (2 * MIB), 0);
    block.fill(1);
    let huge = anonymous_huge_kib(block.slab_base());
    let free = free_huge_pages();
    if huge == 0 && free < 8 {
        eprintln!("skipped: the machine has no free memory in huge pages ({free} of 2 MiB)");
        return;
    }
    assert!(huge >= 8 * 1024, "{huge} KiB of the slab are on huge pages");
}

/// `AnonHugePages` of the mapping that holds `address`, from /proc/self/smaps.
fn anonymous_huge_kib(address: usize) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in smaps.lines() {
        let first = line.split_ascii_whitespace().next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let bound = |text| usize::from_str_radix(text, 16).unwrap();
            inside = (bound(start)..bound(end)).contains(&address);
        } else if inside && first == "AnonHugePages:" {
            return line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
        }
    }
    panic!("no mapping holds {address:#x}");
}

/// Free blocks of 2 MiB or more, from /proc/buddyinfo (orders 9 and above).
fn free_huge_pages() -> usize {
    let zones = std::fs::read_to_string("/proc/buddyinfo").unwrap_or_default();
    zones
        .lines()
        .flat_map(|zone| zone.split_ascii_whitespace().skip(4 + 9).enumerate())
        .filter_map(|(above, count)| Some(count.parse::<usize>().ok()? << above))
        .sum()
}
