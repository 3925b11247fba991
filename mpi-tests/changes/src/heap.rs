//! Rows in which libc changes mappings on its own account: the heap, the break,
//! threads' stacks. And what a child does.
#![allow(unsafe_code, clippy::disallowed_methods)]

use crate::judge::{Judge, Outcome, Verdict, skipped};
use crate::memory::{Memory, PAGE};
use pinyard_hooks::sys;
use std::ptr::null_mut;

const MIB: usize = 1 << 20;

/// The whole pages inside a block of the heap.
fn pages_of(block: *mut libc::c_void, len: usize) -> Memory {
    let at = (block as usize).next_multiple_of(PAGE);
    Memory { at, len: (block as usize + len - at) & !(PAGE - 1) }
}

fn allocated(len: usize) -> Outcome<*mut libc::c_void> {
    // SAFETY: malloc takes any length.
    let block = unsafe { libc::malloc(len) };
    if block.is_null() { skipped("malloc") } else { Ok(block) }
}

pub(crate) fn free_large(judge: &mut Judge) -> Outcome<Verdict> {
    let block = allocated(64 * MIB)?;
    let memory = Memory { len: 2 * PAGE, ..pages_of(block, 64 * MIB) };
    judge.before(memory.at, memory.len)?;
    // SAFETY: allocated above, not used again as a block.
    unsafe { libc::free(block) };
    memory.map_again()?;
    judge.after(memory.at, memory.len)
}

pub(crate) fn realloc_moves(judge: &mut Judge) -> Outcome<Verdict> {
    let block = allocated(MIB)?;
    let memory = Memory { len: 2 * PAGE, ..pages_of(block, MIB) };
    judge.before(memory.at, memory.len)?;
    // What lies behind the block is taken, so that it cannot grow in place.
    let behind = ((block as usize) & !(PAGE - 1)) + (MIB + 2 * PAGE).next_multiple_of(PAGE) - PAGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: takes only a page that nobody has; the block is the row's own.
    let moved = unsafe {
        let _ = sys::mmap(behind, PAGE, libc::PROT_NONE, flags);
        libc::realloc(block, 64 * MIB)
    };
    if moved.is_null() || moved == block {
        return Err(Verdict::Skipped("realloc did not move the block".to_owned()));
    }
    memory.map_again()?;
    judge.after(memory.at, memory.len)
}

/// Blocks of up to 16 MiB come from the heap, and stay there when they are freed.
fn keep_freed() {
    // SAFETY: sets two parameters of this process's malloc.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 16 * MIB as i32);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 * MIB as i32);
    }
}

/// A free block inside the heap, whose pages go back while its addresses stay.
pub(crate) fn malloc_trim(judge: &mut Judge) -> Outcome<Verdict> {
    keep_freed();
    let block = allocated(MIB)?;
    let _keeps_it_inside = allocated(64 * 1024)?;
    let memory = pages_of(block, MIB).part(128, 2);
    judge.before(memory.at, memory.len)?;
    // SAFETY: allocated above; after the free its pages are only looked at again
    // once malloc has given them out in some block.
    unsafe {
        libc::free(block);
        libc::malloc_trim(0);
    }
    // The block may have become one with a free one before it, or have lost some bytes to
    // another thread. The first that fits into the free one covers all but its end.
    for len in (10..64).rev().map(|sixteenths| sixteenths * (MIB / 16)) {
        let block = allocated(len)?;
        let start = block as usize;
        if start <= memory.at && memory.at + memory.len <= start + len {
            return judge.after(memory.at, memory.len);
        }
        // SAFETY: allocated above.
        unsafe { libc::free(block) };
    }
    Err(Verdict::Skipped("malloc gave out other blocks".to_owned()))
}

/// Grows the break, takes it back with `shrink`, and grows it again. What the judge allocates
/// meanwhile comes out of room that malloc has already.
fn break_moves(judge: &mut Judge, shrink: fn(Memory) -> i32) -> Outcome<Verdict> {
    keep_freed();
    let room = allocated(4 * MIB)?;
    // SAFETY: allocated above.
    unsafe { libc::free(room) };
    // SAFETY: moves the break, beyond what malloc knows of.
    let end = unsafe { libc::sbrk(0) } as usize;
    let memory = Memory { at: end.next_multiple_of(PAGE) + 8 * PAGE, len: 2 * PAGE };
    let grow = || {
        // SAFETY: as above: this thread is the only one that uses the heap.
        let grown = unsafe { libc::brk((memory.at + memory.len) as *mut libc::c_void) };
        if grown == 0 { Ok(()) } else { skipped("brk") }
    };
    grow()?;
    judge.before(memory.at, memory.len)?;
    // SAFETY: see above.
    if unsafe { libc::sbrk(0) } as usize != memory.at + memory.len {
        return Err(Verdict::Skipped("malloc moved the break meanwhile".to_owned()));
    }
    if shrink(memory) != 0 {
        return skipped("brk");
    }
    grow()?;
    judge.after(memory.at, memory.len)
}

