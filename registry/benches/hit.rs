//! `cargo bench -p pinyard-registry`: a hit at several sizes, one thread and two.

use divan::{Bencher, black_box};
use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, MemoryKey, Registry};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const STRIDE: usize = 32 << 10;
const REGION: usize = 16 << 10;
const BASE: usize = 0x10_0000_0000;

fn main() {
    divan::main();
}

fn filled(regions: usize) -> Registry {
    let backend = Custom::new("dummy", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let registry = Registry::builder().backend(backend).max_regions(regions + 64).build();
    let registry = registry.unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1)
    });
    for region in 0..regions {
        drop(registry.get(buffer(region), Access::LOCAL_WRITE));
    }
    registry
}

fn buffer(region: usize) -> (*const u8, usize) {
    ((BASE + region * STRIDE) as *const u8, REGION)
}

#[divan::bench(args = [1, 100, 10_000, 100_000], threads = [1, 2])]
fn get_and_release(bencher: Bencher<'_, '_>, regions: usize) {
    let registry = filled(regions);
    let next = AtomicUsize::new(0);
    // A stride that is prime to the sizes visits every region out of order.
    bencher.with_inputs(|| buffer(next.fetch_add(7919, Relaxed) % regions)).bench_values(|buffer| {
        drop(black_box(registry.get(buffer, Access::LOCAL_WRITE)));
    });
}

#[divan::bench(args = [1, 100, 10_000, 100_000])]
fn lookup(bencher: Bencher<'_, '_>, regions: usize) {
    let registry = filled(regions);
    let next = AtomicUsize::new(0);
    bencher.with_inputs(|| buffer(next.fetch_add(7919, Relaxed) % regions)).bench_values(|buffer| {
        black_box(registry.lookup(buffer, Access::LOCAL_WRITE));
    });
}
