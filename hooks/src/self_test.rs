//! Each function, called on memory of our own: did the event arrive? Where the program
//! itself may never make the call, it is one that no kernel accepts, and the hook answers
//! it (`refused.rs`); of the others: did the pages change?
#![allow(unsafe_code)]

use crate::libc_functions::entry_of;
use crate::monitor::{Subscription, subscribe_for_self_test};
use crate::report::{Function, FunctionReport, Report, Seen, Why};
use crate::sys::errno;
use crate::{PAGE_SIZE, loader, patch, refused, sys};
use core::cell::{Cell, UnsafeCell};

/// Asks `line` for every function's line.
pub(crate) fn run(mut line: impl FnMut(Function) -> FunctionReport) -> Report {
    Report { functions: Function::ALL.map(&mut line) }
}

type Six = extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;

/// The self-test's own place among the subscribers, claimed once and kept: a
/// thread that is in a self-test while another forks must not take it along.
struct OwnSink(UnsafeCell<Option<Subscription>>);
// SAFETY: only reached from `call`, under the installer's lock.
unsafe impl Sync for OwnSink {}
static OWN_SINK: OwnSink = OwnSink(UnsafeCell::new(None));

fn own_sink() -> Option<&'static Subscription> {
    // SAFETY: under the installer's lock; once filled it is only read.
    let own = unsafe { &mut *OWN_SINK.0.get() };
    if own.is_none() {
        *own = subscribe_for_self_test();
    }
    own.as_ref()
}

/// Two pages that nobody else knows, watched.
struct Scratch {
    sink: &'static Subscription,
    base: usize,
    /// The first page is still ours to unmap. Once given back, the kernel may
    /// have handed its address to another thread.
    first_is_ours: Cell<bool>,
    /// An event of exactly what was changed has come.
    own: Cell<bool>,
}

const SCRATCH: usize = 2 * PAGE_SIZE;
const MARK: u8 = 0x5a;

impl Scratch {
    fn new() -> Result<Scratch, Why> {
        let sink = own_sink().ok_or(Why { call: "the self-test's own sink is taken", errno: 0 })?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping.
        let base = unsafe { sys::mmap(0, SCRATCH, libc::PROT_READ | libc::PROT_WRITE, flags) }
            .map_err(|errno| Why { call: "mmap(two scratch pages)", errno })?;
        // SAFETY: mapped writable just now, known to nobody else.
        unsafe { (base as *mut u8).write_bytes(MARK, SCRATCH) };
        sink.watch(base..base + SCRATCH);
        let scratch = Scratch { sink, base, first_is_ours: Cell::new(true), own: Cell::new(false) };
        scratch.arrived(0, 0); // what was left in the sink by someone else's late push
        Ok(scratch)
    }

    /// Takes what is pending; whether anything that covers `start..end` has come, or an event
    /// that no inbox has the bits for. One of `start..end` alone is noted: it is the test's
    /// own call. What other threads change, or another copy of this library tests, may cover
    /// it with all other memory.
    fn arrived(&self, start: usize, end: usize) -> bool {
        let mut covered = false;
        let mark = self.sink.begin();
        covered |= self.sink.take(|event| {
            covered |= event.start() <= start && end <= event.end();
            self.own.set(self.own.get() | (event.start() == start && event.end() == end));
        });
        self.sink.finish(mark);
        covered
    }

    fn page_arrived(&self) -> bool {
        self.arrived(self.base, self.base + PAGE_SIZE)
    }

    fn first_byte(&self) -> u8 {
        // SAFETY: only called where the first page is mapped.
        unsafe { (self.base as *const u8).read_volatile() }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.sink.unwatch(self.base..self.base + SCRATCH);
        let given_back = if self.first_is_ours.get() { 0 } else { PAGE_SIZE };
        // SAFETY: pages of our own that nobody else knows.
        let _ = unsafe { sys::munmap(self.base + given_back, SCRATCH - given_back) };
    }
}

