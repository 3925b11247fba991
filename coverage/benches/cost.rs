//! What being watched by userfaultfd costs: a fresh buffer is mapped, written,
//! registered and unmapped, with patched entries alone (`PINYARD_HOOKS=entry`) and
//! in the default set-up, which watches, because this program makes raw calls.
//! Medians in nanoseconds. Run it with `cargo bench -p pinyard-coverage`.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]

use pinyard_registry::backend::IoUring;
use pinyard_registry::{Access, MECHANISM_VARIABLE, Registry, raw_callers};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Instant;

const ROUNDS: usize = 2000;

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

fn timed<R>(times: &mut Vec<u64>, work: impl FnOnce() -> R) -> R {
    let began = Instant::now();
    let result = work();
    times.push(began.elapsed().as_nanos() as u64);
    result
}

fn measure(name: &str) {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let registry = Registry::builder().backend(ring).build().unwrap();
    for len in [4096, 65_536, 1 << 20] {
        let (mut miss, mut hit, mut unmap, mut empty) = (vec![], vec![], vec![], vec![]);
        for _ in 0..ROUNDS {
            let both = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: pages of this round's own.
            unsafe {
                let at = libc::mmap(null_mut(), len, both, flags, -1, 0);
                assert_ne!(at, libc::MAP_FAILED);
                at.cast::<u8>().write_bytes(1, len);
                let get = || drop(registry.get((at.cast::<u8>(), len), Access::LOCAL_READ).unwrap());
                timed(&mut miss, get);
                timed(&mut hit, get);
                timed(&mut empty, || libc::madvise(at, len, libc::MADV_DONTNEED));
                at.cast::<u8>().write_bytes(1, len);
                get();
                timed(&mut unmap, || libc::munmap(at, len));
            }
        }
        let [miss, hit, empty, unmap] = [miss, hit, empty, unmap].map(median);
        println!(
            "{name:8} {len:8} B  get, miss {miss:7}  get, hit {hit:5}  madvise {empty:6}  munmap {unmap:6}"
        );
    }
}

fn main() {
    // Links the rows, and with them the raw calls.
    std::hint::black_box(pinyard_coverage::run_here as fn(_, _) -> _);
    if std::env::args().any(|argument| argument == "--one") {
        return measure(std::env::var(MECHANISM_VARIABLE).as_deref().unwrap_or("default"));
    }
    let began = Instant::now();
    let callers = raw_callers();
    println!("the scan took {} us and found {}", began.elapsed().as_micros(), callers.len());
    for forced in [Some("entry"), None, Some("entry"), None] {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.arg("--one").env_remove(MECHANISM_VARIABLE);
        command.envs(forced.map(|value| (MECHANISM_VARIABLE, value)));
        assert!(command.status().unwrap().success());
    }
}
