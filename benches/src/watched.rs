//! Maps, registers and unmaps buffers beside a caller of raw system calls: what
//! `pinyard-bench hooks.watched` starts, and takes turns with. It is a program of its own,
//! as the registries of one that has such a caller are watched by userfaultfd.
#![allow(unsafe_code, clippy::disallowed_methods)]

use pinyard_benches::turns::{fail, or_fail};
use pinyard_benches::worker::answer;
use pinyard_registry::backend::IoUring;
use pinyard_registry::{Access, Registry};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of a buffer, in the order of the figures.
const SIZES: [usize; 3] = [4096, 65_536, 1 << 20];
/// Of each size: a miss, a hit, madvise and munmap.
const OPERATIONS: usize = 4;
/// Buffers of a turn.
const BUFFERS: usize = 50;

/// Nanoseconds of each operation on a fresh buffer of `len` bytes.
fn buffer(registry: &Registry, len: usize) -> [f64; OPERATIONS] {
    let timed = |work: &mut dyn FnMut()| {
        let began = Instant::now();
        work();
        began.elapsed().as_nanos() as f64
    };
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping, written within its bounds, and unmapped at the end.
    unsafe {
        let at = libc::mmap(null_mut(), len, both, flags, -1, 0);
        if at == libc::MAP_FAILED {
            fail(&format!("mmap({len} bytes) failed: {}", std::io::Error::last_os_error()));
        }
        at.cast::<u8>().write_bytes(1, len);
        let mut get = || drop(or_fail(registry.get((at.cast::<u8>(), len), Access::LOCAL_READ)));
        let (miss, hit) = (timed(&mut get), timed(&mut get));
        let empty = timed(&mut || _ = libc::madvise(at, len, libc::MADV_DONTNEED));
        at.cast::<u8>().write_bytes(1, len);
        get();
        [miss, hit, empty, timed(&mut || _ = libc::munmap(at, len))]
    }
}

fn main() {
    // Links the rows, and with them the raw calls.
    std::hint::black_box(pinyard_coverage::run_here as fn(_, _) -> _);
    let ring = Arc::new(or_fail(IoUring::new(16)));
    let registry = or_fail(Registry::builder().backend(ring).build());
    answer(|| {
        let mut figures = [0.0; OPERATIONS * SIZES.len()];
        for (figures, len) in figures.chunks_exact_mut(OPERATIONS).zip(SIZES) {
            for _ in 0..BUFFERS {
                let each = buffer(&registry, len);
                figures.iter_mut().zip(each).for_each(|(sum, one)| *sum += one / BUFFERS as f64);
            }
        }
        figures
    });
}