pub(crate) const UNSEEN: Why = Why { call: "the change happened, no event arrived", errno: 0 };

fn verdict(changed: bool, arrived: bool, call: &'static str) -> Seen {
    match (changed, arrived) {
        (true, true) => Seen::Yes,
        (true, false) => Seen::No(UNSEEN),
        (false, _) => Seen::NotExercised(Why { call, errno: errno() }),
    }
}

/// Calls `function` through its libc entry and says what came of it. Keeps errno.
pub(crate) fn call(function: Function) -> Seen {
    entry_of(function).map_or(ABSENT, |entry| try_at(function, entry).0)
}

const ABSENT: Seen = Seen::NotExercised(Why { call: "this libc has no such function", errno: 0 });

/// Likewise, and whether its own event has come, known by its page.
fn try_at(function: Function, entry: usize) -> (Seen, bool) {
    let before = errno();
    let tried = match Scratch::new() {
        Err(why) => (Seen::NotExercised(why), false),
        Ok(scratch) => {
            // SAFETY: a function whose arguments are all integers or pointers: six
            // registers, of which it reads its own.
            let call = unsafe { core::mem::transmute::<usize, Six>(entry) };
            (exercise(function, call, &scratch), scratch.own.get())
        }
    };
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() = before };
    tried
}

/// Whether `function` is seen though its entry is another's: by its own event, or where that
/// can only be of everything, by one that covers it.
pub(crate) fn surely_seen(function: Function) -> bool {
    use Function::{Brk, DlDebugState, Mprotect, Sbrk, Shmat, Shmdt};
    let is_wide = matches!(function, Brk | Sbrk | Shmat | Shmdt | Mprotect | DlDebugState);
    let Some(entry) = entry_of(function) else { return false };
    // Another's hook makes the call, which the kernel refuses. A hook of UCX's that is left as it
    // is keeps UCX's own test of its events; ours in front of it would not.
    let (seen, own) = try_at(function, entry);
    seen == Seen::Yes && (own || is_wide)
}

/// Whether brk's entry leads to a hook, of ours or another's, that is seen.
pub(crate) fn brk_is_seen() -> bool {
    // SAFETY: a function of libc.
    let is_hooked = |entry| unsafe { patch::jump_target(entry) }.is_some();
    entry_of(Function::Brk).is_some_and(is_hooked) && surely_seen(Function::Brk)
}

