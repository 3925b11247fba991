//! Allocate and free one size, over and over, in 1 and 2 threads: the pool, a list
//! under a mutex, and malloc. The figure is one pair.
//!
//! `cargo bench -p pinyard-allocator`
#![allow(clippy::unwrap_used)]

use divan::{Bencher, black_box};
use pinyard_allocator::Pool;
use pinyard_registry::{Events, MemoryKey, Registry, backend::Custom};
use std::sync::{LazyLock, Mutex};

const SIZES: [usize; 5] = [512, 4096, 65_536, 258_048, 4 << 20];
const THREADS: [usize; 2] = [1, 2];

fn main() {
    divan::main();
}

static POOL: LazyLock<Pool> = LazyLock::new(|| {
    let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
    Pool::host(&registry).build().unwrap()
});

#[divan::bench(args = SIZES, threads = THREADS, sample_size = 2000)]
fn pool(bencher: Bencher, bytes: usize) {
    let pool = &*POOL;
    bencher.bench(|| drop(black_box(pool.alloc::<u8>(black_box(bytes)).unwrap())));
}

/// The key of a pooled block, as a transport asks for it.
#[divan::bench(args = SIZES, threads = THREADS, sample_size = 2000)]
fn pool_with_key(bencher: Bencher, bytes: usize) {
    let pool = &*POOL;
    bencher.bench(|| {
        let block = pool.alloc::<u8>(black_box(bytes)).unwrap();
        black_box((block.key(), block.as_ptr()));
    });
}

#[divan::bench(args = SIZES, threads = THREADS, sample_size = 2000)]
fn mutex_list(bencher: Bencher, bytes: usize) {
    let list: Mutex<Vec<Vec<u8>>> = Mutex::new((0..64).map(|_| vec![0; bytes]).collect());
    bencher.bench(|| {
        let block = black_box(list.lock().unwrap().pop());
        list.lock().unwrap().extend(block);
    });
}

#[divan::bench(args = SIZES, threads = THREADS, sample_size = 2000)]
fn malloc(bencher: Bencher, bytes: usize) {
    bencher.bench(|| drop(black_box(Vec::<u8>::with_capacity(black_box(bytes)))));
}

/// 64 allocations, then 64 frees, oldest first: the blocks go through both magazines
/// and the bin. The figure is 64 pairs.
#[divan::bench(args = SIZES, threads = THREADS, sample_size = 50)]
fn pool_64_live(bencher: Bencher, bytes: usize) {
    let pool = &*POOL;
    queue_of_64(bencher, || pool.alloc::<u8>(black_box(bytes)).unwrap());
}

/// The same with malloc.
#[divan::bench(args = SIZES, threads = THREADS, sample_size = 50)]
fn malloc_64_live(bencher: Bencher, bytes: usize) {
    queue_of_64(bencher, || Vec::<u8>::with_capacity(black_box(bytes)));
}

fn queue_of_64<T>(bencher: Bencher, alloc: impl Fn() -> T + Sync) {
    bencher.bench(|| {
        let live: [T; 64] = std::array::from_fn(|_| alloc());
        drop(black_box(live));
    });
}
