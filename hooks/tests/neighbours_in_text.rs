//! Another patcher writes over our entry, keeps what stood there as "the
//! original", puts it back, or comes again: no call goes unseen for longer than a
//! verification, nobody is left out of the chain, and nobody calls in a ring.
//!
//! What real libraries do is in mpi-tests/neighbours; here is what they might.
#![cfg(target_arch = "x86_64")] // the bytes that the others write there
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod common;

use common::{ANONYMOUS, BOTH, PAGE, child, far_jump, libc_entry, overwrite};
use pinyard_hooks::{Function, Owner, Subscription, install, remove, report, subscribe, verify};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

type Madvise = extern "C" fn(usize, usize, i32) -> isize;

static THEIRS: AtomicU64 = AtomicU64::new(0);
/// What they call as the original; 0 for the system call.
static THEIR_ORIGINAL: AtomicUsize = AtomicUsize::new(0);

/// While they are called, somebody else announces that everything changes.
static ANNOUNCES: AtomicBool = AtomicBool::new(false);

extern "C" fn their_madvise(addr: usize, len: usize, advice: i32) -> isize {
    THEIRS.fetch_add(1, SeqCst);
    if ANNOUNCES.load(SeqCst) {
        pinyard_hooks::notify_unmapped(std::ptr::without_provenance(PAGE), 1 << 46);
    }
    match THEIR_ORIGINAL.load(SeqCst) {
        // SAFETY: the arguments are the caller's.
        0 => unsafe {
            pinyard_hooks::sys::syscall6(libc::SYS_madvise as usize, [addr, len, advice as usize, 0, 0, 0])
        },
        // SAFETY: a copy of what stood at madvise's entry.
        original => unsafe { std::mem::transmute::<usize, Madvise>(original)(addr, len, advice) },
    }
}

struct Page {
    sink: Subscription,
    at: *mut u8,
}

impl Page {
    fn new() -> Page {
        // SAFETY: a page of the test's own.
        let at = unsafe { libc::mmap(null_mut(), PAGE, BOTH, ANONYMOUS, -1, 0) };
        let sink = subscribe().unwrap();
        sink.watch(at as usize..at as usize + PAGE);
        Page { sink, at: at.cast() }
    }

    /// Empties the page. How often we, and they, were told.
    fn change(&self) -> (u64, u64) {
        let (ours, theirs) = (self.sink.pushed(), THEIRS.load(SeqCst));
        // SAFETY: the test's own page.
        unsafe {
            self.at.write_volatile(1);
            assert_eq!(libc::madvise(self.at.cast(), PAGE, libc::MADV_DONTNEED), 0);
            assert_eq!(self.at.read_volatile(), 0, "the real call was made");
        }
        (self.sink.pushed() - ours, THEIRS.load(SeqCst) - theirs)
    }
}

fn they_patch() -> Vec<u8> {
    let entry = libc_entry(Function::Madvise);
    // SAFETY: the function's own bytes.
    let before = unsafe { std::slice::from_raw_parts(entry, 13) }.to_vec();
    overwrite(entry, &far_jump(their_madvise as *const () as usize));
    before
}

fn owner() -> Owner {
    report().unwrap().functions[Function::Madvise as usize].owner
}

/// A foreign hook is left in front where it ends in ours, which a test call shows by its
/// event. What other threads do meanwhile, such as another copy's tests, may announce that
/// all memory changes.
#[test]
fn others_events_do_not_vouch_for_a_foreign_hook() {
    child(|| {
        assert!(install().is_complete());
        let page = Page::new();
        ANNOUNCES.store(true, SeqCst);
        they_patch();
        verify();
        ANNOUNCES.store(false, SeqCst);
        assert_eq!(owner(), Owner::Pinyard, "theirs, which ends in the kernel, was left in front");
        assert_eq!(page.change(), (1, 1));
    });
}

