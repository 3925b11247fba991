//! Memory of the tests' own, changed through libc as a program would.
#![allow(dead_code, unreachable_pub, unused_imports)]

mod child;
mod device;
mod ledger;

pub use child::*;
pub use device::*;
pub use ledger::*;

use pinyard_registry::backend::{Backend, Custom, IoUring};
use pinyard_registry::{Access, AsRange, Builder, Events, Lease, MemoryKey, PageRange, Registry};
use std::io::Read;
use std::os::fd::AsFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

pub const PAGE: usize = 4096;

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// How registries of these tests hear of changes: from the hooks, or, where the
/// build's environment asks for it (`xtask/ci/tsan.sh`: the sanitizer's runtime calls munmap
/// where its own instrumentation cannot run), from the tests themselves.
pub fn events() -> Events {
    if option_env!("PINYARD_TEST_NOTIFY").is_some() { Events::NotifyOnly } else { Events::Hooks }
}

/// An anonymous mapping, unmapped on drop unless it was before: by then the
/// addresses may be another thread's.
pub struct Pages {
    pub at: usize,
    pub len: usize,
    mapped: AtomicBool,
}

impl Pages {
    pub fn new(pages: usize) -> Pages {
        Pages::with_protection(pages, READ_WRITE)
    }

    pub fn with_protection(pages: usize, protection: i32) -> Pages {
        let len = pages * PAGE;
        // SAFETY: a fresh anonymous mapping.
        let at = unsafe { libc::mmap(null_mut(), len, protection, ANONYMOUS, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Pages { at: at as usize, len, mapped: AtomicBool::new(true) }
    }

    /// Where the kernel places nothing by itself: while nothing is mapped there,
    /// nobody else is given the addresses.
    pub fn apart(pages: usize) -> Pages {
        static NEXT: AtomicU64 = AtomicU64::new(0x2000_0000_0000);
        let at = NEXT.fetch_add(1 << 30, SeqCst) as usize;
        let mapping = Pages { at, len: pages * PAGE, mapped: AtomicBool::new(false) };
        mapping.map_again();
        mapping
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped and owned by `self`; callers use it while it is mapped.
        unsafe { std::slice::from_raw_parts_mut(self.at as *mut u8, self.len) }
    }

    pub fn fill(&mut self, byte: u8) -> &mut Self {
        self.bytes().fill(byte);
        self
    }

    /// `count` pages from page `first`.
    pub fn part(&self, first: usize, count: usize) -> (*const u8, usize) {
        ((self.at + first * PAGE) as *const u8, count * PAGE)
    }

    /// Makes the first and the last page inaccessible, and so the pages between
    /// them a mapping of their own.
    pub fn enclose(&self) {
        for at in [self.at, self.at + self.len - PAGE] {
            // SAFETY: the test's own pages, which nobody reads.
            assert_eq!(unsafe { libc::mprotect(at as *mut _, PAGE, libc::PROT_NONE) }, 0);
        }
    }

    pub fn all(&self) -> (*const u8, usize) {
        (self.at as *const u8, self.len)
    }

    fn about_to_change(&self) {
        if events() == Events::NotifyOnly {
            pinyard_hooks::notify_unmapped(self.at as *const u8, self.len);
        }
    }

    pub fn unmap(&self) {
        self.about_to_change();
        assert!(self.mapped.swap(false, SeqCst));
        // SAFETY: the test's own pages.
        assert_eq!(unsafe { libc::munmap(self.at as *mut _, self.len) }, 0);
    }

    pub fn advise(&self, advice: i32) {
        self.about_to_change();
        // SAFETY: the test's own pages.
        assert_eq!(unsafe { libc::madvise(self.at as *mut _, self.len, advice) }, 0);
    }

    /// New pages in place of the old ones.
    pub fn map_over(&self) {
        self.about_to_change();
        assert!(self.mapped.load(SeqCst));
        self.map_with(libc::MAP_FIXED);
    }

    /// New pages where nothing is mapped now. For pages that are `apart`, or in a
    /// process without threads that map: they could be given the addresses first.
    pub fn map_again(&self) {
        assert!(!self.mapped.swap(true, SeqCst));
        self.map_with(libc::MAP_FIXED_NOREPLACE);
    }

    fn map_with(&self, how: i32) {
        // SAFETY: replaces the test's own pages, or nothing.
        let at = unsafe { libc::mmap(self.at as *mut _, self.len, READ_WRITE, ANONYMOUS | how, -1, 0) };
        assert_eq!(at as usize, self.at, "{}", std::io::Error::last_os_error());
    }

    /// The pages go elsewhere; where to.
    pub fn move_away(&self) -> Pages {
        let target = Pages::new(self.len / PAGE);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: moves the test's own pages over other pages of the test.
        let at = unsafe {
            libc::mremap(self.at as *mut _, self.len, self.len, flags, target.at as *mut libc::c_void)
        };
        assert_eq!(at as usize, target.at);
        self.mapped.store(false, SeqCst);
        target
    }
}

impl AsRange for &Pages {
    fn as_range(&self) -> (usize, usize) {
        (self.at, self.len)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.mapped.load(SeqCst) {
            self.unmap();
        }
    }
}

/// What the device sees: the first byte that travels out of the pages that
/// `key` has pinned for `at`.
pub fn through(ring: &IoUring, key: MemoryKey, at: usize) -> u8 {
    let (mut reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the caller holds the lease; nobody writes the page meanwhile.
    let written = unsafe { ring.write_fixed(writer.as_fd(), key, at as *const u8, PAGE) };
    assert_eq!(written.unwrap(), PAGE);
    let mut bytes = [0; PAGE];
    reader.read_exact(&mut bytes).unwrap();
    bytes[0]
}

/// A device that only counts, and that remembers what is registered.
#[derive(Default)]
pub struct Device {
    pub registered: AtomicU64,
    pub deregistered: AtomicU64,
}

impl Device {
    pub fn new() -> Arc<Device> {
        Arc::default()
    }

    /// lkey: a number that no other registration has.
    pub fn backend(self: &Arc<Self>) -> Custom {
        let (registering, deregistering) = (self.clone(), self.clone());
        Custom::new(
            "counting",
            move |_: PageRange, _: Access| {
                let number = registering.registered.fetch_add(1, SeqCst) + 1;
                Ok(MemoryKey { lkey: number, rkey: number, handle: 0 })
            },
            move |_, _| {
                deregistering.deregistered.fetch_add(1, SeqCst);
                Ok(())
            },
        )
    }

    pub fn counts(&self) -> (u64, u64) {
        (self.registered.load(SeqCst), self.deregistered.load(SeqCst))
    }
}

/// Hears of changes as this build's tests do. The hooks are installed by the first
/// test that comes here, while the others wait: their self-test detaches a segment,
/// which invalidates everything.
pub fn builder_over(backend: impl Backend + 'static) -> Builder {
    static INSTALLED: std::sync::Once = std::sync::Once::new();
    if events() == Events::Hooks {
        INSTALLED.call_once(|| assert!(pinyard_hooks::install().is_complete()));
    }
    Registry::builder().backend(backend).events(events())
}

pub fn registry_over(backend: impl Backend + 'static) -> Registry {
    builder_over(backend).build().unwrap()
}

/// For ranges that are addresses only: nothing is mapped there, and changes are
/// announced.
pub fn registry_of_addresses(device: &Arc<Device>) -> Registry {
    let builder = builder_over(device.backend()).events(Events::NotifyOnly);
    builder.budget(usize::MAX).max_regions(1 << 18).build().unwrap()
}

/// The key of the registration that serves `buffer`, if there is one. A lookup may
/// answer no while events of other memory wait, so they are applied first, and it
/// is asked again.
pub fn cached(registry: &Registry, buffer: impl AsRange + Copy) -> Option<MemoryKey> {
    (0..20).find_map(|_| {
        registry.invalidate((PAGE as *const u8, 1)).unwrap();
        registry.lookup(buffer, Access::LOCAL_READ)
    })
}

/// Tells threads to end, also when the test fails: a scope waits for its threads.
pub struct Finally<'f>(pub &'f AtomicBool);

impl Drop for Finally<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Bytes of this process that are resident.
pub fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * PAGE
}

/// A xorshift sequence.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % limit as u64) as usize
    }
}