fn exercise(function: Function, call: Six, scratch: &Scratch) -> Seen {
    let base = scratch.base;
    let dontneed = libc::MADV_DONTNEED as usize;
    match function {
        Function::Munmap => {
            let done = call(base, PAGE_SIZE, 0, 0, 0, 0) == 0;
            scratch.first_is_ours.set(!done);
            verdict(done, scratch.page_arrived(), "munmap(scratch page)")
        }
        Function::Mmap => {
            let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
            let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as usize;
            call(base, PAGE_SIZE, prot, flags, usize::MAX, 0);
            verdict(scratch.first_byte() == 0, scratch.page_arrived(), "mmap(scratch page, MAP_FIXED)")
        }
        Function::Mremap => {
            // It cannot grow where it is: the second page is in the way. Without MREMAP_FIXED:
            // UCX's hook has no fifth argument, and hands on whatever is in its register.
            let moved = call(base, PAGE_SIZE, 2 * PAGE_SIZE, libc::MREMAP_MAYMOVE as usize, 0, 0);
            let done = moved != -1 && moved as usize != base;
            if done {
                scratch.first_is_ours.set(false);
                // SAFETY: where the kernel has just put our page, which nobody else knows.
                let _ = unsafe { sys::munmap(moved as usize, 2 * PAGE_SIZE) };
            }
            verdict(done, scratch.page_arrived(), "mremap(scratch page, MREMAP_MAYMOVE)")
        }
        Function::Madvise => {
            call(base, PAGE_SIZE, dontneed, 0, 0, 0);
            verdict(scratch.first_byte() == 0, scratch.page_arrived(), "madvise(scratch page, MADV_DONTNEED)")
        }
        // From here on no system call is made (`refused.rs`): a real shrink could take
        // away what another thread's malloc got in the meantime. The hook, which does not
        // know where the heap begins, publishes all below the break.
        Function::Brk => {
            scratch.sink.watch(PAGE_SIZE..2 * PAGE_SIZE);
            call(refused::BREAK, 0, 0, 0, 0, 0);
            scratch.sink.unwatch(PAGE_SIZE..2 * PAGE_SIZE);
            verdict(true, scratch.arrived(PAGE_SIZE, 2 * PAGE_SIZE), "")
        }
        // Ours, in front of another patcher's. libc's own is not called: it may move the break.
        Function::Sbrk => {
            scratch.sink.watch(PAGE_SIZE..2 * PAGE_SIZE);
            call(refused::INCREMENT as usize, 0, 0, 0, 0, 0);
            scratch.sink.unwatch(PAGE_SIZE..2 * PAGE_SIZE);
            verdict(true, scratch.arrived(PAGE_SIZE, 2 * PAGE_SIZE), "")
        }
        // Of a length that it does not know: all above.
        Function::Shmdt => {
            call(refused::ADDRESS, 0, 0, 0, 0, 0);
            verdict(true, scratch.page_arrived(), "")
        }
        Function::Shmat => {
            call(refused::NUMBER, base, libc::SHM_REMAP as usize, 0, 0, 0);
            verdict(true, scratch.page_arrived(), "")
        }
        Function::ProcessMadvise => {
            let iovec = libc::iovec { iov_base: base as *mut _, iov_len: PAGE_SIZE };
            call(refused::NUMBER, (&raw const iovec).addr(), 1, dontneed, 0, 0);
            verdict(true, scratch.page_arrived(), "")
        }
        Function::RemapFilePages => {
            call(base, PAGE_SIZE, refused::NUMBER, 0, 0, 0);
            verdict(true, scratch.page_arrived(), "")
        }
        // Of no file: the hook publishes the page that the offset would be (`files.rs`).
        Function::Ftruncate => {
            call(refused::NUMBER, base, 0, 0, 0, 0);
            verdict(true, scratch.page_arrived(), "")
        }
        Function::Truncate => {
            call(refused::PATH, base, 0, 0, 0, 0);
            verdict(true, scratch.page_arrived(), "")
        }
        Function::Fallocate => {
            let mode = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as usize;
            call(refused::NUMBER, mode, base, PAGE_SIZE, 0, 0);
            verdict(true, scratch.page_arrived(), "")
        }
        Function::DlDebugState => {
            loader::as_if_removing(|| call(0, 0, 0, 0, 0, 0));
            verdict(true, scratch.page_arrived(), "")
        }
        Function::Mprotect => {
            // No bytes of text: another patcher may be in the middle of its own.
            let text = entry_of(function).unwrap_or_default() & !(PAGE_SIZE - 1);
            call(text + refused::ADDRESS, 0, libc::PROT_READ as usize, 0, 0, 0);
            verdict(true, scratch.page_arrived(), "")
        }
        Function::Syscall => {
            call(libc::SYS_madvise as usize, base, PAGE_SIZE, dontneed, 0, 0);
            verdict(scratch.first_byte() == 0, scratch.page_arrived(), "syscall(SYS_madvise, scratch page)")
        }
    }
}

pub(crate) fn single_threaded() -> bool {
    // SAFETY: all-zero is a valid stat buffer, and stat fills it.
    unsafe {
        let mut stat: libc::stat = core::mem::zeroed();
        // A directory has two links and one for each sub-directory: a thread.
        libc::stat(c"/proc/self/task".as_ptr(), &raw mut stat) == 0 && stat.st_nlink == 3
    }
}
