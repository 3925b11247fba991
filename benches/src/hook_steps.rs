//! The instructions that a hook takes from libc's entry to the system call, counted
//! by single-stepping a traced child through real calls: the patch, the trampoline
//! and the hook. (callgrind runs its own copy of text and never sees a patch.)
//!
//! Prints a line for each path, as xtask/ci/instructions.sh reads it.
#![allow(unsafe_code, clippy::disallowed_methods)]

use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, MemoryKey, Registry};
use std::ffi::CStr;
use std::ptr::null_mut;

const PAGE: usize = 4096;
/// More steps than any path takes.
const MOST: u32 = 10_000;

/// A call of a hooked function, and the name of its entry.
struct Path {
    name: &'static str,
    entry: &'static CStr,
    call: fn(usize),
}

const PATHS: [Path; 4] = [
    // SAFETY: a page that the program has made for it, in a child.
    Path { name: "munmap", entry: c"munmap", call: |at| unsafe { _ = libc::munmap(at as *mut _, PAGE) } },
    Path {
        name: "madvise",
        entry: c"madvise",
        // SAFETY: as above.
        call: |at| unsafe { _ = libc::madvise(at as *mut _, PAGE, libc::MADV_DONTNEED) },
    },
    Path {
        name: "mmap_fixed",
        entry: c"mmap",
        call: |at| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: as above.
            unsafe { _ = libc::mmap(at as *mut _, PAGE, libc::PROT_READ, flags, -1, 0) };
        },
    },
    Path {
        name: "mmap_new",
        entry: c"mmap",
        call: |_| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping.
            unsafe { _ = libc::mmap(null_mut(), PAGE, libc::PROT_READ, flags, -1, 0) };
        },
    },
];

/// Of a region of many pages, which the hook passes over in one step.
const LARGE_PAGES: usize = 4096;
const LARGE: Path = Path {
    name: "munmap_large",
    entry: c"munmap",
    // SAFETY: pages that the program has made for it, in a child.
    call: |at| unsafe { _ = libc::munmap(at as *mut _, LARGE_PAGES * PAGE) },
};

fn fail(cause: &str) -> ! {
    eprintln!("hook-steps: {cause}: {}", std::io::Error::last_os_error());
    std::process::exit(1)
}

fn entry_of(name: &CStr) -> u64 {
    // SAFETY: libc is loaded.
    unsafe {
        let handle = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        libc::dlsym(handle, name.as_ptr()).addr() as u64
    }
}

/// Instructions from the entry to the first system call, both included.
fn count(path: &Path, at: usize) -> u32 {
    let entry = entry_of(path.entry);
    // SAFETY: the child makes the one call and exits; the parent traces it, and
    // reads registers and text of a stopped child of its own.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
            (path.call)(at);
            libc::_exit(0);
        }
        let mut status = 0;
        let mut inside = 0;
        while libc::waitpid(child, &mut status, 0) == child && libc::WIFSTOPPED(status) && inside < MOST {
            let mut registers: libc::user_regs_struct = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETREGS, child, 0, &mut registers);
            if inside > 0 || registers.rip == entry {
                inside += 1;
                let word = libc::ptrace(libc::PTRACE_PEEKTEXT, child, registers.rip, 0);
                if word & 0xffff == 0x050f {
                    break;
                }
            }
            libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0);
        }
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &mut status, 0);
        if inside == 0 || inside == MOST {
            eprintln!("hook-steps: {}: {inside} instructions, of at most {MOST}", path.name);
            std::process::exit(1)
        }
        inside
    }
}

fn pages(count: usize) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping.
    match unsafe { pinyard_hooks::sys::mmap(0, count * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags) } {
        Ok(at) => at,
        Err(errno) => fail(&format!("mmap, errno {errno}")),
    }
}

fn main() {
    /// Above what the kernel maps next, and far from the code.
    const ELSEWHERE: usize = 0x10_0000_0000;
    let print = |what: &str, at: usize| {
        for path in &PATHS {
            println!("steps_{}_{what} {}", path.name, count(path, at));
        }
    };
    let (one, large) = (pages(1), pages(LARGE_PAGES));
    let backend = Custom::new("dummy", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let registry = match Registry::builder().backend(backend).max_regions(20_000).build() {
        Ok(registry) => registry,
        Err(error) => fail(&error.to_string()),
    };
    if !pinyard_hooks::verify() {
        fail("hooks are not complete");
    }
    print("nothing_registered", one);
    for region in 0..10_000 {
        let at = (ELSEWHERE + 2 * region * PAGE) as *const u8;
        if registry.get((at, PAGE), Access::LOCAL_READ).is_err() {
            fail("get");
        }
    }
    print("registered_elsewhere", one);
    if registry.get((one as *const u8, PAGE), Access::LOCAL_READ).is_err() {
        fail("get");
    }
    print("registered_there", one);
    if registry.get((large as *const u8, LARGE_PAGES * PAGE), Access::LOCAL_READ).is_err() {
        fail("get");
    }
    println!("steps_{}_registered_there {}", LARGE.name, count(&LARGE, large));
}