pub fn read<'r>(registry: &'r Registry, buffer: impl AsRange) -> Lease<'r> {
    registry.get(buffer, Access::LOCAL_READ).unwrap()
}

/// Waits until `done`. The limit only ends a hang; no test relies on it.
pub fn eventually(mut done: impl FnMut() -> bool) {
    const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);
    let began = std::time::Instant::now();
    while !done() {
        assert!(began.elapsed() < LIMIT, "did not happen in {LIMIT:?}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

pub type Change = fn(&Pages);

/// Each leaves mapped pages at the same addresses.
pub const CHANGES: [(&str, Change); 9] = [
    ("munmap, then mmap", |pages| {
        pages.unmap();
        pages.map_again();
    }),
    ("mmap MAP_FIXED", Pages::map_over),
    ("madvise MADV_DONTNEED", |pages| pages.advise(libc::MADV_DONTNEED)),
    ("mremap away, then mmap", |pages| {
        drop(pages.move_away());
        pages.map_again();
    }),
    ("mremap MREMAP_FIXED over it", |pages| {
        let other = Pages::new(pages.len / PAGE);
        other.mapped.store(false, SeqCst);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: moves one mapping of the test over another.
        let at = unsafe {
            libc::mremap(other.at as *mut _, other.len, other.len, flags, pages.at as *mut libc::c_void)
        };
        assert_eq!(at as usize, pages.at);
    }),
    ("syscall SYS_madvise, with bits that the kernel does not take", |pages| {
        // SAFETY: drops pages of this mapping.
        let done =
            unsafe { libc::syscall(1 << 40 | libc::SYS_madvise, pages.at, pages.len, libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
    }),
    ("syscall SYS_madvise", |pages| {
        // SAFETY: the test's own pages.
        let done = unsafe { libc::syscall(libc::SYS_madvise, pages.at, pages.len, libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
    }),
    ("madvise MADV_DONTNEED_LOCKED", |pages| {
        const DONTNEED_LOCKED: i32 = 24;
        // SAFETY: advice to no page at all; a kernel before 5.18 refuses it even so.
        let known = unsafe { libc::madvise(std::ptr::null_mut(), 0, DONTNEED_LOCKED) == 0 };
        pages.advise(if known { DONTNEED_LOCKED } else { libc::MADV_DONTNEED });
    }),
    ("process_madvise on itself", |pages| {
        let iovec = libc::iovec { iov_base: pages.at as *mut _, iov_len: pages.len };
        // SAFETY: the test's own pages; kernels before 6.13 refuse the advice,
        // then madvise does the same.
        unsafe {
            let pidfd = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
            let advice = libc::MADV_DONTNEED;
            if libc::syscall(libc::SYS_process_madvise, pidfd, &iovec, 1, advice, 0) < 0 {
                pages.advise(advice);
            }
            libc::close(pidfd as i32);
        }
    }),
];

/// What the device sees after pages full of 1 were registered, changed, and
/// filled with 2.
pub fn seen_after(registry: &Registry, ring: &IoUring, change: Change) -> u8 {
    let mut pages = Pages::new(2);
    pages.fill(1);
    assert_eq!(through(ring, read(registry, &pages).key(), pages.at), 1);
    change(&pages);
    pages.fill(2);
    through(ring, read(registry, &pages).key(), pages.at)
}

/// Runs `work(0)` to `work(count - 1)` at the same time, each on a thread made by
/// pthread_create itself: ThreadSanitizer knows that one, while the standard
/// library's is not instrumented. A panic ends the process.
pub fn at_once(count: usize, work: &(dyn Fn(usize) + Sync)) {
    struct Start<'w>(&'w (dyn Fn(usize) + Sync), usize);
    extern "C" fn run(start: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: one of the `starts` below, which outlive the joined thread.
        let Start(work, index) = unsafe { &*start.cast::<Start>() };
        work(*index);
        null_mut()
    }
    let starts: Vec<Start> = (0..count).map(|index| Start(work, index)).collect();
    // SAFETY: each thread gets a start of its own, and is joined before they go.
    unsafe {
        let threads = starts.iter().map(|start| {
            let mut thread = 0;
            let argument = std::ptr::from_ref(start).cast_mut().cast();
            assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), run, argument), 0);
            thread
        });
        for thread in threads.collect::<Vec<_>>() {
            assert_eq!(libc::pthread_join(thread, null_mut()), 0);
        }
    }
}

/// The descriptors of this process's io_urings.
pub fn rings() -> Vec<i32> {
    let is_ring = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|link| link.to_str() == Some("anon_inode:[io_uring]"))
    };
    let all = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let number = |path: std::path::PathBuf| path.file_name()?.to_str()?.parse().ok();
    all.filter(is_ring).filter_map(number).collect()
}
