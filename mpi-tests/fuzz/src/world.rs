//! The model: a window of pages, which physical page each one shows, and what is
//! written in every physical page that ever was.
#![allow(unsafe_code)]

pub(crate) const PAGE: usize = 4096;
pub(crate) const WINDOW: usize = 32;
/// Where the kernel places nothing by itself.
const BASE: usize = 0x3000_0000_0000;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const FIXED: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_POPULATE;

/// Number of a physical page: whatever a page of the window showed from one change
/// of the mapping to the next.
pub(crate) type Physical = usize;

#[derive(Clone, Copy)]
struct Mapped {
    physical: Physical,
    writable: bool,
}

/// The window as it must be, beside the window as it is.
pub(crate) struct World {
    pages: [Option<Mapped>; WINDOW],
    /// The word at both ends of each physical page.
    words: Vec<u64>,
    version: u64,
}

/// Pages `first..first + count`, inside the window and not empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl Part {
    pub(crate) fn at(self) -> usize {
        BASE + self.first * PAGE
    }
    pub(crate) fn len(self) -> usize {
        self.count * PAGE
    }
    pub(crate) fn bytes(self) -> (*const u8, usize) {
        (self.at() as *const u8, self.len())
    }
    pub(crate) fn pages(self) -> std::ops::Range<usize> {
        self.first..self.first + self.count
    }
    /// The part at these addresses.
    pub(crate) fn of(base: usize, len: usize) -> Part {
        Part { first: (base - BASE) / PAGE, count: len / PAGE }
    }
}

fn succeeded(answer: i32) {
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

impl World {
    pub(crate) fn new() -> World {
        World { pages: [None; WINDOW], words: Vec::new(), version: 0 }
    }

    fn fresh(&mut self) -> Physical {
        self.words.push(0);
        self.words.len() - 1
    }

    /// What a page shows; `None` where nothing is mapped.
    pub(crate) fn physical(&self, page: usize) -> Option<Physical> {
        self.pages[page].map(|mapped| mapped.physical)
    }

    /// What is written in a physical page, mapped or not.
    pub(crate) fn word(&self, physical: Physical) -> u64 {
        self.words[physical]
    }

    pub(crate) fn is_mapped(&self, part: Part) -> bool {
        part.pages().all(|page| self.pages[page].is_some())
    }

    pub(crate) fn is_writable(&self, part: Part) -> bool {
        part.pages().all(|page| self.pages[page].is_some_and(|mapped| mapped.writable))
    }

    /// New pages, each with words of its own.
    pub(crate) fn map(&mut self, part: Part) {
        // SAFETY: the window belongs to the world; nobody else is given its addresses.
        let at = unsafe { libc::mmap(part.at() as *mut _, part.len(), READ_WRITE, FIXED, -1, 0) };
        assert_eq!(at as usize, part.at());
        for page in part.pages() {
            let physical = self.fresh();
            self.pages[page] = Some(Mapped { physical, writable: true });
        }
        self.write(part);
    }

    pub(crate) fn unmap(&mut self, part: Part) {
        // SAFETY: as above; leases keep physical pages, not these addresses.
        succeeded(unsafe { libc::munmap(part.at() as *mut _, part.len()) });
        part.pages().for_each(|page| self.pages[page] = None);
    }

    /// One page moves over another.
    pub(crate) fn remap(&mut self, from: usize, to: usize) {
        let (old, new) = (Part { first: from, count: 1 }, Part { first: to, count: 1 });
        let Some(mapped) = self.pages[from].filter(|_| from != to) else { return };
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both pages belong to the window.
        let at = unsafe { libc::mremap(old.at() as *mut _, PAGE, PAGE, how, new.at()) };
        assert_eq!(at as usize, new.at(), "{}", std::io::Error::last_os_error());
        self.pages[from] = None;
        self.pages[to] = Some(mapped);
    }

    /// Empties the pages: through libc, through `syscall`, or by a system call that
    /// no hook sees, announced.
    pub(crate) fn empty(&mut self, part: Part, how: u8) {
        for page in part.pages().filter(|&page| self.pages[page].is_some()).collect::<Vec<_>>() {
            let part = Part { first: page, count: 1 };
            let (at, advice) = (part.at(), libc::MADV_DONTNEED);
            // SAFETY: a page of the window, whose words are forgotten below.
            unsafe {
                match how % 3 {
                    0 => succeeded(libc::madvise(at as *mut _, PAGE, advice)),
                    1 => assert_eq!(libc::syscall(libc::SYS_madvise, at, PAGE, advice), 0),
                    _ => {
                        pinyard_hooks::notify_unmapped(at as *const u8, PAGE);
                        assert_eq!(pinyard_hooks::sys::madvise(at, PAGE, advice), Ok(()));
                    }
                }
            }
            let physical = self.fresh();
            if let Some(mapped) = &mut self.pages[page] {
                mapped.physical = physical;
            }
        }
    }

    pub(crate) fn protect(&mut self, part: Part, writable: bool) {
        let protection = if writable { READ_WRITE } else { libc::PROT_READ };
        for page in part.pages() {
            if let Some(mapped) = &mut self.pages[page] {
                mapped.writable = writable;
                let at = BASE + page * PAGE;
                // SAFETY: a page of the window.
                succeeded(unsafe { libc::mprotect(at as *mut _, PAGE, protection) });
            }
        }
    }

    /// Writes a new word to both ends of each page that can be written.
    pub(crate) fn write(&mut self, part: Part) {
        for page in part.pages() {
            if let Some(Mapped { physical, writable: true }) = self.pages[page] {
                self.version += 1;
                self.words[physical] = self.version;
                let at = (BASE + page * PAGE) as *mut u64;
                // SAFETY: a mapped, writable page of the window.
                unsafe {
                    at.write_volatile(self.version);
                    at.byte_add(PAGE - 8).write_volatile(self.version);
                }
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.unmap(Part { first: 0, count: WINDOW });
    }
}

/// A pipe that the device writes pages into.
pub(crate) struct Pipe {
    reader: i32,
    pub(crate) writer: i32,
}

impl Pipe {
    pub(crate) fn new() -> Pipe {
        let mut ends = [0; 2];
        // SAFETY: fills the array that it is given.
        succeeded(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) });
        Pipe { reader: ends[0], writer: ends[1] }
    }

    /// The words at both ends of the page that was written last.
    pub(crate) fn page(&self) -> (u64, u64) {
        let mut words = [0u64; PAGE / 8];
        // SAFETY: as many bytes as the array has.
        let read = unsafe { libc::read(self.reader, words.as_mut_ptr().cast(), PAGE) };
        assert_eq!(read, PAGE as isize);
        (words[0], words[PAGE / 8 - 1])
    }
}

/// Waits for a child that runs `work` and ends; whether `work` was true there.
pub(crate) fn in_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child ends with _exit; what it calls is what a forked child may call.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(20);
            libc::_exit(if work() { 0 } else { 1 });
        }
        let mut status = -1;
        // The fuzzer's own timer interrupts the wait.
        while libc::waitpid(child, &raw mut status, 0) != child {
            assert_eq!(*libc::__errno_location(), libc::EINTR);
        }
        status == 0
    }
}
