//! Testing the hooks anew (as a repair does, with every thread running) takes no
//! other thread's memory.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]

use pinyard_hooks::{Seen, install};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::*};

const PAGE: usize = 4096;

#[test]
fn a_self_test_beside_threads_that_map_takes_nothing_of_theirs() {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                    let both = libc::PROT_READ | libc::PROT_WRITE;
                    // SAFETY: a page of this thread's own: written, read, unmapped.
                    unsafe {
                        let page = libc::mmap(null_mut(), PAGE, both, flags, -1, 0).cast::<u8>();
                        page.write_volatile(7);
                        std::thread::yield_now();
                        assert_eq!(page.read_volatile(), 7);
                        assert_eq!(libc::munmap(page.cast(), PAGE), 0);
                    }
                }
            });
        }
        for _ in 0..300 {
            let report = pinyard_hooks::test_again();
            let munmap = report.functions[0];
            assert_eq!(munmap.seen, Seen::Yes, "{munmap}");
        }
        done.store(true, SeqCst);
    });
    assert!(install().is_complete());
}
