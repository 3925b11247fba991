//! Riding on another library's hooks, in place of patching: UCX's libucm, or Open
//! MPI's memory hooks, where one of them owns the entries; or what
//! libpinyard_preload.so exports in front of libc's functions, where no entry may be
//! patched.
//!
//! All call back before pages go, and all miss ways of changing a mapping that
//! our own entries see (`mremap` over a target, `MADV_DONTNEED_LOCKED`,
//! `process_madvise`, system calls by number), so whoever rides lets userfaultfd
//! watch as well. A callback follows the rules of a hook (`entry.rs`).
#![allow(unsafe_code)]

use crate::install;
use crate::monitor::notify_unmapped;
use crate::report::{Function, Seen, Why};
use core::ffi::CStr;
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering::*};

/// `UCM_EVENT_VM_UNMAPPED` (`ucm/api/ucm.h`).
const VM_UNMAPPED: i32 = 1 << 17;
/// Before the call that unmaps, and before others' handlers of it.
const PRIORITY: i32 = -1000;

/// The part of `ucm_event_t` that belongs to [`VM_UNMAPPED`].
#[repr(C)]
struct Unmapped {
    address: *const u8,
    size: usize,
}

extern "C" fn told_by_ucm(_: i32, event: *const Unmapped, _: *mut libc::c_void) {
    // SAFETY: libucm passes the event that the handler was set for, and keeps it
    // for the time of the call.
    let event = unsafe { &*event };
    notify_unmapped(event.address, event.size);
}

extern "C" fn told_by_open_mpi(address: *const u8, size: usize, _: *mut libc::c_void, _: bool) {
    notify_unmapped(address, size);
}

/// The address of `function` in a library that is loaded already.
fn loaded(library: &CStr, function: &CStr) -> Option<*mut libc::c_void> {
    // SAFETY: NUL-terminated names; NOLOAD finds a library and loads none. Our
    // code is called from it for ever: NODELETE keeps it.
    let at = unsafe {
        let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        let handle = libc::dlopen(library.as_ptr(), flags);
        libc::dlsym(if handle.is_null() { libc::RTLD_DEFAULT } else { handle }, function.as_ptr())
    };
    (!at.is_null()).then_some(at)
}

extern "C" fn told_by_preload(address: *mut libc::c_void, size: usize) {
    notify_unmapped(address.cast_const().cast(), size);
}

type Ridden = Result<(), Why>;

/// Has `register` register once per process, then tests whether a munmap arrives.
fn ride(once: &AtomicBool, register: impl FnOnce() -> Ridden) -> Ridden {
    ride_and(once, register, || install::try_entry(Function::Munmap))
}

fn ride_and(once: &AtomicBool, register: impl FnOnce() -> Ridden, test: impl FnOnce() -> Seen) -> Ridden {
    if !once.swap(true, AcqRel)
        && let Err(why) = register()
    {
        once.store(false, Release);
        return Err(why);
    }
    install::stay_loaded();
    match test() {
        Seen::Yes => Ok(()),
        Seen::No(why) | Seen::NotExercised(why) => Err(why),
    }
}

/// Rides on libucm's hooks, which it puts in place if they are not yet. Not for
/// hooks or signal handlers.
pub fn on_ucm() -> Result<(), Why> {
    type SetHandler = extern "C" fn(
        i32,
        i32,
        extern "C" fn(i32, *const Unmapped, *mut libc::c_void),
        *mut libc::c_void,
    ) -> i8;
    static ONCE: AtomicBool = AtomicBool::new(false);
    ride(&ONCE, || {
        let set = loaded(c"libucm.so.0", c"ucm_set_event_handler")
            .ok_or(Why { call: "dlopen(libucm.so.0, RTLD_NOLOAD): UCX is not loaded", errno: 0 })?;
        // SAFETY: the function of this name has this signature since UCX 1.0.
        let set = unsafe { transmute::<*mut libc::c_void, SetHandler>(set) };
        match set(VM_UNMAPPED, PRIORITY, told_by_ucm, null_mut()) {
            0 => Ok(()),
            _ => Err(Why { call: "ucm_set_event_handler(UCM_EVENT_VM_UNMAPPED)", errno: 0 }),
        }
    })
}

/// Rides on Open MPI's memory hooks, which it has put in place if one of its
/// transports caches registrations. Not for hooks or signal handlers.
pub fn on_open_mpi() -> Result<(), Why> {
    type Callback = extern "C" fn(*const u8, usize, *mut libc::c_void, bool);
    type Register = extern "C" fn(Callback, *mut libc::c_void) -> i32;
    static ONCE: AtomicBool = AtomicBool::new(false);
    ride(&ONCE, || {
        let register = [c"libopen-pal.so.40", c"libopen-pal.so.80"]
            .into_iter()
            .find_map(|library| loaded(library, c"opal_mem_hooks_register_release"))
            .ok_or(Why { call: "dlopen(libopen-pal.so, RTLD_NOLOAD): Open MPI is not loaded", errno: 0 })?;
        // SAFETY: the function of this name has this signature since Open MPI 1.0.
        let register = unsafe { transmute::<*mut libc::c_void, Register>(register) };
        match register(told_by_open_mpi, null_mut()) {
            0 => Ok(()),
            errno => Err(Why { call: "opal_mem_hooks_register_release: Open MPI hooks nothing here", errno }),
        }
    })
}

/// Rides on the functions that libpinyard_preload.so exports under libc's names. Not
/// for hooks or signal handlers.
pub fn on_preload() -> Result<(), Why> {
    type Listen = extern "C" fn(crate::listener::Listener) -> bool;
    static ONCE: AtomicBool = AtomicBool::new(false);
    let register = || {
        // SAFETY: a NUL-terminated name.
        let listen = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"pinyard_preload_listen".as_ptr()) };
        if listen.is_null() {
            return Err(Why {
                call: "dlsym(pinyard_preload_listen): libpinyard_preload.so is not preloaded",
                errno: 0,
            });
        }
        // SAFETY: the preload library's function of this name has this signature.
        let listen = unsafe { transmute::<*mut libc::c_void, Listen>(listen) };
        let room = Why { call: "pinyard_preload_listen: no room for another listener", errno: 0 };
        listen(told_by_preload).then_some(()).ok_or(room)
    };
    ride_and(&ONCE, register, || install::try_linked(Function::Munmap))
}