pub(crate) fn brk_shrinks(judge: &mut Judge) -> Outcome<Verdict> {
    // SAFETY: only the row's own pages lie above.
    break_moves(judge, |memory| unsafe { libc::brk(memory.pointer()) })
}

pub(crate) fn sbrk_shrinks(judge: &mut Judge) -> Outcome<Verdict> {
    // SAFETY: only the row's own pages lie above.
    break_moves(judge, |memory| i32::from(unsafe { libc::sbrk(-(memory.len as isize)) } as isize == -1))
}

/// A stack too large for libc to keep: it is unmapped when its thread is joined.
pub(crate) fn stack_goes(judge: &mut Judge) -> Outcome<Verdict> {
    extern "C" fn says_where(found: *mut libc::c_void) -> *mut libc::c_void {
        let local = 0u8;
        // SAFETY: the starter's own word, which it reads after the join.
        unsafe { found.cast::<usize>().write((&raw const local).addr()) };
        null_mut()
    }
    let mut found = 0usize;
    // The stack is found by a first thread; the second gets the same addresses.
    let run = |found: *mut usize, size: usize| -> i32 {
        // SAFETY: a thread with a stack of its own, joined before `found` goes.
        unsafe {
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            libc::pthread_attr_init(&raw mut attributes);
            libc::pthread_attr_setstacksize(&raw mut attributes, size);
            let mut thread = 0;
            let made = libc::pthread_create(&raw mut thread, &raw const attributes, says_where, found.cast());
            if made == 0 { libc::pthread_join(thread, null_mut()) } else { made }
        }
    };
    // A size that no other thread of the process has.
    const SMALL: usize = 12 * MIB;
    if run(&raw mut found, SMALL) != 0 {
        return skipped("pthread_create");
    }
    // libc has kept this stack, with its pages. A page far from its ends.
    let memory = Memory { at: (found - 4 * MIB) & !(PAGE - 1), len: 2 * PAGE };
    judge.before(memory.at, memory.len)?;
    // The next thread takes the stack and gives its pages back at its end; a
    // large one drives it out of libc's store.
    let (mut same, mut other) = (0usize, 0usize);
    if run(&raw mut same, SMALL) != 0 || run(&raw mut other, 256 * MIB) != 0 {
        return skipped("pthread_create");
    }
    if same != found {
        return Err(Verdict::Skipped("the second thread got another stack".to_owned()));
    }
    // Whatever libc did with it, there is memory again.
    let _ = memory.map_again();
    judge.after(memory.at, memory.len)
}

unsafe extern "C" {
    /// fork without the handlers of pthread_atfork(3) (glibc 2.34).
    fn _Fork() -> libc::pid_t;
}

/// What `child` returns after a fork, as its exit status.
fn in_child(fork: unsafe extern "C" fn() -> libc::pid_t, child: impl FnOnce() -> i32) -> Outcome<i32> {
    // SAFETY: the row's process has one thread besides the reaper; the child
    // ends without running anything of the parent's.
    unsafe {
        let pid = fork();
        if pid == 0 {
            libc::_exit(child());
        }
        let mut status = 0;
        if pid < 0 || libc::waitpid(pid, &raw mut status, 0) != pid || !libc::WIFEXITED(status) {
            return skipped("fork");
        }
        Ok(libc::WEXITSTATUS(status))
    }
}

pub(crate) fn child_unmaps(judge: &mut Judge) -> Outcome<Verdict> {
    crate::pages::changed(judge, |memory| {
        // SAFETY: the child's own copy of the row's pages.
        match in_child(libc::fork, || unsafe { libc::munmap(memory.pointer(), memory.len) })? {
            0 => Ok(()),
            _ => skipped("munmap in the child"),
        }
    })
}

fn gets_in_child(judge: &mut Judge, fork: unsafe extern "C" fn() -> libc::pid_t) -> Outcome<Verdict> {
    let memory = Memory::private(2)?;
    judge.before(memory.at, memory.len)?;
    let get =
        || judge.registry.get((memory.at as *const u8, memory.len), pinyard_registry::Access::LOCAL_READ);
    let refuses = || matches!(get(), Err(pinyard_registry::GetError::Forked));
    match in_child(fork, || i32::from(refuses()))? {
        1 => Ok(Verdict::Refused("the registry belongs to the parent".to_owned())),
        _ => Ok(Verdict::Stale),
    }
}

pub(crate) fn child_gets(judge: &mut Judge) -> Outcome<Verdict> {
    gets_in_child(judge, libc::fork)
}

pub(crate) fn child_of_under_fork_gets(judge: &mut Judge) -> Outcome<Verdict> {
    gets_in_child(judge, _Fork)
}

pub(crate) fn child_of_number_gets(judge: &mut Judge) -> Outcome<Verdict> {
    /// As fork does, without libc's part.
    unsafe extern "C" fn fork() -> libc::pid_t {
        // SAFETY: SYS_clone with a signal alone is fork(2).
        unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t }
    }
    gets_in_child(judge, fork)
}