#[test]
fn taking_out_leaves_a_later_patch_alone() {
    child(|| {
        assert!(install().is_complete());
        let page = Page::new();
        they_patch();
        assert!(!remove(), "madvise is not libc's own again");
        assert_eq!(page.change(), (0, 1), "theirs stays, ours is out");
        // And where ours is in front of theirs.
        assert!(install().is_complete());
        assert_eq!(page.change(), (1, 1));
        assert!(!remove());
        assert_eq!(page.change(), (0, 1), "theirs is given back");
        assert!(install().is_complete());
        assert_eq!(page.change(), (1, 1));
    });
}

#[test]
fn whoever_calls_our_jump_as_the_original_does_not_call_in_a_ring() {
    child(|| {
        assert!(install().is_complete());
        let page = Page::new();
        let before = they_patch();
        // As newer UCX does: the displaced jump, relocated, is the original.
        let entry = libc_entry(Function::Madvise) as usize;
        assert_eq!(before[0], 0xe9, "our jump");
        let ours =
            (entry + 5).wrapping_add_signed(i32::from_le_bytes(before[1..5].try_into().unwrap()) as isize);
        THEIR_ORIGINAL.store(ours, SeqCst);
        assert_eq!(page.change(), (1, 1), "they call us: both are told without our doing anything");
        assert!(verify());
        assert_eq!(page.change(), (1, 1));
        // They go, and come back without calling us, so we go in front; then they
        // remember what they had kept.
        for _ in 0..3 {
            THEIR_ORIGINAL.store(0, SeqCst);
            overwrite(libc_entry(Function::Madvise), &before);
            assert!(verify());
            they_patch();
            assert!(verify());
            assert_eq!((page.change(), owner()), ((1, 1), Owner::Pinyard));
            THEIR_ORIGINAL.store(ours, SeqCst);
            assert_eq!(page.change(), (1, 1), "their original leads past us by now");
        }
    });
}

/// Another's sbrk, which moves the break by itself.
extern "C" fn their_sbrk(increment: isize) -> *mut libc::c_void {
    THEIRS.fetch_add(1, SeqCst);
    unsafe extern "C" {
        static mut __curbrk: usize;
    }
    // SAFETY: libc's record of the break, and a break above it.
    unsafe {
        let before = (&raw const __curbrk).read_volatile();
        let brk = pinyard_hooks::sys::syscall6;
        let after = brk(libc::SYS_brk as usize, [before.wrapping_add_signed(increment), 0, 0, 0, 0, 0]);
        (&raw mut __curbrk).write_volatile(after as usize);
        before as *mut _
    }
}

