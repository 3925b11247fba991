//! UCX's registration cache: told only of what it may hold.
//!
//! From 1.17 on UCP's cache queues every change until its next lookup
//! (`UCS_RCACHE_FLAG_SYNC_EVENTS` in `ucs/memory/rcache.c`): 144 bytes for each munmap
//! of a program that communicates no more (vLLM #24264). `UCX_RCACHE_MAX_UNRELEASED`
//! bounds the queue with a thread that empties it, beside lookups that take no lock
//! (`ucs_rcache_lookup_unsafe`), so it is not set here. Instead the handler that a
//! cache gives to UCX's hooks is wrapped: a change reaches the cache where it touches
//! a page that the cache was asked for (`ucs_rcache_get`) since it was last told of
//! that page.
//!
//! That is enough. What a cache holds is the union of ranges that it was asked for,
//! each widened to the alignment that was asked for, and marked before UCX sees it.
//! A mark goes when the cache is told, inside the change: from then on the queue has
//! it, and the next lookup drops the region. So the queue is no longer than what was
//! registered has pages.
//!
//! Who calls `ucs_rcache_create` through this library also calls `ucs_rcache_get`
//! through it: both are looked up in the same scope.

use crate::caller;
use crate::loader;
use crate::object;
use crate::pages::Pages;
use crate::say::say;
use crate::settings::{Level, Ucx, settings};
use crate::stubs::Seven;
use core::ffi::c_void;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

/// `UCS_ERR_UNSUPPORTED`.
const UNSUPPORTED: isize = -22;
/// `UCM_EVENT_VM_UNMAPPED` (`ucm/api/ucm.h`).
pub(crate) const VM_UNMAPPED: usize = 1 << 17;
/// The first version whose cache queues every change.
const QUEUES_ALL: (u32, u32) = (1, 17);
/// Marks reach at least this far beyond what is asked for: UCX widens to pages, and to
/// more where a device wants it.
const WIDEN: usize = 64 << 10;
/// No device asks for more; a fourth argument that says more is none of an alignment.
const WIDEST: usize = 1 << 30;
/// Caches at the same time; a further one hears of every change.
const MOST: usize = 16;

/// `ucm_event_callback_t`.
type Callback = extern "C" fn(i32, *const Change, *mut c_void);

/// The part of `ucm_event_t` that belongs to [`VM_UNMAPPED`].
#[repr(C)]
pub(crate) struct Change {
    pub(crate) address: usize,
    pub(crate) size: usize,
}

struct Wrapped {
    cache: *mut c_void,
    callback: Callback,
    events: usize,
    /// libucs's `ucs_rcache_get`.
    get: Seven,
    pages: Pages,
    /// The widest alignment that was asked for: merged regions keep it.
    widen: AtomicUsize,
}

/// A cache by its address (0: free, [`TAKEN`]: nearly), and what belongs to it.
struct Slot {
    cache: AtomicUsize,
    wrapped: AtomicPtr<Wrapped>,
}

const TAKEN: usize = 1;
static SLOTS: [Slot; MOST] =
    [const { Slot { cache: AtomicUsize::new(0), wrapped: AtomicPtr::new(null_mut()) } }; MOST];

/// Changes that caches were told of, and that they were spared.
static TOLD: AtomicU64 = AtomicU64::new(0);
static SPARED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// In a `ucs_rcache_create` whose cache is to be wrapped: libucs's `ucs_rcache_get`.
    static CREATING: Cell<usize> = const { Cell::new(0) };
}

fn slot_of(cache: usize) -> Option<&'static Slot> {
    // Acquire: pairs with the store in `wrap`; what is in the slot is there.
    SLOTS.iter().find(|slot| cache > TAKEN && slot.cache.load(Acquire) == cache)
}

/// In a hook: UCX tells a cache.
extern "C" fn tell(event: i32, change: *const Change, wrapped: *mut c_void) {
    // SAFETY: given to UCX with this function, and freed after it was taken back.
    let wrapped = unsafe { &*wrapped.cast::<Wrapped>() };
    if event as usize == VM_UNMAPPED {
        // SAFETY: UCX passes the event's own part, for the time of the call.
        let Change { address, size } = *unsafe { &*change };
        if !wrapped.pages.take(address, address.saturating_add(size)) {
            SPARED.fetch_add(1, Relaxed);
            return;
        }
        TOLD.fetch_add(1, Relaxed);
    }
    (wrapped.callback)(event, change, wrapped.cache);
}

/// `ucs_rcache_create(params, name, statistics, cache)`.
#[allow(clippy::too_many_arguments)]
pub(crate) extern "C" fn create(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    caller: usize,
) -> isize {
    let Some(real) = caller::real(c"ucs_rcache_create", caller) else { return UNSUPPORTED };
    let settings = settings();
    let wanted = settings.on && settings.ucx != Ucx::Nothing;
    let get = if wanted && queues_all(caller) {
        object::name_at(real).and_then(|object| loader::in_object(object, c"ucs_rcache_get"))
    } else {
        None
    };
    let before = CREATING.replace(get.unwrap_or(0));
    // SAFETY: libucs's own function, with the caller's arguments.
    let result = unsafe { core::mem::transmute::<usize, Seven>(real) }(a, b, c, d, e, f, g);
    CREATING.set(before);
    result
}

