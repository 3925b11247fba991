//! How large a thread's stack has to be.
#![allow(unsafe_code)]

use crate::{daemon, own_object};
use core::mem::{MaybeUninit, transmute};
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Release},
};

/// What a thread of this project has for itself, in bytes, unless it is known to need less.
pub const THREAD_STACK: usize = 2 << 20;

/// What glibc takes of each stack; 0 before it was asked, which it is once: static
/// thread-local storage does not grow.
static MINIMUM: AtomicUsize = AtomicUsize::new(0);

/// The stack size, in bytes, of a thread that needs `need` bytes itself.
///
/// glibc takes the process's static thread-local storage, and what a signal handler
/// needs, out of a thread's stack. Fortran's `threadprivate` commons make megabytes of
/// it. A thread whose stack is smaller is refused with EINVAL; one whose stack is just
/// larger runs off its end. Every thread of the libraries is made with this size.
///
/// The first call asks the loader, also for what [`daemon`](crate::daemon) counts with, and forbids dlclose of the
/// object that this code is in: a thread of ours may end later. Not under a lock, not in a hook or signal handler.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let thread = std::thread::Builder::new().stack_size(pinyard_hooks::stack_size(64 << 10));
/// thread.spawn(|| ())?.join().unwrap();
/// # Ok(())
/// # }
/// ```
pub fn stack_size(need: usize) -> usize {
    let mut minimum = MINIMUM.load(Acquire);
    if minimum == 0 {
        minimum = ask_the_loader();
        MINIMUM.store(minimum, Release);
    }
    need.saturating_add(minimum).checked_next_multiple_of(crate::PAGE_SIZE).unwrap_or(need)
}

fn ask_the_loader() -> usize {
    type MinimalStack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> libc::size_t;
    if cfg!(miri) {
        return 0; // its threads have no stack that could be too small
    }
    own_object::keep_loaded();
    daemon::find();
    // SAFETY: a NUL-terminated name. glibc has the function for other runtimes since 2.15.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr()) };
    if at.is_null() {
        return 0;
    }
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: the function of this name has this signature; the attributes are initialised
    // before and destroyed after.
    unsafe {
        let minimal_stack = transmute::<*mut libc::c_void, MinimalStack>(at);
        libc::pthread_attr_init(attributes.as_mut_ptr());
        let minimum = minimal_stack(attributes.as_ptr());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        minimum
    }
}