#[test]
fn a_jump_in_front_of_an_sbrk_that_went_moves_the_break() {
    child(|| {
        type Sbrk = extern "C" fn(isize) -> *mut libc::c_void;
        let entry = libc_entry(Function::Sbrk);
        // SAFETY: the function's own bytes.
        let before = unsafe { std::slice::from_raw_parts(entry, 13) }.to_vec();
        overwrite(entry, &far_jump(their_sbrk as *const () as usize));
        assert!(install().is_complete());
        // SAFETY: as above; nothing is moved.
        unsafe {
            assert_eq!(*entry, 0xe9, "our jump");
            THEIRS.store(0, SeqCst);
            assert_ne!(libc::sbrk(0) as isize, -1);
        }
        assert_eq!(THEIRS.load(SeqCst), 1, "theirs is called on");
        // SAFETY: the operand of the jump.
        let operand = unsafe { entry.add(1).cast::<i32>().read_unaligned() };
        let kept = (entry as usize + 5).wrapping_add_signed(operand as isize);
        overwrite(entry, &before);
        assert!(verify());
        // Whoever kept our jump as the original still has a break to move.
        // SAFETY: a trampoline of ours stays for as long as the process.
        let kept = unsafe { std::mem::transmute::<usize, Sbrk>(kept) };
        let end = kept(0);
        assert_eq!(kept(PAGE as isize), end);
        assert_eq!(kept(0) as usize, end as usize + PAGE);
        assert_eq!(kept(-(PAGE as isize)) as usize, end as usize + PAGE);
        assert_eq!(kept(0), end);
        assert_eq!(kept(isize::MAX) as isize, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(THEIRS.load(SeqCst), 1, "they are gone");
    });
}

static THEY_SAW: AtomicUsize = AtomicUsize::new(0);

/// Another's brk.
extern "C" fn their_brk(new: usize) -> i32 {
    THEIRS.fetch_add(1, SeqCst);
    THEY_SAW.store(new, SeqCst);
    // SAFETY: brk(2) answers with the break in force.
    unsafe { pinyard_hooks::sys::syscall6(libc::SYS_brk as usize, [new, 0, 0, 0, 0, 0]) };
    0
}

/// In front of ours, then behind it: the self-test's impossible break is none of theirs.
#[test]
fn the_self_tests_brk_does_not_reach_another_patcher() {
    child(|| {
        assert!(install().is_complete());
        overwrite(libc_entry(Function::Brk), &far_jump(their_brk as *const () as usize));
        // It calls theirs to know whether ours is behind it; then ours stands in front.
        assert!(verify());
        assert_eq!(report().unwrap().functions[Function::Brk as usize].owner, Owner::Pinyard);
        THEIRS.store(0, SeqCst);
        assert!(pinyard_hooks::test_again().is_complete());
        assert_eq!(THEIRS.load(SeqCst), 0, "they were asked for {:#x}", THEY_SAW.load(SeqCst));
        // SAFETY: the kernel refuses it.
        assert_eq!(unsafe { libc::brk(std::ptr::without_provenance_mut(2)) }, 0);
        assert_eq!((THEIRS.load(SeqCst), THEY_SAW.load(SeqCst)), (1, 2), "the program's own is handed on");
    });
}

#[test]
fn an_entry_that_they_give_back_is_taken_again() {
    child(|| {
        assert!(install().is_complete());
        let page = Page::new();
        let before = they_patch();
        assert_eq!(page.change(), (0, 1), "nobody is told before the next verification");
        assert!(verify());
        assert_eq!((page.change(), owner()), ((1, 1), Owner::Pinyard));
        // At fi_close, say: what they had found is put back over ours.
        overwrite(libc_entry(Function::Madvise), &before);
        assert!(verify());
        assert_eq!((page.change(), owner()), ((1, 0), Owner::Pinyard));
    });
}

#[test]
fn nothing_counts_as_seen_while_text_is_writable() {
    child(|| {
        assert!(install().is_complete());
        let page = Page::new();
        let text = libc_entry(Function::Munmap).map_addr(|at| at & !(PAGE - 1)).cast();
        let protect = |protection| {
            let pushed = page.sink.pushed();
            // SAFETY: text stays executable.
            assert_eq!(unsafe { libc::mprotect(text, PAGE, protection) }, 0);
            assert!(page.sink.pushed() > pushed, "nobody is told to look");
        };
        protect(BOTH | libc::PROT_EXEC);
        assert!(!verify() && !pinyard_hooks::untouched());
        protect(libc::PROT_READ | libc::PROT_EXEC);
        assert!(verify() && pinyard_hooks::untouched());
        let pushed = page.sink.pushed();
        // SAFETY: the test's own page; then one that is no mapping.
        unsafe {
            assert_eq!(libc::mprotect(page.at.cast(), PAGE, libc::PROT_READ), 0);
            assert_eq!(libc::mprotect(null_mut(), PAGE, BOTH), -1);
        }
        // Before Linux 5.19 the first replaces pinned pages at the next write.
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
        let news = ((numbers.next(), numbers.next()) < (Some(5), Some(19))) as u64;
        assert_eq!(
            page.sink.pushed(),
            pushed + news,
            "a change of protection elsewhere is nobody's business"
        );
        assert!(verify());
    });
}

#[test]
fn a_patcher_that_never_gives_up_is_reported() {
    child(|| {
        assert!(install().is_complete());
        let page = Page::new();
        let mut gave_up = None;
        for round in 0..1000 {
            they_patch();
            if !verify() {
                gave_up = Some(round);
                break;
            }
            assert_eq!(page.change(), (1, 1));
        }
        assert!(gave_up.is_some_and(|round| round > 10), "{gave_up:?}");
        let text = report().unwrap().to_string();
        assert!(text.contains("too many times"), "{text}");
        assert_eq!(page.change(), (0, 1));
        assert!(!verify(), "and stays reported: nothing may be cached");
    });
}