/// Whether the code at `caller` is a UCP whose cache queues every change.
fn queues_all(caller: usize) -> bool {
    let version = object::name_at(caller).and_then(|ucp| loader::in_object(ucp, c"ucp_get_version"));
    let Some(version) = version else { return false };
    let (mut major, mut minor, mut release) = (0, 0, 0);
    // SAFETY: the function of this name stores three numbers (`ucp/api/ucp.h`).
    let version =
        unsafe { core::mem::transmute::<usize, extern "C" fn(*mut u32, *mut u32, *mut u32)>(version) };
    version(&raw mut major, &raw mut minor, &raw mut release);
    (major, minor) >= QUEUES_ALL
}

/// What UCX is to call in the place of `callback(argument)` for `events`.
pub(crate) fn in_place_of(events: usize, callback: usize, argument: usize) -> (usize, usize) {
    let get = CREATING.replace(0);
    let slot = if get != 0 && events & VM_UNMAPPED != 0 { free_slot() } else { None };
    let Some(slot) = slot else { return (callback, argument) };
    // SAFETY: the address of libucs's function, and of the cache's own handler.
    let (get, handler) = unsafe {
        (core::mem::transmute::<usize, Seven>(get), core::mem::transmute::<usize, Callback>(callback))
    };
    let wrapped = Box::into_raw(Box::new(Wrapped {
        cache: argument as *mut c_void,
        callback: handler,
        events,
        get,
        pages: Pages::new(),
        widen: AtomicUsize::new(WIDEN),
    }));
    slot.wrapped.store(wrapped, Release);
    slot.cache.store(argument, Release);
    counted_at_exit();
    (tell as *const () as usize, wrapped as usize)
}

fn free_slot() -> Option<&'static Slot> {
    SLOTS.iter().find(|slot| slot.cache.compare_exchange(0, TAKEN, AcqRel, Relaxed).is_ok())
}

/// `ucs_rcache_get(cache, address, length, …)`: marks, then UCX's own.
#[allow(clippy::too_many_arguments)]
pub(crate) extern "C" fn get(
    cache: usize,
    address: usize,
    length: usize,
    alignment: usize,
    e: usize,
    f: usize,
    g: usize,
    caller: usize,
) -> isize {
    let real = match slot_of(cache) {
        Some(slot) => {
            // SAFETY: the slot's, and the caller uses the cache: it is not being destroyed.
            let wrapped = unsafe { &*slot.wrapped.load(Acquire) };
            let asked = if alignment.is_power_of_two() && alignment <= WIDEST { alignment } else { 0 };
            let widen = wrapped.widen.fetch_max(asked, AcqRel).max(asked);
            let end = address.saturating_add(length).saturating_add(widen - 1);
            wrapped.pages.mark(address & !(widen - 1), end & !(widen - 1));
            wrapped.get
        }
        None => match caller::real(c"ucs_rcache_get", caller) {
            // SAFETY: libucs's own function.
            Some(real) => unsafe { core::mem::transmute::<usize, Seven>(real) },
            None => return UNSUPPORTED,
        },
    };
    real(cache, address, length, alignment, e, f, g)
}

/// `ucm_unset_event_handler(events, callback, argument)`.
#[allow(clippy::too_many_arguments)]
pub(crate) extern "C" fn unset_event_handler(
    events: usize,
    callback: usize,
    argument: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    caller: usize,
) -> isize {
    let Some(real) = caller::real(c"ucm_unset_event_handler", caller) else { return UNSUPPORTED };
    // SAFETY: UCX's own function.
    let real = unsafe { core::mem::transmute::<usize, Seven>(real) };
    let slot = slot_of(argument).filter(|slot| {
        // SAFETY: the slot's; who takes the handler back has not destroyed the cache.
        unsafe { &*slot.wrapped.load(Acquire) }.callback as *const () as usize == callback
    });
    let Some(slot) = slot else { return real(events, callback, argument, d, e, f, g) };
    let wrapped = slot.wrapped.load(Acquire);
    let result = real(events, tell as *const () as usize, wrapped as usize, d, e, f, g);
    // SAFETY: as above. UCX waits for handlers that run before it takes one back.
    if unsafe { &*wrapped }.events & !events == 0 {
        slot.cache.store(TAKEN, Release);
        slot.wrapped.store(null_mut(), Release);
        slot.cache.store(0, Release);
        // SAFETY: from `into_raw`, once; neither UCX nor a slot has it any more.
        drop(unsafe { Box::from_raw(wrapped) });
    }
    result
}

/// Undoes [`in_place_of`] where UCX refused the handler.
pub(crate) fn refused(argument: usize) {
    let slot = SLOTS.iter().find(|slot| argument != 0 && slot.wrapped.load(Acquire) as usize == argument);
    if let Some(slot) = slot {
        slot.cache.store(TAKEN, Release);
        slot.wrapped.store(null_mut(), Release);
        slot.cache.store(0, Release);
        // SAFETY: from `into_raw`, once; UCX did not take it.
        drop(unsafe { Box::from_raw(argument as *mut Wrapped) });
    }
}

/// Says at the end what the caches were told, where that is asked for.
fn counted_at_exit() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    extern "C" fn counts() {
        crate::guarded(|| {
            let (told, spared) = (TOLD.load(Relaxed), SPARED.load(Relaxed));
            say(Level::Debug, format_args!("UCX: its cache was told of {told} changes, and spared {spared}"));
        });
    }
    if settings().log >= Level::Debug && !ONCE.swap(true, AcqRel) {
        // SAFETY: a plain function; where it is refused, the line is missing.
        unsafe { libc::atexit(counts) };
    }
}
