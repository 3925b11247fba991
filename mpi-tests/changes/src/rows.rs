//! The rows, in the order of the table.

use crate::judge::{Judge, Outcome, Verdict};
use crate::{files, heap, objects, pages, raw};

/// One way of changing a mapping.
pub struct Row {
    /// What it is called, on the command line too.
    pub name: &'static str,
    /// Who changes what.
    pub what: &'static str,
    /// The verdict's word in each of [`Setup::ALL`](crate::Setup::ALL).
    pub expected: [&'static str; 4],
    /// What to do about it, where it goes unnoticed in the default set-up although no
    /// more can be done here.
    pub known: Option<&'static str>,
    pub(crate) run: Run,
}

type Run = fn(&mut Judge) -> Outcome<Verdict>;

const SEEN: &str = "seen";
const KEPT: &str = "rightly kept";
const UNCACHED: &str = "uncached";
const STALE: &str = "STALE";
const REFUSED: &str = "refused";

const fn row(name: &'static str, what: &'static str, expected: [&'static str; 4], run: Run) -> Row {
    Row { name, what, expected, known: None, run }
}

impl Row {
    const fn known(mut self, remedy: &'static str) -> Row {
        self.known = Some(remedy);
        self
    }
}

/// Replaces pinned pages through a function of libc.
const fn libc(name: &'static str, what: &'static str, run: Run) -> Row {
    row(name, what, [SEEN, SEEN, SEEN, STALE], run)
}

/// Replaces pinned pages with a system call of its own.
const fn raw(name: &'static str, what: &'static str, run: Run) -> Row {
    row(name, what, [SEEN, STALE, SEEN, STALE], run)
}

/// Changes pages of a file or of shared memory, which the kernel tells nobody.
const fn file(name: &'static str, what: &'static str, by_entry: &'static str, run: Run) -> Row {
    row(name, what, [UNCACHED, by_entry, UNCACHED, STALE], run)
}

/// Leaves pinned pages in place.
const fn keeps(name: &'static str, what: &'static str, run: Run) -> Row {
    row(name, what, [KEPT, KEPT, KEPT, KEPT], run)
}

/// All rows.
pub const ROWS: &[Row] = &[
    libc("munmap", "munmap of the whole range", pages::munmap),
    libc("munmap-part", "munmap of a part", pages::munmap_part),
    libc("mmap-fixed", "mmap with MAP_FIXED over it", pages::mmap_over),
    libc("mremap-move", "mremap that grows and moves", pages::mremap_move),
    libc("mremap-shrink", "mremap that shrinks", pages::mremap_shrink),
    libc("mremap-fixed-source", "mremap with MREMAP_FIXED, away", pages::mremap_fixed_source),
    libc("mremap-fixed-target", "mremap with MREMAP_FIXED, over it", pages::mremap_fixed_target),
    libc("mremap-dontunmap", "mremap with MREMAP_DONTUNMAP", pages::mremap_dontunmap),
    libc("madv-dontneed", "madvise MADV_DONTNEED", pages::dontneed),
    libc("madv-dontneed-locked", "madvise MADV_DONTNEED_LOCKED", pages::dontneed_locked),
    // userfaultfd tells of it all the same, needlessly.
    row("madv-free", "madvise MADV_FREE: pinned pages stay", [SEEN, KEPT, SEEN, KEPT], pages::free),
    // The kernel tells userfaultfd nothing of guards (`mm/madvise.c`).
    row("madv-guard", "madvise MADV_GUARD_INSTALL and _REMOVE", [SEEN, SEEN, STALE, STALE], pages::guard),
    row("madv-guard-raw", "MADV_GUARD_INSTALL by an inline syscall", [STALE; 4], pages::guard_raw).known(
        "the kernel tells nobody; call pny_notify_unmapped before MADV_GUARD_INSTALL by a raw system call",
    ),
    raw("madvise-by-ring", "madvise MADV_DONTNEED by an io_uring", pages::by_ring),
    keeps("mprotect", "mprotect to nothing and back", pages::mprotect),
    libc("process-madvise", "process_madvise on itself", pages::process_madvise),
    libc(
        "process-madvise-number",
        "the same, syscall(SYS_process_madvise)",
        pages::process_madvise_by_number,
    ),
    raw("process-madvise-raw", "the same, inline syscall", pages::process_madvise_raw),
    libc("brk", "brk that shrinks", heap::brk_shrinks),
    libc("sbrk", "sbrk that shrinks", heap::sbrk_shrinks),
    libc("free", "free of a large block", heap::free_large),
    libc("realloc", "realloc that moves", heap::realloc_moves),
    libc("malloc-trim", "malloc_trim", heap::malloc_trim),
    libc("thread-stack", "a thread's stack after its end", heap::stack_goes),
    libc("syscall-munmap", "syscall(SYS_munmap)", pages::syscall_munmap),
    libc("syscall-madvise", "syscall(SYS_madvise)", pages::syscall_madvise),
    // The kernel tells userfaultfd nothing of this one (`ipc/shm.c`).
    row("shmat-remap", "shmat with SHM_REMAP over it", [SEEN, SEEN, STALE, STALE], pages::shmat_over),
    file("dlclose", "dlclose: the loader's own munmap", SEEN, objects::dlclose),
    keeps("dlopen", "dlopen: the loader's own mmap", objects::dlopen),
    raw("inline-munmap", "inline syscall: munmap", raw::munmap),
    raw("inline-madvise", "inline syscall: madvise", raw::madvise),
    raw("inline-mmap", "inline syscall: mmap with MAP_FIXED", raw::mmap_over),
    raw("inline-mremap", "inline syscall: mremap", raw::mremap_away),
    raw("go-munmap", "munmap as the Go runtime makes it", raw::go_munmap),
    raw("rustix-munmap", "munmap of rustix, raw backend", raw::rustix_munmap),
    raw("rustix-madvise", "madvise of rustix, raw backend", raw::rustix_madvise),
    file("madv-remove", "madvise MADV_REMOVE of shared memory", SEEN, files::madv_remove),
    file(
        "madv-remove-alias",
        "the same, through another mapping of the file",
        SEEN,
        files::madv_remove_alias,
    ),
    file("punch-hole", "fallocate PUNCH_HOLE of a mapped memfd", SEEN, files::punch_hole),
    file("punch-hole-number", "the same, syscall(SYS_fallocate)", SEEN, files::punch_hole_by_number),
    file("punch-hole-raw", "the same, inline syscall", STALE, files::punch_hole_raw),
    file("punch-hole-elsewhere", "the same, by another process", STALE, files::punch_hole_elsewhere),
    file("ftruncate", "ftruncate of a mapped memfd", SEEN, files::ftruncate),
    file("ftruncate-private", "the same, mapped privately", SEEN, files::ftruncate_private),
    file("open-truncating", "open with O_TRUNC of a mapped memfd", STALE, files::open_truncating),
    file("remap-file-pages", "remap_file_pages", SEEN, files::remap_file_pages),
    file("shmdt", "shmdt of a SysV segment", SEEN, files::shmdt),
    keeps("child-unmaps", "munmap in a child, after fork", heap::child_unmaps),
    row("child-gets", "get in a child, after fork", [REFUSED; 4], heap::child_gets),
    row(
        "child-gets-under",
        "the same, after _Fork: no handler runs",
        [REFUSED; 4],
        heap::child_of_under_fork_gets,
    ),
    row("child-gets-number", "the same, syscall(SYS_clone)", [REFUSED; 4], heap::child_of_number_gets),
];
